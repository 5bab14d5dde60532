"""Costs of the mechanisms of the recall sweep by length."""

import csv
import subprocess
import sys
from pathlib import Path

import pytest

from t2x.sweeps.sweep import read_sweep

FOLDER = Path(__file__).parents[2] / 'experiments' / 'long_range'


@pytest.fixture
def costs(monkeypatch):
  monkeypatch.syspath_prepend(str(FOLDER))
  import costs

  yield costs
  sys.modules.pop('costs')


def test_every_variant_of_the_sweep_is_a_mechanism(costs):
  names = [mechanism.name for mechanism in costs.mechanisms()]
  variants = [*read_sweep(FOLDER / 'recall_sweep.gin').variants]
  assert names == ['full, Dense', 'full, Blockwise', *variants[1:]]


def test_exponents_match_the_rows(costs):
  rows = [{'length': n, 'milliseconds': 3 * n**1.5, 'megabytes': 0.0} for n in (512, 1024, 4096)]
  rows[0]['milliseconds'] *= 7
  assert costs.exponent(rows, 'milliseconds', at_least=1024) == pytest.approx(1.5)
  assert costs.exponent(rows, 'megabytes') != costs.exponent(rows, 'megabytes')


def test_dense_attention_is_not_measured_at_long_rows(costs):
  dense, blockwise = costs.mechanisms(['full'])
  assert [dense.fits(4096), dense.fits(8192), blockwise.fits(8192)] == [True, False, True]


@pytest.mark.slow
def test_the_script_writes_a_row_per_mechanism_and_length(tmp_path):
  variants = ['linformer', 'window']
  command = [sys.executable, str(FOLDER / 'costs.py'), '--lengths', '64', '128', '--rounds', '1']
  command += ['--variants', *variants, '--out', str(tmp_path)]
  done = subprocess.run(command, capture_output=True, text=True, check=False)
  assert done.returncode == 0, done.stderr
  rows = list(csv.DictReader((tmp_path / 'costs.csv').open()))
  assert {(row['mechanism'], row['length']) for row in rows} == {
    (name, length) for name in variants for length in ('64', '128')
  }
  assert all(float(row['milliseconds']) > 0 and float(row['megabytes']) > 0 for row in rows)
  assert (tmp_path / 'costs.png').stat().st_size > 1000
  assert done.stdout.count('\n| ') == 1 + len(variants)
