"""Scripts in a process of their own, whose CPU is split into eight fake devices."""

import os
import subprocess
import sys
from pathlib import Path

import jax

from t2x.layers.constraints import Layout
from t2x.parallel import Activations, Mesh, batch_sharding, state_shardings
from t2x.train.params import Blueprint

ROOT = Path(__file__).parents[2]


def run_on_eight_devices(
  script: str | Path, *arguments: object, input: str = '', seconds: float = 600, **variables: str
) -> subprocess.CompletedProcess[str]:
  """Runs a script, which finds the helpers and `tests`, and requires that it succeeds.

  Args:
    script: the code, or the path of a file.
    arguments: arguments of the script.
    input: the standard input.
    seconds: time limit.
    variables: further environment variables.
  """
  environment = os.environ | {
    'JAX_PLATFORMS': 'cpu',
    'JAX_NUM_CPU_DEVICES': '8',
    # XLA's threads: a collective of eight devices deadlocks on two.
    'NPROC': '16',
    'PYTHONPATH': os.pathsep.join((str(ROOT), str(Path(__file__).parent))),
  }
  code = [str(script)] if isinstance(script, Path) else ['-c', script]
  done = subprocess.run(
    [sys.executable, *code, *map(str, arguments)],
    env=environment | variables,
    input=input,
    capture_output=True,
    text=True,
    check=False,
    timeout=seconds,
  )
  assert done.returncode == 0, done.stderr[-10_000:]
  return done


def split(model, batch, settings: Mesh) -> tuple[object, object, Layout]:
  """Puts a model and a batch on the devices of a mesh; returns both and the layout of activations."""
  mesh = settings.build()
  blueprint = Blueprint(jax.eval_shape(lambda: model))
  params = blueprint.params(model)
  shardings = state_shardings(mesh, settings.rules, blueprint.infos, params)
  rows = jax.device_put(batch, batch_sharding(mesh))
  assert all(len(leaf.sharding.device_set) == 8 for leaf in jax.tree.leaves(rows))
  placed = blueprint.model(jax.device_put(params, shardings))
  return placed, rows, Activations.of(mesh, settings)
