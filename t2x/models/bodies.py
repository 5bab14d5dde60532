"""Encoder and Decoder: vectors in, vectors out. Positions, a stack, norms around it."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, TypeVar

import jax
from flax import nnx
from jaxtyping import Array, Float

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
  Source,
  Tokens,
  dropout,
  named_key,
  normal,
)
from t2x.layers.constraints import constrain
from t2x.layers.patterns import mark_names
from t2x.models.cache import BodyCache
from t2x.models.interfaces import LayerStack, Output
from t2x.models.stack import Stack
from t2x.ranges import Size, TunableRate

Part = TypeVar('Part')


def final_norm_if_needed(
  d_model: int, *, norm: Callable[..., Norm] = LayerNorm, rngs: nnx.Rngs
) -> Norm:
  """The default norm after the last layer; a body leaves it out where that layer ends with a norm.

  Args:
    d_model: width of the residual stream.
    norm: builds the norm.
    rngs: for its parameters.
  """
  return norm(d_model, rngs=rngs)


class _Body(nnx.Module):
  """What Encoder and Decoder share; they differ in the pattern they start from."""

  def __init__(
    self,
    d_model: int,
    *,
    input_dim: Size | None,
    stack: Callable[..., LayerStack],
    encoding: Callable[..., PositionEncoding],
    input_norm: Callable[..., Norm] | None,
    input_dropout: TunableRate,
    final_norm: Callable[..., Norm] | None,
    final_dropout: TunableRate,
    pattern: Pattern,
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
      else Linear((width,), (d_model,), (None, 'embed'), init=normal(0.02), rngs=rngs)
    )
    self.stack = stack(d_model, rngs=rngs)
    if _function(final_norm) is final_norm_if_needed and self.stack.ends_with_norm:
      final_norm = None
    self.final_norm = final_norm and final_norm(self.output_dim, rngs=rngs)

  @property
  def output_dim(self) -> int:
    """Width of the hidden vectors."""
    return self.stack.output_dim

  @property
  def patterns(self) -> list[Pattern]:
    """The attention pattern of each block of a repeat."""
    return self.stack.patterns(self.pattern)

  @property
  def max_length(self) -> int | None:
    """The longest sequence that the encoding and the layers can process; None: any."""
    lengths = [self.encoding.max_length, self.stack.max_length]
    return min((length for length in lengths if length is not None), default=None)

  def init_cache(
    self, batch: int, num_slots: int, dtype: Any, source: Source | None = None
  ) -> BodyCache:
    """An empty cache for `num_slots` tokens of `batch` rows, with what is computed of the source."""
    marks = sorted({name for pattern in self.patterns for name in mark_names(pattern)})
    layers = self.stack.init_cache(batch, num_slots, dtype)
    if source is not None:
      found = self.stack.source_cache(source)
      layers = [own | other for own, other in zip(layers, found, strict=True)]
    slots = Slots.empty(batch, num_slots, marks)
    return BodyCache(layers, slots, None if source is None else source.tokens)

  def unstacked(self, cache: BodyCache) -> tuple['_Body', BodyCache]:
    """The body and its cache layer by layer, for decoding token by token."""
    layers = self.stack.unstacked_cache(cache.layers)
    body = replaced(self, stack=self.stack.unstacked())
    return body, dataclasses.replace(cache, layers=layers)

  def __call__(
    self,
    x: Float[Array, 'batch length input_dim'],
    source: Source | None = None,
    *,
    tokens: Tokens | None = None,
    cache: BodyCache | None = None,
    key: Array | None = None,
    record: frozenset[str] = frozenset(),
  ) -> Output:
    """Embedded tokens -> hidden vectors [batch, length, d_model].

    Args:
      x: embedded tokens.
      source: what cross-attention reads; with a cache, `init_cache` has read it already.
      tokens: metadata of the tokens of x; None: a plain row.
      cache: what earlier calls of a generation left.
      key: None: no dropout.
      record: names of the intermediate arrays to return.
    """
    tokens = Tokens.row(x.shape[1]) if tokens is None else tokens
    x = self.encoding.embed(x, tokens)
    if self.input_norm is not None:
      x = self.input_norm(x)
    x = dropout(x, self.input_dropout, named_key(key, 'input_dropout'))
    if self.projection is not None:
      x = self.projection(x)
    x = constrain(x, 'batch', 'length', 'embed')
    slots = None
    if cache is not None:
      slots = cache.slots.extend(tokens)
      source = None if cache.source is None else Source(None, cache.source)
    call = Call(
      tokens,
      self.pattern,
      encoding=self.encoding if self.encoding.acts_in_layers else None,
      source=source,
      slots=slots,
      key=named_key(key, 'stack'),
      record=record,
    )
    result = self.stack(x, call, None if cache is None else cache.layers)
    x = result.x
    if self.final_norm is not None:
      x = self.final_norm(x)
    x = dropout(x, self.final_dropout, named_key(key, 'final_dropout'))
    new = None
    if cache is not None and slots is not None:
      new = dataclasses.replace(cache, layers=result.cache, slots=slots)
    tokens = tokens if result.tokens is None else result.tokens
    return Output(x, new, result.aux, result.recorded, tokens)


def replaced(module: Part, **parts: Any) -> Part:
  """A copy of a module with other parts."""
  leaves, structure = jax.tree.flatten(module)
  copy = jax.tree.unflatten(structure, leaves)
  for name, part in parts.items():
    setattr(copy, name, part)
  return copy


class Encoder(_Body):
  """A bidirectional body: every token sees every other of its segment.

  Args:
    d_model: width of the residual stream.
    input_dim: width of the embedded tokens, of their positions and of their norm; a projection leads to
      d_model (ALBERT, https://arxiv.org/abs/1909.11942). None: d_model, and no projection.
    stack: builds the layers.
    encoding: builds the position encoding that all layers share.
    input_norm: builds a norm after the positions (BERT, BART); None leaves it out.
    input_dropout: rate on the embedded tokens.
    final_norm: builds the norm after the last layer. The default is LayerNorm, or none after a layer that
      ends with a norm (PostNorm); None leaves it out.
    final_dropout: rate after it (T5).
    pattern: who may see whom; each block may narrow it.
  """

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
    super().__init__(
      d_model,
      input_dim=input_dim,
      stack=stack,
      encoding=encoding,
      input_norm=input_norm,
      input_dropout=input_dropout,
      final_norm=final_norm,
      final_dropout=final_dropout,
      pattern=pattern,
      rngs=rngs,
    )


class Decoder(_Body):
  """A causal body: a token sees itself and those before it. `Encoder` says what the parts are.

  `Causal() | Prefix()` as the pattern makes it a prefix language model; blocks with `cross` make
  it the decoder of an encoder-decoder.
  """

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
    pattern: Pattern = Causal(),
    rngs: nnx.Rngs,
  ):
    super().__init__(
      d_model,
      input_dim=input_dim,
      stack=stack,
      encoding=encoding,
      input_norm=input_norm,
      input_dropout=input_dropout,
      final_norm=final_norm,
      final_dropout=final_dropout,
      pattern=pattern,
      rngs=rngs,
    )


def _function(factory: Any) -> Any:
  """What a `functools.partial` calls; other factories as they are."""
  return factory.func if isinstance(factory, functools.partial) else factory
