"""Run by test_layouts.py in a process of its own, with eight fake devices: trains each tiny
experiment on each mesh and prints one JSON object with the losses."""

import importlib.util
import json
import sys
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from t2x.base.step import in_step
from t2x.experiments import read_config
from t2x.layers import AttentionInputs, Blockwise, Causal, Dense, DotProduct, Tokens
from t2x.layers.constraints import constrain
from t2x.parallel import Activations, Mesh, check_shardings
from t2x.train.run import TrainingRun

ROOT = Path(__file__).parents[2]
# One of each kind of model.
EXPERIMENTS = ('causal_lm', 'masked_lm', 'translation', 'image_classification')
MESHES = ('single', 'ddp', 'fsdp', 'hsdp', 'fsdp_tensor', 'context')
# With every commit; 'hsdp' is then the mesh of a checkpoint.
OFTEN = ('single', 'fsdp', 'fsdp_tensor', 'context')
NUM_STEPS = 20
TILES = Blockwise(8, 8)

# One compiled layer for both; randomness everywhere that the models have it.
SETTINGS = """
d_model = 32
num_layers = 2
dropout_rate = 0.1
Stack.unroll = 1
MLP.hidden_dim = 64
MultiHeadAttention.num_heads = 2
MultiHeadAttention.dropout_rate = 0.1
Experiment.trainer = @Trainer()
Trainer:
  num_steps = 100
  batch_size = 8
  ema_decay = 0.9
  schedule = @Constant()
Constant.peak = 1e-3
"""


def module_of(path):
  spec = importlib.util.spec_from_file_location('tiny', path)
  module = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(module)
  return module


class Training:
  """A run of a tiny experiment on some mesh, step by step."""

  def __init__(self, config, mesh, folder, overrides=()):
    files = [config, ROOT / 'configs' / 'meshes' / f'{mesh}.gin']
    self.run = TrainingRun(read_config(files, overrides).build(), folder)
    self.batches = self.run.batches(self.run.rows('train'))

  def moved(self, state):
    """A state of another mesh, on this one."""
    shardings = jax.tree.map(lambda leaf: leaf.sharding, self.run.program.abstract)
    # A copy: the step is given its state's buffers.
    return jax.device_put(jax.tree.map(jnp.copy, state), shardings)

  def losses(self, state, start, stop):
    losses, train_step = [], self.run.program.train_step()
    for step in range(start, stop):
      state, out = train_step(state, {}, self.run.on_device(self.batches[step]))
      if step == start:
        check_shardings(self.run.program.abstract, state)
      # Waiting keeps all devices in one step: their collectives are threads of few cores.
      losses.append(out.loss)
    return state, losses


def born_sharded(config, folder):
  """Bytes that making a state takes on one of eight devices, and those of the whole model."""
  sizes = ['d_model=256', 'MLP.hidden_dim=1024']
  run = TrainingRun(read_config([config, ROOT / 'configs/meshes/fsdp.gin'], sizes).build(), folder)
  abstract = run.program.abstract
  shardings = jax.tree.map(lambda leaf: leaf.sharding, (abstract, {}))
  init = jax.jit(run.program._initial, out_shardings=shardings)
  memory = init.lower(jax.random.key(0)).compile().memory_analysis()
  whole = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(abstract.params))
  return memory.temp_size_in_bytes + memory.output_size_in_bytes, whole


def blockwise_differences():
  """Relative differences of the kernel's output and gradients, tiles split over four devices."""
  mesh = Mesh(data=2, context=4)
  layout = Activations.of(mesh.build(), mesh)
  keys = jax.random.split(jax.random.key(0), 4)
  q, k, v = (
    jax.random.normal(key, (2, 32, heads, 8)) for key, heads in zip(keys, (4, 2, 2), strict=False)
  )
  segments = jnp.asarray(np.sort(np.random.default_rng(0).integers(1, 4, (2, 32))))
  positions = jnp.concatenate([jnp.arange(32)[None]] * 2)
  starts = jnp.stack([jnp.searchsorted(row, row) for row in segments])
  tokens = Tokens(positions - starts, segments)

  def attend(kernel, layout, key):
    def objective(q, k, v):
      with in_step(layout=layout):
        q = constrain(q, 'batch', 'length', 'heads', None)
        scores = DotProduct(q, k, 0.3)
        inputs = AttentionInputs(scores, v, Causal(), tokens, tokens, dropout_rate=0.1, key=key)
        out = kernel(inputs)
      return jnp.sum(jnp.sin(out)), out

    return jax.jit(jax.grad(objective, argnums=(0, 1, 2), has_aux=True))(q, k, v)

  told = {}
  for name, key, reference in (('plain', None, Dense()), ('dropout', keys[3], TILES)):
    expected, found = attend(reference, None, key), attend(TILES, layout, key)
    for part, a, b in zip(
      ('dq', 'dk', 'dv', 'out'), *map(jax.tree.leaves, (found, expected)), strict=True
    ):
      told[f'{name} {part}'] = float(
        jnp.abs(np.asarray(a) - np.asarray(b)).max() / jnp.abs(b).max()
      )
  return told


def restored_elsewhere(config, folder):
  """Losses of the ten steps behind a checkpoint, where it was saved and on other meshes."""
  saver = Training(config, 'hsdp', folder)
  state, _ = saver.losses(saver.run.init()[0], 0, 5)
  saver.run.checkpoints.save(5, state)
  saver.run.checkpoints.wait()
  saved = [np.asarray(leaf) for leaf in jax.tree.leaves(state.params)]
  told = {'saved': saver.losses(state, 5, 15)[1]}
  others = {
    'fsdp 2 x tensor 2': ('fsdp_tensor', ['Mesh.num_devices=4']),
    'one device': ('single', []),
  }
  for name, (mesh, overrides) in others.items():
    other = Training(config, mesh, folder, overrides)
    state, _, _ = other.run.restore()
    for before, after in zip(saved, jax.tree.leaves(state.params), strict=True):
      np.testing.assert_array_equal(before, np.asarray(after))
    told[name] = other.losses(state, 5, 15)[1]
  return told


def distance(state, other):
  """The largest difference of two states' parameters."""
  pairs = zip(*(jax.tree.leaves(one.params) for one in (state, other)), strict=True)
  return max(float(np.abs(np.asarray(a) - np.asarray(b)).max()) for a, b in pairs)


def main(folder, names):
  tiny = module_of(ROOT / 'tests' / 'end_to_end' / 'conftest.py')
  tiny.write_data(folder / 'data')
  losses, evaluations, initial = {}, {}, {}
  for name in names or EXPERIMENTS:
    config = folder / f'{name}.gin'
    text = tiny.EXPERIMENTS[name].format(configs=ROOT / 'configs', data=folder / 'data')
    # A vocabulary that divides over the mesh, and rows no longer than the other experiments'.
    for old, new in (('vocab_size = 261', 'vocab_size = 264'), (' length = 64', ' length = 32')):
      text = text.replace(old, new)
    config.write_text(text + SETTINGS)
    losses[name], evaluations[name] = {}, {}
    for mesh in OFTEN if names else MESHES:
      began = time.monotonic()
      one = Training(config, mesh, folder / name)
      # The first experiment makes its parameters on every mesh; to compile that takes its time.
      if name == 'causal_lm' or mesh == 'single':
        state, _ = one.run.init()
        first = jax.tree.map(jnp.copy, state) if mesh == 'single' else first
        initial[f'{name}, {mesh}'] = distance(state, first)
      else:
        state = one.moved(first)
      state, losses[name][mesh] = one.losses(state, 0, NUM_STEPS)
      if name == 'causal_lm' and mesh in ('single', 'fsdp_tensor'):
        evaluations[name][mesh] = one.run.evaluation(
          state.eval_params, one.run.task.eval_split
        ).metrics['loss']
      print(name, mesh, f'{time.monotonic() - began:.1f} s', file=sys.stderr, flush=True)
  causal = folder / 'causal_lm.gin'
  told = {
    'losses': losses,
    'evaluations': evaluations,
    'initial': initial,
    'blockwise': blockwise_differences(),
    'born': born_sharded(causal, folder / 'born'),
    'restored': restored_elsewhere(causal, folder / 'restored'),
  }
  print(json.dumps(told))


if __name__ == '__main__':
  main(Path(sys.argv[1]), sys.argv[2:])
