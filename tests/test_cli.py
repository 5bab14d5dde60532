"""The command line answers quickly and fails kindly."""

import json
import subprocess
import sys

import pytest

from t2x.cli import main


def test_help_imports_nothing_heavy():
  code = """
import sys
from t2x.cli import main
try:
  main(['--help'])
except SystemExit:
  pass
heavy = {'jax', 'flax', 'numpy', 'orbax', 'grain', 'tensorflow_datasets', 'rich', 'gin'}
print(sorted(heavy & set(sys.modules)), file=sys.stderr)
"""
  done = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True, check=True)
  assert done.stderr.strip() == '[]'
  assert 'Exit codes' in done.stdout


@pytest.mark.parametrize('command', ['train', 'eval', 'generate', 'check', 'show', 'diff', 'data'])
def test_every_command_has_help(command, capsys):
  with pytest.raises(SystemExit) as stop:
    main([command, '--help'])
  assert stop.value.code == 0
  assert command in capsys.readouterr().out


def test_unknown_command_is_bad_usage(capsys):
  with pytest.raises(SystemExit) as stop:
    main(['trian'])
  assert stop.value.code == 2


def test_no_tensorflow_in_the_process():
  code = """
import json, sys
from t2x.commands import ROOMS
for room in ROOMS:
  __import__(f't2x.{room}')
print(json.dumps('tensorflow' in sys.modules))
"""
  done = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True, check=True)
  assert json.loads(done.stdout) is False
