"""MFU in the logs of a run, where the peak of the devices is known."""

import io
import json
import types

import pytest
from points import BATCH, points

from t2x.train import train
from t2x.train.logs.flops import PEAK_FLOPS, Flops
from t2x.train.logs.summary import start_screen
from t2x.train.logs.writers import Terminal
from t2x.train.program import peak_flops, step_flops
from t2x.train.run import TrainingRun

PEAK = 1e9


@pytest.fixture
def known_peak(monkeypatch):
  monkeypatch.setitem(PEAK_FLOPS, 'cpu', PEAK)


def lines(folder):
  return [json.loads(line) for line in (folder / 'metrics.jsonl').read_text().splitlines()]


@pytest.mark.parametrize('checkpoint_every', [0, 4])
def test_train_lines_have_the_flops_of_their_steps_over_the_peak(
  known_peak, tmp_path, checkpoint_every
):
  settings = {'compute_dtype': 'bfloat16', 'checkpoint_every': checkpoint_every}
  train(points(num_steps=9, **settings), tmp_path, '')
  *train_lines, evaluation = lines(tmp_path)
  assert [line['step'] for line in train_lines] == [3, 6, 9]
  for line in train_lines:
    # The product of 3 numbers with the slope takes 6 FLOPs, and twice that for the gradients.
    assert line['mfu'] == pytest.approx(line['examples_per_second'] * 18 / PEAK)
  assert 'mfu' not in evaluation


def test_mfu_is_omitted_without_a_peak_of_the_device(known_peak, tmp_path, monkeypatch):
  train(points(num_steps=3), tmp_path / 'float32', '')
  monkeypatch.delitem(PEAK_FLOPS, 'cpu')
  train(points(num_steps=3, compute_dtype='bfloat16'), tmp_path / 'unknown', '')
  for folder in ('float32', 'unknown'):
    assert not any('mfu' in line for line in lines(tmp_path / folder))
    assert 'MFU' not in (tmp_path / folder / 'summary.txt').read_text()


def test_visible_pairs_and_all_devices_count():
  devices = types.SimpleNamespace(flat=[types.SimpleNamespace(device_kind='NVIDIA H200')] * 8)
  program = types.SimpleNamespace(
    experiment=types.SimpleNamespace(task=types.SimpleNamespace(row_lengths=())),
    flops=Flops(visible=70.0, full=100.0),
    row_lengths={'encoder': 5, 'decoder': 3},
    trainer=types.SimpleNamespace(batch_size=BATCH, compute_dtype='bfloat16'),
    mesh=types.SimpleNamespace(devices=devices, size=8),
  )
  assert step_flops(program) == 70 * BATCH * 8
  assert peak_flops(program) == 8 * 989e12
  # The FLOPs of steps of different lengths differ from those of the longest rows.
  program.experiment.task.row_lengths = (16, 32)
  assert peak_flops(program) is None


def test_the_start_screen_names_the_peak_and_the_convention(known_peak, tmp_path):
  run = TrainingRun(points(compute_dtype='bfloat16'), tmp_path)
  screen = ' '.join(start_screen(run, run.rows('train'), 0, 100).split())
  assert 'MFU relative to 1 GFLOP/s: attention counts the pairs that its pattern shows' in screen


def test_the_terminal_shows_mfu_in_percent():
  out = io.StringIO()
  terminal = Terminal(1, unit='tokens', file=out)
  terminal.write(1, 'train', {'loss': 2.5, 'tokens_per_second': 12345.6, 'mfu': 0.4321})
  terminal.close()
  assert out.getvalue() == 'step 1/1  loss 2.5000  12,346 tokens/s  MFU 43.2%\n'
