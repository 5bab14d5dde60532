"""Sources that are prepared once, as a whole or not at all."""

import subprocess
import sys
import time
from pathlib import Path

from tiny_builders import Counted

PREPARE = """
import sys
sys.path[:] = {path!r}
from tiny_builders import Counted
print(len(Counted(log={log!r}, stall={stall!r}).load('train')))
"""


def process(log, stall=False):
  code = PREPARE.format(path=sys.path, log=str(log), stall=stall)
  return subprocess.Popen(
    [sys.executable, '-c', code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
  )


def test_prepared_once_and_again_when_the_fingerprint_changes(tmp_path, capfd):
  log = str(tmp_path / 'log')
  source = Counted(log=log)
  assert [e['text'] for e in source.load('train')] == [f'text {i}' for i in range(50)]
  assert source.load('test')[-1] == {'text': 'text 2'}
  assert Path(log).read_text() == 'made\n'
  assert len(Counted(log=log, count=10).load('train')) == 10
  assert Path(log).read_text() == 'made\nmade\n'
  said = capfd.readouterr()
  assert said.out == said.err == ''


def test_a_killed_preparation_leaves_no_partial_data(tmp_path, cache):
  log = tmp_path / 'log'
  killed = process(log, stall=True)
  stalled = Path(f'{log}.stalled')
  while not stalled.exists():
    assert killed.poll() is None, killed.stderr.read()
    time.sleep(0.02)
  killed.kill()
  killed.wait()
  final = cache / 'built' / 'counted-counted-50'
  assert not final.exists()
  assert len(list(final.parent.glob('*.tmp-*'))) == 1
  assert len(Counted(log=str(log)).load('train')) == 50
  assert final.is_dir()
  assert not list(final.parent.glob('*.tmp-*'))


def test_two_processes_prepare_together(tmp_path):
  both = [process(tmp_path / 'log') for _ in range(2)]
  for one in both:
    out, err = one.communicate(timeout=60)
    assert (out.strip(), one.returncode) == ('50', 0), err
  assert (tmp_path / 'log').read_text() == 'made\n'


def test_missing_and_truncated_files_are_errors(cache, message):
  Counted().load('train')
  (folder,) = (cache / 'built').glob('counted-*-50')
  for path in folder.glob('train.jsonl'):
    path.unlink()
  assert f'{folder} cannot be read' in message(Counted().load, 'train')
  assert "no split 'eval' in Counted(): must be one of train, test" in message(
    Counted().load, 'eval'
  )
