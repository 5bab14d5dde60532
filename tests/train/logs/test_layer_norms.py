"""Norms by layer against NumPy on the same state."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from points import BATCH, points
from tiny_lm import causal_lm, full_rows, lm

from t2x.layers import RoPE
from t2x.models import Block
from t2x.parallel import Mesh
from t2x.train import AdamW, Constant, Experiment, Group, Program, Trainer, train
from t2x.train.logs.step_sums import NormsPerLayer
from t2x.train.params import ParamInfo


def experiment(num_blocks=1, **settings):
  model = lm(8, num_layers=4, hidden_dim=16, kinds=[Block] * num_blocks, encoding=RoPE)
  trainer = Trainer(
    num_steps=4,
    batch_size=4,
    optimizer=AdamW(weight_decay=0.1),
    schedule=Constant(peak=1e-2),
    clip_norm=0.1,
    **settings,
  )
  return Experiment(model=model, task=causal_lm(8), trainer=trainer, mesh=Mesh())


def step(experiment):
  """The state before and after a step, and what the step returned."""
  program = Program(experiment)
  state, frozen = program.init(0)
  after, out = jax.jit(program.step())(state, frozen, full_rows(4, 8))
  return program, state, after, jax.device_get(out)


def expected(infos, tree):
  """Norm by layer, a parameter and a layer at a time, in float64."""
  squares = {}
  for name, array in tree.items():
    array = np.asarray(array, np.float64)
    stack, separator, _ = name.partition('.blocks.')
    if not separator:
      key = name.split('.')[0]
      squares[key] = squares.get(key, 0.0) + (array**2).sum()
      continue
    for row, layers in enumerate(infos[name].layers):
      key = f'{stack}.{layers[0]}'
      squares[key] = squares.get(key, 0.0) + (array[row] ** 2).sum()
  return {key: np.sqrt(value) for key, value in squares.items()}


GROUPS = (
  Group(match='.*blocks.0.*', layers=(1, 3), frozen=True),
  Group(match='embedding.*', rate=0.5),
)


@pytest.mark.parametrize(
  ('num_blocks', 'settings'),
  [
    pytest.param(1, {}, marks=pytest.mark.nightly),
    pytest.param(2, {'accumulate': 2}, marks=pytest.mark.nightly),
    (1, {'groups': GROUPS}),
  ],
)
def test_norms_equal_those_of_numpy(num_blocks, settings):
  program, before, after, out = step(experiment(num_blocks, layer_norms=True, **settings))
  infos = program.groups.trained
  update = {name: after.params[name] - before.params[name] for name in infos}
  norms = out.layer_norms
  for kind, tree in (('parameter', before.params), ('update', update)):
    for key, value in expected(infos, tree).items():
      assert norms[f'{kind}/{key}'] == pytest.approx(value, rel=1e-4 if kind == 'update' else 1e-5)
  gradients = {name: norm for name, norm in norms.items() if name.startswith('gradient/')}
  assert np.linalg.norm([*gradients.values()]) == pytest.approx(out.sums['grad_norm'][0], rel=1e-5)
  layers = {'0', '3'} if 'groups' in settings else {'0', '1', '2', '3'}
  assert gradients.keys() == {
    'gradient/embedding',
    'gradient/body',
    *(f'gradient/body.stack.{i}' for i in layers),
  }


def test_gradient_norms_equal_those_of_numpy():
  names = ('head.bias', 'stack.blocks.0.kernel', 'stack.blocks.1.kernel')
  shapes = ((3,), (2, 4, 5), (2, 6))
  layers = (None, ((0,), (2,)), ((1,), (3,)))
  infos = {
    n: ParamInfo(n, (None,), s, 'vector', layers=rows)
    for n, s, rows in zip(names, shapes, layers, strict=True)
  }
  rng = np.random.default_rng(0)
  trees = [
    {n: rng.normal(size=s).astype(np.float32) for n, s in zip(names, shapes, strict=True)}
    for _ in range(3)
  ]
  norms = NormsPerLayer(infos)
  values = dict(zip(norms.names, jax.jit(norms)(*trees), strict=True))
  for kind, tree in zip(('gradient', 'parameter', 'update'), trees, strict=True):
    for key, value in expected(infos, tree).items():
      assert values[f'{kind}/{key}'] == pytest.approx(value, rel=1e-6)


def test_layers_have_equally_many_digits():
  layers = tuple((i,) for i in range(12))
  info = ParamInfo('stack.blocks.0.kernel', (None,), (12, 3), 'vector', layers=layers)
  assert NormsPerLayer({info.name: info}).names[:3] == (
    'gradient/stack.00',
    'gradient/stack.01',
    'gradient/stack.02',
  )


def test_norms_are_appended_to_the_sums_and_change_no_parameter():
  batch = {'x': jnp.ones((BATCH, 3)), 'y': jnp.ones(BATCH)}

  def step(layer_norms):
    program = Program(points(layer_norms=layer_norms))
    return jax.device_get(jax.jit(program.step())(*program.init(0), batch))

  (plain_state, plain), (state, sums) = step(False), step(True)
  assert plain.layer_names == () and plain.layer_norms == {}
  # Three kinds, two layers.
  assert sums.values.shape[0] == plain.values.shape[0] + 6 and len(sums.layer_names) == 6
  np.testing.assert_array_equal(sums.values[:-6], plain.values)
  np.testing.assert_array_equal(sums.norms, plain.norms)
  jax.tree.map(np.testing.assert_array_equal, state.params, plain_state.params)


class Kept:
  """A writer that keeps the norms."""

  def __init__(self, folder):
    self.folder = folder

  def write(self, step, split, metrics):
    if split == 'norms':
      with (self.folder / 'kept').open('a') as file:
        file.write(f'{step}\n')

  def close(self):
    pass


def test_norms_are_written_at_train_lines_and_a_resumed_run_has_the_same(tmp_path):
  settings = {'layer_norms': True, 'checkpoint_every': 5, 'keep_last': 9}
  for name in ('whole', 'resumed'):
    train(points(writers=(Kept,), **settings), tmp_path / name, '')
  for step in (25, 30):
    (tmp_path / 'resumed' / 'checkpoints' / str(step)).rename(tmp_path / f'gone-{step}')
  train(points(**settings), tmp_path / 'resumed', '')
  whole = (tmp_path / 'whole' / 'norms.jsonl').read_text()
  assert (tmp_path / 'resumed' / 'norms.jsonl').read_text() == whole
  lines = [json.loads(line) for line in whole.splitlines()]
  assert [line['step'] for line in lines] == list(range(3, 31, 3))
  assert {'gradient/slope', 'parameter/offset', 'update/slope'} <= lines[0].keys()
  assert (tmp_path / 'whole' / 'kept').read_text().split() == [str(line['step']) for line in lines]
  events = b''.join(path.read_bytes() for path in (tmp_path / 'whole' / 'tensorboard').iterdir())
  assert b'norms/gradient/slope' in events
  assert 'gradient' not in (tmp_path / 'whole' / 'metrics.jsonl').read_text()


def test_no_norms_are_written_by_default(tmp_path):
  train(points(num_steps=3), tmp_path, '')
  assert not (tmp_path / 'norms.jsonl').exists()
