"""Error rates of a report after the settings were changed, by the simulation of experiments/statistics."""

import importlib.util
import math
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


@pytest.mark.nightly
def test_the_best_variants_of_a_report_are_not_declared_different_more_often():
  path = ROOT / 'experiments' / 'statistics' / 'second_look.py'
  spec = importlib.util.spec_from_file_location('second_look', path)
  module = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(module)
  rates = module.simulate(comparisons=6, seeds=5, kept=1, sweeps=600)
  most = 0.05 + 2 * math.sqrt(0.05 * 0.95 / 600)
  assert max(rates[name] for name in ('first', 'only', 'metric')) < most
  # Without the correction, so that the simulation has something to correct.
  assert rates['only, uncorrected'] > 2 * most
