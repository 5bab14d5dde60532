"""A small decoder, a task over text without data, and batches, for tests that need a complete model."""

import functools

import jax.numpy as jnp
import numpy as np

from t2x.data import Bytes, TextFiles
from t2x.layers import MLP, MultiHeadAttention, TokenEmbedding
from t2x.models import Block, Decoder, LanguageModel, Stack
from t2x.tasks import CausalLM

ATTENTION = functools.partial(MultiHeadAttention, num_heads=2)


def lm(
  width=16,
  *,
  vocab_size=261,
  num_layers=2,
  mixer=ATTENTION,
  hidden_dim=32,
  kinds=(Block,),
  blocks=None,
  stack=Stack,
  layers=None,
  encoding=None,
  **settings,
):
  """The constructor of a language model.

  Args:
    width: of the residual stream.
    vocab_size: number of tokens; that of `Bytes` by default.
    num_layers: number of blocks.
    mixer: of each block.
    hidden_dim: of each MLP.
    kinds: classes of the blocks of a repeating group.
    blocks: complete constructors of the blocks, instead of `mixer`, `hidden_dim` and `kinds`.
    stack: class of the stack.
    layers: further settings of the stack.
    encoding: position encoding of the body.
    settings: further settings of the model.
  """
  parts = {'mixer': mixer, 'feed_forward': functools.partial(MLP, hidden_dim=hidden_dim)}
  blocks = blocks or [functools.partial(kind, **parts) for kind in kinds]
  of_body = {} if encoding is None else {'encoding': encoding}
  body = functools.partial(
    Decoder,
    stack=functools.partial(stack, num_layers=num_layers, blocks=blocks, **(layers or {})),
    **of_body,
  )
  embedding = functools.partial(TokenEmbedding, vocab_size=vocab_size)
  return functools.partial(LanguageModel, d_model=width, embedding=embedding, body=body, **settings)


def causal_lm(length, source=None):
  """A task whose data is never read, unless there is a source."""
  return CausalLM(source=source or TextFiles(train='none'), tokenizer=Bytes(), length=length)


def full_rows(num_rows, length, seed=0):
  """A batch of rows of one segment."""
  tokens = np.random.default_rng(seed).integers(5, 261, (num_rows, length))
  rows = {
    'tokens': tokens,
    'segments': np.ones_like(tokens),
    'positions': np.broadcast_to(np.arange(length), (num_rows, length)),
  }
  return {name: jnp.asarray(row, jnp.int32) for name, row in rows.items()}
