"""Initialisers that depend on the width and on the depth of what is being built."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from t2x.base.errors import UserError
from t2x.layers import MLP, MultiHeadAttention, depth_scaled, fixup, he_normal, normal, width_normal
from t2x.layers.building import at_position
from t2x.models import Block, ParallelBlock, Stack

KEY, SHAPE = jax.random.key(3), (64, 32)


def stack_of(block, init, num_layers, **settings):
  mixer = functools.partial(MultiHeadAttention, num_heads=2, out_init=init)
  feed_forward = functools.partial(MLP, hidden_dim=64, out_init=init)
  factory = functools.partial(block, mixer=mixer, feed_forward=feed_forward, **settings)
  return Stack(64, num_layers=num_layers, blocks=[factory], rngs=nnx.Rngs(0))


@pytest.mark.parametrize('num_layers', [1, 4])
@pytest.mark.parametrize(
  ('block', 'settings', 'num_branches'),
  [
    (Block, {}, 2),
    (Block, {'cross': functools.partial(MultiHeadAttention, num_heads=2)}, 3),
    (ParallelBlock, {}, 2),
  ],
)
def test_depth_scaled_takes_the_branches_of_the_stack_being_built(
  num_layers, block, settings, num_branches
):
  scaled = stack_of(block, depth_scaled(normal(0.02)), num_layers, **settings)
  by_hand = stack_of(block, normal(0.02), num_layers, **settings)
  for part in ('mixer.out', 'feed_forward.down'):
    outer, inner = part.split('.')
    a, b = (getattr(getattr(s.blocks[0], outer), inner).kernel[...] for s in (scaled, by_hand))
    np.testing.assert_allclose(a, b / np.sqrt(num_layers * num_branches), rtol=1e-6)


def test_fixup_takes_its_branches_from_the_stack_too():
  with at_position(num_layers=5, num_branches=2):
    found = fixup(branch_layers=3)(KEY, SHAPE)
  np.testing.assert_allclose(found, fixup(num_branches=10, branch_layers=3)(KEY, SHAPE))
  np.testing.assert_allclose(found, he_normal()(KEY, SHAPE) * 10 ** (-1 / 4), rtol=1e-6)


@pytest.mark.parametrize('init', [depth_scaled(), fixup()])
def test_an_initialiser_that_needs_a_depth_is_refused_outside_of_a_stack(init):
  with pytest.raises(UserError, match='depends on the depth of a stack'):
    init(KEY, SHAPE)


def test_the_depth_matches_the_innermost_stack_and_ends_with_it():
  with at_position(num_layers=5, num_branches=2):
    with at_position(num_layers=2):
      np.testing.assert_allclose(depth_scaled()(KEY, SHAPE), normal(0.02)(KEY, SHAPE) / 2)
    tenth = normal(0.02)(KEY, SHAPE) / jnp.sqrt(10)
    np.testing.assert_allclose(depth_scaled()(KEY, SHAPE), tenth, rtol=1e-6)


def test_width_normal_has_variance_one_over_width():
  np.testing.assert_array_equal(width_normal(64)(KEY, SHAPE), normal(0.125)(KEY, SHAPE))
