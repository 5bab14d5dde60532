"""The study of equal runs: its numbers are those of its table, and its shortcuts those of the engine."""

import json
from pathlib import Path

import numpy as np
import pytest

from experiments.referee import equal_groups, published_pairs, simulate_gate
from t2x.statistics.comparisons import Sample, compare

FOLDER = Path(equal_groups.__file__).parent


def test_the_vectorised_rate_is_that_of_the_engine():
  losses = next(of for of in equal_groups.read_groups().values() if len(of) == 20)
  values = equal_groups.splits(losses, 5, np.random.default_rng(0))[:60]
  samples = [[Sample(dict(enumerate(map(float, side)))) for side in pair] for pair in values]
  verdicts = [compare([(own, base)], 'min')[0].verdict for base, own in samples]
  share = sum(verdict in ('helps', 'hurts') for verdict in verdicts) / len(verdicts)
  assert equal_groups.verdict_rate(values) == pytest.approx(share)


def test_the_intervals_of_false_verdicts_contain_five_percent():
  rows = json.loads((FOLDER / 'results' / 'equal_groups.json').read_text())['rates']
  rows = [row for row in rows if row['rule'] == 'referee']
  assert [row['runs'] for row in rows] == [*equal_groups.RUNS]
  assert all(row['low'] <= 0.05 <= row['high'] for row in rows)


def test_the_page_has_the_verdicts_of_the_pairs():
  text = (FOLDER / 'README.md').read_text()
  for row in published_pairs.pairs():
    assert (
      f'`{row["variant"]}` | {row["runs"]} | {row["verdict"]} | {row["difference"]} ({row["interval"]})'
      in text
    )
  again = published_pairs.second_samples()
  assert (len(again), sum(row['verdict'] == row['again'] for row in again)) == (12, 12)


def test_a_search_passes_the_gate_in_fewer_than_five_percent():
  """500 searches of ten rounds: two standard errors of 5 % are 2 %."""
  result = simulate_gate.false_passes(3, 500, np.random.default_rng(1))
  assert result['with_any'] < 0.05 and result['without_any'] > 0.7
