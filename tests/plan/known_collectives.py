"""Run by test_collectives.py in a process of its own, with eight fake devices: compiles programs whose collectives are
known, and prints them as one JSON object."""

import dataclasses
import functools
import json
import sys

import jax
import jax.numpy as jnp

from t2x.experiments import read_experiment
from t2x.plan import hlo
from t2x.plan.collectives import collectives
from t2x.train import Program
from tests.plan.tiny import FILES, FLOAT32, SETTINGS, mesh_file


def listed(compiled, shape):
  """Returns the collectives of a compiled program as dicts."""
  return [dataclasses.asdict(one) for one in collectives(hlo.Program(compiled.as_text()), shape)]


def hand_written():
  """Compiles one collective of each kind; the all-reduce is in a loop of three iterations."""
  shape = {'data': 2, 'fsdp': 2, 'tensor': 2}
  mesh = jax.make_mesh(
    tuple(shape.values()), tuple(shape), axis_types=(jax.sharding.AxisType.Auto,) * 3
  )
  spec = jax.P(('data', 'fsdp', 'tensor'))

  @jax.jit
  @functools.partial(jax.shard_map, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False)
  def program(x):
    x, _ = jax.lax.scan(lambda x, _: (jax.lax.psum(jnp.sin(x), 'fsdp'), None), x, None, length=3)
    x = jax.lax.all_gather(x, 'tensor').sum(0)
    x = jnp.tile(jax.lax.psum_scatter(jnp.cos(x), ('data', 'fsdp'), tiled=True), (4, 1))
    x = jax.lax.all_to_all(jnp.sin(x), 'tensor', 0, 0, tiled=True)
    return jax.lax.ppermute(jnp.cos(x), 'data', [(0, 1), (1, 0)])

  x = jax.ShapeDtypeStruct((32, 16), jnp.float32)
  return listed(program.lower(x).compile(), shape)


def train_step(mesh, overrides):
  """Compiles a train step; returns its collectives and the bytes of all parameters."""
  experiment = read_experiment([*FILES, mesh_file(mesh)], [*SETTINGS, FLOAT32, *overrides])
  program = Program(experiment)
  shape = dict(program.mesh.shape)
  return listed(program.lower_step().compile(), shape), 4 * program.blueprint.size


def main():
  """Prints the collectives."""
  result = {'hand-written': hand_written()}
  if '--steps' in sys.argv:
    # Long rows and a wide MLP: parameters are small beside activations.
    large = ['CausalLM.length=512', 'Trainer.batch_size=64', 'LearnedPositions.max_length=512']
    result['ddp'], result['gradient_bytes'] = train_step('ddp', large)
    result['table_bytes'] = 4 * 512 * 64
    result['fsdp'], _ = train_step('fsdp', large)
  print(json.dumps(result))


if __name__ == '__main__':
  main()
