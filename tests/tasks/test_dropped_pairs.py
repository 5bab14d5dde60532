"""Pairs that are longer than a row: how many are accepted, what is printed, and which examples metrics are over."""

import types

import numpy as np
import pytest

from t2x.base.errors import UserError
from t2x.data import Bytes, Source
from t2x.data.cache import token_rows
from t2x.domains.retrieval import Contrastive
from t2x.tasks import Captions, PrefixLM, Translation, Translations

TEXTS = [
  ('a' * n, 'b' * m) for n, m in [(3, 3), (7, 2), (2, 9), (0, 3), (5, 7), (8, 8), (1, 1), (4, 4)]
]
# Rows have 8 tokens on both sides, with eos: one pair is empty, and two are longer.
FIT = [0, 1, 4, 6, 7]


class Pairs(Source):
  def splits(self):
    return ('train', 'validation')

  def load(self, split):
    return [{'source': source, 'target': target} for source, target in TEXTS]

  def fingerprint(self):
    return f'pairs {TEXTS}'


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
  monkeypatch.setenv('T2X_CACHE', str(tmp_path))


def made(kind, **settings):
  sizes = {'source_length': 8, 'target_length': 8} | ({'length': 16} if kind is PrefixLM else {})
  task = kind(source=Pairs(), tokenizer=Bytes(), **sizes, **settings)
  return task.bound(Bytes().train([]))


@pytest.mark.parametrize('kind', [Translation, PrefixLM, Contrastive])
def test_more_than_the_limit_is_refused_with_the_lengths_that_fit(kind):
  task = made(kind)
  name = kind.__name__
  message = (
    f"25.0% of the split 'train' are dropped (2 of 8 pairs), as they are longer than {name}.source_length = 8 or "
    f'{name}.target_length = 8; source_length = 9 and target_length = 10 fit all'
  )
  rows = task.rows('train')
  with pytest.raises(UserError) as caught:
    task.note_rows('train', rows)
  assert (
    str(caught.value)
    == f'{message}: raise the lengths, or accept the loss with {name}.max_dropped = 0.25'
  )
  assert made(kind, max_dropped=0.25).note_rows('train', rows) == message


def test_up_to_one_percent_is_no_warning():
  task = made(Translation)
  for dropped, note in ((1, False), (2, True)):
    rows = types.SimpleNamespace(info={'examples': 100, 'dropped': dropped})
    assert bool(task.note_rows('train', rows)) == note
  assert task.note_rows('train', [{}]) == ''


@pytest.mark.parametrize('kind', [Translation, PrefixLM])
def test_examples_that_fit_are_those_in_the_rows(kind):
  task = made(kind)
  assert [task.fits(example) for example in task.source.load('train')] == [
    i in FIT for i in range(8)
  ]
  rows = token_rows(task.source, 'train', task.fitted, task.plan)
  info = rows.info
  assert info['examples'] - info['dropped'] - info['empty'] == len(FIT)


def test_the_numbers_of_pairs_are_beside_the_metrics():
  task = made(Translation)
  means = {'loss': (2.0, 4.0), 'accuracy': (1.0, 4.0)}
  metrics = task.summarise(means, task.rows('train').info)
  assert (metrics['pairs'], metrics['dropped_pairs']) == (5, 2)
  assert 'pairs' not in task.summarise(
    means, {'examples': 8, 'dropped': 0, 'bytes': 1, 'tokens': 1}
  )


def test_generated_targets_are_scored_for_the_pairs_in_the_rows(monkeypatch):
  task = made(Translation)
  seen = []

  def generate(self, model, prompts, **settings):
    seen.extend(prompts)
    return [[{'text': 'b' * 3, 'score': 0.0}] for _ in prompts]

  monkeypatch.setattr(Translation, 'generate', generate)
  evaluated = types.SimpleNamespace(task=task, model=lambda: None, watched=iter)
  result = Translations(batch_size=2, split='train')(evaluated)
  assert {*seen} == {TEXTS[i][0] for i in FIT}
  assert result.metrics['examples'] == len(FIT) and result.metrics['dropped'] == 3
  np.testing.assert_allclose(result.metrics['exact_match'], 1 / len(FIT))
  assert Captions.fits is not Translation.fits
