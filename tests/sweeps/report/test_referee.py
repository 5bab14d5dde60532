"""`t2x referee` on the folder of a sweep gives the verdicts of its report."""

import json

import pytest

from t2x.cli import main
from t2x.statistics.gate import read_ledger
from t2x.sweeps.tune import Choice, Tried, Tuning, write_tuning


def rows_of(capsys, *command):
  assert main([*command, '--json']) == 0
  return json.loads(capsys.readouterr().out)['rows']


@pytest.mark.parametrize('points', [({},), ({'Stack.num_layers': 2}, {'Stack.num_layers': 4})])
def test_the_verdicts_are_those_of_the_report(sweep, capsys, points):
  """Diverged trials count and failed ones do not, in both."""
  folder = sweep(points=points)
  reported = rows_of(capsys, 'report', str(folder))
  judged = rows_of(capsys, 'referee', str(folder))
  keys = ('variant', 'verdict', 'difference', 'p', 'mean')
  sides = [sorted([str(row[key]) for key in keys] for row in rows) for rows in (reported, judged)]
  assert len(reported) == 5 * len(points) and sides[0] == sides[1]


def test_diverged_trials_are_refused_or_counted(sweep, capsys):
  folder = str(sweep())
  assert main(['report', folder]) == 0
  capsys.readouterr()
  assert main(['referee', folder, '--failed', 'refuse']) == 2
  assert 'results.csv, row' in capsys.readouterr().err
  rows = rows_of(capsys, 'referee', folder)
  assert [(row['n'], row['failed']) for row in rows if row['variant'] == 'fixup'] == [(2, 3)]


def test_a_folder_without_a_report_and_options_of_columns_are_refused(sweep, tmp_path, capsys):
  folder = str(sweep())
  assert main(['referee', folder]) == 2
  assert f'`t2x report {folder}` writes it' in capsys.readouterr().err
  main(['report', folder])
  assert main(['referee', folder, '--seed', 'none']) == 2
  assert '--seed has no effect on a sweep folder' in capsys.readouterr().err
  (tmp_path / 'empty').mkdir()
  assert main(['referee', str(tmp_path / 'empty')]) == 2


def test_the_gate_refuses_a_tuned_value_at_the_edge(sweep, tmp_path, capsys):
  folder = sweep()
  main(['report', str(folder)])
  tried = Tried(value=0.1, mean=1.0, n=2, metrics={'0': 1.0, '1': 1.1})
  choice = Choice(
    variant='relu', point={}, parameter='p', own=0.1, chosen=0.1, edge='largest', tried=(tried,)
  )
  tuning = Tuning(metric='loss', goal='min', seeds=(1, 2), keep=1.0, trials=2, choices=(choice,))
  write_tuning(folder, tuning)
  ledger = ['gate', '--ledger', str(tmp_path / 'ledger.json')]
  baseline = json.loads((folder / 'sweep.json').read_text())['baseline']
  metric = json.loads((folder / 'sweep.json').read_text())['metric']
  assert (
    main([*ledger, '--choose', 'relu', '--baseline', baseline, '--metric', metric, '--goal', 'min'])
    == 0
  )
  assert main([*ledger, str(folder)]) == 5
  assert 'the tuned value of relu is the largest of its grid' in capsys.readouterr().err
  assert not read_ledger(tmp_path / 'ledger.json').choices[0].verdict
