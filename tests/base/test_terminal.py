"""What is printed stands above a live display, is kept in a file, and outlives its terminal."""

import logging
import re
import signal
import subprocess
import sys

import pytest

from t2x.base.errors import UserError
from t2x.base.terminal import LogHandler, console, log_to_file, print_final_line, wrap_streams

START = """
import logging, os, signal, sys, time, warnings
from rich.live import Live
from rich.progress import track
from t2x.base.terminal import LogHandler, console, print_final_line, log_to_file, wrap_streams

def live(text):
  return Live(text, console=console(), transient=True, refresh_per_second=20)

logging.basicConfig(format='%(message)s', handlers=[LogHandler()])
"""


def script(text):
  return [sys.executable, '-c', START + text]


def test_printed_lines_are_above_a_live_display(in_terminal):
  text = """
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
warnings.formatwarning = lambda message, *_: f'{message}\\n'
with wrap_streams():
  print('before', flush=True)
  with live('a live line'):
    logging.warning('logged')
    print('printed')
    print('to stderr', file=sys.stderr)
    warnings.warn('warned')
    print('half of ', end='', flush=True)
    time.sleep(0.2)
    print('a line')
    print('x' * 100)
    signal.sigwait([signal.SIGUSR1])
  print('after')
"""
  above = [
    'before',
    'logged',
    'printed',
    'to stderr',
    'warned',
    'half of a line',
    'x' * 80,
    'x' * 20,
  ]
  with in_terminal(script(text)) as terminal:
    live = [*above, 'a live line']
    assert terminal.read_until(lambda lines: lines == live) == live
    terminal.process.send_signal(signal.SIGUSR1)
    assert terminal.wait() == 0
    assert terminal.lines == [*above, 'after']
    assert not terminal.screen.cursor.hidden


def test_a_bar_within_a_live_display_is_erased(in_terminal):
  text = """
with wrap_streams(), live('a live line'):
  for i in track(range(20), 'preparing', console=console(), transient=True):
    time.sleep(0.02)
    if i == 10:
      logging.warning('logged')
"""
  with in_terminal(script(text)) as terminal:
    seen = lambda lines: lines[:2] == ['logged', 'a live line'] and len(lines) > 2  # noqa: E731
    assert terminal.read_until(seen)[2].startswith('preparing')
    assert terminal.wait() == 0
    assert terminal.lines == ['logged']


def test_the_last_lines_replace_a_live_display(in_terminal):
  text = """
with wrap_streams(), live('a live line'), live('another'):
  time.sleep(0.2)
  print_final_line('the end')
  os._exit(75)
"""
  with in_terminal(script(text)) as terminal:
    assert terminal.wait() == 75
    assert terminal.lines == ['the end']
    assert not terminal.screen.cursor.hidden


def test_a_stdout_that_is_a_file_gets_no_live_display(in_terminal, tmp_path):
  text = f"""
sys.stdout = open({str(tmp_path / 'out')!r}, 'w')
with wrap_streams(), live('a live line'):
  print('printed')
"""
  with in_terminal(script(text)) as terminal:
    assert terminal.wait() == 0
    assert terminal.lines == []
  assert (tmp_path / 'out').read_text() == 'printed\n'


# Writes more than any buffer holds, three times.
LONG = """
with wrap_streams(), log_to_file({log!r}), live('a live line'):
  for i in range(3):
    for j in range(300):
      print('line', i, j)
      logging.warning('logged %d %d', i, j)
    time.sleep(0.2)
sys.exit(3)
"""


@pytest.mark.parametrize('how', ['reader is gone', 'closed at the start', 'terminal is gone'])
def test_closed_streams_end_no_run_and_the_log_continues(in_terminal, tmp_path, how):
  log = tmp_path / 'log.txt'
  text = 'from pathlib import Path\n' + LONG.replace('{log!r}', f'Path({str(log)!r})')
  if how == 'terminal is gone':
    with in_terminal(script('signal.signal(signal.SIGHUP, signal.SIG_IGN)\n' + text)) as terminal:
      terminal.read_until(lambda lines: bool(lines))
      terminal.hang_up()
      assert terminal.process.wait(60) == 3
  elif how == 'closed at the start':
    command = ['sh', '-c', 'exec "$0" -c "$1" >&- 2>&- <&-', sys.executable, START + text]
    assert subprocess.run(command, check=False).returncode == 3
  else:
    pipes = {'stdout': subprocess.PIPE, 'stderr': subprocess.STDOUT}
    process = subprocess.Popen(script(text), **pipes)
    assert process.stdout is not None
    process.stdout.readline()
    process.stdout.close()
    assert process.wait(60) == 3
  lines = log.read_text().splitlines()
  assert len(lines) == 2 * 3 * 300
  assert lines[-1].endswith('  logged 2 299')


def test_no_file_takes_the_place_of_a_closed_stderr(tmp_path):
  text = f"""
with wrap_streams():
  file = open({str(tmp_path / 'data')!r}, 'w')
  os.write(2, b'from native code')
"""
  command = ['sh', '-c', 'exec "$0" -c "$1" 2>&-', sys.executable, START + text]
  assert subprocess.run(command, check=False).returncode == 0
  assert (tmp_path / 'data').read_text() == ''


def test_the_log_has_times_debug_lines_and_what_was_printed(tmp_path, capsys):
  path, handler = tmp_path / 'log.txt', LogHandler()
  logger = logging.getLogger('t2x')
  logger.addHandler(handler)
  try:
    with log_to_file(path):
      logger.debug('a detail')
      logger.warning('a warning')
      print('\x1b[1mbold\x1b[0m')
      print(' 10%\r 20%\r100%', file=sys.stderr)
      print('half ', end='')
      print('a line')
    logger.debug('too late')
  finally:
    logger.removeHandler(handler)
  lines = path.read_text().splitlines()
  assert all(re.match(r'\d{4}-\d\d-\d\d \d\d:\d\d:\d\d  ', line) for line in lines)
  assert [line[21:] for line in lines] == ['a detail', 'a warning', 'bold', '100%', 'half a line']
  out, err = capsys.readouterr()
  assert 'half a line' in out
  assert 'a warning' in err
  assert 'a detail' not in err


def test_the_log_ends_with_the_error_and_where_it_came_from(tmp_path):
  for error in (UserError('a wrong config'), ZeroDivisionError('a bug')):
    with pytest.raises(type(error)), log_to_file(tmp_path / 'log.txt'):
      raise error
  text = (tmp_path / 'log.txt').read_text()
  assert text.splitlines()[0].endswith('  a wrong config')
  assert 'test_terminal.py' in text
  assert text.rstrip().endswith('  ZeroDivisionError: a bug')


def test_a_log_on_a_full_disk_ends_no_run(tmp_path, full_disk, capsys):
  with full_disk(1 << 10), log_to_file(tmp_path / 'log.txt'):
    for i in range(200):
      print('line', i)
  assert 'line 199' in capsys.readouterr().out


def test_streams_are_restored(capsys):
  before = sys.stdout, sys.stderr
  with wrap_streams():
    assert sys.stderr is not before[1]
    with wrap_streams():
      assert console() is console()
    print_final_line('the end')
  assert (sys.stdout, sys.stderr) == before
