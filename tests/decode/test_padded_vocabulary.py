"""Generation with a padded vocabulary: the tokens of the model without padding."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from t2x.decode import Beam, Greedy, Sampling, generate
from t2x.layers import MLP, MultiHeadAttention, TokenEmbedding
from t2x.models import Block, Decoder, LanguageModel, LMHead, Stack, TiedHead

WIDTH, VOCAB = 8, 23


def build(head, vocab_multiple=1):
  block = functools.partial(
    Block,
    mixer=functools.partial(MultiHeadAttention, num_heads=2),
    feed_forward=functools.partial(MLP, hidden_dim=8),
  )
  return jax.eval_shape(
    lambda: LanguageModel(
      d_model=WIDTH,
      embedding=functools.partial(TokenEmbedding, vocab_size=VOCAB, vocab_multiple=vocab_multiple),
      body=functools.partial(Decoder, stack=functools.partial(Stack, num_layers=1, blocks=[block])),
      head=functools.partial(head, use_bias=True),
      rngs=nnx.Rngs(0),
    )
  )


def padded_and_plain(head):
  """A model whose padding has large parameters, and the model without padding."""
  # With the seed 0 two hypotheses of the beam search have the same score, of which rounding chooses.
  rng = np.random.default_rng(1)
  draw = functools.partial(jax.tree.map, lambda a: jnp.asarray(rng.normal(size=a.shape), a.dtype))
  plain, padded = draw(build(head)), build(head, 16)

  def pad(leaf, value):
    return jnp.full(leaf.shape, 9.0).at[tuple(map(slice, value.shape))].set(value)

  leaves, structure = jax.tree.flatten(padded)
  leaves = [pad(a, b) for a, b in zip(leaves, jax.tree.leaves(plain), strict=True)]
  return jax.tree.unflatten(structure, leaves), plain


STRATEGIES = {'greedy': Greedy(), 'sampling': Sampling(temperature=50.0), 'beam': Beam(width=4)}


@pytest.mark.parametrize(
  ('head', 'name'),
  [
    *((TiedHead, name) for name in STRATEGIES),
    (LMHead, 'greedy'),
    pytest.param(LMHead, 'sampling', marks=pytest.mark.nightly),
    pytest.param(LMHead, 'beam', marks=pytest.mark.nightly),
  ],
)
def test_padding_is_never_generated(head, name):
  tokens = [
    generate(
      model,
      np.arange(8, dtype=np.int32).reshape(4, 2),
      np.full(4, 2),
      max_new_tokens=8,
      strategy=STRATEGIES[name],
      eos_id=None,
      pad_id=0,
      key=jax.random.key(0),
    ).tokens
    for model in padded_and_plain(head)
  ]
  np.testing.assert_array_equal(*tokens)
  assert tokens[0].max() < VOCAB
