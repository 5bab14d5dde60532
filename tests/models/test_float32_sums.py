"""Gradients of what the steps of a loop share are added up in float32: in bfloat16 a sum of ones stops at 256."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from t2x.layers import (
  Call,
  Causal,
  FeedForward,
  MultiHeadAttention,
  PositionEncoding,
  Result,
  SourceSequence,
  Tokens,
  param,
  zeros,
)
from t2x.layers.arrays import named_leaves
from t2x.layers.dtypes import float32_sums
from t2x.models import (
  MixtureOfSoftmaxes,
  ReversibleStack,
  Segments,
  Stack,
  SublayerBlock,
  TiedHead,
  cycle,
)

LAYERS = 1024


def in_bfloat16(tree):
  return jax.tree.map(
    lambda a: a.astype(jnp.bfloat16) if jnp.issubdtype(a.dtype, jnp.floating) else a, tree
  )


def test_a_sum_over_the_steps_of_a_loop_is_rounded_once():
  def total(a):
    read = float32_sums((a, 3))

    def step(carry, _):
      same, three = read()
      assert (same.dtype, three) == (a.dtype, 3)
      return carry, same

    return jax.lax.scan(step, 0, None, length=1000)[1].astype(jnp.float32).sum()

  one = jnp.ones((), jnp.bfloat16)
  assert total(one) == 1000
  gradient = jax.grad(total)(one)
  assert (gradient, gradient.dtype) == (1000, jnp.bfloat16)
  assert 'convert' not in str(jax.make_jaxpr(total)(jnp.float32(1)))


class Shift(PositionEncoding):
  """A position encoding that a mixer reads."""

  def __init__(self, d_model, *, rngs):
    self.vector = param(zeros(), (d_model,), ('embed',), rngs, kind='vector')

  def rotate(self, x, tokens):
    return x


class Adds(FeedForward):
  """A sublayer whose output is the sum of what it reads."""

  reads = frozenset({'encoding', 'source'})

  def __init__(self, d_model, *, rngs):
    self.bias = param(zeros(), (d_model,), ('embed',), rngs, kind='vector')

  def __call__(self, x, call, cache=None):
    vectors = (self.bias[...] + call.encoding.vector[...])[None, None]
    return Result(call.source.x + vectors)


@pytest.mark.parametrize(
  'settings',
  [
    {},
    {'num_groups': 1},
    {'num_groups': 2, 'order': cycle},
    {'num_groups': 1, 'build': ReversibleStack},
  ],
  ids=['own sets', 'one set', 'sets in turn', 'reversible'],
)
def test_layers_add_up_the_gradients_of_what_they_share_in_float32(settings):
  settings = {'build': Stack, **settings}
  block = functools.partial(SublayerBlock, sublayers={'': Adds})
  stack = settings.pop('build')(4, num_layers=LAYERS, blocks=[block], **settings, rngs=nnx.Rngs(0))
  tokens, arrays = Tokens.row(1), (stack, Shift(4, rngs=nnx.Rngs(0)), jnp.zeros((1, 1, 4)))

  def loss(arrays):
    stack, encoding, x = arrays
    call = Call(tokens, Causal(), encoding, SourceSequence(x, tokens))
    return stack(jnp.zeros_like(x), call).x.astype(jnp.float32).sum()

  of_stack, encoding, source = jax.jit(jax.grad(loss))(in_bfloat16(arrays))
  # Both streams of a reversible stack get the half of the sublayers, and their mean is the output.
  number = LAYERS // 2 if isinstance(stack, ReversibleStack) else LAYERS
  for gradient in (encoding.vector[...], source):
    np.testing.assert_array_equal(np.float32(gradient), number)
  np.testing.assert_array_equal(
    np.float32(of_stack.blocks[0].sublayers[''].bias[...]), number / stack.num_groups
  )


def errors_of(loss, names, *arguments):
  """The relative errors of gradients of a loss in bfloat16."""
  narrow = in_bfloat16(arguments)
  exact = jax.tree.map(lambda a, b: b.astype(a.dtype), arguments, narrow)
  gradient = jax.jit(jax.grad(lambda arguments: loss(*arguments).astype(jnp.float32)))
  pair = [dict(named_leaves(gradient(own))) for own in (narrow, exact)]
  pairs = [[np.float64(gradients[name]) for gradients in pair] for name in names]
  return [np.linalg.norm(a - b) / np.linalg.norm(b) for a, b in pairs]


def test_segments_add_up_the_gradients_of_the_stack_in_float32(make):
  build = functools.partial(Segments, length=4, memory=4)
  cross = make.block(cross=functools.partial(MultiHeadAttention, num_heads=4))
  stack = make.built(functools.partial(build, make.width, stack=make.stack([cross])))
  x = jax.random.normal(jax.random.key(0), (1, 2048, make.width))

  def loss(stack, x):
    call = Call(Tokens.row(2048), Causal(), source=SourceSequence(x[:, :8], Tokens.row(8)))
    y = stack(x, call).x.astype(jnp.float32)
    return (y * jnp.linspace(0.0, 1.0, make.width)[None, None]).sum()

  names = [f'0.stack.blocks.0.{name}' for name in ('mixer.v.bias', 'cross.v.kernel')]
  assert max(errors_of(loss, names, stack, x)) < 0.05


def test_a_mixture_of_softmaxes_adds_up_the_gradients_of_the_table_in_float32(make):
  head = functools.partial(MixtureOfSoftmaxes, num_softmaxes=512, head=TiedHead)
  model = make.built(functools.partial(make.language_model(), head=head))
  ids = make.ids((2, 8))
  (error,) = errors_of(lambda model: -model(ids).x[..., 0].sum(), ['0.embedding.table'], model)
  assert error < 0.01
