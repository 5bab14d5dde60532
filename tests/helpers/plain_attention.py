"""Causal self-attention with rotary positions and grouped heads, without options: read it before `MultiHeadAttention`.

`tests/layers/attention/test_plain_attention.py` compares its program with that of the defaults of MultiHeadAttention.
"""

import jax
import jax.numpy as jnp
import numpy as np


def plain_attention(projections, x, positions, segments=None):
  """Returns the output [batch, length, d_model].

  Args:
    projections: (kernel, bias) of 'q', 'k', 'v', kernels [d_model, heads, head_dim], and of 'out', [heads, head_dim,
      d_model]. Keys and values may have fewer heads than queries; each is shared by neighbouring queries.
    x: [batch, length, d_model].
    positions: [1, length].
    segments: [batch, length], 0 for padding; tokens see their own segment. None: one segment per row.
  """
  batch, length, _ = x.shape
  q = rotated(projected(x, *projections['q'], num_inputs=1), positions)
  k = rotated(projected(x, *projections['k'], num_inputs=1), positions)
  v = projected(x, *projections['v'], num_inputs=1)
  (_, _, heads, head_dim), kv_heads = q.shape, k.shape[2]
  groups = heads // kv_heads
  # The query heads of a group are further queries of their key head.
  q = q.reshape(batch, length, kv_heads, groups, head_dim).swapaxes(2, 3)
  q = q.reshape(batch, length * groups, kv_heads, head_dim)
  scores = jnp.einsum('bqhd,bkhd->bhqk', q, k, preferred_element_type=jnp.float32) * head_dim**-0.5
  mask = visible(positions, segments)
  hidden = jnp.where(mask, 0, jnp.finfo(jnp.float32).min).astype(jnp.float32)
  probabilities = softmax(scores + jnp.repeat(hidden, groups, axis=2))
  y = jnp.einsum('bhqk,bkhd->bhqd', probabilities, v)
  y = y.reshape(batch, kv_heads, length, groups, head_dim).swapaxes(1, 2)
  y = y.reshape(batch, length, heads, head_dim)
  # A query that sees no key, such as padding, has a uniform softmax.
  y = jnp.where(jnp.any(mask, axis=-1)[:, 0, :, None, None], y, 0)
  return projected(y, *projections['out'], num_inputs=2)


def projected(x, kernel, bias, num_inputs):
  """Contracts the last dimensions of `x` with the first of `kernel`, row by row."""
  rows = x.reshape(-1, *x.shape[2:])
  inner = tuple(range(1, 1 + num_inputs)), tuple(range(num_inputs))
  y = jax.lax.dot_general(rows, kernel, (inner, ((), ())))
  y = y + jnp.broadcast_to(bias, y.shape)
  return y.reshape(*x.shape[:2], *kernel.shape[num_inputs:])


def rotated(x, positions):
  """Rotates features i and i + half by position * 10000^(-i / half)."""
  half = x.shape[-1] // 2
  radians = (10000.0 ** (-np.arange(half) / half)).astype(np.float32)
  angles = positions[:, :, None, None].astype(jnp.float32) * radians[None, None, None]
  sin, cos = jnp.sin(angles), jnp.cos(angles)
  a, b = x[..., :half], x[..., half:]
  return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)


def visible(positions, segments):
  """Returns which keys each query sees, [#batch, 1, length, length]: itself and earlier ones of its segment."""
  q, q_segments = positions[:, :, None], None if segments is None else segments[:, :, None]
  k, k_segments = positions[:, None], None if segments is None else segments[:, None]
  mask = k <= q
  if segments is not None:
    mask = mask & (q_segments != 0) & (k_segments != 0) & (q_segments == k_segments)
  return mask[:, None]


@jax.custom_jvp
def softmax(scores):
  return jax.nn.softmax(scores)


@softmax.defjvp
def _softmax_jvp(primals, tangents):
  p, tangent = softmax(*primals), tangents[0]
  return p, p * (tangent - (p * tangent).sum(axis=-1, keepdims=True))
