"""Parts of the study of objectives: links to runs, prefixes of rows of text, equal FLOPs."""

import csv
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from t2x.data import Bytes
from t2x.data.tokenizers.existing import Fitted
from t2x.sweeps.records import Outcome, Plan, Trial, write_outcome, write_plan

FOLDER = Path(__file__).parents[2] / 'experiments' / 'objectives'


@pytest.fixture
def modules(monkeypatch):
  """The modules of the study."""
  monkeypatch.syspath_prepend(str(FOLDER))
  import link
  import parts

  yield SimpleNamespace(link=link, parts=parts)
  for name in ('link', 'parts'):
    sys.modules.pop(name)


def test_links_name_the_finished_runs_of_every_seed(modules, monkeypatch, tmp_path):
  trials = [
    Trial(variant=variant, point={}, seed=0, identity=identity, folder=f'{identity}-0')
    for variant, identity in (('masked', 'a'), ('causal', 'b'))
  ]
  plan = Plan(
    name='pretraining',
    baseline='masked',
    metric='loss',
    goal='min',
    matched='flops',
    config='',
    versions={},
    commit='',
    trials=tuple(trials),
  )
  write_plan(tmp_path / 'pretraining', plan)
  for folder, status in (('a-0', 'finished'), ('a-100', 'finished'), ('b-0', 'diverged')):
    write_outcome(tmp_path / 'trials' / folder, Outcome(status=status))
  (tmp_path / 'trials' / 'c-0').mkdir()
  monkeypatch.setattr(sys, 'argv', ['link.py', str(tmp_path)])
  for _ in range(2):
    modules.link.main()
    links = {link.name: link.resolve().name for link in (tmp_path / 'pretrained').iterdir()}
    assert links == {'masked-0': 'a-0', 'masked-100': 'a-100'}


def test_links_of_tuned_runs_are_those_of_the_values_that_their_seeds_chose(
  modules, monkeypatch, tmp_path
):
  """Seed 0 runs at the value of identity a, seed 1 at that of b; both values were trained with both tuning seeds."""
  trials = tuple(
    Trial(variant='masked', point={}, seed=seed, identity=identity,
          folder=f'{identity}-{seed}', tuned={'rate': seed}, tuned_by=100 + seed)
    for seed, identity in enumerate('ab')
  )  # fmt: skip
  plan = Plan(
    name='pretraining_full',
    baseline='masked',
    metric='loss',
    goal='min',
    matched='flops',
    config='',
    versions={},
    commit='',
    trials=trials,
  )
  write_plan(tmp_path / 'pretraining_full', plan)
  for folder in ('a-0', 'b-1', 'a-100', 'a-101', 'b-100', 'b-101'):
    write_outcome(tmp_path / 'trials' / folder, Outcome(status='finished'))
  command = ['link.py', str(tmp_path), '--sweep', 'pretraining_full']
  monkeypatch.setattr(sys, 'argv', command)
  modules.link.main()
  links = {link.name: link.resolve().name for link in (tmp_path / 'pretrained').iterdir()}
  assert links == {
    'masked-0': 'a-0',
    'masked-1': 'b-1',
    'masked-100': 'a-100',
    'masked-101': 'b-101',
  }


def test_a_prefix_of_text_is_seen_by_all_tokens_and_not_predicted(modules):
  tokenizer = Bytes().fit(lambda: (), source_fingerprint='')
  task = modules.parts.TextPrefixLM(tokenizer=Fitted(tokenizer), source=None, length=8)
  row = {'tokens': np.arange(10, 18), 'segments': np.array([1, 1, 1, 2, 2, 2, 0, 0])}
  draw = task.transform(train=True)
  drawn = [draw(row, np.random.default_rng(seed))['in_source'] for seed in range(100)]
  assert {tuple(np.flatnonzero(np.diff(in_source))) for in_source in drawn} == {
    (last,) for last in range(7)
  }
  batch = {name: np.array([values]) for name, values in row.items()}
  batch |= {'positions': np.array([[0, 1, 2, 0, 1, 2, 0, 0]])}
  batch |= {'in_source': np.array([[1, 1, 0, 0, 0, 0, 0, 0]])}
  assert task.target_weights(batch).tolist() == [[0, 0, 1, 1, 1, 1, 0, 0]]
  calls = []
  spec = SimpleNamespace(reads_prefix=True)
  model = SimpleNamespace(spec=spec, hidden=lambda inputs, **settings: calls.append(settings))
  task.hidden(model, batch, None)
  # The inputs are bos, 10, 11; bos, 13, 14: the first two tokens are given, and the start of each segment.
  assert calls[0]['tokens'].marks['prefix'].tolist() == [[True, True, True, True] + [False] * 4]


def test_objectives_have_equal_flops():
  rows = [*csv.DictReader((FOLDER / 'results' / 'pretraining' / 'results.csv').open())]
  flops = [
    float(row['flops_per_token']) * int(row['tokens_per_step']) * int(row['num_steps'])
    for row in rows
  ]
  assert max(flops) / min(flops) < 1.01
