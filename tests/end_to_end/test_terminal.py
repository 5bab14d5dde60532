"""What a training looks like in a real terminal, and that it does not need one."""

import json
import re
import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow

TRAIN = [sys.executable, '-m', 't2x', 'train']
# Longer than any test.
LONG = 'Trainer.num_steps = 1000000\nTrainer.eval_every = 0\nTrainer.log_every = 50\n'


def is_live(line):
  return re.match(r'step \d+/\d+ ', line) is not None


def trains(lines):
  """Whether a live line shows a loss, below nothing but whole lines."""
  return bool(lines) and is_live(lines[-1]) and 'loss' in lines[-1]


def saved(out):
  return [int(path.name) for path in (out / 'checkpoints').glob('*') if path.name.isdigit()]


def test_the_whole_screen_of_a_training(experiment, in_terminal, tmp_path):
  file, out = experiment('causal_lm', 'Trainer.ema_decay = 0.9\n'), tmp_path / 'run'
  with in_terminal([*TRAIN, str(file), '--out', str(out)]) as terminal:
    code = terminal.wait()
    lines = terminal.lines
  assert code == 0, lines
  assert max(map(len, lines)) <= 80
  assert not any('━' in line or is_live(line) for line in lines), lines
  assert not terminal.screen.cursor.hidden
  blank = [i for i, line in enumerate(lines) if not line]
  begin = next(i for i, line in enumerate(lines) if line.startswith('model '))
  start, end = lines[begin : blank[0]], lines[blank[-1] + 1 :]
  assert len(start) <= 16
  assert ', EMA weights (decay 0.9)' in ' '.join(' '.join(start).split())
  between = lines[blank[0] + 1 : blank[-1]]
  splits = [line.partition(':')[0] for line in between if line.startswith('step ')]
  assert splits == ['step 6 train', 'step 6 eval', 'step 12 train', 'step 12 eval']
  assert 'weights ema' in ' '.join(between)
  assert re.match(r'finished    12 steps in \d+:\d\d', end[0])
  assert re.match(r'best        loss [\d.]+ at step (6|12)', end[1])
  assert any(line.startswith('next        t2x eval ') for line in end)
  assert any(line.startswith('            t2x generate ') for line in end)
  log = (out / 'log.txt').read_text()
  for part in ('allocator: ', 'attention kernel Dense()', 'step 12 eval: ', 'finished  '):
    assert part in log
  assert '\x1b' not in log
  assert 'allocator' not in ' '.join(lines)
  summary = (out / 'summary.txt').read_text()
  assert 'mixer.q.kernel' in summary
  assert 'mixer.q.kernel' not in '\n'.join(lines)
  metrics = [json.loads(line) for line in (out / 'metrics.jsonl').read_text().splitlines()]
  last = metrics[-1]
  assert last['weights'] == 'ema'
  assert last['eval_tokens'] > 100


@pytest.mark.nightly
def test_ctrl_c_saves_leaves_no_bar_and_a_hangup_does_too(experiment, in_terminal, tmp_path):
  file, out = experiment('causal_lm', LONG), tmp_path / 'run'
  with in_terminal([*TRAIN, str(file), '--out', str(out)]) as terminal:
    assert trains(terminal.read_until(trains))
    terminal.type(b'\x03\x03')
    assert terminal.wait() == 75
    lines = terminal.lines
  assert 'interrupted and saved at step' in ' '.join(lines[-2:])
  assert 'run the same command to resume' in ' '.join(lines[-2:])
  assert not any('━' in line for line in lines), lines
  step = max(saved(out))
  assert f'saved at step {step}' in ' '.join(lines)
  with in_terminal([*TRAIN, str(file), '--out', str(out)]) as terminal:
    assert trains(terminal.read_until(trains))
    terminal.hang_up()
    assert terminal.process.wait(60) == 75
  assert max(saved(out)) > step
  assert 'interrupted and saved' in (out / 'log.txt').read_text().splitlines()[-1]


@pytest.mark.nightly
def test_an_error_leaves_no_bar(experiment, in_terminal, tmp_path):
  file, out = (
    experiment(
      'causal_lm', 'Cosine.peak = 1000.0\nAdamW.weight_decay = 1e30\nTrainer.optimizer = @AdamW()\n'
    ),
    tmp_path / 'run',
  )
  with in_terminal([*TRAIN, str(file), '--out', str(out)]) as terminal:
    assert terminal.wait() == 1
    lines = terminal.lines
  assert not any('━' in line for line in lines), lines
  text = ''.join(lines)
  assert 't2x: loss or gradient not finite at step ' in text


@pytest.mark.nightly
def test_a_closed_reader_ends_no_run(experiment, tmp_path):
  file, out = experiment('causal_lm'), tmp_path / 'run'
  command = f'{sys.executable} -m t2x train {file} --out {out} 2>&1; echo $? >&3'
  done = subprocess.run(
    ['bash', '-c', f'exec 3>{tmp_path}/code; ( {command} ) | head -1'],
    stdout=subprocess.PIPE,
    text=True,
    check=True,
  )
  assert len(done.stdout.splitlines()) == 1
  assert (tmp_path / 'code').read_text() == '0\n'
  assert 'finished    12 steps' in (out / 'log.txt').read_text()
