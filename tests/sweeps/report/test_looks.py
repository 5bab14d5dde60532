"""Looks at a sweep: recorded, and corrected when seeds are added."""

import dataclasses
import json

import numpy as np
import pytest
from scipy import stats

from t2x.sweeps.json_files import Damaged
from t2x.sweeps.records import read_plan, write_plan
from t2x.sweeps.report import read_results, write_report
from t2x.sweeps.report.looks import Look, level_of, read_looks, record_look


def plan_of(folder, seeds, max_seeds=None):
  plan = read_plan(folder)
  one = plan.trials[0]
  trials = tuple(dataclasses.replace(one, seed=seed) for seed in seeds)
  return dataclasses.replace(plan, trials=trials, max_seeds=max_seeds)


def look(seeds, max_seeds=None):
  return Look(seeds=tuple(range(seeds)), max_seeds=max_seeds, date='2026-11-23')


def test_only_complete_sweeps_are_looks(sweep):
  folder = sweep(ended=7)
  write_report(folder)
  assert not read_looks(folder)


def test_a_report_records_its_seeds_once(sweep):
  folder = sweep()
  write_report(folder)
  write_report(folder)
  (one,) = read_looks(folder)
  assert one.seeds == (0, 1, 2, 3, 4) and one.date
  assert read_results(folder).level.text(read_plan(folder)) == ''


def test_seeds_that_were_added_after_a_report_make_it_exploratory(sweep):
  folder = sweep()
  whole = read_plan(folder)
  few = tuple(trial for trial in whole.trials if trial.seed < 3)
  write_plan(folder, dataclasses.replace(whole, trials=few))
  write_report(folder)
  assert 'Exploratory' not in (folder / 'report.md').read_text()
  write_plan(folder, whole)
  write_report(folder)
  first, second = read_looks(folder)
  assert (len(first.seeds), len(second.seeds)) == (3, 5)
  text = (folder / 'report.md').read_text()
  reason = f'Exploratory: the sweep was reported with 3 seeds on {first.date} before it got 5'
  assert reason in text and reason in (folder / 'report.html').read_text()
  assert '`t2x sweep --confirm`' in text.replace('\\', '')
  # The first report does not become exploratory.
  write_plan(folder, dataclasses.replace(whole, trials=few))
  assert not read_results(folder).level.exploratory


def test_seeds_that_the_baseline_got_after_a_report_make_it_exploratory(sweep):
  folder = sweep(seeds=1)
  one = read_plan(folder).trials[0]
  others = dataclasses.replace(one, variant='geglu')
  trials = [dataclasses.replace(trial, seed=seed) for trial in (one, others) for seed in range(5)]
  more = [dataclasses.replace(one, seed=seed) for seed in range(5, 20)]
  plan = dataclasses.replace(read_plan(folder), trials=tuple(trials))
  larger = dataclasses.replace(plan, trials=(*trials, *more))
  record_look(folder, plan)
  (before,) = read_looks(folder)
  assert (before.seeds, before.baseline_seeds) == ((0, 1, 2, 3, 4), ())
  assert level_of(plan, [before]).exploratory == ''
  reason = level_of(larger, [before]).exploratory
  assert reason.startswith('the seeds of the baseline changed after the report of ')
  record_look(folder, larger)
  first, second = read_looks(folder)
  assert first == before and second.baseline_seeds == tuple(range(20))
  # Twenty seeds of the baseline from the start are one look at five seeds.
  planned = dataclasses.replace(larger, max_seeds=5)
  assert level_of(planned, []).alpha == pytest.approx(0.05)


def test_planned_looks_share_the_level(sweep):
  folder = sweep(seeds=1)
  first = level_of(plan_of(folder, range(5), 20), [])
  second = level_of(plan_of(folder, range(10), 20), [look(5, 20)])
  last = level_of(plan_of(folder, range(20), 20), [look(5, 20), look(10, 20)])
  # O'Brien and Fleming's function at a quarter and half of the seeds: 8.9e-5 and 0.0056.
  np.testing.assert_allclose(first.alpha, 2 * stats.norm.sf(2 * stats.norm.isf(0.025)), rtol=1e-9)
  np.testing.assert_allclose(first.alpha + second.alpha, 0.00557, atol=1e-5)
  np.testing.assert_allclose(first.alpha + second.alpha + last.alpha, 0.05, rtol=1e-9)
  assert (first.number, last.number) == (1, 3)
  plan = plan_of(folder, range(20), 20)
  assert 'Look 3 of a sweep that is planned for 20 seeds: level 0.0444' in last.text(plan)
  whole = level_of(plan, [])
  assert whole.alpha == pytest.approx(0.05)
  assert whole.text(plan) == 'One look, with all 20 seeds of Sweep.max_seeds: level 0.05.'
  assert 'Look 1 of a sweep that is planned for 20 seeds' in first.text(plan)


@pytest.mark.parametrize(
  ('looks', 'seeds', 'max_seeds'),
  [
    ([look(5)], range(10), None),
    ([look(5)], range(10), 10),
    ([look(5, 8)], range(10), 10),
    ([], range(10), 8),
    ([look(5, 20)], range(5, 15), 20),
  ],
)
def test_unplanned_looks_are_exploratory(sweep, looks, seeds, max_seeds):
  level = level_of(plan_of(sweep(seeds=1), seeds, max_seeds), looks)
  assert level.exploratory and level.alpha == 0.05


def test_alpha_spending_bounds_the_error_of_all_looks(sweep):
  """10,000 comparisons of equal variants at 4, 8 and 12 seeds, stopped at the first significant one."""
  folder = sweep(seeds=1)
  differences = np.random.default_rng(0).normal(size=(10_000, 12))
  looks, corrected, naive = [], np.zeros(10_000, bool), np.zeros(10_000, bool)
  for seeds in (4, 8, 12):
    p = stats.ttest_1samp(differences[:, :seeds], 0, axis=1).pvalue
    corrected |= p <= level_of(plan_of(folder, range(seeds), 12), looks).alpha
    naive |= p <= 0.05
    looks.append(look(seeds, 12))
  assert corrected.mean() <= 0.05 + 2 * np.sqrt(0.05 * 0.95 / 10_000)
  assert naive.mean() > 0.08


def test_a_damaged_file_is_reported(sweep):
  folder = sweep(seeds=2)
  (folder / 'looks.json').write_text(json.dumps({'looks': [{'seeds': 'many'}]}))
  with pytest.raises(Damaged, match=r'looks\.json is damaged'):
    read_results(folder)
