"""Attention of ConvS2S and of recurrent decoders to vectors of the source, against their equations in float64."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from applying import double, moved
from flax import nnx

from t2x.base.errors import UserError
from t2x.layers import (
  MLP,
  AdditiveScores,
  BilinearScores,
  Call,
  Causal,
  ConvS2SAttention,
  DotProductScores,
  FromSource,
  MultiHeadAttention,
  Parallel,
  Slots,
  SourceAttention,
  SourceSequence,
  Tokens,
)
from t2x.layers.arrays import named_leaves
from t2x.models import Block, SublayerBlock

part = functools.partial
WIDTH, LENGTH, SIZE = 8, 4, 6
rng = np.random.default_rng(0)
X, G, WEIGHTS = (jnp.asarray(rng.normal(size=(2, LENGTH, WIDTH)), jnp.float32) for _ in range(3))
Z, E = (jnp.asarray(rng.normal(size=(2, SIZE, WIDTH)), jnp.float32) for _ in range(2))
SEGMENTS = jnp.asarray([[1, 1, 1, 1, 0, 0], [1] * 6])


def equations(w_in, b_in, w_out, b_out, x, g, z, e):
  """`AttentionLayer` and the end of `FConvEncoder` in fairseq.models.fconv, without the residual connection."""
  q = (x @ w_in + b_in + g) * np.sqrt(0.5)
  scores = jnp.einsum('bqd,bkd->bqk', q, z) + np.where(SEGMENTS, 0, -np.inf)[:, None]
  values = (z + e) * np.sqrt(0.5)
  count = SEGMENTS.sum(axis=1)[:, None, None]
  weights = jnp.exp(scores - scores.max(axis=-1, keepdims=True))
  weights /= weights.sum(axis=-1, keepdims=True)
  return (weights @ values) * (count * np.sqrt(1 / count)) @ w_out + b_out


def test_attention_over_outputs_and_inputs_equals_the_equations_of_fairseq(compared):
  attention = moved(ConvS2SAttention(WIDTH, rngs=nnx.Rngs(0)), scale=0.1)

  @jax.jit
  def weighted(part, x, g, z, e):
    source = SourceSequence(z, Tokens.row(SIZE, segments=SEGMENTS), inputs=e)
    call = Call(Tokens.row(LENGTH), Causal(), source=source, extras={'first_input': g})
    y = part(x, call).x
    return (y * WEIGHTS).sum(), y

  gradients, y = jax.grad(weighted, range(5), has_aux=True)(attention, X, G, Z, E)

  def arrays(part):
    return [p[...] for p in (part.q.kernel, part.q.bias, part.out.kernel, part.out.bias)]

  with jax.enable_x64(True), jax.numpy_rank_promotion('allow'):
    inputs = [jnp.asarray(np.asarray(a, np.float64)) for a in (*arrays(attention), X, G, Z, E)]
    expected = equations(*inputs)
    wanted = jax.grad(lambda *a: (equations(*a) * double(WEIGHTS)).sum(), range(8))(*inputs)
  compared(None, 'NumPy, float64', y, expected)
  for own, other in zip([*arrays(gradients[0]), *gradients[1:]], wanted, strict=True):
    compared(None, 'NumPy, float64', own, other, of='gradients')


def concat(a, h, s):
  pairs = jnp.broadcast_arrays(h[:, :, None], s[:, None])
  w = jnp.concatenate([a['q.kernel'], a['k.kernel']])
  return jnp.tanh(jnp.concatenate(pairs, axis=-1) @ w) @ a['scores.w'][0]


LUONG = {
  'dot': (DotProductScores, (), lambda a, h, s: h @ s.mT),
  'general': (DotProductScores, ('q',), lambda a, h, s: h @ a['q.kernel'] @ s.mT),
  'general of keys': (DotProductScores, ('k',), lambda a, h, s: h @ (s @ a['k.kernel']).mT),
  'bilinear': (BilinearScores, (), lambda a, h, s: h @ a['scores.w'][0] @ s.mT),
  'concat': (AdditiveScores, ('q', 'k'), concat),
}


@pytest.mark.parametrize('name', LUONG)
def test_attention_equals_the_equations_of_luong(name, compared):
  """Equation 8 of the paper."""
  scores, projections, score = LUONG[name]
  build = part(SourceAttention, WIDTH, scores=scores, projections=projections)
  attention = moved(build(rngs=nnx.Rngs(0)), scale=0.1)

  def arrays(part):
    return {name: leaf[...] for name, leaf in named_leaves(part)}

  @jax.jit
  def weighted(part, h, s):
    source = SourceSequence(s, Tokens.row(SIZE, segments=SEGMENTS))
    y = part(h, Call(Tokens.row(LENGTH), Causal(), source=source)).x
    return (y * WEIGHTS).sum(), y

  def equation(a, h, s):
    scores = score(a, h, s) + jnp.where(SEGMENTS, 0, -jnp.inf)[:, None]
    return jax.nn.softmax(scores, axis=-1) @ s

  gradients, y = jax.grad(weighted, range(3), has_aux=True)(attention, X, Z)
  with jax.enable_x64(True), jax.numpy_rank_promotion('allow'):
    inputs = jax.tree.map(
      lambda a: jnp.asarray(np.asarray(a, np.float64)), (arrays(attention), X, Z)
    )
    expected = equation(*inputs)
    wanted = jax.grad(lambda *a: (equation(*a) * double(WEIGHTS)).sum(), range(3))(*inputs)
  compared(None, 'NumPy, float64', y, expected)
  found = arrays(gradients[0]) | {'h': gradients[1], 's': gradients[2]}
  for name, gradient in (wanted[0] | {'h': wanted[1], 's': wanted[2]}).items():
    compared(None, 'NumPy, float64', found[name], gradient, of='gradients')


def decoded_equals_forward(block):
  """Checks a block token by token, with two beams of each row from the second token on."""
  source = SourceSequence(Z, Tokens.row(SIZE, segments=SEGMENTS), inputs=E)

  def call(tokens, x, source, **settings):
    return Call(tokens, Causal(), source=source, extras=block.init_extras(x), **settings)

  full = jax.jit(lambda x: block(x, call(Tokens.row(LENGTH), x, source)).x)(X)
  cache, slots = block.init_cache(2, LENGTH, jnp.float32, source), Slots.empty(2, LENGTH)

  @jax.jit
  def step(x, tokens, cache, slots):
    slots = slots.extend(tokens)
    result = block(x, call(tokens, x, source.without_vectors(), slots=slots), cache)
    return result.x, result.cache, slots

  x, expected = X, full
  for i in range(LENGTH):
    if i == 1:
      cache = {name: own.repeat(2) for name, own in cache.items()}
      slots, x, expected = slots.repeat(2), jnp.repeat(X, 2, axis=0), jnp.repeat(full, 2, axis=0)
    tokens = Tokens(jnp.full((len(x), 1), i), jnp.ones((len(x), 1), jnp.int32))
    y, cache, slots = step(x[:, i : i + 1], tokens, cache, slots)
    np.testing.assert_allclose(y[:, 0], expected[:, i], atol=2e-5)


ATTENTION, FEED_FORWARD = part(MultiHeadAttention, num_heads=2), part(MLP, hidden_dim=12)


def test_convs2s_attention_in_a_block_decodes():
  cross = {'mixer': ATTENTION, 'cross': ConvS2SAttention, 'feed_forward': FEED_FORWARD}
  decoded_equals_forward(moved(Block(WIDTH, **cross, rngs=nnx.Rngs(0))))


def test_cross_attention_beside_self_attention_is_their_sum_and_decodes():
  both = {'own': ATTENTION, 'other': part(FromSource, sublayer=ATTENTION)}
  sublayers = {'attention': part(Parallel, parts=both), 'feed_forward': FEED_FORWARD}
  block = moved(SublayerBlock(WIDTH, sublayers=sublayers, rngs=nnx.Rngs(0)))
  assert 'source' in block.reads
  decoded_equals_forward(block)
  parallel, tokens = block.sublayers['attention'], Tokens.row(LENGTH)
  source = SourceSequence(Z, Tokens.row(SIZE, segments=SEGMENTS))
  y = parallel(X, Call(tokens, Causal(), source=source)).x
  own = parallel.own(X, Call(tokens, Causal())).x
  other = parallel.other(X, Call(tokens, source=source)).x
  np.testing.assert_allclose(y, own + other, atol=1e-6)


def test_inputs_of_another_length_or_none_are_refused():
  attention = ConvS2SAttention(WIDTH, rngs=nnx.Rngs(0))
  with pytest.raises(
    UserError, match=r'adds the inputs of the encoder \[2, 5, 8\] to its outputs \[2, 6, 8\]'
  ):
    attention.init_cache(2, 4, source=SourceSequence(Z, Tokens.row(SIZE), inputs=E[:, :5]))
  with pytest.raises(
    UserError, match=r'reads the inputs of the encoder, but SourceSequence\.inputs is not set'
  ):
    attention.init_cache(2, 4, source=SourceSequence(Z, Tokens.row(SIZE)))
