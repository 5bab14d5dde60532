"""`t2x runs` lists every run folder with its state, whatever its files contain."""

import json
import os
import shutil
import subprocess
import sys
import time

import pytest

from t2x.base.errors import UserError
from t2x.base.files import file_lock
from t2x.base.signals import INTERRUPTED
from t2x.cli import main
from t2x.run_folder.status import SILENT
from t2x.runs.folders import age_text, find_runs, read_run, sort_runs


def states(runs):
  return {os.path.basename(run.folder): (run.state, run.reason) for run in runs}


def test_steps_and_metrics_match_the_files(make_run):
  run = read_run(make_run('a'))
  assert (run.step, run.num_steps, run.host) == (100, 100, 'alpha')
  assert (run.best, run.best_step, run.last, run.train_loss) == (1.0, 66, 2.0, 2.0)
  assert read_run(make_run('b', mode='max')).best == 3.0
  assert read_run(make_run('c', losses=(1.0, 1.0))).best_step == 100, 'the last of equals'
  early = read_run(make_run('d', losses=(), steps=20))
  assert (early.step, early.best, early.last) == (20, None, None)
  assert early.train_loss == pytest.approx(3.6)


def test_a_checkpoint_after_the_last_line_counts(make_run):
  folder = make_run('a', 'preempted', steps=20)
  (folder / 'checkpoints' / '27').mkdir(parents=True)
  (folder / 'checkpoints' / '99.orbax-checkpoint-tmp').mkdir()
  assert read_run(folder).step == 27


def test_a_running_run_holds_its_lock_and_a_killed_one_does_not(make_run):
  folder = make_run('a', 'running', steps=20)
  with file_lock(folder / '.lock', lambda: pytest.fail('busy')):
    assert read_run(folder).state == 'running'
  killed = read_run(folder)
  assert (killed.state, killed.reason) == ('failed', 'its process was killed')


def test_a_run_on_another_host_lives_as_long_as_its_heartbeat(make_run):
  folder = make_run('a', 'running', host='beta', kernel='another')
  (folder / '.lock').touch()
  assert read_run(folder).state == 'running'
  silent = time.time() - SILENT - 3600
  os.utime(folder / 'status.json', (silent, silent))
  run = read_run(folder)
  assert (run.state, run.reason) == ('failed', 'no heartbeat from beta for 1 h')


@pytest.mark.parametrize(
  ('message', 'state'), [(INTERRUPTED, 'preempted'), ('step 7 has taken 1800 s: ended', 'failed')]
)
def test_a_process_that_exits_at_once_leaves_its_reason_in_the_log(make_run, message, state):
  folder = make_run('a', 'running')
  (folder / '.lock').touch()
  (folder / 'log.txt').write_text(
    f'2026-11-23 14:00:00  step 6\n2026-11-23 14:00:09  t2x: {message}\n'
  )
  assert states([read_run(folder)]) == {'a': (state, message)}
  # A later start: the message is not about it.
  with (folder / 'log.txt').open('a') as file:
    file.write('2026-11-23 15:00:00  t2x train a.gin\n')
  assert read_run(folder).reason == 'its process was killed'


def test_a_killed_training_process_is_detected(tmp_path):
  script = """
import sys, time
from pathlib import Path
from t2x.base.files import file_lock
from t2x.run_folder.status import recorded
folder = Path(sys.argv[1])
folder.mkdir()
with file_lock(folder / '.lock', lambda: None), recorded(folder, num_steps=9, metric='loss', mode='min'):
  print('ready', flush=True)
  time.sleep(600)
"""
  command = [sys.executable, '-c', script, str(tmp_path / 'run')]
  with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
    process.stdout.readline()
    before = read_run(tmp_path / 'run')
    process.kill()
    process.wait()
  after = read_run(tmp_path / 'run')
  assert (before.state, after.state) == ('running', 'failed')
  assert (after.reason, after.num_steps) == ('its process was killed', 9)


def test_broken_folders_are_listed(make_run, tmp_path):
  for name in ('empty', 'text', 'list', 'pipe', 'binary'):
    make_run(name)
  (tmp_path / 'empty' / 'status.json').write_text('')
  (tmp_path / 'text' / 'status.json').write_text('{"state": "flying"}')
  (tmp_path / 'list' / 'status.json').write_text('[]')
  (tmp_path / 'pipe' / 'status.json').unlink()
  os.mkfifo(tmp_path / 'pipe' / 'status.json')
  (tmp_path / 'binary' / 'metrics.jsonl').write_bytes(
    bytes(range(256)) + b'"split": "eval"\n"split": "train"'
  )
  make_run('old', None)
  make_run('planned', None)
  (tmp_path / 'planned' / 'metrics.jsonl').unlink()
  make_run('no_metrics')
  (tmp_path / 'no_metrics' / 'metrics.jsonl').unlink()
  shutil.rmtree(make_run('directory') / 'metrics.jsonl', ignore_errors=True)
  (tmp_path / 'directory' / 'metrics.jsonl').unlink()
  (tmp_path / 'directory' / 'metrics.jsonl').mkdir()
  found = states(find_runs(tmp_path))
  unknown = {name for name, (state, _) in found.items() if state == 'unknown'}
  assert unknown == {'empty', 'text', 'list', 'pipe', 'old', 'planned'}
  assert 'status.json is damaged' in found['text'][1]
  assert found['old'][1].startswith('no status.json')
  assert found['planned'][1] == 'not started'
  assert found['no_metrics'] == found['binary'] == found['directory'] == ('done', '')


def test_an_incomplete_last_line_is_left_out(make_run):
  lines = [
    '{"step": 1, "split": "train", "loss": 3.0}',
    '{"step": 2, "split": "train", "loss": 2.0}',
    '{"step": 3, "split": "train", "lo',
  ]
  run = read_run(make_run('a', metrics='\n'.join(lines)))
  assert (run.step, run.train_loss) == (2, 2.0)


def test_runs_are_listed_below_folders_and_not_inside_runs(make_run, tmp_path):
  make_run('runs/b/one')
  make_run('runs/b/two/checkpoints/inside')
  make_run('runs/.hidden')
  (tmp_path / 'runs' / 'b' / 'two' / 'status.json').write_text('{}')
  (tmp_path / 'runs' / 'link').symlink_to(tmp_path / 'runs')
  assert [run.folder for run in find_runs(tmp_path / 'runs')] == [
    str(tmp_path / 'runs' / 'b' / name) for name in ('one', 'two')
  ]
  with pytest.raises(UserError, match='is not a folder'):
    find_runs(tmp_path / 'missing')


def test_runs_are_sorted_by_any_column_and_unknown_values_come_last(make_run, tmp_path):
  make_run('run10', 'failed', steps=20, losses=(5.0,))
  make_run('run9', 'done', losses=(1.0,))
  make_run('run2', None, losses=())
  runs = find_runs(tmp_path)

  def names(key, reverse=False):
    return [os.path.basename(run.folder) for run in sort_runs(runs, key, reverse)]

  assert names('path') == ['run2', 'run9', 'run10']
  assert names('state') == ['run10', 'run2', 'run9']
  assert names('best') == ['run9', 'run10', 'run2']
  assert names('best', reverse=True) == ['run10', 'run9', 'run2']
  assert names('host')[-1] == 'run2'


@pytest.mark.parametrize(
  ('seconds', 'text'), [(-3, '0 s'), (59, '59 s'), (61, '1 min'), (7300, '2 h'), (200000, '2 d')]
)
def test_ages_have_one_unit(seconds, text):
  assert age_text(seconds) == text


def test_the_command_prints_a_table_or_json(make_run, tmp_path, capsys):
  make_run('runs/a')
  make_run('runs/b', 'failed', reason='x' * 200, steps=50)
  assert main(['runs', str(tmp_path / 'runs')]) == 0
  out, err = capsys.readouterr()
  header, first, second = out.splitlines()
  assert header.split()[:3] == ['run', 'state', 'step']
  assert first.split()[1:9] == ['done', '100/100', 'loss', '1', '66', '2', '2', '0']
  assert '50/100' in second and second.endswith('x\u2026')
  assert err.endswith('2 runs in ' + str(tmp_path / 'runs') + ': 1 done, 1 failed\n')
  assert main(['runs', str(tmp_path / 'runs'), '--json', '--sort', 'state']) == 0
  rows = json.loads(capsys.readouterr().out)
  assert [(row['state'], len(row['reason'])) for row in rows] == [('failed', 200), ('done', 0)]


def test_the_command_imports_nothing_heavy(make_run, tmp_path):
  make_run('runs/a')
  code = """
import sys
from t2x.cli import main
main(['runs', sys.argv[1]])
print(sorted({'jax', 'flax', 'numpy', 'orbax'} & set(sys.modules)), file=sys.stderr)
"""
  command = [sys.executable, '-c', code, str(tmp_path / 'runs')]
  done = subprocess.run(command, capture_output=True, text=True, check=True)
  assert done.stderr.splitlines()[-1] == '[]'


@pytest.mark.parametrize(
  ('arguments', 'told'),
  [
    ('missing', 'missing is not a folder'),
    ('a b', 'expected one folder'),
    ('a --out x.html', '--out has no effect'),
    ('compare', 'no runs to compare'),
    ('compare a --sort step', '--sort has no effect'),
    ('compare a --json', '--json has no effect'),
  ],
)
def test_arguments_without_effect_are_refused(arguments, told, tmp_path, monkeypatch, capsys):
  monkeypatch.chdir(tmp_path)
  assert main(['runs', *arguments.split()]) == 2
  assert told in capsys.readouterr().err
