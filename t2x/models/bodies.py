"""Encoder and decoder bodies: position encoding, a stack of layers, and norms before and after it."""

import dataclasses
from collections.abc import Callable

from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from t2x.base.ranges import Size, TunableRate
from t2x.base.step import step_context
from t2x.layers import (
  Call,
  Causal,
  Full,
  LayerNorm,
  Linear,
  NoPositions,
  Norm,
  Pattern,
  PositionEncoding,
  Slots,
  SourceSequence,
  Tokens,
  dropout,
  named_key,
  normal,
)
from t2x.layers.building import building, unwrap_partial
from t2x.layers.composites import replace_parts
from t2x.layers.constraints import constrain
from t2x.layers.parameters import with_defaults
from t2x.layers.patterns.algebra import mark_names
from t2x.models.cache import BodyCache
from t2x.models.interfaces import Body, LayerStack, Output
from t2x.models.stack import Stack, reads_of, recordable, source_arrays

__all__ = ['Decoder', 'Encoder', 'final_norm_if_needed']


def final_norm_if_needed(
  d_model: int, *, norm: Callable[..., Norm] = LayerNorm, rngs: nnx.Rngs
) -> Norm:
  """Builds the default final norm, which a body omits if its last layer already ends with a norm.

  Args:
    d_model: width of the residual stream.
    norm: builds the norm.
    rngs: random keys of the norm's initial parameters.
  """
  return norm(d_model, rngs=rngs)


class Encoder(nnx.Module):
  """A bidirectional body: each token attends to all tokens of its segment.

  Args:
    d_model: width of the residual stream.
    input_dim: width of the embedded tokens, their positions and `input_norm`, which a linear layer projects
      to d_model (ALBERT, https://arxiv.org/abs/1909.11942). None: d_model, without a projection.
    stack: builds the layers.
    encoding: builds the position encoding that all layers share.
    input_norm: builds a norm after the positions (BERT, BART); None: no norm.
    input_dropout: dropout rate on the embedded tokens.
    final_norm: builds the norm after the last layer. The default is LayerNorm, or no norm if the last layer
      ends with one (PostNorm). None: no norm.
    final_dropout: dropout rate after the final norm (T5).
    pattern: attention pattern; each block may narrow it.
  """

  implements = (Body,)
  output_dim: int

  def __init__(
    self,
    d_model: int,
    *,
    input_dim: Size | None = None,
    stack: Callable[..., LayerStack] = Stack,
    encoding: Callable[..., PositionEncoding] = NoPositions,
    input_norm: Callable[..., Norm] | None = None,
    input_dropout: TunableRate = 0.0,
    final_norm: Callable[..., Norm] | None = final_norm_if_needed,
    final_dropout: TunableRate = 0.0,
    pattern: Pattern = Full(),
    rngs: nnx.Rngs,
  ):
    self.pattern = pattern
    self.input_dropout = input_dropout
    self.final_dropout = final_dropout
    width = input_dim or d_model
    self.encoding = encoding(width, rngs=rngs)
    self.input_norm = input_norm and input_norm(width, rngs=rngs)
    self.projection = (
      None
      if input_dim is None
      else Linear((width,), (d_model,), ('factor', 'embed'), init=normal(0.02), rngs=rngs)
    )
    with building(pattern=pattern):
      self.stack = stack(d_model, rngs=rngs)
    self.output_dim = self.stack.output_dim
    if unwrap_partial(final_norm) is final_norm_if_needed and _ends_with_norm(self.stack):
      final_norm = None
    self.final_norm = final_norm and final_norm(self.output_dim, rngs=rngs)

  @property
  def patterns(self) -> list[Pattern]:
    return self.stack.patterns(self.pattern)

  @property
  def recordable(self) -> frozenset[str]:
    return recordable(reads_of(self.stack.blocks))

  @property
  def reads_of_source(self) -> frozenset[str]:
    return source_arrays(reads_of(self.stack.blocks))

  @property
  def max_length(self) -> int | None:
    lengths = [self.encoding.max_length, self.stack.max_length]
    return min((length for length in lengths if length is not None), default=None)

  def init_cache(
    self, batch: int, num_slots: int, dtype: DTypeLike, source: SourceSequence | None = None
  ) -> BodyCache:
    marks = sorted({name for pattern in self.patterns for name in mark_names(pattern)})
    layers = self.stack.init_cache(batch, num_slots, dtype, source)
    slots = Slots.empty(batch, num_slots, marks)
    return BodyCache(layers, slots, None if source is None else source.without_vectors())

  def unstacked(self, cache: BodyCache) -> tuple['Encoder', BodyCache]:
    layers = self.stack.unstacked_cache(cache.layers)
    body = replace_parts(self, stack=self.stack.unstacked())
    return body, dataclasses.replace(cache, layers=layers)

  def positioned(
    self, x: Float[Array, 'batch length input_dim'], tokens: Tokens, key: Array | None = None
  ) -> Float[Array, 'batch length input_dim']:
    """Returns embedded tokens with their positions, after the norm and the dropout of the input."""
    x = self.encoding.embed(x, tokens)
    if self.input_norm is not None:
      x = self.input_norm(x)
    return dropout(x, self.input_dropout, named_key(key, 'input_dropout'))

  def __call__(
    self,
    x: Float[Array, 'batch length input_dim'],
    source: SourceSequence | None = None,
    *,
    tokens: Tokens | None = None,
    cache: BodyCache | None = None,
    key: Array | None = None,
    record: frozenset[str] = frozenset(),
  ) -> Output:
    """Computes hidden vectors [batch, length, d_model] of embedded tokens.

    Args:
      x: embedded tokens.
      source: the sequence that layers with cross-attention read. With a cache it is ignored:
        `init_cache` has processed it.
      tokens: metadata of the tokens in x; None: unpadded rows at positions 0, 1, ....
      cache: cache that earlier calls returned during generation.
      key: random keys of dropout, one per row [batch], or one key []; None: no dropout.
      record: names of the intermediate arrays to return.
    """
    tokens = Tokens.row(x.shape[1]) if tokens is None else tokens
    x = self.positioned(x, tokens, key)
    if self.projection is not None:
      x = self.projection(x)
    x = constrain(x, 'batch', 'length', 'embed')
    slots = None
    if cache is not None:
      slots = cache.slots.extend(tokens)
      source = cache.source
    call = Call(
      tokens,
      self.pattern,
      encoding=self.encoding if self.encoding.acts_in_layers else None,
      source=source,
      slots=slots,
      key=named_key(key, 'stack'),
      # Other models in a train step (the teacher) are evaluated: their calls have no key.
      step=None if key is None else step_context().step,
      record=record,
    )
    inputs, result = x, self.stack(x, call, None if cache is None else cache.layers)
    x = result.x
    if self.final_norm is not None:
      x = self.final_norm(x)
    x = dropout(x, self.final_dropout, named_key(key, 'final_dropout'))
    new = None
    if cache is not None and slots is not None:
      new = dataclasses.replace(cache, layers=result.cache, slots=slots)
    tokens = tokens if result.tokens is None else result.tokens
    return Output(x, new, result.aux, result.recorded, tokens, inputs)


class Decoder(Encoder):
  """A causal body: each token attends to itself and to earlier tokens. For the arguments see `Encoder`.

  With the pattern `Causal() | Prefix()` it is a prefix language model; with `cross` in its blocks it is
  the decoder of an encoder-decoder.
  """

  __init__ = with_defaults(Encoder.__init__, pattern=Causal())


def _ends_with_norm(stack: LayerStack) -> bool:
  """Returns whether the wiring of the last sublayer normalises the residual stream."""
  wirings = list(stack.blocks[-1].wirings.values())
  return bool(wirings) and wirings[-1].ends_with_norm
