"""Flow attention against the formulas of the authors' code (thuml/Flowformer), in float64 NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from applying import applied, double, moved
from flax import nnx

from t2x.base.errors import UserError
from t2x.layers import Causal, FlowAttention, Full, Tokens

WIDTH, HEADS, LENGTH = 12, 2, 11
X = jnp.asarray(3 * np.random.default_rng(0).normal(size=(2, LENGTH, WIDTH)), jnp.float32)
SEGMENTS = jnp.asarray([[1, 1, 1, 1, 2, 2, 2, 3, 0, 0, 0], [0, 1, 1, 0, 1, 2, 2, 2, 0, 2, 0]])
TOKENS = {
  'plain': Tokens.row(LENGTH),
  'packed': Tokens(jnp.arange(LENGTH)[None], SEGMENTS),
}

run = jax.jit(applied, static_argnames='pattern')


def build(**settings):
  mixer = FlowAttention(WIDTH, num_heads=HEADS, rngs=nnx.Rngs(0), **settings)
  return moved(mixer)


def flow_attention(q, k, v, eps=1e-6):
  """The authors' `Flow_Attention` for one head of one row, [tokens, features] each."""
  q, k = 1 / (1 + np.exp(-q)), 1 / (1 + np.exp(-k))
  sink_incoming = 1 / ((q + eps) @ (k.sum(0) + eps))
  source_outgoing = 1 / ((k + eps) @ (q.sum(0) + eps))
  conserved_sink = (q + eps) @ ((k * source_outgoing[:, None]).sum(0) + eps)
  conserved_source = (k + eps) @ ((q * sink_incoming[:, None]).sum(0) + eps)
  conserved_source = np.clip(conserved_source, -1, 1)
  allocation = 1 / (1 + np.exp(-conserved_sink))
  competition = np.exp(conserved_source) / np.exp(conserved_source).sum() * len(k)
  values = (q * sink_incoming[:, None]) @ (k.T @ (v * competition[:, None]))
  return values * allocation[:, None]


def causal_flow_attention(q, k, v, eps=1e-6):
  """The authors' `Flow_Attention_Causal`, with the shape of `normal` as in their language model."""
  q, k = 1 / (1 + np.exp(-q)), 1 / (1 + np.exp(-k))
  normal = np.arange(len(q)) + 1.0
  sink_incoming = normal / ((q + eps) * (k.cumsum(0) + eps)).sum(1)
  source_outgoing = normal / ((k + eps) * (q.cumsum(0) + eps)).sum(1)
  keys, queries = (k * source_outgoing[:, None]).cumsum(0), (q * sink_incoming[:, None]).cumsum(0)
  conserved_sink = ((q + eps) * (keys + eps)).sum(1) / normal
  conserved_source = np.clip(((k + eps) * (queries + eps)).sum(1) / normal, -1, 1)
  allocation = 1 / (1 + np.exp(-conserved_sink))
  competition = np.exp(conserved_source) / np.exp(conserved_source).cumsum() * normal
  kv = (k[:, :, None] * (v * competition[:, None])[:, None]).cumsum(0)
  return np.einsum('ld,ldm->lm', q * (sink_incoming / normal)[:, None], kv) * allocation[:, None]


def by_segment(mixer, x, segments, attend):
  """Applies the formula to each head and each segment of each row; padding gets zeros."""

  def project(linear):
    return np.einsum('bnm,mhd->bnhd', x, double(linear.kernel)) + double(linear.bias)

  x = np.asarray(x, np.float64)
  q, k, v = (project(linear) for linear in (mixer.q, mixer.k, mixer.v))
  y = np.zeros_like(q)
  for row, row_segments in enumerate(np.asarray(segments)):
    for segment in set(row_segments.tolist()) - {0}:
      own = row_segments == segment
      for head in range(HEADS):
        y[row, own, head] = attend(*(a[row, own, head] for a in (q, k, v)))
  return np.einsum('bihd,hdm->bim', y, double(mixer.out.kernel)) + double(mixer.out.bias)


@pytest.mark.parametrize('chunk', [4, 64])
@pytest.mark.parametrize('tokens', TOKENS)
@pytest.mark.parametrize(
  ('pattern', 'attend'),
  [(Full(), flow_attention), (Causal(), causal_flow_attention)],
  ids=['Full', 'Causal'],
)
def test_equals_the_authors_formulas_in_each_segment(pattern, attend, tokens, chunk, compared):
  mixer, tokens = build(chunk=chunk), TOKENS[tokens]
  y, _ = run(mixer, X, pattern=pattern, tokens=tokens)
  segments = np.ones((2, LENGTH), int) if tokens.segments is None else tokens.segments
  expected = by_segment(mixer, X, segments, attend)
  compared('Flowformer', 'NumPy, float64', y, expected, rtol=1e-5, atol=1e-5)


def test_a_bidirectional_call_with_a_state_is_refused():
  mixer = build()
  with pytest.raises(UserError, match=r'FlowAttention decodes only under Causal\(\)'):
    applied(mixer, X, pattern=Full(), cache=mixer.init_cache(2, LENGTH))
