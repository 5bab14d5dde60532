"""Reports of files that are damaged, or whose text is made to do harm."""

import csv
import io
import json

import pytest

from t2x.cli import main
from t2x.sweeps.report import read_results, write_report

TWO = {'vanilla': 0.0, 'geglu': -0.12}


def test_no_cell_is_run_by_a_spreadsheet_and_numbers_stay(sweep, change_trial):
  effects = {'vanilla': 0.0, '=cmd|calc': 0.1, '-quiet': 0.1, '+1': 0.1, '@relu': 0.1}
  folder = sweep(effects=effects, points=[{'=axis': 2}], diverged=('', 0), failed=('', 0))
  change_trial(folder, '0102abcdef-0', status='failed', reason='\t=HYPERLINK("http://a")')
  change_trial(
    folder, '0002abcdef-0', status='finished', metrics={'loss': -1.5, '=HYPERLINK("http://b")': 1.0}
  )
  write_report(folder)
  lines = list(csv.reader(io.StringIO((folder / 'results.csv').read_text())))
  lines += csv.reader(io.StringIO((folder / 'costs.csv').read_text()))
  cells = {cell for line in lines for cell in line}
  assert {"'=cmd|calc", "'-quiet", '+1', "'@relu", "'=axis"} <= cells
  assert '-1.5' in cells and '\'=HYPERLINK("http://b")' in cells
  assert '\\t=HYPERLINK("http://a")' in cells
  for cell in cells:
    assert not cell.startswith(('=', '@', '\t', '\r')) and cell != '-quiet'


def test_control_characters_of_trial_files_are_escaped(sweep, capsys, change_trial):
  folder = sweep(seeds=2, failed=('relu', 1))
  evil = '\x1b[2J\x1b]0;title\x07 \u202e\r\n| a line'
  change_trial(folder, '0000abcdef-0', metrics={'loss': 1.0, evil: 2.0}, made_by={evil: evil})
  change_trial(folder, '0300abcdef-1', reason=evil)
  with (folder.parent / 'trials' / '0000abcdef-0' / 'metrics.jsonl').open('a') as file:
    file.write(json.dumps({'step': 100, 'split': evil, evil: 3.0}) + '\n')
  plan = json.loads((folder / 'sweep.json').read_text())
  plan['trials'][2]['variant'] = evil
  (folder / 'sweep.json').write_text(json.dumps(plan | {'commit': evil, 'name': evil}))
  assert main(['report', str(folder)]) == 0
  assert main(['report', str(folder), '--json']) == 0
  told = capsys.readouterr()
  texts = [told.out, told.err]
  texts += [path.read_text() for path in folder.iterdir() if path.name != 'sweep.json']
  for text in texts:
    assert '\x1b' not in text and '\u202e' not in text and '\r' not in text and '\x07' not in text
  assert '\\x1b[2J' in (folder / 'results.csv').read_text()
  assert '\\u202e' in (folder / 'report.md').read_text()


def test_names_are_no_markup(sweep):
  image = '![x](http://a/b.png)'
  folder = sweep(effects={'vanilla': 0.0, image: 0.1, '[a](javascript:b) `c`': 0.1})
  plan = json.loads((folder / 'sweep.json').read_text())
  for trial in plan['trials']:
    trial['changes'] = ["MLP.name = '```'", 'd_model = 8\n```\n<b>bold</b>']
  (folder / 'sweep.json').write_text(json.dumps(plan | {'metric': 'loss', 'name': image}))
  write_report(folder)
  text = (folder / 'report.md').read_text()
  assert image not in text and '!\\[x\\](http://a/b.png)' in text
  assert '\\[a\\](javascript:b) \\`c\\`' in text
  assert "````\nMLP.name = '```'\n" in text and 'd_model = 8\\n```\\n<b>' in text


@pytest.mark.parametrize(
  ('text', 'why'),
  [
    ('', 'it is empty'),
    ('{"status": "fin', 'Unterminated string'),
    ('[]', 'its content is not an object'),
    ('{"metrics": {}}', 'status is missing'),
    ('{"status": "ended"}', "status must be one of 'finished', 'diverged', 'failed'"),
    ('{"status": "finished", "metrics": []}', 'metrics is not an object'),
    ('{"status": "finished", "metrics": {"loss": "low"}}', "metrics['loss'] is not a number"),
    ('{"status": "finished", "seconds": "4"}', 'seconds is not a number'),
    ('{"status": "finished", "seconds": NaN}', 'seconds is not a number'),
    ('{"status": "finished", "memory_bytes": 0.5}', 'memory_bytes is not an integer'),
    ('{"status": "failed", "made_by": {"jax": 1}}', "made_by['jax'] is not a string"),
  ],
)
def test_a_damaged_trial_is_named_and_counts_as_failed(sweep, capsys, text, why):
  folder = sweep(effects=TWO, seeds=3, diverged=('', 0), failed=('', 0))
  path = folder.parent / 'trials' / '0100abcdef-1' / 'trial.json'
  path.write_text(text)
  assert main(['report', str(folder)]) == 0
  told = capsys.readouterr()
  assert '5 finished, 1 failed' in told.out
  (line,) = told.err.splitlines()
  assert line.startswith(f't2x: {path} is damaged: ') and why in line
  assert line.endswith('`t2x sweep` runs the trial again')
  geglu = next(row for row in read_results(folder).rows if row.variant == 'geglu')
  assert geglu.comparison.pairs == 2 and geglu.note.startswith('1 of 3 seeds failed')
  for name in ('report.md', 'report.html'):
    assert 'is damaged' in (folder / name).read_text()


def test_damaged_lines_of_a_run_are_named_and_left_out(sweep, capsys):
  folder = sweep(effects=TWO, seeds=2, diverged=('', 0), failed=('', 0))
  run = folder.parent / 'trials' / '0100abcdef-1'
  lines = (run / 'metrics.jsonl').read_text().splitlines()
  lines[3:5] = ['{"step": "4", "split": "train"}', 'x']
  (run / 'metrics.jsonl').write_text('\n'.join(lines) + '\n')
  whole = (run / 'timing.jsonl').read_text()
  (run / 'timing.jsonl').write_text(whole[:-20])
  assert main(['report', str(folder)]) == 0
  told = capsys.readouterr()
  assert '4 finished' in told.out
  first, second = told.err.splitlines()
  assert f'{run}/timing.jsonl is damaged: line ' in first
  assert f'{run}/metrics.jsonl is damaged: line 4 and 1 more left out' in second
  # A run that goes on may be writing its last line.
  (run / 'trial.json').unlink()
  (run / 'metrics.jsonl').write_text('\n'.join(lines[:2]) + '\n{"step"')
  assert main(['report', str(folder)]) == 0 and not capsys.readouterr().err


def test_a_file_of_a_newer_version_is_read(sweep, change_trial):
  folder = sweep(seeds=2)
  change_trial(folder, '0000abcdef-0', new_field={'a': [1]})
  plan = json.loads((folder / 'sweep.json').read_text())
  plan['trials'][0]['another'] = 1
  (folder / 'sweep.json').write_text(json.dumps(plan | {'new_field': 1}))
  assert not read_results(folder).damaged


def test_a_damaged_plan_is_one_line(sweep, capsys):
  folder = sweep(seeds=1)
  plan = json.loads((folder / 'sweep.json').read_text())
  plan['trials'][1]['folder'] = '../../etc'
  for text, why in (
    (json.dumps(plan), 'trials[1].folder is not the name of a folder'),
    (json.dumps(plan | {'trials': [1]}), 'trials[0] is not an object'),
    (json.dumps(plan)[:50], 'is damaged'),
  ):
    (folder / 'sweep.json').write_text(text)
    assert main(['report', str(folder)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert f'{folder}/sweep.json is damaged: ' in line and why in line
    assert 'run `t2x sweep` again to rewrite it' in line or 'folder' in why


def test_a_report_that_cannot_be_written_is_an_error(sweep, capsys):
  folder = sweep(seeds=1)
  (folder / 'report.md').mkdir()
  assert main(['report', str(folder)]) == 2
  assert f'{folder}/report.md cannot be written: ' in capsys.readouterr().err
