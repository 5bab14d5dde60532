"""Keys, values and queries of other parts: sizes, kernels and refusals."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from applying import applied, double, moved
from flax import nnx

from t2x.base.errors import UserError
from t2x.layers import (
  AddressPositions,
  Blockwise,
  Causal,
  Dense,
  DifferentialHeads,
  LatentKeyValues,
  LearnedValueResidual,
  LowRankQueries,
  MultiHeadAttention,
  RandomScores,
  RMSNorm,
  RoPE,
  SharedValues,
)

WIDTH, HEADS, LENGTH = 16, 4, 9
X = jnp.asarray(np.random.default_rng(0).normal(size=(2, LENGTH, WIDTH)), jnp.float32)
partial = functools.partial
LATENT = partial(LatentKeyValues, rank=6, rotated_dim=2)


def build(**settings):
  return moved(MultiHeadAttention(WIDTH, num_heads=HEADS, rngs=nnx.Rngs(0), **settings))


def test_values_may_have_another_size_than_keys():
  attention = build(value_dim=3, num_kv_heads=2)
  assert attention.v.kernel.shape == (WIDTH, 2, 3)
  assert attention.out.kernel.shape == (HEADS, 3, WIDTH)
  cache = attention.init_cache(2, LENGTH)
  assert (cache.k.shape, cache.v.shape) == ((2, 2, LENGTH, 4), (2, 2, LENGTH, 3))
  # With W_o = W_o [I, 0], features that are cut off do not count.
  wide = build(num_kv_heads=2)
  pairs = [(wide.q, attention.q), (wide.k, attention.k)]
  for ours, theirs in pairs:
    ours.kernel[...], ours.bias[...] = theirs.kernel[...], theirs.bias[...]
  wide.v.kernel[...] = jnp.pad(attention.v.kernel[...], ((0, 0), (0, 0), (0, 1)))
  wide.v.bias[...] = jnp.pad(attention.v.bias[...], ((0, 0), (0, 1)))
  wide.out.kernel[...] = jnp.pad(attention.out.kernel[...], ((0, 0), (0, 1), (0, 0)))
  wide.out.bias[...] = attention.out.bias[...]
  narrow, _ = applied(attention, X, pattern=Causal())
  np.testing.assert_allclose(narrow, applied(wide, X, pattern=Causal())[0], atol=1e-5)


def turned(x, base=10_000):
  """Rotary positions of [batch, length, heads, dim]: feature i turns with feature i + dim / 2."""
  half = x.shape[-1] // 2
  angles = np.arange(x.shape[1])[:, None] * base ** (-np.arange(half) / half)
  cos, sin = np.cos(angles)[:, None], np.sin(angles)[:, None]
  a, b = x[..., :half], x[..., half:]
  return np.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)


def test_latent_attention_equals_the_equations_of_deepseek_v2():
  """Equations 9 to 19: c = norm(x W_c), k_h = [rotate(x W_r), c K_h], v_h = c V_h, and a causal softmax, in NumPy."""
  own = partial(LatentKeyValues, rank=6, rotated_dim=4)
  attention = build(head_dim=7, value_dim=3, key_values=own, use_bias=False, out_bias=False)
  encoding = RoPE(WIDTH, rngs=nnx.Rngs(0))
  found, _ = applied(attention, X, pattern=Causal(), encoding=encoding)
  x, part = np.asarray(X, np.float64), attention.key_values
  latent = x @ double(part.latent.kernel)
  latent /= np.sqrt((latent**2).mean(axis=-1, keepdims=True) + part.norm.epsilon)
  latent *= double(part.norm.scale)
  shared = turned((x @ double(part.rotated.kernel))[:, :, None])
  q = np.einsum('bld,dhe->blhe', x, double(attention.q.kernel))
  q = np.concatenate([turned(q[..., :4]), q[..., 4:]], axis=-1)
  k = np.einsum('blr,rhe->blhe', latent, double(part.k.kernel))
  k = np.concatenate([np.repeat(shared, HEADS, axis=2), k], axis=-1)
  v = np.einsum('blr,rhe->blhe', latent, double(part.v.kernel))
  scores = np.einsum('bqhe,bkhe->bhqk', q, k) / np.sqrt(7)
  scores[..., np.triu(np.ones((LENGTH, LENGTH), bool), 1)] = -np.inf
  weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
  weights /= weights.sum(axis=-1, keepdims=True)
  y = np.einsum('bhqk,bkhe->bqhe', weights, v)
  expected = np.einsum('bqhe,hed->bqd', y, double(attention.out.kernel))
  np.testing.assert_allclose(found, expected, atol=1e-5)


@pytest.mark.parametrize('value_dim', [3, 8])
def test_kernels_agree_on_values_of_another_size(value_dim):
  dense, blockwise = (
    build(value_dim=value_dim, kernel=kernel) for kernel in (Dense(), Blockwise(4, 4))
  )

  def loss(part, x):
    return (applied(part, x, pattern=Causal())[0] ** 2).mean()

  gradients = [jax.jit(jax.grad(loss, (0, 1)))(part, X) for part in (dense, blockwise)]
  for a, b in zip(*map(jax.tree.leaves, gradients), strict=True):
    np.testing.assert_allclose(a, b, rtol=1e-4, atol=5e-6)


def test_the_output_projection_has_the_shape_of_the_head_outputs():
  attention = build(value_dim=8, key_values=SharedValues, head_outputs=DifferentialHeads)
  assert attention.out.kernel.shape == (HEADS // 2, 8, WIDTH)


def test_lambda_depends_on_the_number_of_the_layer():
  attention = build(value_dim=8, key_values=SharedValues, head_outputs=DifferentialHeads)
  first, second = (applied(attention, X, layer=layer)[0] for layer in (0, 3))
  assert np.abs(first - second).max() > 1e-2


@pytest.mark.parametrize(
  'settings, message',
  [
    ({'key_values': LATENT, 'qk_norm': RMSNorm}, 'qk_norm has no effect'),
    ({'key_values': LATENT, 'values': LearnedValueResidual}, 'values has no effect'),
    ({'key_values': LATENT, 'value_init': nnx.initializers.zeros}, 'value_init has no effect'),
    ({'key_values': LATENT, 'scores': partial(RandomScores, max_length=9)}, 'computes keys'),
    (
      {'queries': partial(LowRankQueries, rank=2), 'scores': partial(RandomScores, max_length=9)},
      'queries is not read',
    ),
    ({'key_values': partial(LatentKeyValues, rank=6, rotated_dim=4)}, 'choose less than'),
    ({'key_values': partial(SharedValues, sharing=3)}, 'choose a divisor'),
    ({'head_outputs': DifferentialHeads, 'value_dim': 3}, 'must be even'),
  ],
)
def test_settings_without_effect_are_refused(settings, message):
  with pytest.raises(UserError, match=message):
    build(**settings)


def test_positions_of_the_key_projection_are_refused_without_it():
  encoding = AddressPositions(WIDTH, rngs=nnx.Rngs(0))
  with pytest.raises(UserError, match='LatentKeyValues replaces in MultiHeadAttention'):
    applied(build(key_values=LATENT), X, encoding=encoding)


class Reduced(SharedValues):
  cacheable = False


def test_keys_of_several_tokens_cannot_be_cached():
  with pytest.raises(UserError, match='Reduced computes keys from several tokens'):
    build(key_values=Reduced).init_cache(2, LENGTH)
