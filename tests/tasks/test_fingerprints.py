"""The data of every task has the same fingerprint in every process, so that its runs can be resumed."""

import json
import os
import subprocess
import sys

import pytest
import tiny_tasks


@pytest.fixture(scope='module')
def told(tmp_path_factory):
  """What two processes with other hash seeds, and caches of their own, say."""
  folder = tmp_path_factory.mktemp('data')
  tiny_tasks.write_data(folder)
  processes = [
    subprocess.Popen(
      [sys.executable, tiny_tasks.__file__, str(folder)],
      env=os.environ | {'PYTHONHASHSEED': seed, 'T2X_CACHE': str(folder / f'cache-{seed}')},
      stdout=subprocess.PIPE,
      stderr=subprocess.PIPE,
      text=True,
    )
    for seed in ('1', '2')
  ]
  ended = [process.communicate(timeout=120) for process in processes]
  assert [process.returncode for process in processes] == [0, 0], ended
  return [json.loads(out) for out, _ in ended]


def test_every_task_is_looked_at(told):
  assert set(told[0]) == tiny_tasks.task_classes()


@pytest.mark.parametrize('name', sorted(tiny_tasks.task_classes()))
def test_two_processes_have_the_same_fingerprint(told, name):
  assert told[0][name] == told[1][name]


def test_tasks_have_fingerprints_of_their_own(told):
  assert len(set(told[0].values())) == len(told[0])
