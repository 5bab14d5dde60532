"""A step on random batches, for a machine that has none of the packages that read or write data."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / 'experiments' / 'speed' / 'throughput.py'

WITHOUT = """
import runpy, sys
for name in ('grain', 'tensorflow_datasets', 'array_record', 'tensorboardX', 'sacrebleu', 'sklearn',
             'babel', 'matplotlib', 'PIL'):
  sys.modules[name] = None
sys.argv = sys.argv[1:]
sys.exit(runpy.run_path(sys.argv[0], run_name='__main__') and 0)
"""


OTHERS = ('masked_lm', 'translation', 'image_classification')


@pytest.mark.slow
@pytest.mark.parametrize(
  'name', ['causal_lm', *(pytest.param(name, marks=pytest.mark.nightly) for name in OTHERS)]
)
def test_trains_without_the_packages_of_data(name, experiment):
  file = experiment(name, "Trainer.compute_dtype = 'bfloat16'\n")
  command = [sys.executable, '-c', WITHOUT, str(SCRIPT), str(file), '--steps', '20']
  done = subprocess.run(
    [*command, '--peak-tflops', '1'], capture_output=True, text=True, check=False
  )
  assert done.returncode == 0, done.stderr
  told = json.loads(done.stdout)
  assert told['last_loss'] < told['first_loss']
  assert told['milliseconds_a_step'] > 0
  assert told['mfu'] == pytest.approx(told['tflops'], abs=1e-3)
  assert told['trace_seconds'] > 0 and told['compile_seconds'] > 0
  assert told['instructions'] > 1000 and told['temporary_bytes'] > 0
