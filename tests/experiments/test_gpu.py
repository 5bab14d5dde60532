"""The benchmark for one GPU runs at tiny sizes on a CPU, without the packages that only data and configs need."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / 'experiments' / 'speed' / 'gpu.py'
# Python runs this file when it starts, in the processes of the sections too.
HIDDEN = """
import sys
for name in ('gin', 'jaxtyping', 'sentencepiece', 'tensorflow_datasets', 'tensorboardX', 'sacrebleu', 'PIL',
             'filelock', 'torch'):
  sys.modules[name] = None
"""


def run(folder, *arguments):
  (folder / 'sitecustomize.py').write_text(HIDDEN)
  environment = {name: value for name, value in os.environ.items() if not name.startswith('JAX_')}
  environment |= {'PYTHONPATH': str(folder), 'OUT': str(folder / 'out')}
  command = [sys.executable, str(SCRIPT), '--smoke', *arguments]
  done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
  rows = json.loads((folder / 'out' / 'h200.json').read_text())
  assert (folder / 'out' / 'h200.md').read_text().count('\n| ') >= len(rows)
  return done, rows


@pytest.mark.nightly
def test_every_section_runs_with_jax_flax_optax_and_orbax_only(tmp_path):
  done, rows = run(tmp_path)
  assert done.returncode == 0, done.stdout + done.stderr
  results = [row['result'] for row in rows if 'result' in row]
  assert {text.partition(':')[0] for text in results} == {'ok', 'refused'}
  assert all('cudnn' in row['what'] for row in rows if 'refused' in row.get('result', ''))
  trained = {row['section']: row for row in rows if 'counted_flops' in row}
  assert set(trained) == {'train 124M', 'packed 124M'}
  for row in trained.values():
    # 6 N + attention is what t2x counts in the program.
    assert row['flops_per_token'] == row['counted_flops']
    first, last = map(float, row['losses'].split(' to '))
    assert last < first
  (sustained,) = (row for row in rows if 'checkpoints' in row['what'])
  assert sustained['tokens_per_second'] > 0
  (generated,) = (row for row in rows if 'milliseconds_per_step' in row)
  assert generated['milliseconds_per_step'] > 0
  assert rows[-1]['what'] == 'torch is not installed'


def test_a_run_out_of_time_lists_what_it_did_not_run(tmp_path):
  done, rows = run(tmp_path, '--minutes', '0', '--sections', 'train 124M', 'generate 124M')
  assert done.returncode == 0, done.stderr
  assert [row['what'] for row in rows] == ['not run: the time is up'] * 2


def test_a_section_that_fails_is_a_row_and_a_failure(tmp_path):
  done, rows = run(tmp_path, '--minutes', '5', '--sections', 'no such section')
  assert done.returncode == 1
  assert 'failed with exit code 1' in rows[-1]['what']
