"""Reports of tuned sweeps: the unit of a test is the tuning seed, whose value one seed or a block of seeds has."""

import csv
import dataclasses
import io
import json

import numpy as np
import pytest
from scipy import stats

from t2x.sweeps.records import read_plan, write_plan
from t2x.sweeps.report import read_results, report_data, write_report
from t2x.sweeps.tune import FIRST_SEED, Choice, Tried, Tuning, write_tuning

TWO = {'vanilla': 0.0, 'geglu': -0.12}


@pytest.fixture
def tuned(sweep):
  """`tuned(choices, seeds, ...)`: a sweep whose seeds have one of `choices` tuning seeds; None: of an older version."""

  def make(choices, seeds=6, **settings):
    settings = {'effects': TWO, 'diverged': ('', 0), 'failed': ('', 0)} | settings
    folder = sweep(seeds=seeds, **settings)
    plan = read_plan(folder)
    trials = [
      dataclasses.replace(
        trial,
        tuned={'Cosine.peak': 0.1},
        tuned_by=None if choices is None else FIRST_SEED + trial.seed % choices,
      )
      for trial in plan.trials
    ]
    write_plan(folder, dataclasses.replace(plan, trials=tuple(trials), tuning='tuned'))
    tuning_seeds = range(FIRST_SEED, FIRST_SEED + (choices or 2))
    tried = (Tried(value=0.1, mean=1.0, n=2, metrics={str(s): 1.0 for s in tuning_seeds}),)
    chosen = {str(seed): 0.1 for seed in tuning_seeds} if choices else {}
    own = {'parameter': 'Cosine.peak', 'own': 0.1, 'chosen': 0.1, 'edge': '', 'tried': tried}
    cells = tuple(Choice(variant=v, point={}, values=chosen, **own) for v in plan.variants)
    write_tuning(
      folder,
      Tuning(metric='loss', goal='min', seeds=tuple(tuning_seeds), trials=4, choices=cells),
    )
    return folder

  return make


def differences(folder):
  """Differences of geglu by seed."""
  trials = {(t.variant, t.seed): t.folder for t in read_plan(folder).trials}

  def loss(name, seed):
    path = folder.parent / 'trials' / trials[name, seed] / 'trial.json'
    return json.loads(path.read_text())['metrics']['loss']

  return np.array([loss('geglu', s) - loss('vanilla', s) for s in range(len(trials) // 2)])


def row_of(folder):
  return read_results(folder).rows[1]


def test_matched_seeds_are_compared_by_the_paired_t_test(tuned):
  folder = tuned(6)
  comparison = row_of(folder).comparison
  assert (comparison.pairs, comparison.verdict) == (6, 'helps')
  expected = stats.ttest_1samp(differences(folder), 0)
  np.testing.assert_allclose(comparison.p, expected.pvalue, rtol=1e-9)


@pytest.mark.parametrize('seeds', [6, 8])
def test_blocks_are_compared_by_their_means(tuned, seeds):
  """Three tuning seeds for six seeds, and for eight: two blocks of three and one of two."""
  folder = tuned(3, seeds)
  comparison = row_of(folder).comparison
  means = [differences(folder)[block::3].mean() for block in range(3)]
  expected = stats.ttest_1samp(means, 0)
  assert comparison.pairs == 3
  np.testing.assert_allclose(comparison.p, expected.pvalue, rtol=1e-9)
  interval = expected.confidence_interval(0.95)
  np.testing.assert_allclose([comparison.low, comparison.high], interval, rtol=1e-3)
  assert row_of(folder).summary.n == seeds, 'the mean and the standard deviation are of all seeds'


@pytest.mark.parametrize(
  ('choices', 'reason'),
  [(2, 'fewer than 3 tuning seeds'), (None, 'one value was tuned for all seeds')],
)
def test_without_the_noise_of_the_choice_there_is_no_verdict(tuned, choices, reason):
  row = row_of(tuned(choices))
  assert (row.verdict, row.comparison.withheld) == ('withheld', reason)
  assert row.note.startswith(reason)


def test_a_block_with_a_diverged_seed_has_diverged(tuned):
  folder = tuned(4, 12, diverged=('geglu', 1))
  comparison = row_of(folder).comparison
  assert comparison.pairs == 3 and comparison.note == '1 of 4 blocks diverged'
  assert row_of(folder).note == (
    '3 blocks of seeds with one tuning seed each; 1 of 4 blocks diverged'
  )
  means = [differences_without(folder, block, 4) for block in (1, 2, 3)]
  p = 2 * min(stats.ttest_1samp(means, 0).pvalue, stats.barnard_exact([[1, 0], [3, 4]]).pvalue)
  np.testing.assert_allclose(comparison.p, min(1, p), rtol=1e-9)


def differences_without(folder, block, blocks):
  """Mean difference of a block in which no seed diverged."""
  trials = {(t.variant, t.seed): t.folder for t in read_plan(folder).trials}

  def loss(name, seed):
    path = folder.parent / 'trials' / trials[name, seed] / 'trial.json'
    return json.loads(path.read_text())['metrics']['loss']

  seeds = range(block, 12, blocks)
  return np.mean([loss('geglu', seed) - loss('vanilla', seed) for seed in seeds])


def test_the_report_has_the_choices_of_the_tuning_seeds(tuned):
  folder = tuned(6)
  write_report(folder)
  table = [*csv.DictReader(io.StringIO((folder / 'results.csv').read_text()))]
  by = {(row['seed'], row['tuned'], row['tuned_by']) for row in table}
  assert by == {(str(i), 'Cosine.peak = 0.1', str(FIRST_SEED + i)) for i in range(6)}
  data = report_data(read_results(folder))['tuning']
  assert (data['rows'][0]['tuned'], data['rows'][0]['curve'][0]['chosen_by']) == ('0.1', 6)
  text = (folder / 'report.md').read_text()
  assert 'a variant that is harder to tune is worse' in text
