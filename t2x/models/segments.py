"""Segment-level recurrence (Transformer-XL: Dai et al. 2019, https://arxiv.org/abs/1901.02860)."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from t2x.base.errors import UserError
from t2x.base.ranges import Natural, Size
from t2x.layers import (
  Blocks,
  Cache,
  Call,
  InputMemory,
  KeyValueCache,
  Pattern,
  Result,
  RowLayout,
  Slots,
  SourceCache,
  SourceSequence,
  Tokens,
)
from t2x.layers.composites import replace_parts
from t2x.layers.dtypes import Tree, float32_sums
from t2x.layers.keys import fold_in
from t2x.models.interfaces import Layer, LayerStack
from t2x.models.stack import Stack

__all__ = ['Segments']


class Segments(nnx.Module):
  """Applies a stack to segments of `length` tokens of each row in turn; every attention layer also attends to
  the `memory` tokens before the segment.

  The memory of a layer holds the inputs of its attention (the output of a norm before it), through which no
  gradient flows. It is the carry of a scan over the segments of a row and starts empty in every row. Tokens of
  the memory are masked by their segment ids and by the pattern, as all tokens are, and positions continue from
  one segment to the next. Segments start at multiples of `length` in the row: a document that starts inside of
  a segment is cut at other positions than in a row of its own.

  Decoding uses the key/value caches of the stack with the pattern `Blocks(length, memory)`, which gives the
  output of a row that starts with the document.

  Args:
    d_model: width of the residual stream.
    stack: builds the layers, whose token mixers must be attention.
    length: tokens per segment; rows must be a multiple of it.
    memory: tokens of the memory; 0: segments are independent.
  """

  implements = (LayerStack,)
  num_layers: int
  output_dim: int
  max_length: int | None

  def __init__(
    self,
    d_model: int,
    *,
    stack: Callable[..., LayerStack] = Stack,
    length: Size,
    memory: Natural,
    rngs: nnx.Rngs,
  ):
    self.length = length
    self.memory = memory
    self.stack = stack(d_model, rngs=rngs)
    self.num_layers, self.output_dim = self.stack.num_layers, self.stack.output_dim
    self.max_length = self.stack.max_length

  @property
  def blocks(self) -> Sequence[Layer]:
    return self.stack.blocks

  def patterns(self, pattern: Pattern) -> list[Pattern]:
    """Returns the pattern of each kind of layer in a row of one document."""
    return self.stack.patterns(pattern & self._visible)

  @property
  def _visible(self) -> Pattern:
    return Blocks(self.length, self.memory)

  def init_cache(
    self, batch: int, num_slots: int, dtype: DTypeLike, source: SourceSequence | None = None
  ) -> Any:
    return self.stack.init_cache(batch, num_slots, dtype, source)

  def unstacked(self) -> 'Segments':
    return replace_parts(self, stack=self.stack.unstacked())

  def unstacked_cache(self, cache: object) -> Any:
    return self.stack.unstacked_cache(cache)

  def __call__(
    self, x: Float[Array, 'batch length d_model'], call: Call, cache: Any = None
  ) -> Result:
    """Applies the stack to all segments, or to the tokens of a call with key/value caches.

    Returns:
      The outputs of all segments, auxiliary losses averaged and metrics summed over the segments. Nothing is
      recorded.

    Raises:
      UserError: rows are not a multiple of `length`, `call.record` is not empty, or a layer has no memory.
    """
    if cache is not None:
      return self.stack(x, dataclasses.replace(call, pattern=call.pattern & self._visible), cache)
    if call.record:
      raise UserError(
        f'Segments records nothing ({", ".join(sorted(call.record))}): use a plain Stack with the pattern '
        f'{self._visible}, which has the same outputs'
      )
    batch, row = x.shape[:2]
    if row % self.length:
      raise UserError(
        f'rows of {row} tokens cannot be cut into segments of Segments.length = {self.length}: use a '
        'multiple of it'
      )
    number = row // self.length
    tokens = _arbitrary(call.tokens, batch)

    def cut(a):
      return a.reshape(batch, number, self.length, *a.shape[2:]).swapaxes(0, 1)

    memories = self._memories(x, call.source)
    # Not in the carry of the loop, which would add up the gradients in the dtype of the source.
    read = float32_sums((self.stack, call, _of_sources(memories, True)))

    def segment(memory, inputs):
      (stack, call, of_source), (number, x, tokens) = read(), inputs
      key = None if call.key is None else fold_in(call.key, number)
      caches, earlier = memory
      keys = jax.tree.map(lambda *pair: jnp.concatenate(pair, axis=1), earlier, tokens)
      slots = Slots(keys, jnp.int32(self.memory), jnp.int32(self.memory + self.length))
      own = dataclasses.replace(call, tokens=tokens, slots=slots, key=key)
      result = stack(x, own, _merged(caches, of_source))
      earlier = jax.tree.map(lambda a: a[:, self.length :], keys)
      return (_of_sources(result.cache, False), earlier), (result.x, result.aux)

    empty = jax.tree.map(lambda a: jnp.zeros((batch, self.memory, *a.shape[2:]), a.dtype), tokens)
    inputs = jnp.arange(number), cut(x), jax.tree.map(cut, tokens)
    _, (y, aux) = jax.lax.scan(segment, (_of_sources(memories, False), empty), inputs)
    losses = {name: values.mean(axis=0) for name, values in aux.losses.items()}
    aux = dataclasses.replace(jax.tree.map(lambda a: a.sum(axis=0), aux), losses=losses)
    return Result(y.swapaxes(0, 1).reshape(batch, row, -1), aux=aux)

  def _memories(
    self, x: Float[Array, 'batch length d_model'], source: SourceSequence | None
  ) -> Any:
    """Returns the caches of the stack, with an empty memory for each key/value cache of its own tokens."""

    def memory(cache: Cache) -> Cache:
      if type(cache) is SourceCache:
        return cache
      if type(cache) is not KeyValueCache:
        raise UserError(
          f'Segments needs attention layers, but a layer has the state {type(cache).__name__}: use a plain Stack'
        )
      # A stack adds a leading dimension for its layers.
      leading = cache.v.shape[:-4]
      return InputMemory(jnp.zeros((*leading, len(x), self.memory, x.shape[-1]), x.dtype))

    caches = self.stack.init_cache(len(x), 1, x.dtype, source)
    return jax.tree.map(memory, caches, is_leaf=lambda leaf: isinstance(leaf, Cache))


def _is_cache(leaf: object) -> bool:
  return leaf is None or isinstance(leaf, Cache)


def _of_sources(caches: Tree, of_sources: bool) -> Tree:
  """Returns the caches of sources, or of everything else, with None for the rest."""
  return jax.tree.map(
    lambda cache: cache if (type(cache) is SourceCache) == of_sources else None,
    caches,
    is_leaf=_is_cache,
  )


def _merged(caches: Tree, others: Tree) -> Tree:
  """Returns both parts of caches that `_of_sources` has split."""
  return jax.tree.map(lambda a, b: b if a is None else a, caches, others, is_leaf=_is_cache)


def _arbitrary(tokens: Tokens, batch: int) -> Tokens:
  """Returns the tokens with segments and complete arrays [batch, length, ...], as ARBITRARY keys."""
  if tokens.grid is not None:
    raise UserError('Segments needs rows of text, not of a grid: use a plain Stack')
  tokens = dataclasses.replace(
    tokens, segments=tokens.row_segments, layout=RowLayout.ARBITRARY, right_padded=False
  )
  return jax.tree.map(lambda a: jnp.broadcast_to(a, (batch, *a.shape[1:])), tokens)
