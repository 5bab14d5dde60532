"""Products and sums over rows: values and gradients against NumPy in float64, in the optimised program, and where they
are the plain operations."""

import dataclasses
import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from equations import equations, products
from flax import nnx
from halved import Halved

from t2x.base.step import in_step
from t2x.layers import (
  Call,
  Causal,
  DynamicHyperConnections,
  FavorPlus,
  Full,
  LinearState,
  Result,
  RoutingAttention,
  SinkhornAttention,
  Tokens,
  TopK,
)
from t2x.layers import products as own
from t2x.layers.embeddings.token_embeddings import float32_logits
from t2x.layers.mixers.gated_delta import gated_delta_rule
from t2x.layers.mixers.linear_attention import visible_sums
from t2x.layers.mixers.lsh_attention import hashes
from t2x.layers.mixers.nystrom import pseudo_inverse

SHAPES = {
  'more outputs': ((12,), (40,)),
  'more inputs': ((40,), (12,)),
  'square': ((16,), (16,)),
  'heads of the outputs': ((12,), (4, 5)),
  'heads of the inputs': ((4, 9), (12,)),
}


def normal(seed, *shape):
  return jax.random.normal(jax.random.key(seed), shape)


@pytest.mark.parametrize(('inputs', 'outputs'), SHAPES.values(), ids=SHAPES)
def test_a_projection_and_its_gradients_equal_float64(inputs, outputs):
  x, kernel, weights = normal(0, 33, *inputs), normal(1, *inputs, *outputs), normal(2, 33, *outputs)

  def loss(x, kernel):
    return (own.products().project(x, kernel, len(inputs)) * weights).sum()

  rows = np.asarray(x, np.float64).reshape(33, -1)
  matrix = np.asarray(kernel, np.float64).reshape(rows.shape[1], -1)
  changes = np.asarray(weights, np.float64).reshape(33, -1)
  dx, dkernel = jax.jit(jax.grad(loss, (0, 1)))(x, kernel)
  y = own.products().project(x, kernel, len(inputs))
  np.testing.assert_allclose(y, (rows @ matrix).reshape(y.shape), atol=1e-5)
  np.testing.assert_allclose(dx, (changes @ matrix.T).reshape(x.shape), atol=1e-5)
  np.testing.assert_allclose(dkernel, (rows.T @ changes).reshape(kernel.shape), atol=1e-5)


@pytest.mark.parametrize(('inputs', 'outputs'), SHAPES.values(), ids=SHAPES)
def test_in_bfloat16_sums_are_rounded_once(inputs, outputs):
  arrays = normal(0, 33, *inputs), normal(1, *inputs, *outputs), normal(2, 33, *outputs)
  x, kernel, weights = (array.astype(jnp.bfloat16) for array in arrays)
  y, pullback = jax.vjp(lambda x, kernel: own.products().project(x, kernel, len(inputs)), x, kernel)
  rows = np.asarray(x, np.float64).reshape(33, -1)
  matrix = np.asarray(kernel, np.float64).reshape(rows.shape[1], -1)
  changes = np.asarray(weights, np.float64).reshape(33, -1)
  expected = rows @ matrix, changes @ matrix.T, rows.T @ changes
  for found, exact in zip((y, *pullback(weights)), expected, strict=True):
    assert found.dtype == jnp.bfloat16
    # Half of a unit in the last place, and the errors of sums in float32.
    np.testing.assert_allclose(
      np.asarray(found, np.float64).ravel(), exact.ravel(), rtol=2**-8, atol=1e-5
    )


@pytest.mark.parametrize(('inputs', 'outputs'), [(128, 256), (256, 128)])
def test_the_compiler_uses_bfloat16_instructions_for_each_product(inputs, outputs):
  def step(x, kernel, table):
    y = jax.nn.gelu(own.products().project(x.reshape(256, inputs), kernel, 1))
    z = float32_logits(y, table)
    return (z.reshape(2, 128, 64) ** 2).sum()

  shapes = (2, 128, inputs), (inputs, outputs), (64, outputs)
  arrays = [normal(i, *shape).astype(jnp.bfloat16) for i, shape in enumerate(shapes)]
  program = jax.jit(jax.grad(step, (0, 1, 2))).lower(*arrays).compile().as_text()
  found = []
  for computation in program.split('\n\n'):
    dtypes = dict(re.findall(r'(%[\w.-]+) = (\w+)\[', computation))
    operands = re.findall(r' dot\((%[\w.-]+), (%[\w.-]+)\)', computation)
    found += [dtypes[name] for pair in operands for name in pair]
  assert found == ['bf16'] * 12


def gradients(inputs, outputs, layout=None):
  """Returns the traced gradients of a projection with a bias."""

  def loss(x, kernel, bias):
    return (own.products().project(x, kernel, 1) + own.products().repeat(bias, (len(x),))).sum()

  with in_step(layout=layout):
    arguments = normal(0, 33, inputs), normal(1, inputs, outputs), normal(2, outputs)
    return jax.make_jaxpr(jax.grad(loss, (0, 1, 2)))(*arguments).jaxpr


@pytest.mark.parametrize(('inputs', 'outputs'), [(8, 24), (24, 8)])
def test_on_one_cpu_transposed_left_operands_are_narrow_and_rows_are_not_summed(inputs, outputs):
  traced = gradients(inputs, outputs)
  left = [e.invars[0].aval.shape for e in products(traced)]
  assert (8, 33) in left and (24, 33) not in left
  sums = [e for e in equations(traced) if e.primitive.name == 'reduce_sum']
  assert [e.invars[0].aval.shape for e in sums] == [(33, outputs)]  # The loss itself.


def test_on_several_devices_the_operations_are_plain():
  plain = gradients(8, 24, Halved('batch'))
  assert not [e for e in equations(plain) if e.primitive.name == 'optimization_barrier']
  assert not [e for e in equations(plain) if e.primitive.name.startswith('custom_vjp')]
  assert (0,) in {e.params['dimension_numbers'][0][0] for e in products(plain)}


@pytest.mark.parametrize('leading', [(7,), (5, 3), (0,)])
def test_the_gradient_of_repeated_rows_is_their_sum(leading):
  x, weights = normal(0, 2, 3), normal(1, *leading, 2, 3)
  np.testing.assert_array_equal(
    own.products().repeat(x, leading), np.broadcast_to(x, (*leading, 2, 3))
  )
  found = jax.grad(lambda x: (own.products().repeat(x, leading) * weights).sum())(x)
  expected = np.asarray(weights, np.float64).reshape(-1, 2, 3).sum(0)
  np.testing.assert_allclose(found, expected, atol=1e-5)


def test_gradients_inside_scan_vmap_and_checkpoint():
  x, kernels, bias = normal(0, 33, 8), normal(1, 3, 8, 8) / 8**0.5, normal(2, 8)

  def plain(kernels, bias):
    y = x
    for kernel in kernels:
      y = jnp.tanh(y @ kernel + bias[None])
    return y.sum()

  def scanned(kernels, bias):
    def layer(y, kernel):
      return jnp.tanh(
        own.products().project(y, kernel, 1) + own.products().repeat(bias, (33,))
      ), None

    return jax.lax.scan(jax.checkpoint(layer), x, kernels)[0].sum()

  def assert_close(found, expected):
    for a, b in zip(found, expected, strict=True):
      np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)

  assert_close(jax.grad(scanned, (0, 1))(kernels, bias), jax.grad(plain, (0, 1))(kernels, bias))
  many = jnp.stack([kernels, 2 * kernels]), jnp.stack([bias, -bias])
  found, expected = (jax.vmap(jax.grad(f, (0, 1)))(*many) for f in (scanned, plain))
  assert_close(found, expected)


def exact_parts():
  """Functions whose docstrings say that they compute in float32, with their arguments."""
  rngs, call = nnx.Rngs(0), Call(Tokens.row(6), Causal())
  q, k, v = (normal(seed, 2, 6, 2, 4) for seed in range(3))
  rate, segments = normal(3, 2, 6, 2), jnp.ones((2, 6), jnp.int32)
  heads, rows = normal(4, 2, 2, 6, 4), normal(5, 2, 6, 8)
  delta = LinearState(jnp.zeros((2, 2, 4, 4)), segments[:, 0])
  streams = DynamicHyperConnections(8, num_streams=3, rngs=rngs)
  sinkhorn = SinkhornAttention(8, num_heads=2, block=3, rngs=rngs)
  routing = RoutingAttention(8, num_heads=2, num_clusters=2, window=3, rngs=rngs)
  blocks = [a.reshape(2, 2, 3, 2, 4) for a in (q, k)]
  router = TopK(8, 3, rngs=rngs)

  def delta_rule(q, k, v):
    return gated_delta_rule(q, k, v, -(rate**2), rate**2, segments, delta, chunk=4)[0]

  def sums(pattern, q, k, v):
    return visible_sums(q, k, v, dataclasses.replace(call, pattern=pattern), 4)[0]

  return {
    'linear attention': (functools.partial(sums, Causal()), q, k, v),
    'linear attention to all tokens': (functools.partial(sums, Full()), q, k, v),
    'gated delta rule': (delta_rule, q, k, v),
    'pseudo-inverse': (
      lambda a: pseudo_inverse(jax.nn.softmax(a), 3),
      heads @ heads.swapaxes(2, 3),
    ),
    'random features': (FavorPlus(4, num_features=8, rngs=rngs).queries, q),
    'hashes': (hashes, heads, normal(6, 2, 4, 3, 5)),
    'clusters': (routing._similarity, heads),
    'experts': (lambda x: router.scores(x, Call(Tokens.row(x.shape[1]))), rows),
    'streams': (lambda x: streams(x, Result).x, normal(7, 2, 6, 3, 8)),
    'order of blocks': (
      lambda q, k: sinkhorn._block_scores(q, k, blocks[0][..., 0, 0] < 9, True),
      *blocks,
    ),
  }


@pytest.mark.parametrize('name', exact_parts())
def test_products_of_states_inverses_and_choices_are_not_rounded_by_an_accelerator(name):
  function, *arrays = exact_parts()[name]

  def loss(*arrays):
    return function(*arrays).astype(jnp.float32).sum()

  for program in (loss, jax.grad(loss, tuple(range(len(arrays))))):
    found = products(jax.make_jaxpr(program)(*arrays).jaxpr)
    assert found or program is not loss
    assert {e.params['precision'] for e in found} <= {(jax.lax.Precision.HIGHEST,) * 2}
