"""Parameters of stacks in stacks, such as experts in layers: what optimizers, groups and muP read of them."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from t2x.layers import (
  MLP,
  GatedMLP,
  MixtureOfExperts,
  MultiHeadAttention,
  lecun_normal,
  normal,
  stacked,
)
from t2x.layers.arrays import named_leaves
from t2x.layers.keys import initialized
from t2x.models import Block, Stack
from t2x.train import Group, LayerDecay, MuP
from t2x.train.groups import Groups
from t2x.train.optimizers import factored_axes, matrix_dimensions
from t2x.train.params import Blueprint

LAYERS, EXPERTS, WIDTH, HIDDEN = 3, 4, 16, 24
UP = 'blocks.0.feed_forward.expert.up.kernel'
ROUTER = 'blocks.0.feed_forward.router.kernel'


def stack(width=WIDTH, num_experts=EXPERTS, hidden_dim=HIDDEN, *, rngs):
  expert = functools.partial(GatedMLP, hidden_dim=hidden_dim, kernel_init=lecun_normal())
  block = functools.partial(
    Block,
    mixer=functools.partial(MultiHeadAttention, num_heads=width // 8),
    feed_forward=functools.partial(MixtureOfExperts, num_experts=num_experts, expert=expert),
  )
  return Stack(width, num_layers=LAYERS, blocks=[block], rngs=rngs)


def copies(*, rngs):
  """Two copies of a stack of layers."""
  block = functools.partial(
    Block,
    mixer=functools.partial(MLP, hidden_dim=8),
    feed_forward=functools.partial(MLP, hidden_dim=8),
  )
  return stacked(
    lambda i, keys: Stack(WIDTH, num_layers=LAYERS, blocks=[block], rngs=keys),
    2,
    rngs,
    axis='copies',
  )


def infos_of(build):
  return Blueprint(jax.eval_shape(lambda: build(rngs=nnx.Rngs(0)))).infos


def test_experts_are_stacked_in_layers():
  up = infos_of(stack)[UP]
  assert (up.stacked, up.axes) == (('layers', 'experts'), ('embed', 'mlp'))
  assert up.shape == (LAYERS, EXPERTS, WIDTH, HIDDEN)
  assert (up.layers, up.num_layers, up.layer_axis) == (((0,), (1,), (2,)), LAYERS, 0)


def test_each_expert_is_a_matrix_of_its_own_for_muon_and_adafactor():
  up = infos_of(stack)[UP]
  assert matrix_dimensions(up) == ((2,), (3,))
  assert factored_axes(up, 8) == ((2,), (3,))


def test_layer_decay_has_a_rate_for_each_layer_of_experts():
  rates = Groups([Group(match='.*', rate=LayerDecay(decay=0.5))], infos_of(stack)).rates
  np.testing.assert_array_equal(rates[UP], np.reshape([0.25, 0.5, 1.0], (3, 1, 1, 1)))


def test_mup_scales_the_experts_as_hidden_matrices_and_the_router_as_an_output():
  wide = functools.partial(stack, 2 * WIDTH, hidden_dim=2 * HIDDEN)
  scaling = MuP(base=stack).scaling(wide)
  assert (scaling.kinds[UP], scaling.steps[UP]) == ('hidden', 0.5)
  assert (scaling.kinds[ROUTER], scaling.steps[ROUTER]) == ('output', 0.5)


def test_values_of_an_expert_depend_on_its_layer_and_number_only():
  def values(num_experts):
    build = functools.partial(stack, num_experts=num_experts)
    return np.asarray(dict(named_leaves(initialized(build, jax.random.key(0))))[UP])

  four = values(EXPERTS)
  np.testing.assert_array_equal(values(2), four[:, :2])
  matrices = four.reshape(-1, WIDTH * HIDDEN)
  assert len(np.unique(matrices[:, 0])) == LAYERS * EXPERTS
  # The fan-in is that of one expert.
  np.testing.assert_allclose(matrices.std(axis=1), WIDTH**-0.5, rtol=0.2)


def test_layers_are_sliced_along_their_axis_wherever_it_is():
  """The first dimension is that of the copies."""
  infos = infos_of(copies)
  name = 'blocks.0.mixer.up.kernel'
  info = infos[name]
  assert (info.stacked, info.layer_axis) == (('copies', 'layers'), 1)
  assert info.layers == ((0,), (1,), (2,))
  decayed = Group(match='.*', rate=LayerDecay(decay=0.5))
  groups = Groups([Group(match='.*', layers=(1, 2), frozen=True), decayed], infos)
  assert groups.trained[name].shape == (2, 2, *info.shape[2:])
  assert groups.trained[name].layers == ((0,), (2,))
  np.testing.assert_array_equal(groups.rates[name], np.reshape([0.25, 1.0], (2, 1, 1)))
  params = {n: jax.random.normal(jax.random.key(0), i.shape) for n, i in infos.items()}
  trained, frozen = groups.split(params)
  np.testing.assert_array_equal(trained[name], params[name][:, ::2])
  np.testing.assert_array_equal(frozen[name], params[name][:, 1:2])
  np.testing.assert_array_equal(groups.join(trained, frozen)[name], params[name])


@pytest.mark.parametrize('num_experts', [1, 3])
def test_copies_have_different_values_outside_of_named_construction(num_experts):
  part = stacked(
    lambda i, keys: MLP(WIDTH, hidden_dim=8, kernel_init=normal(1.0), rngs=keys),
    num_experts,
    nnx.Rngs(0),
    axis='experts',
  )
  assert len(jnp.unique(part.up.kernel[:, 0, 0])) == num_experts
  assert part.up.kernel.get_metadata()['stacked'] == ('experts',)
