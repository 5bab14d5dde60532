"""Meshes and specs, as far as one device shows them; eight are in tests/multi_device."""

from functools import partial

import jax
import pytest
from flax import nnx
from jax.sharding import PartitionSpec

from t2x.base.errors import UserError
from t2x.cli import main
from t2x.layers import MultiHeadAttention, RMSNorm
from t2x.parallel import (
  MESH_AXES,
  Mesh,
  batch_sharding,
  check_batch,
  partition_spec,
  state_shardings,
)
from t2x.parallel.mesh import BATCH_AXES, as_tuple
from t2x.train.params import Blueprint


def mesh_of(**sizes):
  """A mesh of many devices that are not there."""
  return jax.sharding.AbstractMesh(tuple(sizes.get(axis, 1) for axis in MESH_AXES), MESH_AXES)


RULES = Mesh().rules


def test_minus_one_is_the_remaining_devices():
  assert Mesh(data=-1, fsdp=2, tensor=2).sizes(8) == dict.fromkeys(MESH_AXES, 1) | {
    'data': 2,
    'fsdp': 2,
    'tensor': 2,
  }
  assert Mesh(data=1, fsdp=-1).sizes(8)['fsdp'] == 8


@pytest.mark.parametrize('mesh', [Mesh(tensor=3), Mesh(data=2, fsdp=2), Mesh(data=16)])
def test_sizes_that_do_not_fit_the_devices(mesh):
  with pytest.raises(UserError, match='does not fit 8 devices'):
    mesh.sizes(8)


def test_settings_that_cannot_be():
  with pytest.raises(UserError, match=r'Mesh.data and Mesh.fsdp are -1'):
    Mesh(data=-1, fsdp=-1)
  with pytest.raises(UserError, match=r'Mesh.tensor = 0'):
    Mesh(tensor=0)
  with pytest.raises(UserError, match="'embed' maps to 'fdsp': must be one of data, fsdp"):
    Mesh(rules={'embed': 'fdsp'})
  with pytest.raises(UserError, match=r'Mesh.num_devices = 99'):
    Mesh(num_devices=99).build()


def test_every_axis_exists_on_one_device():
  mesh = Mesh(num_devices=1).build()
  assert mesh.axis_names == MESH_AXES
  assert set(mesh.shape.values()) == {1}
  assert all(kind == jax.sharding.AxisType.Auto for kind in mesh.axis_types)
  assert batch_sharding(mesh).spec == PartitionSpec(('data', 'fsdp', 'expert'))


def test_specs_follow_the_rules():
  mesh = mesh_of(fsdp=2, tensor=2)
  spec = partition_spec(mesh, RULES, ('embed', 'heads', 'head_dim'), (8, 2, 4))
  assert spec == PartitionSpec('fsdp', 'tensor')
  spec = partition_spec(mesh, RULES, ('layers', 'embed', 'heads', 'head_dim'), (3, 8, 2, 4))
  assert spec == PartitionSpec(None, 'fsdp', 'tensor')
  spec = partition_spec(mesh, {'layers': 'tensor'}, ('layers', 'embed'), (4, 8))
  assert spec == PartitionSpec('tensor')
  assert partition_spec(mesh, RULES, (None, 'length'), (3, 8)) == PartitionSpec()


def test_a_mesh_axis_splits_one_dimension_of_a_parameter():
  spec = partition_spec(mesh_of(fsdp=2), RULES, ('embed', 'embed'), (8, 8))
  assert spec == PartitionSpec('fsdp')
  rules = {'embed': ('fsdp', 'tensor'), 'mlp': 'tensor'}
  spec = partition_spec(mesh_of(fsdp=2), rules, ('embed', 'mlp'), (8, 8))
  assert spec == PartitionSpec(('fsdp', 'tensor'))


def test_norms_of_heads_are_not_split_with_the_width():
  """head_dim 6 does not divide over four devices, and is no part of d_model."""
  build = partial(MultiHeadAttention, 24, num_heads=4, qk_norm=RMSNorm)
  shapes = jax.eval_shape(lambda: build(rngs=nnx.Rngs(0)))
  blueprint = Blueprint(shapes)
  mesh = mesh_of(fsdp=4)
  found = state_shardings(mesh, RULES, blueprint.infos, blueprint.params(shapes))
  assert found['q_norm.scale'].spec == PartitionSpec()
  assert found['q.kernel'].spec == PartitionSpec('fsdp', 'tensor')


def test_every_axis_of_a_mesh_splits_something(tmp_path, capsys):
  tables = [*Mesh().rules.values(), *Mesh().activation_rules.values(), BATCH_AXES]
  assert {axis for axes in tables for axis in as_tuple(axes)} == {*MESH_AXES}
  file = tmp_path / 'stage.gin'
  file.write_text('Experiment.model = None\nExperiment.mesh = @Mesh()\nMesh.stage = 2\n')
  assert main(['check', str(file)]) == 2
  assert "stage.gin:3: Mesh has no parameter 'stage'; it has data, fsdp" in capsys.readouterr().err


def test_an_indivisible_axis_is_named():
  with pytest.raises(UserError) as error:
    partition_spec(mesh_of(tensor=4), RULES, ('embed', 'heads'), (8, 6), 'body.q.kernel')
  message = str(error.value)
  assert "body.q.kernel of shape (8, 6): its axis 'heads' of size 6" in message
  assert 'tensor 4' in message
  with pytest.raises(UserError, match=r'Trainer.batch_size = 6 .* data 2 x fsdp 2 = 4'):
    check_batch(mesh_of(data=2, fsdp=2), 6)
  with pytest.raises(UserError, match=r'Trainer.batch_size = 6 .* fsdp 2 x expert 2 = 4'):
    check_batch(mesh_of(fsdp=2, expert=2), 6)
