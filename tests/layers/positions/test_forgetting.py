"""Forgetting attention against its equations in float64, with gradients by PyTorch, and decoding."""

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
  MLP,
  Blockwise,
  Causal,
  ForgetGate,
  LinearAttention,
  MultiHeadAttention,
  Tokens,
  TokenShift,
)
from t2x.layers.arrays import named_leaves
from t2x.models import Block, ParallelBlock

torch = pytest.importorskip('torch', reason="the extra 'references' is not installed")

WIDTH, HEADS, KV_HEADS, LENGTH = 16, 4, 2, 9
X = np.random.default_rng(0).normal(size=(2, LENGTH, WIDTH)).astype(np.float32)
WEIGHTS = np.random.default_rng(1).normal(size=X.shape)
# Two documents in the first row; padding at the end of the second.
SEGMENTS = np.array([[1] * 5 + [2] * 4, [1] * 6 + [0] * 3])
POSITIONS = np.array([[*range(5), *range(4)], [*range(9)]])
FORGET = functools.partial(ForgetGate, num_heads=HEADS)
ATTENTION = functools.partial(MultiHeadAttention, num_heads=HEADS, num_kv_heads=KV_HEADS)

MLP8 = functools.partial(MLP, hidden_dim=8)


def reference(parameters, x):
  """Equation 3 of the paper, row by row and segment by segment."""
  p = {name: torch.tensor(np.asarray(a, np.float64), requires_grad=True) for name, a in parameters}
  x = torch.tensor(x, dtype=torch.float64, requires_grad=True)
  y = torch.zeros(x.shape, dtype=torch.float64)

  def heads(name, part):
    return (
      torch.einsum('ld,dhe->hle', part, p[f'attention.{name}.kernel'])
      + (p[f'attention.{name}.bias'][:, None])
    )

  for row in range(len(x)):
    for segment in set(SEGMENTS[row]) - {0}:
      place = torch.tensor(np.flatnonzero(SEGMENTS[row] == segment))
      part = x[row, place]
      q = heads('q', part)
      k, v = (heads(n, part).repeat_interleave(HEADS // KV_HEADS, 0) for n in ('k', 'v'))
      forget = torch.sigmoid(part @ p['encoding.gate.kernel'] + p['encoding.gate.bias'])
      scores = q @ k.transpose(1, 2) / (WIDTH // HEADS) ** 0.5
      weights = torch.zeros_like(scores)
      for i in range(len(place)):
        # The product of the gates after key j up to query i.
        decay = torch.stack([forget[j + 1 : i + 1].prod(0) for j in range(i + 1)], dim=1)
        unnormalised = decay * torch.exp(scores[:, i, : i + 1])
        row_of_weights = unnormalised / unnormalised.sum(1, keepdim=True)
        weights[:, i] = torch.nn.functional.pad(row_of_weights, (0, len(place) - i - 1))
      out = torch.einsum('hld,hde->le', weights @ v, p['attention.out.kernel'])
      y = y.index_put((torch.tensor(row), place), out + p['attention.out.bias'])
  (y * torch.tensor(WEIGHTS)).sum().backward()
  return y.detach().numpy(), {name: a.grad.numpy() for name, a in p.items()}, x.grad.numpy()


def test_forgetting_attention_equals_its_equations(compared):
  tokens = Tokens(jnp.asarray(POSITIONS), jnp.asarray(SEGMENTS))
  attention, encoding = ATTENTION(WIDTH, rngs=nnx.Rngs(0)), FORGET(WIDTH, rngs=nnx.Rngs(1))
  parts = nnx.Dict(attention=moved(attention, 0.1), encoding=moved(encoding, 0.1, seed=2))

  @functools.partial(jax.value_and_grad, argnums=(0, 1), has_aux=True)
  def gradient(parts, x):
    settings = {'tokens': tokens, 'pattern': Causal(), 'encoding': parts['encoding']}
    y, _ = applied(parts['attention'], x, **settings)
    return (jnp.where(SEGMENTS[..., None] != 0, y, 0) * WEIGHTS).sum(), y

  (_, y), (gradients, of_x) = jax.jit(gradient)(parts, jnp.asarray(X))
  expected, wanted, wanted_of_x = reference(named_leaves(parts), X)
  names = 'Forgetting attention', 'PyTorch, float64'
  compared(*names, y[SEGMENTS != 0], expected[SEGMENTS != 0])
  for name, leaf in [*named_leaves(gradients), ('x', of_x)]:
    array = wanted_of_x if name == 'x' else wanted[name]
    if name == 'attention.k.bias':  # A softmax does not depend on it.
      assert np.abs(leaf).max() < 1e-5 * np.abs(wanted['attention.k.kernel']).max()
    else:
      compared(*names, leaf, array, atol=1e-5 * np.abs(array).max(), of='gradients')


@pytest.mark.parametrize('kind', [Block, ParallelBlock])
def test_decoding_equals_the_forward_pass(kind):
  block = functools.partial(kind, mixer=ATTENTION, feed_forward=MLP8, encoding=FORGET)
  check_decoding(moved(lm(WIDTH, vocab_size=9, blocks=[block])(rngs=nnx.Rngs(0)), scale=0.3))


def test_a_prompt_with_padding_is_continued_by_its_sums():
  """Padding between the prompt of a row and its next token changes nothing."""
  block = functools.partial(Block, mixer=ATTENTION, feed_forward=MLP8, encoding=FORGET)
  model = moved(lm(WIDTH, vocab_size=9, num_layers=1, blocks=[block])(rngs=nnx.Rngs(0)), scale=0.3)
  ids = jnp.asarray([[1, 2, 3, 0], [5, 3, 4, 2]])
  segments = jnp.asarray([[1, 1, 1, 0], [1, 1, 1, 1]])
  tokens = Tokens(jnp.arange(4)[None], segments)
  _, cache = model.decode(ids, tokens, model.init_cache(2, 6))
  last = Tokens(jnp.asarray([[3], [4]]), jnp.ones((2, 1), jnp.int32))
  logits, _ = model.decode(jnp.asarray([[7], [8]]), last, cache)
  whole = model(jnp.asarray([[1, 2, 3, 7]])).x
  np.testing.assert_allclose(logits[0, 0], whole[0, 3], rtol=1e-4, atol=2e-5)


def test_all_layers_must_hold_the_sums_to_decode():
  model = lm(WIDTH, vocab_size=9, mixer=ATTENTION, encoding=FORGET)(rngs=nnx.Rngs(0))
  with pytest.raises(UserError, match='ForgetGate computes for each token: bind it to Block'):
    model.decode(jnp.ones((1, 2), int), Tokens.row(2), model.init_cache(1, 4))


@pytest.mark.parametrize(
  'mixer',
  [
    functools.partial(TokenShift, sublayer=ATTENTION),
    functools.partial(LinearAttention, num_heads=HEADS),
  ],
)
def test_a_block_without_attention_is_refused(mixer):
  with pytest.raises(UserError, match='ForgetGate needs attention'):
    Block(WIDTH, mixer=mixer, feed_forward=MLP8, encoding=FORGET, rngs=nnx.Rngs(0))


def test_kernels_without_gradients_of_features_are_refused():
  attention = ATTENTION(WIDTH, kernel=Blockwise(4, 4), rngs=nnx.Rngs(0))
  with pytest.raises(UserError, match='Blockwise'):
    applied(attention, jnp.asarray(X), pattern=Causal(), encoding=FORGET(WIDTH, rngs=nnx.Rngs(1)))
