"""Attention in merged products: against float64, against the other form of `Dense`, and in the optimised program."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from equations import equations

from t2x.base.step import plain_operations
from t2x.layers.attention import kernels
from t2x.layers.attention.kernels.base import AttentionInputs, DotProduct
from t2x.layers.patterns.algebra import Causal, Full
from t2x.layers.products import merged_attention
from t2x.layers.tokens import Tokens

HIDDEN = np.finfo(np.float32).min
BATCH, QUERIES, KEYS, HEADS, DIM, V_DIM = 3, 18, 25, 2, 8, 6


def normal(seed, *shape):
  return jax.random.normal(jax.random.key(seed), shape)


def arguments():
  """Returns q, k, v, a mask that hides all keys of one query, and terms of the scores of each head."""
  hidden = jnp.where(normal(3, BATCH, 1, QUERIES, KEYS) < 0.5, 0, HIDDEN).at[1, 0, 4].set(HIDDEN)
  return (
    normal(0, BATCH, QUERIES, HEADS, DIM),
    normal(1, BATCH, KEYS, HEADS, DIM),
    normal(2, BATCH, KEYS, HEADS, V_DIM),
    hidden,
    normal(4, 1, HEADS, QUERIES, KEYS),
  )


def loss(q, k, v, hidden, terms):
  weights = normal(5, BATCH, HEADS, QUERIES, V_DIM)
  return (merged_attention(0.3, q, k, v, (terms, hidden)) * weights).sum()


def test_the_output_and_all_gradients_equal_float64():
  inputs = arguments()
  q, k, v, hidden, terms = (np.asarray(x, np.float64) for x in inputs)
  weights = np.asarray(normal(5, BATCH, HEADS, QUERIES, V_DIM), np.float64)
  scores = 0.3 * np.einsum('bqhd,bkhd->bhqk', q, k) + terms + np.asarray(hidden, np.float32)
  scores = np.where(np.asarray(hidden) < 0, HIDDEN, scores)
  exponentials = np.exp(scores - scores.max(-1, keepdims=True))
  p = exponentials / exponentials.sum(-1, keepdims=True)
  dp = np.einsum('bhqd,bkhd->bhqk', weights, v)
  ds = p * (dp - (p * dp).sum(-1, keepdims=True))
  expected = (
    0.3 * np.einsum('bhqk,bkhd->bqhd', ds, k),
    0.3 * np.einsum('bhqk,bqhd->bkhd', ds, q),
    np.einsum('bhqk,bhqd->bkhd', p, weights),
    ds.sum(1, keepdims=True),
    ds.sum(0, keepdims=True),
  )
  out = jax.jit(merged_attention, static_argnums=0)(0.3, *inputs[:3], (inputs[4], inputs[3]))
  np.testing.assert_allclose(out, np.einsum('bhqk,bkhd->bhqd', p, v), atol=2e-6)
  actual = jax.jit(jax.grad(loss, (0, 1, 2, 3, 4)))(*inputs)
  for x, y in zip(actual, expected, strict=True):
    np.testing.assert_allclose(x, y, atol=5e-6)


def dense_inputs(pattern, seed=0):
  """Returns inputs with two query heads per key head and packed segments with padding."""
  length = 24
  segments = jnp.asarray([[1] * 10 + [2] * 11 + [0] * 3, [1] * 24])
  tokens = Tokens(segments=segments, positions=jnp.broadcast_to(jnp.arange(length), (2, length)))
  scores = DotProduct(normal(seed, 2, length, 4, 8), normal(seed + 1, 2, length, 2, 8), 0.35)
  return AttentionInputs(scores, normal(seed + 2, 2, length, 2, 8), pattern, tokens, tokens)


@pytest.mark.parametrize('pattern', [Full(), Causal()], ids=['full', 'causal'])
@pytest.mark.parametrize('transform', ['jit', 'vmap', 'checkpoint'])
def test_dense_computes_the_same_in_merged_and_in_plain_products(pattern, transform):
  inputs = dense_inputs(pattern)
  weights = normal(9, 2, 24, 4, 8)

  def value(q, k, v):
    changed = AttentionInputs(DotProduct(q, k, 0.35), v, pattern, inputs.q_tokens, inputs.k_tokens)
    return (kernels.Dense().attend(changed) * weights).sum()

  def gradients():
    function = jax.checkpoint(lambda *x: value(*x)) if transform == 'checkpoint' else value
    gradient = jax.grad(lambda *x: function(*x), (0, 1, 2))
    qkv = inputs.scores.q, inputs.scores.k, inputs.v
    if transform != 'vmap':
      return jax.jit(gradient)(*qkv)
    return jax.jit(jax.vmap(gradient))(*(jnp.stack([x, 2 * x]) for x in qkv))

  result = gradients()
  with plain_operations():
    plain = gradients()
  for x, y in zip(result, plain, strict=True):
    np.testing.assert_allclose(x, y, atol=5e-6)


def test_dense_computes_bfloat16_inputs_in_float32_and_rounds_the_results():
  inputs = dense_inputs(Causal())
  narrow = [x.astype(jnp.bfloat16) for x in (inputs.scores.q, inputs.scores.k, inputs.v)]
  weights = normal(9, 2, 24, 4, 8).astype(jnp.bfloat16)

  def results(dtype):
    def attend(q, k, v):
      scores = DotProduct(q, k, 0.35)
      tokens = inputs.q_tokens, inputs.k_tokens
      return kernels.Dense().attend(AttentionInputs(scores, v, Causal(), *tokens))

    out, pullback = jax.vjp(attend, *(x.astype(dtype) for x in narrow))
    return out, *pullback(weights.astype(dtype))

  for found, wide in zip(results(jnp.bfloat16), results(jnp.float32), strict=True):
    assert found.dtype == jnp.bfloat16
    np.testing.assert_array_equal(found.astype('f4'), wide.astype(jnp.bfloat16).astype('f4'))


def test_the_compiler_merges_each_product_with_a_sum_or_a_maximum():
  shape = 8, 128, 4, 32  # XLA leaves sums of fewer than 4,096 numbers alone.
  q, k, v, weights = (normal(i, *shape) for i in range(4))
  hidden = jnp.zeros((8, 1, 128, 128))

  def step(q, k, v, hidden):
    out, pullback = jax.vjp(lambda *x: merged_attention(0.3, *x, (hidden,)), q, k, v)
    return out, pullback(weights.transpose(0, 2, 1, 3))

  program = jax.jit(step).lower(q, k, v, hidden).compile().as_text()
  computations = re.split(r'\n\n', program)
  with_products = [text for text in computations if re.search(r' dot\(', text)]
  assert len(with_products) == 6
  assert all(re.search(r' reduce(-window)?\(', text) for text in with_products)
  assert 'ENTRY' not in ''.join(with_products)


@pytest.mark.parametrize('change', ['soft_cap', 'sink', 'one query'])
def test_other_inputs_take_the_plain_form(change):
  inputs = dense_inputs(Full())
  q, k, v, tokens = inputs.scores.q, inputs.scores.k, inputs.v, inputs.q_tokens
  options = {'soft_cap': {'soft_cap': 5.0}, 'sink': {'sink': jnp.ones(4)}}.get(change, {})
  q_tokens = tokens
  if change == 'one query':
    q, q_tokens = q[:, :1], jax.tree.map(lambda x: x[:, :1], tokens)

  def attend(q, k, v):
    scores = DotProduct(q, k, 0.35, **options)
    return kernels.Dense().attend(AttentionInputs(scores, v, Full(), q_tokens, tokens))

  names = {e.primitive.name for e in equations(jax.make_jaxpr(attend)(q, k, v).jaxpr)}
  assert not any(name.startswith('custom_vjp') for name in names)
