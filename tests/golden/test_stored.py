"""A stored run of an earlier version loads and resumes."""

import json
import sys
import tarfile
from pathlib import Path

import numpy as np
import pytest

import t2x
from t2x.cli import main

# Muon and moving averages; 4 of 8 steps, made at version 4858856 with Python 3.11.
ARCHIVE = Path(__file__).with_name('run.tar.gz')
# By that version, which continued to step 8.
LAST = {'train': 5.831178724765778, 'eval': 5.692446772804689}
LOGITS = [
  [0.06893180310726166, -0.030007200315594673, -0.19713859260082245, 0.08594369888305664],
  [0.03516929969191551, 0.03216499835252762, -0.03188319876790047, 0.013208200223743916],
  [-0.09586039930582047, -0.06100679934024811, 0.026867300271987915, -0.0729575976729393],
  [-0.11855389922857285, -0.1048424020409584, -0.02408429980278015, -0.06097229942679405],
]


@pytest.fixture
def run(tmp_path):
  with tarfile.open(ARCHIVE) as archive:
    archive.extractall(tmp_path, filter='data')
  return tmp_path / 'run'


def test_a_stored_run_computes_the_same_logits(run):
  loaded = t2x.load(run)
  ids = 5 * np.arange(5, 69).reshape(2, 32) % 400
  assert loaded.step == 4
  np.testing.assert_allclose(loaded.logits(ids)[0, ::8, ::100], LOGITS, atol=1e-5)


@pytest.mark.slow
@pytest.mark.skipif(
  sys.version_info[:2] != (3, 11), reason='its data is the library of Python 3.11'
)
def test_a_stored_run_resumes_to_the_same_losses(run):
  assert main(['train', str(run / 'config.gin'), '--out', str(run)]) == 0
  rows = [json.loads(line) for line in (run / 'metrics.jsonl').read_text().splitlines()]
  assert {row['split']: row['loss'] for row in rows} == pytest.approx(LAST, rel=1e-5)
