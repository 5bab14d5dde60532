"""Looks at a sweep: recorded, and corrected when seeds are added."""

import dataclasses
import json

import numpy as np
import pytest
from scipy import stats

from t2x.base.json_files import Damaged
from t2x.sweeps.records import read_plan, write_plan
from t2x.sweeps.report import read_results, watch, write_report
from t2x.sweeps.report.looks import (
  Level,
  Look,
  judged,
  level_of,
  look_of,
  read_looks,
  record_look,
  warning,
)
from t2x.sweeps.report.summary import sentence


def plan_of(folder, seeds, max_seeds=None):
  plan = read_plan(folder)
  one = plan.trials[0]
  trials = tuple(dataclasses.replace(one, seed=seed) for seed in seeds)
  return dataclasses.replace(plan, trials=trials, max_seeds=max_seeds)


def look(seeds, max_seeds=None):
  return Look(seeds=tuple(range(seeds)), max_seeds=max_seeds, date='2026-11-23')


def unfinish(folder, *names):
  for name in names:
    (folder.parent / 'trials' / name / 'trial.json').unlink()


def test_a_partial_report_has_no_verdict_and_is_no_look(sweep):
  """Neither the differences nor their tests are shown, with --watch as well."""
  folder = sweep(ended=24)
  for results in watch(folder, None):
    assert results.progress().startswith('24 of 25 trials ended') and results.judged is None
    compared = [row.comparison for row in results.rows if row.comparison]
    reasons = {(item.verdict, item.withheld) for item in compared}
    assert reasons == {('withheld', '24 of 25 trials have ended')}
    shown = {item.difference for item in compared} | {item.p_corrected for item in compared}
    assert shown == {None} and {item.low for item in compared} == {None}
    assert all(row.summary.n for row in results.rows[:3]), 'means and curves are shown'
    assert sentence(results).startswith(
      'No verdict yet against the baseline vanilla by loss (lower is better): 24 of 25 trials have ended; '
    )
  assert not read_looks(folder)
  text = (folder / 'report.md').read_text()
  assert 'Partial report: 24 of 25 trials ended' in text and '| helps |' not in text


def test_failed_and_diverged_trials_have_ended(sweep):
  folder = sweep(diverged=('fixup', 3), failed=('relu', 4))
  write_report(folder)
  (only_look,) = read_looks(folder)
  assert only_look.comparisons == 4 and only_look.seeds == (0, 1, 2, 3, 4)
  assert {row.verdict for row in read_results(folder).rows} >= {'helps', 'hurts'}


def test_with_max_seeds_a_partial_report_judges_the_seeds_with_which_all_variants_have_ended(sweep):
  folder = sweep(seeds=8, diverged=('', 0), failed=('', 0))
  plan = dataclasses.replace(read_plan(folder), max_seeds=8)
  write_plan(folder, plan)
  # One variant has not ended with seed 2, another with seeds 6 and 7.
  names = {(trial.variant, trial.seed): trial.folder for trial in plan.trials}
  unfinish(folder, names['relu', 2], names['fixup', 6], names['fixup', 7])
  write_report(folder)
  results = read_results(folder)
  (first,) = read_looks(folder)
  assert first.seeds == (0, 1, 3, 4, 5)
  assert {row.comparison.pairs for row in results.rows if row.comparison} == {5}
  assert {row.summary.n for row in results.rows} == {6, 7, 8}, 'means and curves are of all seeds'
  spent = 2 * stats.norm.sf(stats.norm.isf(0.025) / np.sqrt(5 / 8))
  assert results.level.alpha == pytest.approx(spent)
  assert 'level 0.0132 for 5 seeds by alpha spending' in results.level.text(plan)
  assert sentence(results).startswith('So far, with 5 seeds, of 4 variants, geglu helps against')
  # The same seeds are the same look, and the last one has the rest of the level.
  write_report(folder)
  assert read_looks(folder) == [first]
  last = level_of(plan, [first])
  assert (last.number, last.exploratory) == (2, '') and last.alpha == pytest.approx(0.05 - spent)


def test_further_seeds_of_the_baseline_end_before_a_partial_report_judges(sweep):
  folder = sweep(seeds=1)
  one = read_plan(folder).trials[0]
  others = dataclasses.replace(one, variant='geglu')
  trials = [dataclasses.replace(trial, seed=seed) for trial in (one, others) for seed in range(5)]
  more = [dataclasses.replace(one, seed=seed) for seed in range(5, 20)]
  plan = dataclasses.replace(read_plan(folder), trials=(*trials, *more), max_seeds=5)
  ended = [True] * len(plan.trials)
  assert judged(plan, ended) == plan
  ended[7] = False
  assert {trial.seed for trial in judged(plan, ended).trials} == {*range(20)} - {2}
  assert judged(plan, [*ended[:-1], False]) is None
  assert judged(dataclasses.replace(plan, max_seeds=None), ended) is None


def tuned_plan(plan, values, tuned_by=True):
  """The plan with a tuned value of each seed, which is part of the identity."""
  trials = [
    dataclasses.replace(
      trial,
      identity=f'{trial.identity}-{values[trial.seed]}',
      tuned_by=1_000_000 + trial.seed if tuned_by else None,
    )
    for trial in plan.trials
    if trial.seed < len(values)
  ]
  return dataclasses.replace(plan, trials=tuple(trials), tuning='tuned')


def test_seeds_with_other_tuned_values_are_no_change_and_other_values_of_the_same_seeds_are(sweep):
  plan = dataclasses.replace(read_plan(sweep(seeds=8)), max_seeds=8)
  first = dataclasses.replace(look_of(tuned_plan(plan, [1, 1, 3])), date='2026-11-28')
  added = tuned_plan(plan, [1, 1, 3, 9, 9, 3, 1, 1])
  assert level_of(added, [first]).exploratory == ''
  for values in ([1, 3, 1, 9, 9, 3, 1, 1], [1, 1, 1, 9, 9, 3, 1, 1]):
    reason = level_of(tuned_plan(plan, values), [first]).exploratory
    assert reason == 'configs of baseline and variants changed after the report of 2026-11-28'
  # One value for all seeds, by an older version, was another protocol.
  assert level_of(tuned_plan(plan, [1] * 3, tuned_by=False), [first]).exploratory


def test_a_plan_without_results_is_no_look(sweep):
  folder = sweep(ended=0)
  write_report(folder)
  assert not read_looks(folder)


def only(plan, *variants):
  kept = tuple(trial for trial in plan.trials if trial.variant in ('vanilla', *variants))
  return dataclasses.replace(plan, trials=kept)


def at_rate(plan, variant):
  """The trials of a variant, with the resolved config of another tuned value."""
  trials = (
    dataclasses.replace(trial, identity='another') if trial.variant == variant else trial
    for trial in plan.trials
  )
  return dataclasses.replace(plan, trials=tuple(trials))


@pytest.mark.parametrize(
  ('change', 'name', 'level'),
  [
    # One comparison after a report of four.
    (lambda plan: only(plan, 'geglu'), 'configs of variants', 0.05 / 5),
    (lambda plan: only(plan, 'geglu', 'relu'), 'configs of variants', 0.05 * 2 / 6),
    (lambda plan: dataclasses.replace(plan, metric='accuracy'), 'metric', 0.05 / 2),
    (lambda plan: dataclasses.replace(plan, goal='max'), 'goal', 0.05 / 2),
    (lambda plan: dataclasses.replace(plan, margin=0.1), 'margin', 0.05 / 2),
    (lambda plan: dataclasses.replace(plan, failed_above=5.0), 'failed_above', 0.05 / 2),
    (
      lambda plan: dataclasses.replace(plan, baseline='relu'),
      'configs of baseline and variants',
      0.05 / 2,
    ),
    (lambda plan: at_rate(plan, 'relu'), 'configs of variants', 0.05 / 2),
    (lambda plan: at_rate(plan, 'vanilla'), 'configs of baseline', 0.05 / 2),
  ],
)
def test_a_change_after_a_report_is_corrected_for_the_comparisons_of_both(
  sweep, change, name, level
):
  folder = sweep()
  plan = read_plan(folder)
  write_report(folder)
  write_plan(folder, change(plan))
  found = read_results(folder).level
  assert found.exploratory.startswith(f'{name} changed after the report of ')
  assert (found.number, found.alpha) == (2, pytest.approx(level))
  write_report(folder)
  assert 'Exploratory' in (folder / 'report.md').read_text()
  assert len(read_looks(folder)) == 2
  # The settings of the first report have its level again.
  write_plan(folder, plan)
  assert read_results(folder).level == Level()
  write_report(folder)
  assert len(read_looks(folder)) == 2


def test_order_names_and_provenance_change_nothing(sweep):
  folder = sweep()
  plan = read_plan(folder)
  write_report(folder)
  renamed = {name: f'{name} 2' for name in plan.variants}
  trials = (
    dataclasses.replace(trial, variant=renamed[trial.variant]) for trial in reversed(plan.trials)
  )
  changes = {'config': '# comment', 'commit': 'abc', 'versions': {}, 'file': 'moved.gin'}
  write_plan(
    folder,
    dataclasses.replace(plan, trials=tuple(trials), baseline=renamed[plan.baseline], **changes),
  )
  assert read_results(folder).level == Level()


def test_looks_of_older_versions_have_no_settings(sweep):
  plan = read_plan(sweep())
  old = look(5)
  assert level_of(plan, [old]) == Level()
  assert level_of(dataclasses.replace(plan, margin=0.1), [old]) == Level()
  # Their comparisons are unknown: assumed to be as many.
  more = dataclasses.replace(
    plan, trials=(*plan.trials, *(dataclasses.replace(t, seed=t.seed + 5) for t in plan.trials))
  )
  assert level_of(more, [old]).alpha == pytest.approx(0.025)


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
  assert reason.replace('Exploratory', '; exploratory') in sentence(read_results(folder))
  assert '`t2x sweep --confirm`' in text.replace('\\', '')
  # The first report does not become exploratory.
  write_plan(folder, dataclasses.replace(whole, trials=few))
  assert not read_results(folder).level.exploratory


def test_only_a_plan_that_earlier_reports_make_exploratory_has_a_warning(sweep):
  folder = sweep()
  whole = read_plan(folder)
  few = dataclasses.replace(whole, trials=tuple(t for t in whole.trials if t.seed < 3))
  assert warning(folder, whole) == ''
  record_look(folder, few)
  assert warning(folder, few) == ''
  assert 'the sweep was reported with 3 seeds on ' in warning(folder, whole)
  # More seeds than Sweep.max_seeds are exploratory in any folder.
  assert warning(folder, dataclasses.replace(whole, max_seeds=4)) == ''


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
  # One variant without a comparison has nothing to correct for.
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
