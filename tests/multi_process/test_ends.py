"""Processes that are missing, killed, told to stop or fail: all end, with a code and a line."""

import signal
import time

import pytest

pytestmark = pytest.mark.nightly

LIMIT = 60
LONG = 'Trainer.num_steps = 1000000\nTrainer.eval_every = 0\nTrainer.checkpoint_every = 0\n'


def ended(process):
  """(exit code, stderr) of a process that is about to end."""
  _, err = process.communicate(timeout=LIMIT)
  return process.returncode, err


def wait_for_steps(folder, processes, timeout=LIMIT):
  """Returns once metrics are written, some steps in."""
  end = time.monotonic() + timeout
  while time.monotonic() < end:
    if (folder / 'metrics.jsonl').exists() and (folder / 'metrics.jsonl').read_text():
      return
    for process in processes.values():
      assert process.poll() is None, process.communicate()
    time.sleep(0.1)
  raise TimeoutError('no metrics')


def last_line(err):
  return [line for line in err.splitlines() if line.startswith('t2x: ')]


@pytest.mark.parametrize('index', [0, 1])
def test_missing_process_is_an_error_and_no_smaller_run(index, start, config, tmp_path):
  out = tmp_path / 'run'
  running = start('train', config('causal_lm'), '--out', out, '--wait', '3', only=index)
  code, err = ended(running[index])
  assert code == 1
  (line,) = last_line(err)
  assert 'within 3 seconds' in line
  assert ('not all 2 processes joined' if index == 0 else 'found no coordinator') in line
  assert not out.exists()


@pytest.mark.slow
@pytest.mark.parametrize('victim', [0, 1])
def test_killed_process_ends_the_other(victim, start, config, tmp_path):
  out = tmp_path / 'run'
  running = start('train', config('causal_lm', LONG), '--out', out, '--lost-after', '5')
  wait_for_steps(out, running)
  running[victim].kill()
  code, err = ended(running[1 - victim])
  assert code not in (0, 75)
  (line,) = last_line(err)
  assert 'lost' in line or 'no heartbeat' in line
  assert 'Check failure stack trace' not in err


@pytest.mark.slow
def test_frozen_process_ends_the_other(start, config, tmp_path):
  out = tmp_path / 'run'
  running = start('train', config('causal_lm', LONG), '--out', out, '--lost-after', '4')
  wait_for_steps(out, running)
  running[1].send_signal(signal.SIGSTOP)
  code, err = ended(running[0])
  assert code == 1
  (line,) = last_line(err)
  assert 'no heartbeat from process 1' in line
  assert 'for 4 seconds' in line


@pytest.mark.slow
def test_sigterm_to_one_stops_all_at_one_step(start, t2x, config, tmp_path):
  out = tmp_path / 'run'
  running = start('train', config('causal_lm', LONG), '--out', out)
  wait_for_steps(out, running)
  running[1].send_signal(signal.SIGTERM)
  codes, errors = zip(*(ended(process) for process in running.values()), strict=True)
  assert codes == (75, 75)
  (line,) = last_line(errors[0])
  (saved,) = [path.name for path in (out / 'checkpoints').iterdir() if path.name.isdigit()]
  assert f'saved at step {saved};' in line
  # One process reads what two have saved.
  done = t2x('eval', out, '--json')
  assert done.returncode == 0, done.stderr
  assert f'"step": {saved},' in done.stdout


@pytest.mark.slow
def test_an_error_of_all_processes_is_printed_once_by_each(start, config, tmp_path):
  out = tmp_path / 'run'
  running = start('train', config('causal_lm', 'Trainer.batch_size = 7\n'), '--out', out)
  for process in running.values():
    code, err = ended(process)
    assert code == 2
    (line,) = last_line(err)
    assert 'Trainer.batch_size = 7' in line


def test_first_failure_ends_the_others_and_gives_the_exit_code(t2x, tmp_path):
  done = t2x('train', tmp_path / 'nothing.gin', processes=2)
  assert done.returncode == 2
  assert 'nothing.gin' in done.stdout
