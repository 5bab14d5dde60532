"""Value residuals, and the extras of a stack that carry them, against layers applied by hand."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from applying import applied, check_decoding, moved
from flax import nnx
from tiny_lm import lm

from t2x.base.errors import UserError
from t2x.layers import (
  MLP,
  Call,
  Causal,
  FeedForward,
  LearnedValueResidual,
  MultiHeadAttention,
  Result,
  SourceSequence,
  Tokens,
  ValueResidual,
)
from t2x.layers.attention.projections import Heads
from t2x.models import Block, ParallelBlock, Stack

WIDTH, HEADS, KV_HEADS, LENGTH = 16, 4, 2, 6
X = jnp.asarray(np.random.default_rng(0).normal(size=(2, LENGTH, WIDTH)), jnp.float32)
KINDS = {'fixed': ValueResidual, 'learned': LearnedValueResidual}


def block(values=None, kind=Block, kv_heads=KV_HEADS):
  return functools.partial(
    kind,
    mixer=functools.partial(
      MultiHeadAttention, num_heads=HEADS, num_kv_heads=kv_heads, values=values
    ),
    feed_forward=functools.partial(MLP, hidden_dim=24),
  )


def build(kind='learned', blocks=None, num_layers=3, **settings):
  blocks = [block(KINDS[kind])] if blocks is None else blocks
  return moved(
    Stack(WIDTH, num_layers=num_layers, blocks=blocks, rngs=nnx.Rngs(0), **settings), scale=0.3
  )


def run(stack, x):
  return applied(stack, x, pattern=Causal())[0]


def double(leaf):
  return np.asarray(leaf, np.float64)


def project(linear, x):
  kernel = double(linear.kernel[...])
  return np.tensordot(x, kernel, 1) + double(linear.bias[...])


def attended(mixer, x, first):
  """Causal attention in float64 with mixed values, and the values of the first layer."""
  q, k, v = (project(linear, x) for linear in (mixer.q, mixer.k, mixer.v))
  if mixer.values is not None:
    if first is None:
      first = v
    else:
      one, other = (double(weight) for weight in mixer.values.weights())
      v = one * first + other * v
  k, v = (np.repeat(a, HEADS // KV_HEADS, axis=2) for a in (k, v))
  scores = np.einsum('bqhd,bkhd->bhqk', q, k) / np.sqrt(WIDTH // HEADS)
  weights = np.exp(np.where(np.tril(np.ones((LENGTH, LENGTH))), scores, -np.inf))
  weights /= weights.sum(axis=-1, keepdims=True)
  y = np.einsum('bhqk,bkhd->bqhd', weights, v)
  out = np.einsum('bqhd,hdm->bqm', y, double(mixer.out.kernel[...]))
  return out + double(mixer.out.bias[...]), first


def by_hand(stack, x):
  """The layers one after the other, outside of a stack."""
  first, x = None, double(x)
  for repeat in range(stack.num_repeats):
    group = stack.sets.order[repeat]
    for stacked in stack.blocks:
      layer = jax.tree.map(lambda leaf, group=group: leaf[group], stacked)
      h = double(layer.mixer_wiring.norm(jnp.asarray(x, jnp.float32)))
      y, first = attended(layer.mixer, h, first)
      x = x + y
      h = layer.feed_forward_wiring.norm(jnp.asarray(x, jnp.float32))
      x = x + double(applied(layer.feed_forward, h)[0])
  return x


@pytest.mark.parametrize('kind', KINDS)
def test_three_layers_equal_the_formula(kind, compared):
  stack = build(kind)
  y, expected = jax.jit(run)(stack, X), by_hand(stack, X)
  compared('value residual', 'NumPy, float64', y, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
  'settings',
  [{'unroll': 3}, {'num_groups': 1}, {'num_layers': 4, 'num_groups': 2}, {'remat': 'full'}],
  ids=str,
)
def test_unrolled_shared_and_rematerialised_layers_equal_the_formula(settings):
  stack = build(**settings)
  np.testing.assert_allclose(jax.jit(run)(stack, X), by_hand(stack, X), rtol=1e-5, atol=1e-5)


def test_the_first_layer_is_the_first_that_has_the_part():
  stack = build(blocks=[block(), block(ValueResidual)], num_layers=4)
  np.testing.assert_allclose(jax.jit(run)(stack, X), by_hand(stack, X), rtol=1e-5, atol=1e-5)
  plain = build(blocks=[block()])
  np.testing.assert_allclose(jax.jit(run)(plain, X), by_hand(plain, X), rtol=1e-5, atol=1e-5)


def test_gradients_are_finite_and_equal_with_rematerialisation():
  def loss(stack, x):
    return (run(stack, x) ** 2).mean()

  plain, again = (jax.jit(jax.grad(loss))(build(remat=remat), X) for remat in (None, 'full'))
  for a, b in zip(jax.tree.leaves(plain), jax.tree.leaves(again), strict=True):
    assert jnp.isfinite(a).all()
    np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)
  values = plain.blocks[0].mixer.values
  for weight in (values.first[...], values.own[...]):
    # The first layer has no other values to mix.
    assert weight[0] == 0 and (weight[1:] != 0).all()


def test_learned_weights_stay_in_float32():
  values = LearnedValueResidual(Heads(32, 4, KV_HEADS, 8, 8), first=0.25, rngs=nnx.Rngs(0))
  assert [float(weight) for weight in values.weights()] == [0.25, 0.5]
  assert values.first.get_metadata()['keep_float32']
  v = X.astype(jnp.bfloat16).reshape(2, LENGTH, KV_HEADS, 8)
  mixed, extras = values(v, Call(Tokens.row(LENGTH), extras=values.init_extras(v)))
  assert mixed.dtype == v.dtype and extras['first_values'].dtype == v.dtype


@pytest.mark.parametrize('kind', [Block, ParallelBlock])
def test_decoding_equals_the_forward_pass(kind):
  blocks = [block(LearnedValueResidual, kind)]
  check_decoding(
    moved(lm(WIDTH, vocab_size=9, num_layers=3, blocks=blocks)(rngs=nnx.Rngs(0)), scale=0.3)
  )


def test_a_parallel_block_hands_the_values_on():
  one, two = (build(blocks=[block(values, ParallelBlock)]) for values in (ValueResidual, None))
  assert not np.allclose(run(one, X), run(two, X), atol=1e-2)


def test_layers_with_other_heads_are_refused():
  stack = build(blocks=[block(ValueResidual), block(ValueResidual, kv_heads=1)], num_layers=2)
  with pytest.raises(UserError, match=r"share 'first_values', but it is float32\[2, 6, 2, 4\]"):
    run(stack, X)


def test_cross_attention_is_refused():
  cross = functools.partial(MultiHeadAttention, num_heads=2, values=ValueResidual)
  stack = build(blocks=[functools.partial(block(), cross=cross)])
  with pytest.raises(UserError, match=r'leave it out of Block\.cross'):
    applied(stack, X, pattern=Causal(), source=SourceSequence(X, Tokens.row(LENGTH)))


class Undeclared(FeedForward):
  """Returns extras that it does not initialise."""

  def __init__(self, d_model, *, rngs):
    pass

  def __call__(self, x, call, cache=None):
    return Result(x, extras={'mine': x})


def test_extras_that_no_part_initialises_are_refused():
  stack = build(blocks=[functools.partial(block(), feed_forward=Undeclared)])
  with pytest.raises(UserError, match='returned the extras mine, which no part of this stack'):
    run(stack, X)
