"""Residual blocks: a token mixer, optional cross-attention and a feed-forward layer, each with a residual
connection (Vaswani et al. 2017, https://arxiv.org/abs/1706.03762)."""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any, cast

import jax
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from t2x.base.errors import UserError
from t2x.base.ranges import TunableRate
from t2x.layers import (
  MLP,
  NO_AUX,
  BranchWiring,
  Cache,
  Call,
  FromSource,
  Full,
  LayerNorm,
  MultiHeadAttention,
  NoNorm,
  Norm,
  Pattern,
  PositionEncoding,
  PreNorm,
  Result,
  SourceSequence,
  Sublayer,
  Tokens,
  Wiring,
  named_key,
)
from t2x.layers.building import at_position, build_context, building
from t2x.layers.composites import (
  caches_of,
  initial_extras,
  least_max_length,
  recorded_by,
  set_part,
  wirings_of,
)
from t2x.layers.interfaces import reads_encoding, without_encoding
from t2x.layers.wiring.parallel import PartCaches, added
from t2x.layers.wiring.residual import depth_factor
from t2x.models.interfaces import Layer

__all__ = ['Block', 'ParallelBlock', 'SublayerBlock']

# Name of the only branch of a `ParallelBlock` in its cache and in random keys.
_SUM = ''


class SublayerBlock(nnx.Module):
  """A block of arbitrary sublayers in sequence, each inside its own wiring.

  Attributes:
    names: names of the sublayers in the order of application. The sublayer is the attribute NAME, its wiring
      NAME_wiring.

  Args:
    d_model: width of the residual stream.
    sublayers: builders of the sublayers by name, in the order of application; `FromSource` builds one that attends to
      the source. The name '' adds no level to the names of parameters and recorded arrays.
    wiring: builds the residual connection and norm of each sublayer, or such builders by the names of all sublayers.
    pattern: narrows the pattern of the body (`Window(256)` for a local block).
    encoding: builds a position encoding for this block (T5's bias in every layer; sinusoids added to the
      input of every layer). None: the body's.
  """

  implements = (Layer,)

  def __init__(
    self,
    d_model: int,
    *,
    sublayers: Mapping[str, Callable[..., Sublayer]],
    wiring: Callable[..., Wiring] | Mapping[str, Callable[..., Wiring]] = PreNorm,
    pattern: Pattern = Full(),
    encoding: Callable[..., PositionEncoding] | None = None,
    rngs: nnx.Rngs,
  ):
    self.pattern = pattern
    self.names = tuple(sublayers)
    wirings = wirings_of(self, wiring, sublayers)
    with building(pattern=_inside(pattern)), at_position(num_branches=len(sublayers)):
      for index, (name, build) in enumerate(sublayers.items()):
        with at_position(branch=index):
          set_part(self, name, build(d_model, rngs=rngs))
          setattr(self, f'{name}_wiring', wirings[name](d_model, rngs=rngs))
      self.encoding = encoding and encoding(d_model, rngs=rngs)
    self._check()

  def _check(self) -> None:
    kind, pattern = type(self).__name__, self.pattern
    numbers = {name: own.num_streams for name, own in self.wirings.items()}
    if len(set(numbers.values())) > 1:
      listed = ', '.join(f'{number} for {name}' for name, number in numbers.items())
      raise UserError(
        f'the wirings of {kind} have different numbers of residual streams ({listed})'
      )
    reads = frozenset().union(*(part.reads for part in self.sublayers.values()))
    if pattern != Full() and 'pattern' not in reads:
      raise UserError(f'{kind}.pattern = {pattern}, but no sublayer reads a pattern: leave it out')
    if self.encoding is not None and self.encoding.features and 'encoding.features' not in reads:
      name = type(self.encoding).__name__
      raise UserError(f'{kind}.encoding = @{name} needs attention, which calls its hook prepare')
    acts = self.encoding is not None and self.encoding.acts_in_layers
    if acts and not reads_encoding(reads, self.encoding):
      raise UserError(f'{kind}.encoding is set, but no sublayer reads positions: leave it out')

  @property
  def sublayers(self) -> dict[str, Any]:
    """Sublayers by name, in the order of application."""
    return {name: vars(self)[name] for name in self.names}

  @property
  def wirings(self) -> dict[str, Wiring]:
    return {name: vars(self)[f'{name}_wiring'] for name in self.names}

  @property
  def num_streams(self) -> int:
    return max((wiring.num_streams for wiring in self.wirings.values()), default=1)

  @property
  def reads(self) -> frozenset[str]:
    fields = frozenset().union(*(part.reads for part in self.sublayers.values()))
    # The sublayers read the encoding of the block instead of that of the call.
    return fields if self.encoding is None else without_encoding(fields)

  @property
  def max_length(self) -> int | None:
    return least_max_length(self.sublayers.values())

  def init_extras(self, x: Float[Array, 'batch length d_model']) -> dict[str, Array]:
    """Returns the initial extras of the sublayers; see `ExtrasSublayer`."""
    return initial_extras(self.sublayers.values(), x)

  def init_cache(
    self, batch: int, num_slots: int, dtype: DTypeLike, source: SourceSequence | None = None
  ) -> dict[str, Cache]:
    return caches_of(self.sublayers, batch, num_slots, dtype, source, self.encoding)

  def embed(
    self, x: Float[Array, 'batch length *streams d_model'], tokens: Tokens
  ) -> Float[Array, 'batch length *streams d_model']:
    """Returns the input of the block with the position vectors of the block's own encoding, added to each stream."""
    if self.encoding is None:
      return x
    add = functools.partial(self.encoding.embed, tokens=tokens)
    return add(x) if x.ndim == 3 else jax.vmap(add, 2, 2)(x)

  def calls(self, call: Call) -> dict[str, Call]:
    """Returns the `Call` of each sublayer.

    Raises:
      UserError: a sublayer reads the source and there is none, or no sublayer reads the source or encoding of `call`.
    """
    readers = [name for name, part in self.sublayers.items() if 'source' in part.reads]
    kind = type(self).__name__
    if readers and call.source is None:
      name = f'{kind}.{readers[0] or "sublayers"}'
      raise UserError(
        f'{name} attends to a source, but this model has no source: leave {name} out, or bind it only for the decoder '
        f'of an EncoderDecoder (decoder/{name})'
      )
    if call.source is not None and not readers:
      raise UserError('a block without cross-attention received a source: bind Block.cross')
    if call.encoding is not None and not reads_encoding(self.reads, call.encoding):
      name = type(call.encoding).__name__
      raise UserError(
        f'a block whose sublayers do not read positions received {name}: leave it out'
      )
    encoding = call.encoding if self.encoding is None else self.encoding
    pattern = call.pattern & self.pattern
    calls = {}
    for name, part in self.sublayers.items():
      calls[name] = dataclasses.replace(
        call,
        pattern=pattern,
        encoding=encoding if reads_encoding(part.reads, encoding) else None,
        source=call.source if 'source' in part.reads else None,
        key=named_key(call.key, name) if name else call.key,
        drop=None,
      )
    return calls

  def branch(
    self, name: str, x: Float[Array, 'batch length d_model'], call: Call, cache: Cache | None = None
  ) -> Result:
    """Returns the result of sublayer `name`, with `x` replaced by what its `BranchWiring` adds to the stream."""
    part, own = self.sublayers[name], self.calls(call)[name]
    wiring = cast(BranchWiring, self.wirings[name])
    key = named_key(call.key, f'{name}_wiring')
    return wiring.branch(x, lambda h: part(h, own, cache), key, depth_factor(call, name, len(x)))

  def __call__(
    self,
    x: Float[Array, 'batch length *streams d_model'],
    call: Call,
    cache: Mapping[str, Cache] | None = None,
  ) -> Result:
    """Applies the sublayers.

    Returns:
      The new residual stream and caches, and the auxiliary losses, recorded arrays and extras of the
      sublayers.

    Raises:
      UserError: a sublayer reads the source and there is none, or no sublayer reads the source or encoding of `call`.
    """
    old = cache or {}
    new, aux = dict(old), NO_AUX
    x = self.embed(x, call.tokens)
    recorded: dict[str, Array] = {}
    extras = dict(call.extras)
    for name, without_extras in self.calls(call).items():
      part, wiring = self.sublayers[name], self.wirings[name]
      own = dataclasses.replace(without_extras, extras=extras)

      def branch(h, part=part, own=own, name=name):
        return part(h, own, old.get(name))

      keep = depth_factor(call, name, len(x))
      result = wiring(x, branch, named_key(call.key, f'{name}_wiring'), keep)
      x = result.x
      if name in old:
        new[name] = cast(Cache, result.cache)
      aux += result.aux
      recorded |= recorded_by({name: result})
      extras = extras | dict(result.extras)
    return Result(x, None if cache is None else new, aux, recorded, extras=extras)


class Block(SublayerBlock):
  """A block of token mixer, optional cross-attention and feed-forward layer, each inside its own `wiring`.

  Args:
    mixer: builds the token mixer, such as self-attention.
    feed_forward: builds the feed-forward layer, which acts on each token separately.
    cross: builds the cross-attention to a source (for the decoder of an encoder-decoder); None: none.
  """

  def __init__(
    self,
    d_model: int,
    *,
    mixer: Callable[..., Sublayer] = MultiHeadAttention,
    feed_forward: Callable[..., Sublayer] = MLP,
    cross: Callable[..., Sublayer] | None = None,
    wiring: Callable[..., Wiring] | Mapping[str, Callable[..., Wiring]] = PreNorm,
    pattern: Pattern = Full(),
    encoding: Callable[..., PositionEncoding] | None = None,
    rngs: nnx.Rngs,
  ):
    parts = {'mixer': mixer, 'cross': cross, 'feed_forward': feed_forward}
    if cross is not None:
      parts['cross'] = functools.partial(FromSource, sublayer=cross)
    super().__init__(
      d_model,
      sublayers={name: build for name, build in parts.items() if build is not None},
      wiring=wiring,
      pattern=pattern,
      encoding=encoding,
      rngs=rngs,
    )


class ParallelBlock(SublayerBlock):
  """A block of parallel mixer and feed-forward layer: x + mixer(norm(x)) + feed_forward(norm(x)).

  GPT-J (https://github.com/kingoflolz/mesh-transformer-jax) and PaLM
  (https://arxiv.org/abs/2204.02311, section 2) share one norm; GPT-NeoX has two
  (https://arxiv.org/abs/2204.06745, section 2.1). The sum is one residual branch, as that of `Parallel`.

  Args:
    mixer: builds the token mixer, such as self-attention.
    feed_forward: builds the feed-forward layer, which acts on each token separately.
    norm: builds the norm before both branches.
    feed_forward_norm: builds a separate norm for the feed-forward branch; None: both branches share `norm`.
    dropout_rate: dropout rate on the sum of the branches.
    pattern: narrows the pattern of the body.
    encoding: builds a position encoding for this block. None: the body's.
  """

  def __init__(
    self,
    d_model: int,
    *,
    mixer: Callable[..., Sublayer] = MultiHeadAttention,
    feed_forward: Callable[..., Sublayer] = MLP,
    norm: Callable[..., Norm] = LayerNorm,
    feed_forward_norm: Callable[..., Norm] | None = None,
    dropout_rate: TunableRate = 0.0,
    pattern: Pattern = Full(),
    encoding: Callable[..., PositionEncoding] | None = None,
    rngs: nnx.Rngs,
  ):
    self.pattern = pattern
    self.names = 'mixer', 'feed_forward'
    with building(pattern=_inside(pattern)), at_position(num_branches=1):
      with at_position(branch=0):
        self.norm = norm(d_model, rngs=rngs)
        self.feed_forward_norm = feed_forward_norm and feed_forward_norm(d_model, rngs=rngs)
        for index, build in enumerate((mixer, feed_forward)):
          with at_position(num_branches=2, branch=index):
            set_part(self, self.names[index], build(d_model, rngs=rngs))
        self.wiring = NoNorm(d_model, dropout_rate=dropout_rate, rngs=rngs)
      self.encoding = encoding and encoding(d_model, rngs=rngs)
    self._check()

  @property
  def wirings(self) -> dict[str, Wiring]:
    return {_SUM: self.wiring}

  def init_cache(
    self, batch: int, num_slots: int, dtype: DTypeLike, source: SourceSequence | None = None
  ) -> dict[str, Cache]:
    caches = super().init_cache(batch, num_slots, dtype, source)
    return {_SUM: PartCaches(caches)} if caches else {}

  def branch(
    self, name: str, x: Float[Array, 'batch length d_model'], call: Call, cache: Cache | None = None
  ) -> Result:
    return self._wired(self.wiring.branch, x, call, cast(PartCaches | None, cache))

  def __call__(
    self,
    x: Float[Array, 'batch length *streams d_model'],
    call: Call,
    cache: Mapping[str, Cache] | None = None,
  ) -> Result:
    """Applies the parts to the same input; arguments and result are those of `SublayerBlock`."""
    own = None if cache is None else cast(PartCaches | None, cache.get(_SUM))
    result = self._wired(self.wiring, self.embed(x, call.tokens), call, own)
    new = cache if own is None else {_SUM: result.cache}
    extras = {**call.extras, **result.extras}
    return dataclasses.replace(result, cache=new, extras=extras)

  def _wired(
    self, wiring: Callable[..., Result], x: Array, call: Call, cache: PartCaches | None
  ) -> Result:
    calls, norms = self.calls(call), {'feed_forward': self.feed_forward_norm}

    def parts(h: Array) -> Result:
      return added(h, self.sublayers, calls, cache, self.norm, norms)

    return wiring(x, parts, named_key(call.key, f'{_SUM}_wiring'), depth_factor(call, _SUM, len(x)))


def _inside(pattern: Pattern) -> Pattern:
  """Returns the pattern of a block inside the pattern of the body that is built."""
  around = build_context().pattern
  return pattern if around is None else around & pattern
