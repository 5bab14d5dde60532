"""Interpreters that t2x starts import the t2x that starts them, from any working directory."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from t2x.base import interpreter
from t2x.base.errors import UserError
from t2x.plan.compiled import compile_step
from t2x.sweeps.run import _pool

ROOT = Path(__file__).parents[2]


@pytest.fixture
def beside_another(tmp_path, monkeypatch):
  """The working directory contains a folder `t2x`, as the parent folder of a checkout does."""
  (tmp_path / 't2x').mkdir()
  (tmp_path / 't2x' / '__init__.py').write_text("raise ImportError('the other t2x')")
  monkeypatch.chdir(tmp_path)
  return tmp_path


@pytest.mark.usefixtures('beside_another')
def test_a_checkout_that_is_not_installed_is_found(monkeypatch):
  monkeypatch.setattr(sys, 'path', [path for path in sys.path if path not in (str(ROOT), '')])
  environment = interpreter.environment(T2X_OF_THE_USER='yes')
  assert environment['T2X_OF_THE_USER'] == 'yes'
  assert environment['PYTHONPATH'].split(os.pathsep)[0] == str(ROOT)
  command = interpreter.command('-c', 'import t2x.base; print(t2x.__file__)')
  done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
  assert done.stdout.strip() == str(ROOT / 't2x' / '__init__.py'), done.stderr


@pytest.mark.usefixtures('beside_another')
def test_plans_are_compiled_beside_another_folder_of_this_name():
  with pytest.raises(UserError, match=r'missing\.gin'):
    compile_step(['missing.gin'], [], 1)


def test_workers_start_beside_another_folder_of_this_name(beside_another):
  (beside_another / 'out' / 'study').mkdir(parents=True)
  worker = _pool(Path('study.gin'), Path('out'), 1, 1, (), '')._start(0)
  assert worker.wait() == 2
  log = (beside_another / 'out' / 'study' / 'worker-0.log').read_text()
  assert 'the other t2x' not in log and 'sweep.json' in log
