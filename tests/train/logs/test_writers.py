"""Writers: what is on disk after a resume is what an uninterrupted run has."""

import io
import json
import re
import signal
import struct

import numpy as np
import pytest
from tensorboardX.proto.event_pb2 import Event, SessionLog

from t2x.base.errors import UserError
from t2x.base.signals import handle_signals
from t2x.train.logs import writers
from t2x.train.logs.writers import JsonLines, TensorBoard, Terminal


def lines(path):
  return [json.loads(line) for line in path.read_text().splitlines()]


def write(path, steps, after=None):
  writer = JsonLines(path, after=after)
  for step in steps:
    writer.write(step, 'train', {'loss': np.float32(1 / step)})
    if step % 2 == 0:
      writer.write(step, 'eval', {'loss': 2 / step})
  return writer


def test_a_line_is_one_flushed_object(tmp_path):
  writer = JsonLines(tmp_path / 'new' / 'metrics.jsonl')
  writer.write(3, 'train', {'loss': 0.5, 'bad': float('inf'), 'text': 'ü\n'})
  assert lines(writer.path) == [
    {'step': 3, 'split': 'train', 'loss': 0.5, 'bad': None, 'text': 'ü\n'}
  ]
  writer.close()


def test_a_resumed_file_equals_an_uninterrupted_one(tmp_path):
  write(tmp_path / 'whole', range(1, 9)).close()
  write(tmp_path / 'killed', range(1, 7)).close()
  with (tmp_path / 'killed').open('a') as file:
    file.write('{"step": 7, "spl')
  write(tmp_path / 'killed', range(5, 9), after=4).close()
  assert (tmp_path / 'killed').read_bytes() == (tmp_path / 'whole').read_bytes()


def test_a_half_written_last_line_is_dropped_even_if_it_is_due(tmp_path):
  write(tmp_path / 'file', [1, 3]).close()
  with (tmp_path / 'file').open('a') as file:
    file.write('{"step": 3, "split": "eval", "loss": 0.1}')  # No line end: it may go on.
  JsonLines(tmp_path / 'file', after=3).close()
  assert [line['split'] for line in lines(tmp_path / 'file')] == ['train', 'train']


def test_a_new_run_starts_with_an_empty_file(tmp_path):
  write(tmp_path / 'file', [1, 2]).close()
  JsonLines(tmp_path / 'file', after=0).close()
  assert (tmp_path / 'file').read_text() == ''


def records_of(path):
  """The events of a file: each record is its length, a checksum, the data and a checksum."""
  content, events = path.read_bytes(), []
  while content:
    (size,) = struct.unpack('<Q', content[:8])
    events.append(Event.FromString(content[12 : 12 + size]))
    content = content[16 + size :]
  return events


def test_tensorboard_points_have_their_step_and_a_resumed_run_hides_later_ones(tmp_path):
  writer = TensorBoard(tmp_path, after=3)
  writer.write(4, 'train', {'loss': np.float32(0.5), 'tokens': 7, 'text': 'left out'})
  writer.close()
  (path,) = (tmp_path / 'tensorboard').iterdir()
  version, start, loss, tokens = records_of(path)
  assert version.file_version == 'brain.Event:2'
  assert (start.step, start.session_log.status) == (4, SessionLog.START)
  points = [
    (e.step, e.summary.value[0].tag, e.summary.value[0].simple_value) for e in (loss, tokens)
  ]
  assert points == [(4, 'train/loss', 0.5), (4, 'train/tokens', 7.0)]


def test_tensorboard_files_of_one_second_are_apart(tmp_path):
  for step in (1, 2):
    writer = TensorBoard(tmp_path)
    writer.write(step, 'train', {'loss': 1.0})
    writer.close()
  files = sorted((tmp_path / 'tensorboard').iterdir())
  assert [records_of(path)[1].step for path in files] == [1, 2]


def test_tensorboard_points_are_on_disk_before_the_end(tmp_path, monkeypatch):
  monkeypatch.setattr(writers, 'FLUSH_SECONDS', 0.0)
  writer = TensorBoard(tmp_path)
  writer.write(1, 'train', {'loss': 1.0})
  (path,) = (tmp_path / 'tensorboard').iterdir()
  assert len(records_of(path)) == 2
  writer.close()


def test_a_full_disk_is_an_error_with_the_file_and_a_partial_line_is_dropped_later(
  tmp_path, full_disk
):
  writer = JsonLines(tmp_path / 'metrics.jsonl')
  with (
    full_disk(1 << 10),
    pytest.raises(UserError, match=r'metrics\.jsonl cannot be written: .*large') as error,
  ):
    for step in range(200):
      writer.write(step, 'train', {'loss': 1.0})
  assert error.value.exit_code == 1
  writer.close()
  assert not (tmp_path / 'metrics.jsonl').read_bytes().endswith(b'\n')
  write(tmp_path / 'metrics.jsonl', [], after=199).close()
  assert len(lines(tmp_path / 'metrics.jsonl')) > 10


@pytest.mark.parametrize('points', [3, 200])
def test_tensorboard_on_a_full_disk_is_logged_once_and_does_not_block(
  tmp_path, caplog, full_disk, points
):
  writer = TensorBoard(tmp_path)
  with full_disk(100):
    for step in range(points):
      writer.write(step, 'train', {'loss': 1.0})
    writer.close()
  assert caplog.text.count('File too large; no more points for TensorBoard') == 1


def test_a_plain_terminal_gets_an_occasional_line(monkeypatch):
  out = io.StringIO()
  terminal = Terminal(100, unit='tokens', every=3600.0, file=out)
  for step in (1, 2, 50, 100):
    terminal.step(step)
    terminal.write(step, 'train', {'loss': 2.5, 'tokens_per_second': 12345.6})
  terminal.write(100, 'eval', {'loss': 2.0, 'accuracy': 0.25})
  terminal.print('[not markup]')
  terminal.close()
  told = out.getvalue().splitlines()
  assert told[0] == 'step 1/100  loss 2.5000  12,346 tokens/s'
  assert told[1].startswith('step 100/100')  # The end is always told.
  assert told[2:] == ['step 100 eval: loss 2  accuracy 0.25', '[not markup]']


def test_train_metrics_are_printed_before_evaluation_metrics(monkeypatch):
  out = io.StringIO()
  terminal = Terminal(100, every=3600.0, file=out)
  for step in (10, 20, 30, 40):
    terminal.step(step)
    terminal.write(step, 'train', {'loss': step / 10})
    if step % 20 == 0:
      terminal.write(step, 'eval', {'loss': 1.0})
  terminal.write(40, 'other', {'loss': 1.0})
  terminal.close()
  lines = [re.sub(r'  \d+:\d+ left', '', line) for line in out.getvalue().splitlines()]
  assert lines == [
    'step 10/100  loss 1.0000',
    'step 20/100  loss 2.0000',
    'step 20 eval: loss 1',
    'step 40/100  loss 4.0000',
    'step 40 eval: loss 1',
    'step 40 other: loss 1',
  ]


@pytest.fixture
def live_line(monkeypatch):
  """`live_line(columns)` makes a terminal that wide, and what gives its live line as text."""
  monkeypatch.setenv('FORCE_COLOR', '1')
  monkeypatch.setenv('TERM', 'xterm')
  made = []

  def make(columns):
    monkeypatch.setenv('COLUMNS', str(columns))
    out = io.StringIO()
    terminal = Terminal(10_000, start=4000, unit='examples', file=out)
    made.append(terminal)

    def line():
      out.seek(0)
      out.truncate()
      terminal._progress.refresh()
      return re.sub(r'\x1b\[[0-9;?]*[A-Za-z]', '', out.getvalue()).strip()

    return terminal, line

  yield make
  for terminal in made:
    terminal.close()


@pytest.mark.parametrize('columns', [60, 80, 120])
def test_the_live_line_shows_step_loss_speed_and_time_left_and_fits(live_line, columns):
  terminal, line = live_line(columns)
  terminal.write(4001, 'train', {'loss': 0.125, 'examples_per_second': 7})
  terminal.step(4001)
  terminal.step(9000)
  assert re.fullmatch(r'step 9000/10000 .*loss 0\.1250  7 examples/s  \d:\d\d left', line())
  assert len(line()) <= columns
  assert ('━' in line()) == (columns > 55)


def test_train_metrics_stay_on_the_screen_after_evaluations_and_the_last_step(live_line):
  terminal, _ = live_line(80)
  printed = []
  terminal.print = printed.append
  for step in (5000, 9000, 10_000):
    terminal.write(step, 'train', {'loss': 0.5})
    if step == 9000:
      terminal.write(step, 'eval', {'loss': 0.25})
  assert printed == [
    'step 9000 train: loss 0.5000',
    'step 9000 eval: loss 0.25',
    'step 10000 train: loss 0.5000',
  ]


def test_the_live_line_shows_what_the_loop_waits_for(live_line):
  terminal, line = live_line(80)
  terminal.watch(lambda: ('compiling step 1', 62.0))
  assert line().endswith('compiling step 1 (1:02)')
  terminal.watch(lambda: ('step 2', 0.1))  # Soon over: not worth a word.
  assert 'step 2' not in line()


def test_the_live_line_shows_a_received_signal(live_line):
  _, line = live_line(80)
  with handle_signals(lambda *_: None):
    signal.raise_signal(signal.SIGTERM)
  assert 'interrupted' in line()


def test_long_lines_of_metrics_are_wrapped_between_metrics(monkeypatch):
  monkeypatch.setenv('COLUMNS', '60')
  out = io.StringIO()
  terminal = Terminal(100, file=out)
  names = {f'a_metric_{i}': 0.5 for i in range(4)} | {'tokens': 245111.0, 'weights': 'ema'}
  terminal.write(7, 'eval', names)
  assert out.getvalue().splitlines() == [
    'step 7 eval: a_metric_0 0.5  a_metric_1 0.5  a_metric_2 0.5',
    '  a_metric_3 0.5  tokens 245,111  weights ema',
  ]
