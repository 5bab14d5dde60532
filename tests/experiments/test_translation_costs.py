"""Curves of translation quality by CPU minutes."""

import json
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / 'experiments' / 'before_transformers'


@pytest.fixture
def translation(monkeypatch):
  monkeypatch.syspath_prepend(str(FOLDER))
  import translation

  yield translation
  sys.modules.pop('translation')


def test_curves_have_each_evaluation_at_the_cpu_minutes_of_its_steps(translation, tmp_path):
  trials = [
    {'variant': 'recurrent', 'seed': 3, 'folder': 'a-3'},
    {'variant': 'recurrent', 'seed': 4, 'folder': 'a-4'},
  ]
  folder, run = tmp_path / 'sweep', tmp_path / 'trials' / 'a-3'
  folder.mkdir()
  run.mkdir(parents=True)
  (folder / 'sweep.json').write_text(json.dumps({'trials': trials}))
  lines = [{'step': 20, 'split': 'train', 'loss': 5.0}]
  lines += [
    {'step': n, 'split': 'eval', 'loss': 100 / n, 'translations/bleu': float(n)} for n in (30, 60)
  ]
  (run / 'metrics.jsonl').write_text('\n'.join(map(json.dumps, lines)))
  rows = translation.curves(folder, {'recurrent': 0.2})
  common = {'system': 'recurrent', 'seed': 3}
  # The second trial has not begun.
  assert rows == [
    common | {'step': 30, 'cpu_minutes': 0.1, 'loss': 100 / 30, 'bleu': 30.0},
    common | {'step': 60, 'cpu_minutes': 0.2, 'loss': 100 / 60, 'bleu': 60.0},
  ]


def test_stored_costs_are_of_the_systems(translation):
  costs = json.loads(translation.COSTS.read_text())['cpu_seconds_per_step']
  assert costs.keys() == translation.read_sweep(FOLDER / 'translation.gin').variants.keys()
  assert all(seconds > 0 for seconds in costs.values())
