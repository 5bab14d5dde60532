"""Errors before compiling, the table of what every device holds, and that nothing is replicated."""

from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec

from t2x.base.errors import UserError
from t2x.base.step import in_step
from t2x.cli import main
from t2x.layers.constraints import constrain, map_shards, num_parts
from t2x.parallel import MESH_AXES, Activations, Mesh, check_shardings, sharding_table
from t2x.parallel.mesh import _split_over_slices

CONFIGS = Path(__file__).parents[2] / 'configs'
MODEL = str(CONFIGS / 'models' / 'gpt3_175b.gin')
RUN = str(CONFIGS / 'runs' / 'vit_digits.gin')


def mesh_of(**sizes):
  kinds = (AxisType.Auto,) * len(MESH_AXES)
  return AbstractMesh(tuple(sizes.get(axis, 1) for axis in MESH_AXES), MESH_AXES, axis_types=kinds)


def test_one_device_has_no_constraints():
  mesh = Mesh(num_devices=1)
  assert Activations.of(mesh.build(), mesh) is None

  def layer(x):
    return constrain(x * 2, 'batch', 'length', 'embed')

  assert 'sharding' not in str(jax.make_jaxpr(layer)(jnp.ones((2, 4, 8))))


def test_constraints_follow_the_table_of_activations():
  settings = Mesh(data=2, context=4)
  layout = Activations.of(mesh_of(data=2, context=4), settings)
  x = jnp.ones((2, 8, 4))

  def told(*axes):
    with in_step(layout=layout):
      return str(jax.make_jaxpr(lambda x: constrain(x, *axes))(x))

  assert "P(('data', 'fsdp', 'expert'), 'context', None)" in told('batch', 'length', 'embed')
  assert "UNCONSTRAINED, UNCONSTRAINED, 'tensor')" in told(..., 'mlp').replace('PartitionSpec.', '')
  with in_step(layout=layout):
    assert (num_parts('length'), num_parts('mlp')) == (4, 1)
  assert num_parts('length') == 1
  with pytest.raises(UserError, match=r"axis 'length' of size 6 does not divide .* context 4"):
    jax.eval_shape(lambda: told_error(layout))


def told_error(layout):
  with in_step(layout=layout):
    return constrain(jnp.ones((2, 6, 4)), 'batch', 'length', 'embed')


def test_functions_of_shards_follow_the_table_of_activations():
  layout = Activations.of(mesh_of(data=2, tensor=4), Mesh(data=2, tensor=4))

  def shard_shapes(x, tree):
    shapes = []

    def function(x, tree):
      shapes.extend(a.shape for a in (x, *jax.tree.leaves(tree)))
      return x

    with in_step(layout=layout):
      mapped = map_shards(
        function, (('batch', None, 'heads'), ('batch',)), ('batch', None, 'heads')
      )
      out = jax.eval_shape(mapped, x, tree)
    return shapes, out.shape

  x, weights = jnp.ones((6, 5, 8)), jnp.ones(6)
  assert shard_shapes(x, (weights, None)) == ([(3, 5, 2), (3,)], (6, 5, 8))
  assert shard_shapes(x, None) == ([(3, 5, 2)], (6, 5, 8))
  with pytest.raises(UserError, match=r"axis 'heads' of size 6 does not divide .* tensor 4"):
    shard_shapes(jnp.ones((6, 5, 6)), None)
  assert map_shards(jnp.sin, ((),), ()) is jnp.sin


def test_slices_are_joined_by_the_first_axes():
  assert _split_over_slices((4, 8, 1, 1, 2), 4) == (4, 1, 1, 1, 1)
  assert _split_over_slices((2, 8, 1, 1, 1), 4) == (2, 2, 1, 1, 1)
  with pytest.raises(UserError, match='does not divide over 3 slices'):
    _split_over_slices((4, 8, 1, 1, 1), 3)


def test_a_mesh_may_be_larger_than_the_machine():
  assert dict(Mesh(data=1, fsdp=-1, tensor=4).abstract(256).shape)['fsdp'] == 64
  assert Mesh(data=2, fsdp=-1).abstract().size == 2
  with pytest.raises(UserError, match='does not fit 9 devices'):
    Mesh(data=2, fsdp=-1).abstract(9)


def shaped(mesh, *spec, shape=(8, 4)):
  return jax.ShapeDtypeStruct(
    shape, jnp.float32, sharding=NamedSharding(mesh, PartitionSpec(*spec))
  )


def test_the_table_counts_bytes_by_device():
  mesh = mesh_of(fsdp=4, tensor=2)
  table = sharding_table('title', {'parameters': {'w': shaped(mesh, 'fsdp', 'tensor')}})
  lines = [line.split() for line in table.splitlines()]
  assert ['w', '8', 'x', '4', 'f32', 'fsdp,', 'tensor', '128', 'B', '16', 'B'] in lines
  assert lines[-1] == ['total', '128', 'B', '16', 'B']


def test_silent_replication_is_an_error():
  mesh = mesh_of(fsdp=4)
  split, whole = shaped(mesh, 'fsdp'), shaped(mesh)
  good = {
    'params': {'w': split},
    'opt_state': {'mu': {'w': split}, 'count': shaped(mesh, shape=())},
  }
  check_shardings(good, good)
  bad = good | {'opt_state': good['opt_state'] | {'mu': {'w': whole}}}
  with pytest.raises(UserError, match=r'opt_state.mu.w \(8, 4\) is replicated, expected .*fsdp'):
    check_shardings(good, bad)
  # Also when replication is what was asked for.
  with pytest.raises(
    UserError, match=r'opt_state.mu.w .* is replicated, but its parameter is .*fsdp'
  ):
    check_shardings(bad, bad)


@pytest.mark.parametrize(
  ('arguments', 'message'),
  [
    (
      [MODEL, 'fsdp_tensor', '--devices', '256'],
      "embedding.table of shape (50257, 12288): its axis 'vocab' of size 50257 does not divide over "
      'the mesh axis tensor 2 (the next size that does is 50258)',
    ),
    (
      [MODEL, 'tensor', '--devices', '36', '--gin.TokenEmbedding.vocab_size=50400'],
      "its axis 'mlp' of size 49152 does not divide over the mesh axis tensor 36",
    ),
    (
      [RUN, 'context', '--devices', '12', '--gin.Mesh.context=6', '--gin.Mesh.fsdp=2'],
      "a row of the model of shape (16,): its axis 'length' of size 16 does not divide over the "
      'mesh axis context 6',
    ),
    (
      [RUN, 'ddp', '--devices', '128'],
      'Trainer.batch_size = 64 does not divide over the mesh axes data 128',
    ),
    (
      [RUN, 'ddp', '--devices', '32', '--gin.Trainer.accumulate=4'],
      'Trainer.batch_size / Trainer.accumulate = 64 / 4 = 16 does not divide',
    ),
    ([RUN, 'gpu_8', '--devices', '4'], 'fsdp 8 does not fit 4 devices'),
  ],
)
def test_indivisible_axes_are_an_error_before_parameters_are_created(arguments, message, capsys):
  file, mesh, *rest = arguments
  code = main(['show', file, str(CONFIGS / 'meshes' / f'{mesh}.gin'), '--sharding', *rest])
  assert code == 2
  assert message in capsys.readouterr().err


def test_show_sharding_of_a_whole_run(capsys):
  mesh = str(CONFIGS / 'meshes' / 'hsdp.gin')
  assert main(['show', RUN, mesh, '--sharding', '--devices', '8']) == 0
  out = capsys.readouterr().out
  assert out.startswith('8 devices: data 2 x fsdp 4; activations: batch over data+fsdp')
  for part in ('parameters', 'optimizer state', 'batch', 'total'):
    assert f'\n{part} ' in out
  image = next(line.split() for line in out.splitlines() if line.startswith('  image'))
  assert image[1:10] == ['64', 'x', '8', 'x', '8', 'x', '1', 'f32', 'data+fsdp,']
