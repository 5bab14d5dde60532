"""Trials record the values of each evaluated example, and reports contain their noise."""

import json

import numpy as np
import pytest

from t2x.cli import main
from t2x.sweeps.examples import read_examples
from t2x.sweeps.report import read_results
from t2x.sweeps.report.markdown import details
from t2x.train.logs.writers import EXAMPLES, write_examples


def test_files_of_other_evaluations_and_damaged_ones_are_not_read(tmp_path):
  values = np.array([0.25, 0.75, 1.0], 'f4')
  assert read_examples(tmp_path, 'test/accuracy', 2 / 3) is None
  write_examples(tmp_path, {'test/accuracy': values, 'one': values[:1]})
  np.testing.assert_array_equal(read_examples(tmp_path, 'test/accuracy', 2 / 3), values)
  assert read_examples(tmp_path, 'test/accuracy', 0.5) is None
  assert read_examples(tmp_path, 'one', 0.25) is None
  assert read_examples(tmp_path, 'loss', 2 / 3) is None
  path = tmp_path / EXAMPLES
  path.write_bytes(path.read_bytes()[:-40])
  assert read_examples(tmp_path, 'test/accuracy', 2 / 3) is None


def test_a_sweep_records_the_examples_and_reports_their_noise(sweep, tmp_path):
  settings = "  metric = 'test/accuracy'\n  goal = 'max'\n"
  code, _ = sweep(extra=settings)
  assert not code
  for run in (tmp_path / 'out' / 'trials').iterdir():
    metrics = json.loads((run / 'trial.json').read_text())['metrics']
    with np.load(run / EXAMPLES) as file:
      names = ('loss', 'accuracy', 'top5_accuracy', 'label', 'prediction')
      assert {*file} == {*names, *(f'test/{name}' for name in names)}
      for name, values in file.items():
        if name.rpartition('/')[2] not in ('label', 'prediction'):
          assert values.mean(dtype='f8') == pytest.approx(metrics[name], rel=1e-6)
        assert len(values) == metrics[f'{name.rpartition("/")[0]}/eval_examples'.removeprefix('/')]
  folder = tmp_path / 'out' / 'study'
  results = read_results(folder)
  (row,) = (row for row in results.rows if row.comparison)
  assert row.comparison.examples == len(values)
  assert f'and the noise of the {len(values)} evaluated examples' in details(results)
  next((tmp_path / 'out' / 'trials').glob(f'*/{EXAMPLES}')).unlink()
  assert main(['report', str(folder)]) == 0
  assert 'but not the noise of the evaluated examples' in (folder / 'report.md').read_text()
