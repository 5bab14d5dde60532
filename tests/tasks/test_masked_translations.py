"""Masked language modelling in several languages: rows, languages, and which tokens are predicted."""

import dataclasses

import numpy as np
import pytest

from t2x.base.errors import UserError
from t2x.data import Bytes, Interleaved, ProportionalWeights, Source, evaluation_batches
from t2x.layers import Input
from t2x.models import ModelSpec
from t2x.tasks import MaskedTranslations, Mixture

BYTES = Bytes().train([])
LENGTH = 40


class Pairs(Source):
  """Numbers in two writings."""

  def __init__(self, count=12):
    self.count = count

  def splits(self):
    return ('train', 'validation')

  def load(self, split):
    return [{'source': f'No. {n} of all', 'target': f'Nummer {n * n}'} for n in range(self.count)]

  def fingerprint(self):
    return f'pairs {self.count}'


@pytest.fixture
def task(tmp_path, monkeypatch):
  monkeypatch.setenv('T2X_CACHE', str(tmp_path))
  languages = {'source': 3, 'target': 1}
  return MaskedTranslations(source=Pairs(), tokenizer=Bytes(), length=LENGTH, languages=languages)


def test_types_are_languages_and_positions_start_anew_in_the_translation(task):
  rows = task.bound(BYTES).rows('train')
  for row, pair in zip(rows, Pairs().load('train'), strict=True):
    first = [BYTES.bos_id, *BYTES.encode(pair['source']), BYTES.eos_id]
    second = [*BYTES.encode(pair['target']), BYTES.eos_id]
    padding = [0] * (LENGTH - len(first) - len(second))
    assert row['tokens'].tolist() == first + second + padding
    assert row['types'].tolist() == [3] * len(first) + [1] * len(second) + padding
    assert row['positions'].tolist() == [*range(len(first)), *range(len(second)), *padding]
    assert row['segments'].tolist() == [1] * len(first + second) + padding


def test_the_same_tokens_are_predicted_with_the_other_side_shown_and_hidden(task):
  shown = dataclasses.replace(task, predicted=[1]).bound(BYTES)
  hidden = dataclasses.replace(task, languages={'target': 1}).bound(BYTES)
  batches = [
    evaluation_batches(one.rows('validation'), one.transform(train=False), 12)[0]
    for one in (shown, hidden)
  ]
  for name in ('labels', 'weights'):
    np.testing.assert_array_equal(*(batch[name] for batch in batches))
  places = [
    np.take_along_axis(batch['positions'], batch['masked_positions'], axis=1) * batch['weights']
    for batch in batches
  ]
  # A text without another begins with bos.
  np.testing.assert_array_equal(places[0] + batches[0]['weights'], places[1])
  assert batches[0]['weights'].sum() > 5


def test_languages_are_drawn_by_the_smoothed_shares_of_xlm(task):
  sizes = {'en': 1000, 'de': 300, 'sw': 10}
  tasks = {name: dataclasses.replace(task, source=Pairs(n)) for name, n in sizes.items()}
  mixture = Mixture(tasks=tasks, sampling=ProportionalWeights(temperature=1 / 0.7)).bound(BYTES)
  rows = mixture.rows('train')
  order = mixture.order(rows, 16, 0)
  assert isinstance(order, Interleaved)
  p = np.array([*sizes.values()]) / sum(sizes.values())
  q = p**0.7 / (p**0.7).sum()
  assert q[2] > 2 * p[2]
  np.testing.assert_allclose(np.array(order.counts(100_000)) / 100_000, q, atol=1e-4)


def test_a_model_without_a_vector_of_each_language_is_refused(task):
  class Model:
    spec = ModelSpec(
      inputs={'tokens': Input(vocab_size=512)},
      outputs=frozenset({'token logits'}),
      patterns=(),
      num_types=3,
    )

  with pytest.raises(UserError, match=r'needs 4 languages, but .* has 3 types: set TokenEmb'):
    task.check_model(Model())


def test_a_predicted_language_that_the_rows_lack_is_refused(task):
  with pytest.raises(UserError, match=r'predicted has the language 2, but .* has only 3, 1'):
    dataclasses.replace(task, predicted=[2])
