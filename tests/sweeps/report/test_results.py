"""results.csv, costs.csv and report.md of made-up sweeps."""

import csv
import dataclasses
import io
import json
import shutil

import numpy as np
import pytest

from t2x.base.errors import UserError
from t2x.sweeps.records import Outcome, read_plan, write_outcome, write_plan
from t2x.sweeps.report import read_results, report_data, write_report
from t2x.sweeps.report.curves import curves


def rows(path):
  return list(csv.DictReader(io.StringIO(path.read_text())))


def test_results_are_tidy(sweep):
  folder = sweep()
  write_report(folder)
  table = rows(folder / 'results.csv')
  finished = [row for row in table if row['status'] == 'finished']
  assert len(finished) == 21 * 2
  assert [row['metric'] for row in finished[:2]] == ['accuracy', 'loss']
  told = json.loads((folder.parent / 'trials' / '0100abcdef-2' / 'trial.json').read_text())
  (one,) = (
    row
    for row in finished
    if (row['variant'], row['seed'], row['metric']) == ('geglu', '2', 'loss')
  )
  assert float(one['value']) == told['metrics']['loss']
  assert one['parameters'] == '104321'
  assert not {'seconds', 'tokens_per_second', 'memory_bytes'} & set(one)
  costs = rows(folder / 'costs.csv')
  assert len(costs) == 25
  assert float(costs[0]['seconds']) == 5.3


def test_results_do_not_depend_on_clock_or_history(sweep):
  folder = sweep()
  write_report(folder)
  before = (folder / 'results.csv').read_bytes()
  whole = {path: path.read_text() for path in folder.parent.glob('trials/*/trial.json')}
  for path in list(whole)[::2]:
    path.unlink()
  write_report(folder)
  assert (folder / 'results.csv').read_bytes() != before
  for path, text in whole.items():
    slower = json.loads(text) | {'seconds': 99.5, 'tokens_per_second': 3.0, 'memory_bytes': 7}
    slower['metrics'] = dict(reversed(slower['metrics'].items())) | {'tokens_per_second': 5.5}
    path.write_text(json.dumps(slower))
  write_report(folder)
  assert (folder / 'results.csv').read_bytes() == before


def test_grid_axes_are_columns_and_each_point_has_its_baseline(sweep):
  points = [{'Stack.num_layers': 2}, {'Stack.num_layers': 4}]
  folder = sweep(points=points, effects={'vanilla': 0.0, 'geglu': -0.12}, seeds=3)
  write_report(folder)
  table = rows(folder / 'results.csv')
  assert {row['Stack.num_layers'] for row in table} == {'2', '4'}
  results = read_results(folder)
  assert [(row.point, row.variant) for row in results.rows] == [
    (0, 'vanilla'),
    (0, 'geglu'),
    (1, 'vanilla'),
    (1, 'geglu'),
  ]
  value = {(row['Stack.num_layers'], row['variant'], row['seed']): float(row['value'])
           for row in table if row['metric'] == 'loss'}  # fmt: skip
  differences = [value['4', 'geglu', seed] - value['4', 'vanilla', seed] for seed in '012']
  np.testing.assert_allclose(results.rows[3].comparison.difference, np.mean(differences))


def test_a_partial_sweep_gives_a_partial_report(sweep):
  folder = sweep(ended=7)
  write_report(folder)
  text = (folder / 'report.md').read_text()
  assert 'Partial report: 7 of 25 trials ended: 7 finished, 1 running, 17 waiting.' in text
  assert [row.summary.n for row in read_results(folder).rows] == [5, 2, 0, 0, 0]
  statuses = [row['status'] for row in rows(folder / 'results.csv') if row['metric'] != 'accuracy']
  assert statuses == ['finished'] * 7 + ['running'] + ['waiting'] * 17


def test_a_sweep_without_trials_has_a_report(sweep):
  folder = sweep(ended=0)
  shutil.rmtree(folder.parent / 'trials')
  write_report(folder)
  assert '0 of 25 trials ended: 25 waiting' in (folder / 'report.md').read_text()


def test_the_report_prints_verdicts_reasons_and_origin(sweep):
  folder = sweep()
  write_report(folder)
  lines = (folder / 'report.md').read_text().splitlines()
  verdict = {line.split(' | ')[0]: line for line in lines if line.count(' | ') == 11}
  assert '| helps |' in verdict['| geglu']
  assert '| hurts |' in verdict['| rezero']
  assert '3 of 5 seeds diverged' in verdict['| fixup']
  assert '1 of 5 seeds failed' in verdict['| relu']
  text = '\n'.join(lines)
  assert '&lt;/script>&lt;b>loss' in text and 'step 30 \\| of 100' in text
  assert 'Matched parameters, largest deviation 0.80 %. FLOPs: full attention.' in text
  fronts = next(line for line in lines if line.startswith('| geglu | 6'))
  assert fronts.endswith('| parameters, FLOPs per token, FLOPs, seconds, memory |')
  assert "Kendall's tau" in text
  assert '| commit | 0123abc+ |' in text
  assert 'Block.feed_forward = @Geglu' in text


def test_flops_are_printed_with_and_without_hidden_pairs(sweep):
  folder = sweep(ended=0)
  made = read_plan(folder)
  counted = tuple(dataclasses.replace(t, full_flops_per_token=7.5e5) for t in made.trials)
  write_plan(folder, dataclasses.replace(made, trials=counted, matched='flops'))
  write_report(folder)
  text = (folder / 'report.md').read_text()
  convention = 'attention counts the pairs that its pattern shows'
  assert f'largest deviation 0.80 % ({convention}).' in text
  assert '| vanilla | 100,000 | 6e+05 | 7.5e+05 | 100 |' in text


def test_versions_match_the_trials(sweep):
  folder = sweep()
  write_report(folder)
  text = (folder / 'report.md').read_text()
  assert '| jax | 0.10.0 |' in text and '999ffff' not in text and 'Warning' not in text
  path = folder.parent / 'trials' / '0100abcdef-2' / 'trial.json'
  told = json.loads(path.read_text())
  path.write_text(json.dumps(told | {'made_by': told['made_by'] | {'commit': '456def'}}))
  write_report(folder)
  text = (folder / 'report.md').read_text()
  assert '| commit | 0123abc+, 456def |' in text and '| jax | 0.10.0 |' in text
  warning = 'which may affect the results: commit 0123abc+, 456def.'
  assert warning in text and warning in (folder / 'report.html').read_text()


def test_trials_without_provenance_can_be_read(sweep):
  folder = sweep()
  paths = list(folder.parent.glob('trials/*/trial.json'))
  for path in paths:
    told = json.loads(path.read_text())
    path.write_text(json.dumps({name: one for name, one in told.items() if name != 'made_by'}))
  results = read_results(folder)
  assert results.origins['commit'] == ['999ffff'] and not results.warning()
  write_outcome(paths[0].parent, Outcome(status='finished', metrics={'loss': 1.0}))
  assert 'unknown' in read_results(folder).warning()


def test_seeds_that_the_baseline_lacks_are_reported(sweep):
  folder = sweep(failed=('vanilla', 4), diverged=('vanilla', 2))
  results = read_results(folder)
  notes = {row.variant: row.note for row in results.rows}
  assert notes['vanilla'] == '1 of 5 seeds failed; 2 of 5 seeds diverged'
  assert notes['geglu'] == '2 pairs'
  write_report(folder)
  text = (folder / 'report.md').read_text()
  assert '| 1 of 5 seeds failed; 2 of 5 seeds diverged |' in text
  assert '| 2 pairs |' in text
  assert [row['note'] for row in report_data(results)['rows'][:2]] == [notes['vanilla'], '2 pairs']


def test_a_finished_trial_without_a_number_diverged(sweep):
  folder = sweep()
  write_outcome(
    folder.parent / 'trials' / '0100abcdef-0', Outcome(status='finished', metrics={'loss': np.nan})
  )
  write_outcome(
    folder.parent / 'trials' / '0100abcdef-1', Outcome(status='finished', metrics={'other': 1.0})
  )
  results = read_results(folder)
  geglu = next(row for row in results.rows if row.variant == 'geglu')
  assert [entry.status for entry in geglu.entries[:2]] == ['diverged', 'failed']
  assert "no metric 'loss'" in geglu.entries[1].reason
  assert geglu.comparison.pairs == 3


def test_a_seed_diverged_once_whatever_number_of_lines_the_plan_has_for_it(sweep):
  folder = sweep(failed=('', 0))
  plan = json.loads((folder / 'sweep.json').read_text())
  plan['trials'] *= 2
  (folder / 'sweep.json').write_text(json.dumps(plan))
  fixup = next(row for row in read_results(folder).rows if row.variant == 'fixup')
  assert fixup.note.startswith('3 of 5 seeds diverged')


def test_a_variant_that_cannot_be_matched_has_no_verdict_of_another_sweeps_trial(sweep):
  folder = sweep(diverged=('', 0), failed=('', 0))
  plan = json.loads((folder / 'sweep.json').read_text())
  for trial in plan['trials']:
    if trial['variant'] == 'geglu':
      trial['problem'] = '9.0% more parameters than the baseline'
  (folder / 'sweep.json').write_text(json.dumps(plan))
  results = read_results(folder)
  geglu = next(row for row in results.rows if row.variant == 'geglu')
  assert (geglu.verdict, geglu.summary.n, geglu.count('failed')) == ('inconclusive', 0, 5)
  assert {entry.reason for entry in geglu.entries} == {'9.0% more parameters than the baseline'}
  assert results.rows.index(geglu) not in {run['row'] for run in curves(results)['runs']}


def test_a_variant_equal_to_the_baseline_is_reported(sweep, tmp_path):
  folder = sweep(diverged=('', 0), failed=('', 0))
  plan = json.loads((folder / 'sweep.json').read_text())
  for trial in plan['trials']:
    if trial['variant'] == 'relu':
      trial |= {'identity': '0000abcdef', 'folder': f'0000abcdef-{trial["seed"]}'}
  (folder / 'sweep.json').write_text(json.dumps(plan))
  relu = next(row for row in read_results(folder).rows if row.variant == 'relu')
  assert relu.verdict == 'inconclusive'
  assert relu.note.startswith('same config as the baseline')


def test_no_sweep_folder(tmp_path):
  with pytest.raises(UserError, match='not a sweep folder'):
    write_report(tmp_path)


def test_variants_of_one_config_are_reported(sweep):
  folder = sweep(diverged=('', 0), failed=('', 0))
  plan = json.loads((folder / 'sweep.json').read_text())
  for trial in plan['trials']:
    if trial['variant'] == 'relu':
      trial |= {'identity': '0200abcdef', 'folder': f'0200abcdef-{trial["seed"]}'}
  (folder / 'sweep.json').write_text(json.dumps(plan))
  notes = {row.variant: row.note for row in read_results(folder).rows}
  assert notes['relu'].startswith('same config as rezero') and not notes['rezero']


@pytest.mark.parametrize('name', ['module parts', "data TextFiles(train='a.txt')"])
def test_modules_and_data_that_changed_between_trials_are_reported(sweep, change_trial, name):
  folder = sweep(seeds=2, effects={'vanilla': 0.0, 'geglu': 0.1}, diverged=('', 0), failed=('', 0))
  made_by = {'jax': '0.10.0', 'commit': '0123abc'}
  for run in ('0000abcdef-0', '0000abcdef-1', '0100abcdef-0', '0100abcdef-1'):
    change_trial(folder, run, made_by=made_by)
  # Of one variant alone.
  change_trial(folder, '0100abcdef-0', made_by=made_by | {name: 'aaa'})
  assert not read_results(folder).warning()
  change_trial(folder, '0100abcdef-1', made_by=made_by | {name: 'bbb'})
  assert f'{name} aaa, bbb' in read_results(folder).warning()


def test_runs_that_did_not_learn_have_no_value(sweep, change_trial):
  folder = sweep(diverged=('', 0), failed=('', 0))
  for seed in range(5):
    change_trial(folder, f'0200abcdef-{seed}', metrics={'loss': 6.4 + 0.001 * seed})
  before = {row.variant: row for row in read_results(folder).rows}['rezero']
  assert (before.summary.n, before.verdict) == (5, 'hurts')
  plan = json.loads((folder / 'sweep.json').read_text())
  (folder / 'sweep.json').write_text(json.dumps(plan | {'failed_above': 6.2}))
  rezero = {row.variant: row for row in read_results(folder).rows}['rezero']
  assert (rezero.summary.n, rezero.count('diverged')) == (0, 5)
  assert rezero.verdict == 'hurts', 'by the rates of divergence'
  assert rezero.entries[0].reason == 'did not learn: loss 6.4 is above 6.2'


def test_values_below_the_bound_did_not_learn_if_a_metric_should_be_high(sweep, change_trial):
  folder = sweep(diverged=('', 0), failed=('', 0))
  for seed in range(5):
    change_trial(folder, f'0200abcdef-{seed}', metrics={'loss': 0.1 + 0.001 * seed})
  plan = json.loads((folder / 'sweep.json').read_text())
  bound = {'goal': 'max', 'failed_below': 0.2}
  (folder / 'sweep.json').write_text(json.dumps(plan | bound))
  rows = {row.variant: row for row in read_results(folder).rows}
  assert (rows['rezero'].summary.n, rows['rezero'].count('diverged')) == (0, 5)
  assert rows['rezero'].verdict == 'hurts' and rows['geglu'].count('diverged') == 0
  assert rows['rezero'].entries[0].reason == 'did not learn: loss 0.1 is below 0.2'


def test_a_margin_gives_variants_that_are_the_same(sweep):
  folder = sweep(diverged=('', 0), failed=('', 0))
  plan = json.loads((folder / 'sweep.json').read_text())
  (folder / 'sweep.json').write_text(json.dumps(plan | {'margin': 0.1}))
  write_report(folder)
  verdicts = {row.variant: row.verdict for row in read_results(folder).rows}
  assert (verdicts['relu'], verdicts['fixup']) == ('same', 'same')
  text = (folder / 'report.md').read_text()
  assert 'same: equivalence tests against a margin of 0.1.' in text
  assert text.index('| variant | verdict | difference | 95 % interval |') < text.index('Verdicts: ')


def test_plans_of_older_versions_can_be_read(sweep):
  folder = sweep()
  plan = json.loads((folder / 'sweep.json').read_text())
  for name in ('margin', 'failed_above', 'failed_below', 'max_seeds'):
    del plan[name]
  (folder / 'sweep.json').write_text(json.dumps(plan))
  results = read_results(folder)
  assert results.plan.margin is None and results.level.alpha == 0.05
