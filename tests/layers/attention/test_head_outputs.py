"""Parts between the heads and the output projection, and mixtures of heads, against NumPy in float64."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from applying import applied, moved
from flax import nnx

from t2x.base.errors import UserError
from t2x.layers import (
  Blockwise,
  Causal,
  GatedHeads,
  LayerNorm,
  MultiHeadAttention,
  NormedHeads,
  ScalarGatedHeads,
  T5Bias,
  TalkingHeads,
  initialized,
)

BATCH, LENGTH, WIDTH, HEADS, KV_HEADS = 2, 7, 16, 4, 2
SIZE = WIDTH // HEADS
X = jnp.asarray(np.random.default_rng(0).normal(size=(BATCH, LENGTH, WIDTH)), jnp.float32)


def build(**settings):
  part = MultiHeadAttention(
    WIDTH, num_heads=HEADS, num_kv_heads=KV_HEADS, rngs=nnx.Rngs(0), **settings
  )
  return moved(part)


def double(variable):
  return np.asarray(variable[...], np.float64)


def expected(attention, before=np.eye(HEADS), after=np.eye(HEADS), bias=0.0, transform=None):
  """Causal attention; `transform` maps the outputs of the heads [batch, length, heads, head_dim]."""
  x = np.asarray(X, np.float64)
  q, k, v = (
    np.einsum('bld,dhe->bhle', x, double(linear.kernel)) + double(linear.bias)[:, None]
    for linear in (attention.q, attention.k, attention.v)
  )
  k, v = (np.repeat(a, HEADS // KV_HEADS, axis=1) for a in (k, v))
  scores = np.einsum('bgqs,gh->bhqs', q @ k.swapaxes(2, 3) / np.sqrt(SIZE), before) + bias
  weights = np.exp(np.where(np.tril(np.ones((LENGTH, LENGTH))), scores, -np.inf))
  weights /= weights.sum(axis=-1, keepdims=True)
  y = (np.einsum('bgqs,gh->bhqs', weights, after) @ v).swapaxes(1, 2)
  y = y if transform is None else transform(x, y)
  return np.einsum('blhe,hed->bld', y, double(attention.out.kernel)) + double(attention.out.bias)


def sigmoid(x):
  return 1 / (1 + np.exp(-x))


@pytest.fixture
def check(compared):
  def equal(system, attention, reference, **fields):
    y = jax.jit(lambda a: applied(a, X, pattern=Causal(), **fields)[0])(attention)
    compared(system, 'NumPy, float64', y, reference, rtol=1e-5, atol=1e-5)

  return equal


def test_each_feature_of_the_heads_is_gated(check):
  attention = build(head_outputs=GatedHeads)
  gate = double(attention.head_outputs.gate.kernel)
  check(
    'gated attention',
    attention,
    expected(attention, transform=lambda x, y: y * sigmoid(np.einsum('bld,dhe->blhe', x, gate))),
  )


def test_each_head_is_gated(check):
  attention = build(head_outputs=ScalarGatedHeads)
  gate = double(attention.head_outputs.gate.kernel)
  reference = expected(attention, transform=lambda x, y: y * sigmoid(x @ gate)[..., None])
  check('gated attention', attention, reference)


def test_all_heads_are_normalised_together(check):
  attention = build(head_outputs=functools.partial(NormedHeads, norm=LayerNorm))
  norm = attention.head_outputs.norm

  def normed(x, y):
    flat = y.reshape(BATCH, LENGTH, -1)
    flat = (flat - flat.mean(-1, keepdims=True)) / np.sqrt(flat.var(-1, keepdims=True) + 1e-6)
    return (flat * double(norm.scale) + double(norm.bias)).reshape(y.shape)

  check('Sub-LN', attention, expected(attention, transform=normed))


def test_talking_heads_mix_scores_and_probabilities(check):
  attention = build(scores=TalkingHeads)
  scores = attention.scores
  reference = expected(attention, double(scores.before), double(scores.after))
  check('talking heads', attention, reference)
  encoding = T5Bias(WIDTH, num_heads=HEADS, bidirectional=False, rngs=nnx.Rngs(3))
  bias = double(encoding.table)
  distance = np.clip(np.arange(LENGTH)[:, None] - np.arange(LENGTH)[None], 0, None)
  added = np.moveaxis(bias.reshape(-1, HEADS)[distance], 2, 0)
  reference = expected(attention, double(scores.before), double(scores.after), added)
  check('talking heads', attention, reference, encoding=encoding)


def test_talking_heads_start_as_dot_products():
  plain, talking = (
    initialized(
      functools.partial(MultiHeadAttention, WIDTH, num_heads=HEADS, **settings), jax.random.key(0)
    )
    for settings in ({}, {'scores': TalkingHeads})
  )
  np.testing.assert_allclose(
    applied(talking, X, pattern=Causal())[0], applied(plain, X, pattern=Causal())[0], atol=1e-6
  )


def test_kernels_without_all_scores_refuse_talking_heads():
  with pytest.raises(UserError, match='Blockwise'):
    applied(build(scores=TalkingHeads, kernel=Blockwise(4, 4)), X, pattern=Causal())
