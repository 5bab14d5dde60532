"""Learned keys and values without tokens against the memory key-values of x-transformers."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from applying import applied, check_decoding, moved
from flax import nnx

from t2x.base.errors import UserError
from t2x.layers import (
  MLP,
  AdditiveScores,
  ALiBi,
  Blockwise,
  Call,
  Causal,
  MultiHeadAttention,
  PerHead,
  PersistentMemory,
  RMSNorm,
  RowLayout,
  T5Bias,
  TokenEmbedding,
  Tokens,
)
from t2x.layers.arrays import named_leaves
from t2x.models import Block, Decoder, LanguageModel, Stack

WIDTH, HEADS, SIZE, NUM = 12, 4, 3, 5
SYSTEM = 'persistent memory', 'x-transformers Attention'
part = functools.partial
MEMORY = part(PersistentMemory, num=NUM)
# Two documents in a row, and one with padding.
SEGMENTS = np.array([[1] * 4 + [2] * 5, [1] * 6 + [0] * 3])
POSITIONS = np.array([[0, 1, 2, 3, 0, 1, 2, 3, 4], [0, 1, 2, 3, 4, 5, 0, 1, 2]])
X = np.random.default_rng(0).normal(size=(2, 9, WIDTH)).astype(np.float32)
WEIGHTS = np.random.default_rng(1).normal(size=X.shape) * (SEGMENTS > 0)[..., None]


def arrays(theirs, get, has_norms):
  """Values or gradients of their parameters by the names of ours."""
  kernels = {'q': theirs.to_q, 'k': theirs.to_k, 'v': theirs.to_v}
  found = {
    f'{name}.kernel': get(linear.weight).T.reshape(WIDTH, -1, SIZE)
    for name, linear in kernels.items()
  }
  if has_norms:
    found['q_norm.norms.scale'] = get(theirs.qk_norm_q_scale).reshape(HEADS, SIZE)
    found['k_norm.norms.scale'] = get(theirs.qk_norm_k_scale).reshape(-1, SIZE)
  return found | {
    'out.kernel': get(theirs.to_out.weight).T.reshape(HEADS, SIZE, WIDTH),
    'memory.k': get(theirs.mem_k).swapaxes(0, 1),
    'memory.v': get(theirs.mem_v).swapaxes(0, 1),
  }


@pytest.mark.parametrize(('kv_heads', 'has_norms'), [(1, False), (4, True)])
def test_outputs_and_gradients_equal_x_transformers(kv_heads, has_norms, compared):
  """Of packed rows, whose documents their attention gets one by one."""
  torch = pytest.importorskip('torch', reason="the extra 'references' is not installed")
  package = pytest.importorskip('x_transformers.x_transformers', reason='not installed')
  torch.manual_seed(0)
  norms = {'qk_norm': True, 'qk_norm_dim_scale': True} if has_norms else {}
  sizes = {'dim': WIDTH, 'dim_head': SIZE, 'heads': HEADS, 'kv_heads': kv_heads}
  theirs = package.Attention(**sizes, causal=True, num_mem_kv=NUM, **norms)
  with torch.no_grad():
    for parameter in theirs.parameters():
      parameter.add_(torch.randn(parameter.shape) * 0.1)
  expected, total = np.zeros_like(X), torch.zeros(())
  for row, segments in enumerate(SEGMENTS):
    for segment in set(segments) - {0}:
      place = np.flatnonzero(segments == segment)
      y = theirs(torch.tensor(X[row, place][None]))[0]
      total = total + (y * torch.tensor(WEIGHTS[row, place])).sum()
      expected[row, place] = y.detach().numpy()
  total.backward()

  per_head = part(PerHead, norm=part(RMSNorm, epsilon=1e-12))
  ours = MultiHeadAttention(
    WIDTH,
    num_heads=HEADS,
    num_kv_heads=kv_heads,
    use_bias=False,
    out_bias=False,
    qk_norm={'q': per_head, 'k': per_head} if has_norms else None,
    memory=MEMORY,
    rngs=nnx.Rngs(0),
  )
  # Theirs divides by the length of a vector, ours by the root of its mean square.
  factors = dict.fromkeys(('q_norm.norms.scale', 'k_norm.norms.scale'), SIZE**-0.5)
  values = arrays(theirs, lambda p: p.detach().numpy(), has_norms)
  names = [name for name, _ in named_leaves(ours)]
  assert sorted(names) == sorted(values)
  leaves = [jnp.asarray(values[name] * factors.get(name, 1.0)) for name in names]
  ours = jax.tree.unflatten(jax.tree.structure(ours), leaves)
  tokens = Tokens(jnp.asarray(POSITIONS), jnp.asarray(SEGMENTS), layout=RowLayout.PACKED)

  @jax.jit
  @part(jax.grad, has_aux=True)
  def slopes(ours):
    y = ours(jnp.asarray(X), Call(tokens, Causal())).x
    return (y * WEIGHTS).sum(), y

  gradients, y = slopes(ours)
  is_token = SEGMENTS > 0
  compared(*SYSTEM, np.asarray(y)[is_token], expected[is_token], atol=1e-5)
  wanted = arrays(theirs, lambda p: p.grad.numpy(), has_norms)
  for name, slope in named_leaves(gradients):
    slope = slope * factors.get(name, 1.0)
    atol = 1e-5 * max(1.0, np.abs(wanted[name]).max())
    compared(*SYSTEM, slope, wanted[name], atol=atol, of='gradients')


def attention(**settings):
  settings = {'num_heads': HEADS, 'memory': MEMORY} | settings
  return moved(MultiHeadAttention(WIDTH, **settings, rngs=nnx.Rngs(0)))


def test_decoding_token_by_token_equals_the_forward_pass():
  block = part(
    Block,
    mixer=part(MultiHeadAttention, num_heads=HEADS, memory=MEMORY),
    feed_forward=part(MLP, hidden_dim=16),
  )
  model = LanguageModel(
    d_model=WIDTH,
    embedding=part(TokenEmbedding, vocab_size=9),
    body=part(
      Decoder,
      stack=part(Stack, num_layers=2, blocks=[block]),
      encoding=part(ALiBi, num_heads=HEADS),
    ),
    rngs=nnx.Rngs(0),
  )
  model = moved(model, 0.1)
  check_decoding(model)
  cache = model.body.stack.init_cache(2, 8, jnp.float32)[0]['mixer']
  assert cache.k.shape[-2] == 8


def test_positions_do_not_change_the_scores_of_the_memory():
  """A bias that hides all tokens leaves the softmax over the memory."""
  ours = attention()
  bias = T5Bias(WIDTH, num_heads=HEADS, bidirectional=False, rngs=nnx.Rngs(0))
  bias = jax.tree.map(lambda leaf: jnp.full_like(leaf, -1e9), bias)
  y, _ = applied(ours, jnp.asarray(X), pattern=Causal(), encoding=bias)
  q, (k, v) = ours.q(jnp.asarray(X)), (ours.memory.k[...], ours.memory.v[...])
  weights = jax.nn.softmax(jnp.einsum('blhd,nhd->bhln', q, k) * SIZE**-0.5)
  np.testing.assert_allclose(y, ours.out(jnp.einsum('bhln,nhd->blhd', weights, v)), atol=2e-5)


def test_kernels_and_scores_without_a_memory_are_refused():
  with pytest.raises(UserError, match='does not support keys without tokens'):
    applied(attention(kernel=Blockwise()), jnp.asarray(X))
  with pytest.raises(UserError, match='memory needs scores that are dot products'):
    applied(attention(scores=AdditiveScores), jnp.asarray(X))
