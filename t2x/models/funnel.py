"""Funnel-Transformer (Dai et al. 2020, https://arxiv.org/abs/2006.03236): stages of fewer and fewer tokens."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from t2x.base.errors import UserError
from t2x.base.ranges import NonEmpty
from t2x.layers import (
  NO_AUX,
  Call,
  Full,
  Pattern,
  PositionEncoding,
  Result,
  RowLayout,
  SourceSequence,
  Tokens,
  named_key,
)
from t2x.layers.building import Position, building
from t2x.layers.caches import WithoutCache
from t2x.layers.composites import recorded_by
from t2x.layers.interfaces import reads_encoding
from t2x.models.interfaces import Layer, LayerStack
from t2x.models.stack import check_unread, reads_of, recordable
from t2x.models.stages import layer_places

__all__ = ['Funnel']


class Funnel(WithoutCache, nnx.Module):
  """Stages of which each has half the tokens of the one before, and layers over all tokens after them.

  Before every stage except the first, the means of neighbouring pairs of tokens are the queries of a pooling layer,
  whose keys are the tokens before pooling (`FromSource`), or of a layer that attends to the pooled tokens only. A
  pooled token has the position of the first of its pair. A pair of a token and padding is the token; transformers makes
  it padding, the code of the authors a mean with padding. For `decoder`, the output of the last stage is repeated to
  the length of the input and added to that of the first stage (section 2.2).

  Args:
    d_model: width of the residual stream, that of all stages.
    stages: builds the stack of each stage.
    pooling: builds the layers after each pooling, a stack of one layer as published.
    pair_encoding: builds a position encoding of pairs of a pooled token and a token before pooling, for each pooling;
      None: the body's.
    decoder: builds the layers over all tokens; None: the output has the tokens of the last stage (classifiers).
    separate_first: whether the first token (the class token) is never pooled with others.
    truncate: whether the last token of a row is dropped at each pooling, so that even lengths stay even with
      `separate_first`.

  Raises:
    UserError: when called with a cache, a source, a pattern other than Full(), packed rows, or rows of too few tokens.
  """

  no_cache = (
    'has no cache, because a pooled token depends on the token after it: to generate, use a Stack'
  )
  unstacked = unstacked_cache = WithoutCache.init_cache

  implements = (LayerStack,)
  num_layers: int
  output_dim: int
  max_length: int | None = None

  def __init__(
    self,
    d_model: int,
    *,
    stages: Annotated[Sequence[Callable[..., LayerStack]], NonEmpty],
    pooling: Callable[..., LayerStack],
    pair_encoding: Callable[..., PositionEncoding] | None = None,
    decoder: Callable[..., LayerStack] | None = None,
    separate_first: bool = True,
    truncate: bool = True,
    rngs: nnx.Rngs,
  ):
    if truncate and not separate_first:
      raise UserError(
        'Funnel.truncate has no effect without Funnel.separate_first: set Funnel.truncate = False'
      )
    self.separate_first, self.truncate = separate_first, truncate
    self.output_dim = d_model
    # The layers in the order of application: a stage, a pooling, a stage, ..., the decoder.
    order = [*([part for stage in stages for part in (pooling, stage)][1:]), decoder]
    builders = [part for part in order if part is not None]

    def build(rngs: nnx.Rngs, places: Sequence[Position]) -> list[LayerStack]:
      parts = []
      for part, place in zip(builders, places, strict=True):
        with building(position=place):
          parts.append(part(d_model, rngs=rngs))
      return parts

    places, self.num_layers = layer_places(build, len(builders))
    parts = build(rngs, places)
    count = 2 * len(stages) - 1
    self.stages, self.poolings = nnx.List(parts[:count:2]), nnx.List(parts[1:count:2])
    self.decoder = parts[count] if decoder is not None else None
    self.encodings = nnx.List(
      [pair_encoding and pair_encoding(d_model, rngs=rngs) for _ in self.poolings]
    )

  @property
  def _parts(self) -> list[LayerStack]:
    pairs = zip([None, *self.poolings], self.stages, strict=True)
    parts = [part for pair in pairs for part in pair if part is not None]
    return parts if self.decoder is None else [*parts, self.decoder]

  @property
  def blocks(self) -> list[Layer]:
    return [block for part in self._parts for block in part.blocks]

  def patterns(self, pattern: Pattern) -> list[Pattern]:
    """Returns the attention pattern of each kind of layer inside a body with `pattern`."""
    return [one for part in self._parts for one in part.patterns(pattern)]

  def __call__(
    self, x: Float[Array, 'batch length d_model'], call: Call, cache: Any = None
  ) -> Result:
    """Applies all stages and the decoder.

    Returns:
      The output and its token metadata, auxiliary losses and metrics summed over the layers, and recorded arrays as
      'stages.S.NAME', 'poolings.S.NAME' and 'decoder.NAME'.
    """
    _check(call)
    check_unread(call, reads_of(self.blocks) - {'source'})
    results: dict[str, Result] = {}

    def apply(
      name: str, part: LayerStack, x: Array, tokens: Tokens, source: SourceSequence | None = None
    ):
      reads = reads_of(part.blocks)
      own = dataclasses.replace(
        call,
        tokens=tokens,
        source=source if 'source' in reads else None,
        encoding=call.encoding if reads_encoding(reads, call.encoding) else None,
        key=named_key(call.key, name),
        record=call.record & recordable(reads),
      )
      results[name] = part(x, own)
      return results[name].x

    tokens = call.tokens
    x = first = apply('stages.0', self.stages[0], x, tokens)
    for i, (pooling, encoding) in enumerate(zip(self.poolings, self.encodings, strict=True)):
      source = SourceSequence(x, tokens, call.encoding if encoding is None else encoding)
      x, tokens = self.pool(x, tokens)
      x = apply(f'poolings.{i}', pooling, x, tokens, source)
      x = apply(f'stages.{i + 1}', self.stages[i + 1], x, tokens)
    if self.decoder is not None:
      x, tokens = self.upsample(x, first.shape[1]) + first, call.tokens
      x = apply('decoder', self.decoder, x, tokens)
    aux = sum((result.aux for result in results.values()), NO_AUX)
    return Result(x, None, aux, recorded_by(results), tokens)

  def pool(
    self, x: Float[Array, 'batch length d_model'], tokens: Tokens
  ) -> tuple[Float[Array, 'batch pooled d_model'], Tokens]:
    """Returns the means of pairs of tokens, or a token without a second one, and their metadata.

    Raises:
      UserError: there are too few tokens.
    """
    length = x.shape[1]
    if length <= (2 if self.separate_first else 1):
      raise UserError(
        f'Funnel cannot pool a row of {length} tokens: use longer rows or fewer stages'
      )
    # With a separate first token it forms a pair with itself.
    kept = jnp.arange(length - self.truncate)
    indices = jnp.concatenate([jnp.zeros(1, int), kept]) if self.separate_first else kept
    first = indices[::2]
    second = jnp.concatenate([indices[1::2], first[-1:]])[: len(first)]
    segments, pair = tokens.segments, x[:, second]
    if segments is not None:
      pair = jnp.where((segments[:, second] != 0)[..., None], pair, x[:, first])
      segments = segments[:, first]
    marks = {name: mark[:, first] for name, mark in tokens.marks.items()}
    pooled = Tokens(tokens.positions[:, first], segments, marks=marks)
    return (x[:, first] + pair) / 2, pooled

  def upsample(
    self, x: Float[Array, 'batch pooled d_model'], length: int
  ) -> Float[Array, 'batch length d_model']:
    """Returns each token repeated for all tokens that were pooled into it, and zeros for dropped tokens."""
    stride = 2 ** len(self.poolings)
    if not self.separate_first:
      return jnp.repeat(x, stride, axis=1)[:, :length]
    rest = jnp.repeat(x[:, 1:], stride, axis=1)
    rest = jnp.pad(rest, ((0, 0), (0, max(length - 1 - rest.shape[1], 0)), (0, 0)))
    return jnp.concatenate([x[:, :1], rest[:, : length - 1]], axis=1)


def _check(call: Call) -> None:
  """Raises UserError if pooled tokens cannot represent the call."""
  tokens = call.tokens
  if call.source is not None:
    raise UserError('Funnel does not read the source of a decoder: use it in an Encoder')
  if call.pattern.offsets() != Full().offsets():
    raise UserError(
      f'Funnel pools tokens and does not support the pattern {call.pattern}: use Full()'
    )
  fields = ('coords', 'order', 'encoded', 'grid')
  names = [name for name in fields if getattr(tokens, name) is not None]
  if names:
    raise UserError(
      f'Funnel cannot pool the metadata {", ".join(names)} of tokens: use a task without it'
    )
  if tokens.layout is not RowLayout.CONTIGUOUS:
    raise UserError(
      'Funnel pools neighbouring tokens of a row, which may belong to several packed examples: use a task with one '
      'segment per row (packing = @FullRows)'
    )
