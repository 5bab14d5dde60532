"""Fast weights and Hopfield retrieval against their formulas, step by step in float64 with PyTorch's gradients."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from applying import applied, check_decoding, moved
from flax import nnx
from tiny_lm import lm
from torch_arrays import linear

from t2x.base.errors import UserError
from t2x.layers import (
  DPFP,
  MLP,
  Call,
  Causal,
  FastWeights,
  FavorPlus,
  Full,
  HopfieldScores,
  MultiHeadAttention,
  PersistentMemory,
  RoPE,
  RowLayout,
  T5Bias,
  Tokens,
)
from t2x.layers.attention.projections import Heads
from t2x.models import Block

torch = pytest.importorskip('torch', reason="the extra 'references' is not installed")
part = functools.partial
WIDTH, HEADS, SIZE = 8, 2, 4
# Two documents in a row, and one with padding.
SEGMENTS = np.array([[1] * 4 + [2] * 5, [1] * 6 + [0] * 3])
POSITIONS = np.array([[0, 1, 2, 3, 0, 1, 2, 3, 4], [0, 1, 2, 3, 4, 5, 0, 1, 2]])
TOKENS = Tokens(jnp.asarray(POSITIONS), jnp.asarray(SEGMENTS), layout=RowLayout.PACKED)
X = np.random.default_rng(0).normal(size=(2, 9, WIDTH)).astype(np.float32)
IS_TOKEN = jnp.asarray(SEGMENTS > 0)[..., None]


class Projections(torch.nn.Module):
  """q, k, v, out and further maps by name, in float64."""

  def __init__(self, **more):
    super().__init__()
    sizes = dict.fromkeys(('q', 'k', 'v', 'out'), WIDTH) | more
    for name, size in sizes.items():
      module = torch.nn.Linear(WIDTH, size, bias=name not in more, dtype=torch.float64)
      setattr(self, name, module)
    self.names = tuple(sizes)

  def arrays(self, get):
    """Arrays by the names of ours."""
    arrays = {}
    for name in self.names:
      arrays |= linear(name, getattr(self, name), get)
    return arrays

  def heads(self, x):
    """Queries, keys and values of the tokens of a document, [heads, length, SIZE]."""
    q, k, v = (getattr(self, name)(x) for name in 'qkv')
    return [a.reshape(len(x), HEADS, -1).transpose(0, 1) for a in (q, k, v)]

  def forward(self, x):
    """Applies `document` to each document by itself; padding gets zeros."""
    y = torch.zeros_like(x)
    for row, segments in enumerate(SEGMENTS):
      for segment in set(segments) - {0}:
        place = np.flatnonzero(segments == segment)
        y[row, place] = self.out(self.document(x[row, place]))
    return y


class Schlag(Projections):
  """Equations 23 to 26 and 37 of the paper."""

  def phi(self, x):
    """Loops over the elements: feature i, nu is the product of elements i and i - nu (modulo 2 SIZE) of [x+, x-]."""
    both = [value.clamp(min=0) for value in (*x, *(-x))]
    features = [both[i] * both[i - nu] for nu in (1, 2, 3) for i in range(2 * SIZE)]
    features = torch.stack(features)
    return features / features.sum()

  def document(self, x):
    q, k, v = self.heads(x)
    beta = torch.sigmoid(self.beta(x))
    heads = []
    for h in range(HEADS):
      memory, outputs = torch.zeros(SIZE, 6 * SIZE, dtype=torch.float64), []
      for t in range(len(x)):
        key = self.phi(k[h, t])
        old = memory @ key
        memory = memory + beta[t, h] * torch.outer(v[h, t] - old, key)
        outputs.append(memory @ self.phi(q[h, t]) / SIZE**0.5)
      heads.append(torch.stack(outputs))
    return torch.cat(heads, dim=-1)


class Ramsauer(Projections):
  """Equation 3 of the paper, xi <- X softmax(beta X' xi), three times; the last time with the values."""

  beta = 0.9

  def document(self, x):
    q, k, v = self.heads(x)
    heads = []
    for h in range(HEADS):
      outputs = []
      for t in range(len(x)):
        xi, stored = q[h, t], k[h, : t + 1]
        for step in range(3):
          p = torch.softmax(self.beta * stored @ xi, dim=0)
          xi = (v[h, : t + 1] if step == 2 else stored).T @ p
        outputs.append(xi)
      heads.append(torch.stack(outputs))
    return torch.cat(heads, dim=-1)


SYSTEMS = {
  'fast weights': (
    part(Schlag, beta=HEADS),
    part(FastWeights, features=part(DPFP, num_shifts=3), chunk=4),
  ),
  'modern Hopfield network': (
    Ramsauer,
    part(MultiHeadAttention, scores=part(HopfieldScores, num_steps=3), scale=Ramsauer.beta),
  ),
}


@pytest.mark.parametrize('name', SYSTEMS)
def test_outputs_and_gradients_equal_the_formula_step_by_step(name, equal):
  """Of packed rows, whose documents the formula gets one by one."""
  theirs, build = SYSTEMS[name]
  torch.manual_seed(0)
  theirs = theirs()
  x = torch.tensor(X, dtype=torch.float64)

  def ours(module):
    y = module(jnp.asarray(X), Call(TOKENS, Causal())).x
    return jnp.where(IS_TOKEN, y, 0)

  module = build(WIDTH, num_heads=HEADS, rngs=nnx.Rngs(0))
  equal(name, 'PyTorch, float64', theirs, module, theirs.arrays, lambda module: module(x), ours)


def test_decoding_token_by_token_equals_the_forward_pass():
  mixers = (
    part(FastWeights, features=part(FavorPlus, num_features=8)),
    SYSTEMS['modern Hopfield network'][1],
  )
  blocks = [
    part(Block, mixer=part(mixer, num_heads=HEADS), feed_forward=part(MLP, hidden_dim=16))
    for mixer in mixers
  ]
  model = lm(WIDTH, vocab_size=9, num_layers=2, blocks=blocks, encoding=RoPE)(rngs=nnx.Rngs(0))
  check_decoding(moved(model))


def attention(num_steps, scale=None, **settings):
  return moved(
    MultiHeadAttention(
      WIDTH,
      num_heads=HEADS,
      scores=part(HopfieldScores, num_steps=num_steps),
      scale=scale,
      rngs=nnx.Rngs(0),
      **settings,
    )
  )


def test_one_step_equals_attention():
  plain = moved(MultiHeadAttention(WIDTH, num_heads=HEADS, rngs=nnx.Rngs(0)))
  y, _ = applied(attention(1), jnp.asarray(X), encoding=RoPE(WIDTH, rngs=nnx.Rngs(0)))
  same, _ = applied(plain, jnp.asarray(X), encoding=RoPE(WIDTH, rngs=nnx.Rngs(0)))
  np.testing.assert_array_equal(y, same)


def test_more_steps_retrieve_digits_whose_lower_half_is_hidden():
  """Images of scikit-learn are the keys; the queries are the same images without their lower half."""
  from sklearn.datasets import load_digits

  images = load_digits().images[:20].reshape(20, 64) - 8
  images = images / np.linalg.norm(images, axis=1, keepdims=True)
  queries = images * (np.arange(64) < 32)
  q, k = (jnp.asarray(a, jnp.float32)[None, :, None] for a in (queries, images))

  @part(jax.jit, static_argnums=0)
  def retrieved(num_steps):
    scores = HopfieldScores(Heads(64, 1, 1, 64, 64), num_steps=num_steps, rngs=nnx.Rngs(0))
    row = Tokens.row(20)
    dots = scores(q, k, row, row, scale=30.0, call=Call(row, Full()))
    return jax.nn.softmax(30 * dots.q[0, :, 0] @ dots.k[0, :, 0].T)

  one, five = retrieved(1), retrieved(5)
  assert np.diag(one).mean() < 0.8 < 0.98 < np.diag(five).mean()
  np.testing.assert_allclose(five @ images, images, atol=0.03)


def test_what_the_steps_would_leave_out_is_refused():
  bias = T5Bias(WIDTH, num_heads=HEADS, bidirectional=True, rngs=nnx.Rngs(0))
  with pytest.raises(UserError, match='T5Bias adds terms to the scores, which the steps of Hopf'):
    applied(attention(2), jnp.asarray(X), encoding=bias)
  with pytest.raises(UserError, match='memory has keys that the steps of HopfieldScores'):
    attention(2, memory=part(PersistentMemory, num=3))
  with pytest.raises(UserError, match=r'DPFP.num_shifts = 8 repeats products'):
    DPFP(SIZE, num_shifts=8, rngs=nnx.Rngs(0))
