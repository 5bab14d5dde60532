"""Multi-head attention: its formula, its symmetries, and its caches."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from applying import State, applied, empty
from flax import nnx

from t2x.base.errors import UserError
from t2x.layers import (
  ALiBi,
  Causal,
  Dense,
  Full,
  JointNorm,
  LatentKeyValues,
  MultiHeadAttention,
  NoPositions,
  PerHead,
  Prefix,
  RandomScores,
  RMSNorm,
  RoPE,
  T5Bias,
  Tokens,
  Window,
)
from t2x.layers.attention.cache import SharedSlots

BATCH, LENGTH, WIDTH = 2, 7, 16
RNG = np.random.default_rng(0)
X, SOURCE = (jnp.asarray(RNG.normal(size=(BATCH, n, WIDTH)), jnp.float32) for n in (LENGTH, 5))


def build(of=MultiHeadAttention, **settings):
  """An attention with random weights and biases, the same ones for the same settings."""
  rng = np.random.default_rng(1)

  def init(key, shape, dtype):
    return jnp.asarray(rng.normal(size=shape) / np.sqrt(shape[0]), dtype)

  settings = {'num_heads': 4, 'kernel': Dense(), 'kernel_init': init} | settings
  attention = of(WIDTH, rngs=nnx.Rngs(0), **settings)
  for projection in (attention.q, attention.k, attention.v, attention.out):
    if projection.bias is not None:
      bias = 0.3 * rng.normal(size=projection.bias[...].shape)
      projection.bias[...] = jnp.asarray(bias, jnp.float32)
  return attention


# Most of the time of these tests is compilation.
QUICKLY = {'xla_backend_optimization_level': 0, 'xla_llvm_disable_expensive_passes': True}


# Compiled as one: many small operations one by one take longer.
attend = jax.jit(applied, static_argnames='pattern', compiler_options=QUICKLY)


def double(array):
  return np.asarray(array, np.float64)


def oracle(attention, x, source, mask, scale):
  """The formula, one head at a time, in float64."""

  def project(projection, y):
    bias = 0.0 if projection.bias is None else double(projection.bias[...])
    return np.einsum('bld,dhe->blhe', double(y), double(projection.kernel[...])) + bias

  q, k, v = (
    project(attention.q, x),
    project(attention.k, source),
    project(attention.v, source),
  )
  group = q.shape[2] // k.shape[2]
  heads = []
  for head in range(q.shape[2]):
    scores = np.einsum('bqe,bke->bqk', q[:, :, head], k[:, :, head // group]) * scale
    scores = np.where(mask, scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    heads.append(weights @ v[:, :, head // group])
  y = np.einsum('bqhe,hed->bqd', np.stack(heads, 2), double(attention.out.kernel[...]))
  return y if attention.out.bias is None else y + double(attention.out.bias[...])


@pytest.mark.parametrize('num_kv_heads', [None, 2, 1])
@pytest.mark.parametrize('use_bias', [True, False])
def test_attention_is_its_formula(num_kv_heads, use_bias, compared):
  attention = build(num_kv_heads=num_kv_heads, use_bias=use_bias, out_bias=use_bias)
  y, cache = attend(attention, X, pattern=Causal())
  expected = oracle(attention, X, X, Causal().mask(LENGTH, LENGTH), 0.5)
  system = {1: 'multi-query attention', 2: 'grouped-query attention', None: 'multi-head attention'}
  reference = 'NumPy, float64'
  compared(system[num_kv_heads], reference, y, expected, rtol=1e-7)
  assert cache is None


def test_head_dim_and_scale_can_be_chosen():
  attention = build(num_heads=3, head_dim=5, scale=1.0)
  y, _ = attend(attention, X, pattern=Full())
  expected = oracle(attention, X, X, np.ones((LENGTH, LENGTH), bool), 1.0)
  np.testing.assert_allclose(y, expected, atol=1e-5)


def test_grouped_heads_equal_repeated_heads():
  grouped, full = build(num_kv_heads=2), build()
  for name in ('q', 'out'):
    getattr(full, name).kernel[...] = getattr(grouped, name).kernel[...]
    getattr(full, name).bias[...] = getattr(grouped, name).bias[...]
  for name in ('k', 'v'):
    one, other = getattr(grouped, name), getattr(full, name)
    other.kernel[...] = jnp.repeat(one.kernel[...], 2, axis=1)
    other.bias[...] = jnp.repeat(one.bias[...], 2, axis=0)
  a, _ = attend(grouped, X, pattern=Causal(), encoding=RoPE(WIDTH, rngs=nnx.Rngs(0)))
  b, _ = attend(full, X, pattern=Causal(), encoding=RoPE(WIDTH, rngs=nnx.Rngs(0)))
  np.testing.assert_allclose(a, b, atol=1e-6)


def test_attention_without_positions_is_permutation_equivariant():
  attention = build()
  order = np.random.default_rng(0).permutation(LENGTH)
  y, _ = attend(attention, X, pattern=Full(), encoding=NoPositions(WIDTH, rngs=nnx.Rngs(0)))
  permuted, _ = attend(attention, X[:, order], pattern=Full())
  np.testing.assert_allclose(permuted, y[:, order], atol=1e-5)
  turned, _ = attend(attention, X[:, order], pattern=Full(), encoding=RoPE(WIDTH, rngs=nnx.Rngs(0)))
  assert not np.allclose(turned, y[:, order], atol=1e-2)


ENCODINGS = {
  'rope': lambda: RoPE(WIDTH, rngs=nnx.Rngs(0)),
  't5': lambda: T5Bias(WIDTH, num_heads=4, bidirectional=False, rngs=nnx.Rngs(0)),
  'alibi': lambda: ALiBi(WIDTH, num_heads=4, rngs=nnx.Rngs(0)),
}


@pytest.mark.parametrize('encoding', ENCODINGS)
def test_relative_positions_do_not_see_a_shift(encoding):
  attention, positions = build(), jnp.arange(LENGTH)[None]
  encoding = ENCODINGS[encoding]()
  y, _ = attend(attention, X, pattern=Causal(), tokens=Tokens(positions), encoding=encoding)
  shifted, _ = attend(
    attention, X, pattern=Causal(), tokens=Tokens(positions + 30), encoding=encoding
  )
  plain, _ = attend(attention, X, pattern=Causal())
  np.testing.assert_allclose(shifted, y, atol=1e-5)
  assert not np.allclose(plain, y, atol=1e-3)


@pytest.mark.parametrize('encoding', ENCODINGS)
def test_packed_equals_unpacked(encoding):
  attention, encoding = build(), ENCODINGS[encoding]()
  tokens = Tokens(jnp.asarray([[0, 1, 2, 3, 0, 1, 0]]), jnp.asarray([[1, 1, 1, 1, 2, 2, 0]]))
  packed, _ = attend(attention, X[:1], pattern=Causal(), tokens=tokens, encoding=encoding)
  first, _ = attend(attention, X[:1, :4], pattern=Causal(), encoding=encoding)
  second, _ = attend(attention, X[:1, 4:6], pattern=Causal(), encoding=encoding)
  np.testing.assert_allclose(packed[:, :6], jnp.concatenate([first, second], 1), atol=1e-5)


def test_causal_output_does_not_depend_on_the_future():
  attention, encoding = build(), ENCODINGS['rope']()

  def output(x):
    return applied(attention, x, pattern=Causal(), encoding=encoding)[0][:, 3].sum()

  gradient = jax.jit(jax.grad(output))(X)
  assert (gradient[:, 4:] == 0).all() and (jnp.abs(gradient[:, :4]).max(-1) > 0).all()


def test_qk_norm_makes_scores_blind_to_the_size_of_queries_and_keys():
  attention = build(qk_norm=RMSNorm, use_bias=False)
  y, _ = attend(attention, X, pattern=Full())
  for projection in (attention.q, attention.k):
    projection.kernel[...] = 100.0 * projection.kernel[...]
  again, _ = attend(attention, X, pattern=Full())
  np.testing.assert_allclose(again, y, atol=1e-4)
  assert attention.q_norm.scale[...].shape == (4,)
  assert attention.q_norm.scale is not attention.k_norm.scale


def test_biases_are_those_of_the_named_projections():
  attention = build(use_bias=('q', 'v'))
  assert attention.k.bias is None
  assert attention.q.bias is not None and attention.v.bias is not None


LATENT = functools.partial(LatentKeyValues, rank=3, rotated_dim=2)
RANDOM = functools.partial(RandomScores, max_length=LENGTH)


@pytest.mark.parametrize(
  ('settings', 'message'),
  [
    ({'qk_norm': {'k': RMSNorm}, 'key_values': LATENT}, 'qk_norm is for k, which'),
    ({'use_bias': ('k',), 'key_values': LATENT}, 'keys or values only'),
    ({'use_bias': ('q',), 'scores': RANDOM}, 'use_bias is for q, which'),
    ({'qk_norm': RMSNorm, 'scores': RANDOM}, 'qk_norm is for k, q, which'),
    (
      {'qk_norm': functools.partial(JointNorm, norm=PerHead)},
      'normalises the features of single heads',
    ),
  ],
)
def test_settings_of_what_is_not_projected_are_refused(settings, message):
  with pytest.raises(UserError, match=message):
    MultiHeadAttention(WIDTH, num_heads=4, **settings, rngs=nnx.Rngs(0))


def test_biases_of_replaced_keys_and_values_are_those_of_the_part():
  attention = MultiHeadAttention(
    WIDTH, num_heads=4, use_bias=('k', 'v'), key_values=LATENT, rngs=nnx.Rngs(0)
  )
  assert attention.q.bias is None and attention.key_values.latent.bias is not None


def test_dropout_needs_a_key():
  attention = build(dropout_rate=0.5)
  y, _ = attend(attention, X, pattern=Full())
  np.testing.assert_array_equal(y, attend(build(), X, pattern=Full())[0])
  one, _ = attend(attention, X, pattern=Full(), key=jax.random.key(0))
  two, _ = attend(attention, X, pattern=Full(), key=jax.random.key(1))
  assert not np.allclose(one, two) and not np.allclose(one, y)


def test_kernel_is_the_one_handed_in():
  @dataclasses.dataclass(frozen=True)
  class Twice(Dense):
    def __call__(self, *args, **kwargs):
      return 2.0 * super().__call__(*args, **kwargs)

  plain, _ = attend(build(out_bias=False), X, pattern=Full())
  twice, _ = applied(build(out_bias=False, kernel=Twice()), X)
  np.testing.assert_allclose(twice, 2.0 * plain, atol=1e-6)


@pytest.mark.parametrize(
  ('encoding', 'pattern'),
  [
    ('rope', Causal() & Window(3)),
    ('t5', Causal() | Prefix()),
    ('alibi', Causal()),
  ],
  ids=str,
)
def test_cached_decoding_equals_full_forward(pattern, encoding):
  attention, encoding = build(num_kv_heads=2), ENCODINGS[encoding]()
  prefix = jnp.broadcast_to(jnp.arange(LENGTH) < 3, (BATCH, LENGTH))
  full, _ = attend(
    attention,
    X,
    pattern=pattern,
    tokens=Tokens.row(LENGTH, marks={'prefix': prefix}),
    encoding=encoding,
  )
  state, outputs = empty(attention, BATCH, LENGTH + 2), []
  for start, stop in ((0, 4), (4, 5), (5, 6), (6, 7)):
    positions = jnp.broadcast_to(jnp.arange(start, stop), (BATCH, stop - start))
    tokens = Tokens(positions, jnp.ones_like(positions), marks={'prefix': prefix[:, start:stop]})
    y, state = attend(
      attention, X[:, start:stop], pattern=pattern, tokens=tokens, encoding=encoding, state=state
    )
    outputs.append(y)
  np.testing.assert_allclose(jnp.concatenate(outputs, 1), full, atol=1e-5)
  np.testing.assert_array_equal(state.slots.tokens.segments, [[1] * LENGTH + [0, 0]] * BATCH)


@pytest.mark.parametrize('side', ['left', 'right'])
def test_ragged_prompts_decode_as_single_prompts(side):
  attention, encoding = build(), ENCODINGS['rope']()
  lengths, width = (3, 5), 5
  prompt, positions, segments = np.zeros((2, width, WIDTH)), np.zeros((2, width), int), []
  for row, length in enumerate(lengths):
    places = slice(width - length, width) if side == 'left' else slice(0, length)
    prompt[row, places] = X[row, :length]
    positions[row, places] = np.arange(length)
    segments.append(np.isin(np.arange(width), np.arange(width)[places]).astype(int))
  segments = np.stack(segments)
  state = empty(attention, 2, LENGTH)
  tokens = Tokens(jnp.asarray(positions), jnp.asarray(segments))
  x = jnp.asarray(prompt, jnp.float32)
  first, state = attend(
    attention, x, pattern=Causal(), tokens=tokens, encoding=encoding, state=state
  )
  # Each row goes on at its own position.
  at = jnp.asarray(lengths)
  tokens = Tokens(at[:, None], jnp.ones((2, 1), jnp.int32))
  step, _ = attend(
    attention,
    X[jnp.arange(2), at][:, None],
    pattern=Causal(),
    tokens=tokens,
    encoding=encoding,
    state=state,
  )
  for row, length in enumerate(lengths):
    alone, _ = attend(
      attention, X[row : row + 1, : length + 1], pattern=Causal(), encoding=encoding
    )
    np.testing.assert_allclose(first[row][segments[row] == 1], alone[0, :length], atol=1e-5)
    np.testing.assert_allclose(step[row, 0], alone[0, length], atol=1e-5)


@pytest.mark.parametrize('shared', [False, True])
@pytest.mark.parametrize('pattern', [Causal(), Causal() & Window(2)], ids=str)
def test_attention_to_a_full_cache_is_nan_and_without_jit_an_error(pattern, shared):
  attention = build()
  state = empty(attention, BATCH, 4, dtype=jnp.bfloat16)
  if shared:
    state = State(state.cache.share(1, 4), SharedSlots.of(state.slots, 1, 4))
  y, full = attend(attention, X[:, :4], pattern=pattern, state=state)
  assert np.isfinite(y).all()
  tokens = Tokens(jnp.full((BATCH, 1), 4), jnp.ones((BATCH, 1), jnp.int32))
  y, after = attend(attention, X[:, 4:5], pattern=pattern, tokens=tokens, state=full)
  assert np.isnan(y).all()
  assert after.cache.k.dtype == jnp.bfloat16
  with pytest.raises(UserError, match='a cache with 4 slots cannot hold 5 tokens: raise num_slots'):
    applied(attention, X[:, 4:5], pattern=pattern, tokens=tokens, state=full)
  # The number of tokens of one call is known to jit.
  with pytest.raises(UserError, match='a cache with 4 slots cannot hold 5 tokens: raise num_slots'):
    attend(attention, X[:, :5], pattern=pattern, state=state)


def test_rows_of_a_cache_are_repeated_and_taken():
  _, state = attend(build(), X, state=empty(build(), BATCH, 9))
  for cache in (state.cache, state.slots):
    again = cache.repeat(3).take(jnp.asarray([2, 3]))
    jax.tree.map(np.testing.assert_array_equal, again, cache)


def test_heads_that_do_not_divide_are_an_error():
  with pytest.raises(UserError, match='num_heads = 3 does not divide d_model = 16'):
    MultiHeadAttention(16, num_heads=3, rngs=nnx.Rngs(0))
  with pytest.raises(UserError, match='num_kv_heads = 3 does not divide num_heads = 4'):
    MultiHeadAttention(16, num_heads=4, num_kv_heads=3, rngs=nnx.Rngs(0))


def test_parameters_name_their_axes():
  attention = build(num_kv_heads=2)
  assert attention.q.kernel.axes == ('embed', 'heads', 'head_dim')
  assert attention.k.kernel.axes == attention.v.kernel.axes == ('embed', 'kv_heads', 'head_dim')
  assert attention.out.kernel.axes == ('heads', 'head_dim', 'embed')
  assert attention.k.bias.axes == ('kv_heads', 'head_dim')


def test_bfloat16_stays_bfloat16():
  attention = build(qk_norm=RMSNorm)
  y, _ = attend(attention, X.astype(jnp.bfloat16), pattern=Causal(), encoding=ENCODINGS['t5']())
  exact, _ = attend(attention, X, pattern=Causal(), encoding=ENCODINGS['t5']())
  assert y.dtype == jnp.bfloat16
  np.testing.assert_allclose(y.astype(jnp.float32), exact, atol=0.05)
