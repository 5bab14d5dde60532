"""Synthesizers: each kind of score and of mix is its formula, pair by pair."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from applying import applied, moved
from flax import nnx

from t2x.base.errors import UserError
from t2x.layers import (
  Causal,
  DenseScores,
  DotProductScores,
  FactorizedDenseScores,
  FactorizedRandomScores,
  Full,
  MultiHeadAttention,
  Plus,
  PlusAlpha,
  RandomScores,
  Replace,
  RoPE,
  ShawPositions,
  SourceSequence,
  Synthesizer,
  T5Bias,
  Tokens,
  attention_mask,
  normal,
)

WIDTH, HEADS, SIZE, LENGTH, MAX_LENGTH = 12, 2, 6, 7, 10
RNG = np.random.default_rng(0)
X = jnp.asarray(RNG.normal(size=(2, LENGTH, WIDTH)), jnp.float32)
SOURCES = {
  'dense': functools.partial(DenseScores, max_length=MAX_LENGTH),
  'factorized_dense': functools.partial(FactorizedDenseScores, factors=(2, 5)),
  'random': functools.partial(RandomScores, max_length=MAX_LENGTH),
  'factorized_random': functools.partial(FactorizedRandomScores, max_length=MAX_LENGTH, rank=3),
}
MIXES = {'replace': Replace, 'plus': Plus, 'plus_alpha': PlusAlpha}
# Two segments in one row, padding in the other.
PACKED = Tokens(
  jnp.asarray([[0, 1, 2, 3, 0, 1, 2], [0, 1, 2, 3, 4, 0, 0]]),
  jnp.asarray([[1, 1, 1, 1, 2, 2, 2], [1, 1, 1, 1, 1, 0, 0]]),
)
TOKENS = {'plain': Tokens.row(LENGTH), 'packed': PACKED}


def build(source='random', mix='replace', **settings):
  """A synthesizer, every parameter moved away from where it starts."""
  settings = {'num_heads': HEADS, 'scores': SOURCES[source], 'mix': MIXES[mix]} | settings
  mixer = Synthesizer(WIDTH, rngs=nnx.Rngs(0), **settings)
  return moved(mixer)


run = jax.jit(applied, static_argnames='pattern')


def double(array):
  return np.asarray(array, np.float64)


def relu(x):
  return np.maximum(x, 0.0)


def pair_score(source, q, head, i, j):
  """The paper's score of the pair of positions (i, j)."""
  match source:
    case DenseScores():
      return relu(q) @ double(source.kernel[...])[:, j]
    case FactorizedDenseScores():
      a, b = double(source.a[...]), double(source.b[...])
      return (relu(q) @ a)[j // b.shape[1]] * (relu(q) @ b)[j % b.shape[1]]
    case RandomScores():
      return double(source.table[...])[head, i, j]
    case FactorizedRandomScores():
      return double(source.rows[...])[head, i] @ double(source.columns[...])[head, j]


def mixed(mix, dot, synthetic):
  match mix:
    case Replace():
      return synthetic
    case Plus():
      return dot + synthetic
    case PlusAlpha():
      alpha = 1 / (1 + np.exp(-double(mix.logit[...])))
      return alpha * dot + (1 - alpha) * synthetic


def oracle(mixer, x, mask, positions, bias=None):
  """Loops over rows, heads and queries, in float64."""

  def project(linear):
    if linear is None:
      return np.zeros((*x.shape[:2], HEADS, SIZE))
    return np.einsum('bld,dhe->blhe', x, double(linear.kernel[...])) + double(linear.bias[...])

  x = double(x)
  q, k, v = project(mixer.q), project(mixer.k), project(mixer.v)
  y = np.tile(double(mixer.out.bias[...]), (*x.shape[:2], 1))
  for row, head, query in np.ndindex(x.shape[0], HEADS, x.shape[1]):
    keys = np.flatnonzero(mask[row, query])
    if not len(keys):
      continue
    scores = []
    for key in keys:
      i, j = positions[row, query], positions[row, key]
      synthetic = pair_score(mixer.scores, q[row, query, head], head, i, j)
      dot = q[row, query, head] @ k[row, key, head] / np.sqrt(SIZE)
      added = 0.0 if bias is None else bias[head, i, j]
      scores.append(mixed(mixer.mix, dot, synthetic) + added)
    weights = np.exp(scores - np.max(scores))
    weights /= weights.sum()
    y[row, query] += weights @ v[row, keys, head] @ double(mixer.out.kernel[...])[head]
  return y


@pytest.mark.parametrize('mix', MIXES)
@pytest.mark.parametrize('source', SOURCES)
@pytest.mark.parametrize(
  ('pattern', 'tokens'), [(Causal(), 'packed'), (Full(), 'plain')], ids=['causal', 'full']
)
def test_synthesizer_is_its_formula(source, mix, pattern, tokens, compared):
  mixer, tokens = build(source, mix), TOKENS[tokens]
  y, cache = run(mixer, X, pattern=pattern, tokens=tokens)
  mask = attention_mask(pattern, tokens, tokens)
  mask = np.ones((2, LENGTH, LENGTH), bool) if mask is None else np.asarray(mask)[:, 0]
  positions = np.broadcast_to(tokens.positions, (2, LENGTH))
  expected = oracle(mixer, X, mask, positions)
  compared('Synthesizer', 'NumPy, float64', y, expected, rtol=1e-7)
  assert cache is None


@pytest.mark.parametrize('mix', MIXES)
def test_bias_of_an_encoding_is_added_after_the_mix(mix):
  mixer = build('dense', mix)
  encoding = T5Bias(WIDTH, num_heads=HEADS, bidirectional=True, init=normal(1.0), rngs=nnx.Rngs(3))
  y, _ = run(mixer, X, pattern=Full(), encoding=encoding)
  mask = np.ones((2, LENGTH, LENGTH), bool)
  positions = np.broadcast_to(np.arange(LENGTH), (2, LENGTH))
  every = Tokens(jnp.arange(MAX_LENGTH)[None])
  bias = double(encoding.scores(None, None, every, every, scale=1.0))[0]
  np.testing.assert_allclose(y, oracle(mixer, X, mask, positions, bias), atol=1e-5)


@pytest.mark.parametrize('encoding', [RoPE, functools.partial(ShawPositions, head_dim=SIZE)])
def test_dot_products_match_attention(encoding):
  """With scores of zero, `Plus` is multi-head attention under any encoding."""
  mixer, encoding = build('random', 'plus'), encoding(WIDTH, rngs=nnx.Rngs(2))
  mixer.scores.table[...] = 0.0 * mixer.scores.table[...]
  attention = MultiHeadAttention(WIDTH, num_heads=HEADS, rngs=nnx.Rngs(0))
  attention.q, attention.k, attention.v, attention.out = mixer.q, mixer.k, mixer.v, mixer.out
  settings = {'pattern': Causal(), 'tokens': PACKED, 'encoding': encoding}
  np.testing.assert_allclose(
    run(mixer, X, **settings)[0], applied(attention, X, **settings)[0], atol=1e-5
  )


def test_there_are_no_unused_parameters():
  mixer = build('random', 'replace')
  assert mixer.q is None and mixer.k is None
  mixer = build('dense', 'replace')
  assert mixer.q is not None and mixer.k is None
  assert build('random', 'plus').k is not None
  assert PlusAlpha(rngs=nnx.Rngs(0))(1.0 * X[None], 3.0 * X[None]) == pytest.approx(2.0 * X[None])


@pytest.mark.parametrize('encoding', [RoPE, functools.partial(ShawPositions, head_dim=SIZE)])
@pytest.mark.parametrize('source', ['random', 'dense'])
def test_an_encoding_of_queries_and_keys_is_refused_without_dot_products(source, encoding):
  with pytest.raises(UserError, match='works on queries and keys'):
    applied(build(source), X, encoding=encoding(WIDTH, rngs=nnx.Rngs(2)))


def test_a_scale_without_dot_products_is_refused():
  with pytest.raises(UserError, match=r'Synthesizer\.scale is not read by RandomScores'):
    build('random', 'replace', scale=0.5)
  assert build('random', 'plus', scale=0.5).scale == 0.5


def test_dot_products_are_no_synthetic_scores():
  with pytest.raises(UserError, match=r'MultiHeadAttention\.scores'):
    mixer = Synthesizer(WIDTH, num_heads=HEADS, scores=DotProductScores, rngs=nnx.Rngs(0))
    applied(mixer, X)


@pytest.mark.parametrize('source', SOURCES)
def test_attention_with_synthetic_scores_is_a_synthesizer(source):
  mixer = build(source)
  attention = MultiHeadAttention(WIDTH, num_heads=HEADS, scores=SOURCES[source], rngs=nnx.Rngs(0))
  for name in ('q', 'k', 'v', 'out', 'scores'):
    setattr(attention, name, getattr(mixer, name))
  for tokens in (Tokens.row(LENGTH), PACKED):
    kwargs = {'pattern': Causal(), 'tokens': tokens}
    np.testing.assert_array_equal(run(attention, X, **kwargs)[0], run(mixer, X, **kwargs)[0])
  with pytest.raises(UserError, match='cross-attention'):
    applied(attention, X, source=SourceSequence(X, Tokens.row(LENGTH)))


def test_user_mistakes_are_errors():
  mixer = build()
  with pytest.raises(UserError, match='cross-attention'):
    applied(mixer, X, source=SourceSequence(X, Tokens.row(LENGTH)))
  with pytest.raises(UserError, match='11 tokens is longer than the 10 positions of RandomScores'):
    applied(mixer, jnp.zeros((1, 11, WIDTH)))
  assert mixer.max_length == MAX_LENGTH
  with pytest.raises(UserError, match='does not divide'):
    build(num_heads=5)
