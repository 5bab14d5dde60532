"""Costs: without compilation, and with the load under which they were measured."""

import csv
import io

import pytest

from t2x.sweeps.report import read_results, write_report

CONDITIONS = {
  'host': 'a', 'cpus': 8, 'cores': 8, 'load_before': 1.0, 'load_after': 2.0, 'began': 0.0, 'ended': 9.0,
}  # fmt: skip


def test_costs_leave_compilation_out(sweep, change_trial):
  folder = sweep(effects={'vanilla': 0.0, 'geglu': 0.1}, seeds=2, diverged=('', 0), failed=('', 0))
  for number in (0, 1):
    for seed in (0, 1):
      change_trial(
        folder,
        f'0{number}00abcdef-{seed}',
        seconds=500.0,
        step_seconds=0.5 + number,
        compile_seconds=90.0 * (1 - seed),
        conditions=CONDITIONS | {'began': 10.0 * seed, 'ended': 10.0 * seed + 9},
      )
  costs = [row.costs for row in read_results(folder).rows]
  assert [one['seconds'] for one in costs] == [50.0, 150.0]
  assert [one['compile_seconds'] for one in costs] == [90.0, 90.0]
  assert [one['at_once'] for one in costs] == [2.0, 2.0] and costs[0]['load'] == 1.5
  write_report(folder)
  text = (folder / 'report.md').read_text()
  note = 'Load of the machine: a with 8 CPUs; load average 1.0 to 2.0; 2.0 concurrent trials.'
  assert note in text and note in (folder / 'report.html').read_text()
  assert 'not comparable' not in text and '| 50.0 | 0.5 | 90.0 |' in text
  table = list(csv.DictReader(io.StringIO((folder / 'costs.csv').read_text())))
  assert table[0]['seconds'] == '500.0' and table[0]['step_seconds'] == '0.5'
  assert table[0]['host'] == 'a' and table[0]['at_once'] == '2.0'


@pytest.mark.parametrize(
  ('changes', 'why'),
  [
    ({'host': 'b'}, 'they ran on different machines'),
    ({'cores': 1}, 'they had different numbers of CPUs'),
    ({'load_after': 9.0}, 'more processes were runnable than there were CPUs'),
    ({'began': 50.0, 'ended': 60.0}, 'the numbers of concurrent trials differ'),
  ],
)
def test_seconds_under_another_load_are_labelled_not_comparable(sweep, change_trial, changes, why):
  folder = sweep(effects={'vanilla': 0.0}, seeds=3, diverged=('', 0), failed=('', 0))
  for seed in range(3):
    conditions = CONDITIONS | (changes if seed == 2 else {})
    change_trial(folder, f'0000abcdef-{seed}', conditions=conditions)
  write_report(folder)
  assert (
    f'Seconds are not comparable between all trials: {why}' in (folder / 'report.md').read_text()
  )


def test_trials_of_older_versions_have_their_time_from_the_run(sweep, change_trial):
  folder = sweep(seeds=1)
  results = read_results(folder)
  # 0.05 seconds for each of 100 steps, whatever trial.json says of the whole trial.
  assert results.rows[0].costs['seconds'] == pytest.approx(5.0)
  assert results.rows[0].costs['compile_seconds'] is None
  change_trial(folder, '0000abcdef-0', together=4)
  assert read_results(folder).rows[0].costs['seconds'] == pytest.approx(1.25)
  (folder.parent / 'trials' / '0000abcdef-0' / 'timing.jsonl').unlink()
  assert read_results(folder).rows[0].costs['seconds'] is None
  write_report(folder)
  assert 'Load of the machine' not in (folder / 'report.md').read_text()
