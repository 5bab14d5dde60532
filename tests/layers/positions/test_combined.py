"""Several position encodings at once, against x-transformers and the encodings one by one."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from applying import applied, check_decoding, moved
from flax import nnx
from tiny_lm import lm

from t2x.base.errors import UserError
from t2x.layers import (
  ALiBi,
  Causal,
  CombinedPositions,
  Dense,
  ForgetGate,
  LearnedPositions,
  MultiHeadAttention,
  RoPE,
  T5Bias,
  Tokens,
)
from t2x.layers.arrays import named_leaves

WIDTH, HEADS, SIZE, LENGTH = 16, 4, 4, 9
X = np.random.default_rng(0).normal(size=(2, LENGTH, WIDTH)).astype(np.float32)
WEIGHTS = np.random.default_rng(1).normal(size=X.shape).astype(np.float32)
partial = functools.partial
T5 = partial(T5Bias, num_heads=HEADS, bidirectional=False, num_buckets=8, max_distance=16)


def combined(*parts):
  return moved(CombinedPositions(WIDTH, parts=parts, rngs=nnx.Rngs(1)), 0.1, seed=3)


def test_learned_positions_and_the_bias_of_t5_equal_those_of_x_transformers(compared):
  """Outputs and gradients of an attention layer whose input has learned positions."""
  torch = pytest.importorskip('torch', reason="the extra 'references' is not installed")
  package = pytest.importorskip('x_transformers.x_transformers', reason='not installed')
  torch.manual_seed(0)
  table = package.AbsolutePositionalEmbedding(WIDTH, LENGTH)
  bias = package.RelativePositionBias(SIZE**0.5, True, 8, 16, HEADS)
  layer = package.Attention(WIDTH, dim_head=SIZE, heads=HEADS, causal=True)
  with torch.no_grad():
    for parameter in [*table.parameters(), *bias.parameters(), *layer.parameters()]:
      parameter.add_(torch.randn(parameter.shape) * 0.1)

  def converted(read):
    split = (WIDTH, HEADS, SIZE)
    return {
      'attention.q.kernel': read(layer.to_q.weight).T.reshape(split),
      'attention.k.kernel': read(layer.to_k.weight).T.reshape(split),
      'attention.v.kernel': read(layer.to_v.weight).T.reshape(split),
      'attention.out.kernel': read(layer.to_out.weight).T.reshape(HEADS, SIZE, WIDTH),
      'encoding.parts.0.table': read(table.emb.weight),
      'encoding.parts.1.table': read(bias.relative_attention_bias.weight),
    }

  x = torch.tensor(X)
  expected = layer(x + table(x), rel_pos=bias)
  (expected * torch.tensor(WEIGHTS)).sum().backward()
  learned = partial(LearnedPositions, max_length=LENGTH)
  attention = MultiHeadAttention(
    WIDTH, num_heads=HEADS, use_bias=False, out_bias=False, rngs=nnx.Rngs(0)
  )
  parts = nnx.Dict(attention=attention, encoding=combined(learned, T5))
  arrays = converted(lambda p: p.detach().numpy())
  # They scale the learned positions, and the bias by sqrt(head_dim).
  factors = {'encoding.parts.0.table': WIDTH**-0.5, 'encoding.parts.1.table': SIZE**0.5}
  names = [name for name, _ in named_leaves(parts)]
  assert set(names) == arrays.keys()
  leaves = [jnp.asarray(arrays[name] * factors.get(name, 1.0)) for name in names]
  parts = jax.tree.unflatten(jax.tree.structure(parts), leaves)

  @partial(jax.value_and_grad, has_aux=True)
  def gradient(parts):
    encoding, tokens = parts['encoding'], Tokens.row(LENGTH)
    h = encoding.embed(jnp.asarray(X), tokens)
    y, _ = applied(parts['attention'], h, pattern=Causal(), encoding=encoding)
    return (y * WEIGHTS).sum(), y

  (_, y), gradients = jax.jit(gradient)(parts)
  # A combination, which is no system of its own.
  system = None, 'x-transformers'
  compared(*system, y, expected.detach().numpy())
  wanted = converted(lambda p: p.grad.numpy())
  for name, leaf in named_leaves(gradients):
    array = wanted[name] / factors.get(name, 1.0)
    compared(*system, leaf, array, atol=1e-5 * np.abs(array).max(), of='gradients')


def test_encodings_with_different_hooks_act_as_each_of_them():
  encoding = combined(RoPE, partial(ALiBi, num_heads=HEADS), T5)
  assert encoding.hooks >= {'rotate', 'scores'}
  rope, alibi, t5 = encoding.parts
  attention = moved(MultiHeadAttention(WIDTH, num_heads=HEADS, kernel=Dense(), rngs=nnx.Rngs(0)))
  both, _ = applied(attention, jnp.asarray(X), pattern=Causal(), encoding=encoding)
  for alone in (rope, alibi, t5):
    y, _ = applied(attention, jnp.asarray(X), pattern=Causal(), encoding=alone)
    assert np.abs(both - y).max() > 1e-3
  one, _ = applied(attention, jnp.asarray(X), pattern=Causal(), encoding=rope)
  same, _ = applied(attention, jnp.asarray(X), pattern=Causal(), encoding=combined(RoPE))
  np.testing.assert_array_equal(one, same)


def test_the_sum_reads_content_and_prepares_if_a_part_does():
  encoding = combined(
    T5, partial(ForgetGate, num_heads=HEADS), partial(LearnedPositions, max_length=7)
  )
  assert encoding.reads_content and len(encoding.features) == 1 and encoding.max_length == 7
  attention = moved(MultiHeadAttention(WIDTH, num_heads=HEADS, rngs=nnx.Rngs(0)))
  y, _ = applied(attention, jnp.asarray(X[:, :7]), pattern=Causal(), encoding=encoding)
  # Without the gates.
  t5, _ = applied(attention, jnp.asarray(X[:, :7]), pattern=Causal(), encoding=encoding.parts[0])
  assert np.abs(y - t5).max() > 1e-3


def test_two_parts_with_the_same_features_are_refused():
  gates = partial(ForgetGate, num_heads=HEADS)
  with pytest.raises(UserError, match='features of the same names'):
    combined(gates, gates)


def test_decoding_equals_the_forward_pass():
  encoding = partial(CombinedPositions, parts=[partial(LearnedPositions, max_length=9), T5])
  mixer = partial(MultiHeadAttention, num_heads=HEADS)
  check_decoding(
    moved(lm(WIDTH, vocab_size=9, mixer=mixer, encoding=encoding)(rngs=nnx.Rngs(0)), scale=0.3)
  )
