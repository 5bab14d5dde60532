"""The content and query streams of a permutation language model."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from applying import applied

from t2x.base.errors import UserError
from t2x.layers import (
  MLP,
  Blockwise,
  Call,
  Capacity,
  Dense,
  Dropless,
  ForgetGate,
  Hidden,
  MixtureOfExperts,
  MultiHeadAttention,
  Ordered,
  RoPE,
  RowLayout,
  Tokens,
  TokenShift,
  Window,
  XLPositions,
)
from t2x.models import TwoStreams

ORDER = np.array([[3, 0, 4, 1, 0, 2], [0, 1, 2, 3, 4, 5]])
POSITIONS = functools.partial(XLPositions, num_heads=4)


def build(make, **settings):
  settings = {'blocks': [make.block(encoding=POSITIONS)], 'num_layers': 2} | settings
  return make.built(functools.partial(TwoStreams, make.width, **settings))


def x_of(make, batch=2, length=6):
  return jax.random.normal(jax.random.key(5), (batch, length, make.width))


DROPLESS = functools.partial(
  MixtureOfExperts, num_experts=4, expert=functools.partial(MLP, hidden_dim=8), dispatch=Dropless()
)


@pytest.mark.parametrize('settings', [{}, {'feed_forward': DROPLESS}], ids=['MLP', 'experts'])
def test_predictions_depend_on_earlier_tokens_of_the_order_only(make, settings):
  block = functools.partial(make.block(encoding=POSITIONS), **settings)
  stack, x = build(make, blocks=[block]), x_of(make)
  tokens = Tokens.row(6, order=jnp.asarray(ORDER))
  slopes = jax.jit(jax.jacobian(lambda x: applied(stack, x, tokens=tokens)[0].sum(axis=-1)))(x)
  depends = np.abs(slopes).max(axis=-1) > 1e-7
  for row in range(2):
    expected = ORDER[row][None] < ORDER[row][:, None]
    np.testing.assert_array_equal(depends[row, :, row], expected)
    assert not depends[row, :, 1 - row].any()


@pytest.mark.parametrize(
  ('settings', 'words'),
  [
    (
      {'feed_forward': functools.partial(DROPLESS, dispatch=Capacity(factor=1.0))},
      r'MixtureOfExperts\.dispatch = Capacity.* gives experts to tokens in the order of the row',
    ),
    (
      {'feed_forward': functools.partial(DROPLESS, dispatch=Dropless(room=1.0))},
      r'MixtureOfExperts\.dispatch = Dropless.* the order of the row',
    ),
    (
      {'encoding': functools.partial(ForgetGate, num_heads=4)},
      r'ForgetGate adds up gates in the order of the row, .* the pattern .*Ordered\(\)',
    ),
    (
      {
        'mixer': functools.partial(
          TokenShift, sublayer=functools.partial(MultiHeadAttention, num_heads=4)
        )
      },
      r'a convolution follows the order of the row',
    ),
  ],
  ids=['capacity', 'room', 'forget gates', 'token shift'],
)
def test_parts_that_follow_the_order_of_the_row_are_refused(make, settings, words):
  block = functools.partial(make.block(encoding=POSITIONS), **settings)
  call = Call(Tokens.row(6, order=jnp.asarray(ORDER)))
  with pytest.raises(UserError, match=words):
    build(make, blocks=[block])(x_of(make), call)


def test_packed_rows_equal_rows_of_their_own(make):
  stack, x = build(make, blocks=[make.block(encoding=POSITIONS, pattern=Window(3))]), x_of(make)
  both = Tokens(
    jnp.asarray([[0, 1, 2, 3, 4, 5, 0, 1, 2, 3, 4, 5]]),
    jnp.asarray([[1] * 6 + [2] * 6]),
    order=jnp.asarray(ORDER.reshape(1, -1)),
    layout=RowLayout.PACKED,
  )
  packed, _ = jax.jit(functools.partial(applied, tokens=both))(stack, x.reshape(1, 12, -1))
  alone, _ = jax.jit(functools.partial(applied, tokens=Tokens.row(6, order=jnp.asarray(ORDER))))(
    stack, x
  )
  np.testing.assert_allclose(packed.reshape(alone.shape), alone, atol=2e-5)


def test_kernels_that_skip_tiles_equal_dense_attention(make):
  x, tokens = (
    x_of(make, 2, 48),
    Tokens.row(48, order=jax.random.permutation(jax.random.key(0), 48)[None]),
  )
  encoding = make.built(functools.partial(RoPE, make.width))

  def run(stack):
    return applied(stack, x, tokens=tokens, encoding=encoding)[0]

  kernels = Dense(), Blockwise(16, 16)
  one, two = (jax.jit(run)(build(make, blocks=[make.block(kernel)])) for kernel in kernels)
  np.testing.assert_allclose(one, two, atol=2e-5)


def test_a_stack_can_start_from_the_parameters(make):
  ours = {name for name, _ in jax.tree_util.tree_leaves_with_path(build(make))}
  stack = make.stack([make.block(encoding=POSITIONS)])
  theirs = {
    n
    for n, _ in jax.tree_util.tree_leaves_with_path(
      make.built(functools.partial(stack, make.width))
    )
  }
  assert len(ours - theirs) == 1 and theirs < ours


def test_patterns_of_the_order_mask_later_and_hidden_tokens():
  tokens = Tokens(
    np.arange(4)[None],
    order=np.array([[1, 0, 2, 2]]),
    marks={'query': np.array([[0, 0, 0, 1]], bool)},
  )
  mask = np.asarray(Ordered().mask(tokens, tokens)).reshape(4, 4)
  np.testing.assert_array_equal(mask, [[1, 1, 0, 0], [0, 1, 0, 0], [1, 1, 1, 1], [1, 1, 1, 1]])
  mask = np.asarray((Ordered() & Hidden('query')).mask(tokens, tokens)).reshape(4, 4)
  np.testing.assert_array_equal(mask[:, 3], [0, 0, 0, 0])
  assert not Ordered().is_causal(4)


def test_inputs_without_two_streams_are_refused(make):
  stack, x = build(make), x_of(make)
  order = jnp.asarray(ORDER)
  with pytest.raises(UserError, match=r'needs Tokens.order, .*: use the task PermutationLM'):
    applied(stack, x)
  with pytest.raises(UserError, match='rows of text, not of a grid'):
    applied(stack, x, tokens=Tokens.row(6, order=order, grid=(2, 3)))
  with pytest.raises(UserError, match='needs a position encoding that acts in the layers'):
    applied(build(make, blocks=[make.block()]), x, tokens=Tokens.row(6, order=order))
  with pytest.raises(UserError, match='has no cache: to generate, use a Decoder'):
    stack.init_cache(2, 6, jnp.float32)
