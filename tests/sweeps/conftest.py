"""A sweep that takes seconds: tiny vision transformers on the digits that scikit-learn brings."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from t2x.cli import main
from t2x.sweeps.records import read_outcome, read_plan
from t2x.sweeps.runners import distinct

ROOT = Path(__file__).parents[2]

BASE = f"""
include '{ROOT}/configs/runs/vit_digits.gin'
d_model = 16
num_layers = 1
MLP.hidden_dim = 32
MultiHeadAttention.num_heads = 2
Trainer:
  num_steps = 12
  batch_size = 32
  eval_every = 0
  checkpoint_every = 4
  log_every = 4
  ema_decay = None
  keep_last = 1
  keep_best = 0
  optimizer = @AdamW()
Cosine:
  peak = 1e-2
  warmup_steps = 2
"""

VARIANTS = """{
    'gelu': {},
    'relu': {'MLP.activation': @relu},
    'gated': {'Block.feed_forward': @GatedMLP, 'GatedMLP.activation': @gelu, 'GatedMLP.hidden_dim': 32},
  }"""


TWO = "{'gelu': {}, 'relu': {'MLP.activation': @relu}}"


def in_process(arguments):
  """One process, unless the test says otherwise: a worker takes seconds to start."""
  return arguments if '--runner' in arguments else ('--processes', '1', *arguments)


@pytest.fixture
def sweep_file(tmp_path):
  """`sweep_file(variants, extra)` writes a sweep file beside its base; `base`: the latter's macros."""

  def write(variants: str = VARIANTS, extra: str = '', base: str = '') -> Path:
    if base:
      (tmp_path / 'tiny.gin').write_text(BASE)
      base = f"include 'tiny.gin'\n{base}"
    (tmp_path / 'base.gin').write_text(base or BASE)
    path = tmp_path / 'study.gin'
    path.write_text(
      f"Sweep:\n  base = 'base.gin'\n  baseline = 'gelu'\n  variants = {variants}\n  seeds = 2\n{extra}"
    )
    return path

  return write


@pytest.fixture
def sweep(sweep_file, capsys):
  """`sweep(...)` runs `t2x sweep` and returns its exit code, and what it printed."""

  def run(*arguments, extra='', variants=TWO, out='out'):
    file = sweep_file(variants, extra)
    line = ['sweep', str(file), '--out', str(file.parent / out), *in_process(arguments)]
    code = main(line)
    return code, capsys.readouterr()

  return run


@pytest.fixture
def command(sweep_file, tmp_path):
  """`t2x sweep` in a process of its own, into `out`."""
  file = sweep_file(TWO)

  def start(out='out', *arguments):
    line = [sys.executable, '-m', 't2x', 'sweep', str(file), '--out', str(tmp_path / out)]
    return subprocess.Popen(
      [*line, *in_process(arguments)],
      env=os.environ,
      stdout=subprocess.PIPE,
      stderr=subprocess.PIPE,
    )

  return start


@pytest.fixture
def outcomes(tmp_path):
  """`outcomes(out)`: how each trial of a sweep in `out` ended, by run folder; None: it has not."""

  def read(out='out'):
    trials = distinct(read_plan(tmp_path / out / 'study').trials)
    return {one.folder: read_outcome(tmp_path / out / 'trials' / one.folder) for one in trials}

  return read


@pytest.fixture
def assert_close():
  """`assert_close(lines, others, tolerance)`: equal metrics, to a relative tolerance.

  Where the two best logits of an image are equal to rounding, either may win: accuracies may differ by
  one of the 128 images between two lines.
  """

  def check(lines, others, tolerance):
    for one, other in zip(lines, others, strict=True):
      assert one.pop('split') == other.pop('split')
      for name in [name for name in one if name.endswith('accuracy')]:
        assert one.pop(name) == pytest.approx(other.pop(name), rel=tolerance, abs=1 / 128)
      assert one == pytest.approx(other, rel=tolerance)

  return check
