"""The data of every task has the same fingerprint in every process, so that its runs can be resumed."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest
import tiny_tasks

from t2x.data import Source
from t2x.data.prepared_folders import former_fingerprints
from t2x.tasks import ImageClassification, Mixture


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


class Pictures(Source):
  """Pictures in memory, whose rows have no fingerprint."""

  def __init__(self, shades):
    self.shades = shades

  def splits(self):
    return ('train',)

  def load(self, split):
    return [{'image': np.full((2, 2, 1), shade, np.uint8), 'label': 0} for shade in self.shades]

  def fingerprint(self):
    return f'pictures {self.shades}'


@pytest.mark.parametrize('mixed', [False, True])
def test_the_fingerprint_follows_the_content_of_every_picture(mixed):
  """Of rows in memory only the first, the middle and the last are read; the source identifies the others."""
  found = []
  for shades in ([0, 1, 2, 3, 4, 5, 6], [0, 1, 9, 3, 4, 5, 6]):
    task = ImageClassification(source=Pictures(shades), image_shape=(2, 2, 1), num_classes=2)
    task = Mixture(tasks={'pictures': task}) if mixed else task
    batches = task.batches(task.rows('train'), batch_size=2, seed=0)
    with former_fingerprints():
      former = batches.fingerprint
    found.append((batches.fingerprint, former))
  assert found[0][0] != found[1][0]
  # Older runs can be resumed.
  assert found[0][1] == found[1][1]
