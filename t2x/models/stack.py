"""A repeating sequence of blocks, whose parameters are stacked and scanned over the repeats.

Examples: dense and local blocks in turn as in GPT-3, one shared parameter set as in ALBERT
(https://arxiv.org/abs/1909.11942), stochastic depth as in https://arxiv.org/abs/1603.09382.
"""

import dataclasses
import functools
import operator
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from t2x.base.errors import UserError
from t2x.base.hyperparameters import scalar
from t2x.base.ranges import NonEmpty, Size, TunableRate
from t2x.base.step import target
from t2x.layers import Cache, Call, Pattern, Result, SourceSequence, StreamEnds, named_key, stacked
from t2x.layers.arrays import Leaf
from t2x.layers.building import LayerNumbers, Position, at_position, build_context, building
from t2x.layers.composites import initial_extras, least_max_length, recorded_by, replace_parts
from t2x.layers.constraints import constrain
from t2x.layers.dtypes import float32_sums
from t2x.layers.interfaces import reads_encoding
from t2x.layers.keys import fold_in
from t2x.layers.wiring.residual import Copies
from t2x.models.block import Block
from t2x.models.interfaces import Layer, LayerStack
from t2x.models.orders import Order, SharedSets, sequence
from t2x.models.remat import POLICIES, check_remat

__all__ = ['Stack']

# Deeper stacks would compile for minutes.
_UNROLLED_ON_GPUS = 32


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Stream:
  """The values that each layer of a stack passes to the next.

  Attributes:
    x: the residual stream, [batch, length, d_model], or several streams, [batch, length, streams, d_model].
    extras: arrays that parts pass from layer to layer, by name; see `ExtrasSublayer`.
  """

  x: Leaf
  extras: Mapping[str, Any]

  def apply(
    self, layer: Layer, call: Call, cache: Mapping[str, Cache] | None
  ) -> tuple['Stream', Result]:
    """Applies a layer. Returns the stream after it, and the layer's result.

    Raises:
      UserError: the layer returned extras that no part initialises.
    """
    result = layer(
      self.x, dataclasses.replace(restrict_call(call, layer), extras=self.extras), cache
    )
    unknown = sorted(result.extras.keys() - self.extras.keys())
    if unknown:
      raise UserError(
        f'{type(layer).__name__} returned the extras {", ".join(unknown)}, which no part of this stack '
        "initialises: return them from the part's init_extras too"
      )
    streams = [None] * (result.x.ndim - 3)
    x = constrain(result.x, 'batch', 'length', *streams, 'embed')
    return Stream(x, {**self.extras, **result.extras}), result


class Stack(nnx.Module):
  """A stack of `num_layers` layers that cycles through `blocks`: blocks[0], blocks[1], ..., blocks[0], ...

  Args:
    d_model: width of the residual stream.
    num_layers: total number of layers, a multiple of the number of `blocks`.
    blocks: builders of the layers of one repeat.
    num_groups: number of parameter sets (ALBERT's `num_hidden_groups`; 1: all repeats share one set). None: the
      number of sets in `order`, or one per repeat.
    order: which repeats share a parameter set, and in which order the sets run: `sequence` (neighbours share one),
      `cycle`, `cycle_reverse`, or the index of the set of each repeat, such as (0, 1, 1, 2). A step copies a set that
      runs again after another one, so that it needs the memory of a stack that shares nothing.
    unroll: number of repeats per iteration of the scan. 1 compiles fastest; `num_layers` runs fastest. None: 1,
      but on GPUs all of at most 32 repeats.
    remat: rematerialisation policy. None saves all activations; 'full' saves only the inputs of each
      repeat, 'dots' also matrix products, 'dots_no_batch' only those without batch dimensions, 'attention'
      the outputs of attention, and 'dots_no_batch+attention' both. With saved outputs, kernels with linear
      memory are not computed again; `Dense` and `XLA` compute their scores again. On CPUs, a fully unrolled
      stack needs as much memory with any policy as with None.
    stochastic_depth: probability with which each residual branch of the last layer of the body is dropped for a row;
      it grows linearly from 0 at the first layer of the body, through all stages of `Stages`.

  Raises:
    UserError: `num_layers` does not divide evenly, `num_groups` and `order` do not fit the repeats, or `remat` is
      unknown or has no effect.
  """

  implements = (LayerStack,)
  num_layers: int
  output_dim: int
  blocks: Sequence[Any]

  def __init__(
    self,
    d_model: int,
    *,
    num_layers: Size,
    blocks: Annotated[Sequence[Callable[..., Layer]], NonEmpty] = (Block,),
    num_groups: Size | None = None,
    order: Order | Sequence[int] = sequence,
    unroll: Size | None = None,
    remat: str | None = None,
    stochastic_depth: TunableRate = 0.0,
    rngs: nnx.Rngs,
  ):
    name = type(self).__name__
    if num_layers % len(blocks):
      raise UserError(
        f'{name}.num_layers = {num_layers}: must be a multiple of {len(blocks)}, the number of {name}.blocks'
      )
    self.d_model = self.output_dim = d_model
    self.num_repeats = num_layers // len(blocks)
    self.sets = SharedSets.of(name, self.num_repeats, num_groups, order)
    self.num_layers, self.num_groups = num_layers, self.sets.num_sets
    self.unroll = unroll
    self.remat = remat
    self.stochastic_depth = stochastic_depth

    # Layers are numbered through the body, of which the stack may be one stage.
    self.first_layer, self.body_layers = build_context().position.stage(num_layers)
    users = [self.sets.repeats(group) for group in range(self.num_groups)]

    def repeat(group, keys):
      built = []
      for place, block in enumerate(blocks):
        first = self.first_layer + place
        layers = tuple(tuple(first + r * len(blocks) for r in repeats) for repeats in users)
        layer = jnp.asarray([own[0] for own in layers])[group]
        with at_position(layer=layer, layers=LayerNumbers(layers, self.body_layers)):
          built.append(block(d_model, rngs=keys))
      return nnx.List(built)

    with building(position=Position(num_layers=self.body_layers)):
      self.blocks = stacked(repeat, self.num_groups, rngs)
      self.ends = _stream_ends(self.blocks, d_model, rngs)
    if remat is not None:
      check_remat(remat, self.blocks)

  def init_cache(
    self, batch: int, num_slots: int, dtype: DTypeLike, source: SourceSequence | None = None
  ) -> list[dict[str, Cache]]:
    """Returns empty caches: a list over `blocks` whose leaves are stacked to [repeats, batch, ...].

    Raises:
      UserError: no block reads the source.
    """
    if source is not None:
      check_unread(Call(source.tokens, source=source), reads_of(self.blocks))

    def of_repeats(block):
      own = source if 'source' in block.reads else None
      return self.sets.each(jax.vmap(lambda b: b.init_cache(batch, num_slots, dtype, own))(block))

    return [of_repeats(block) for block in self.blocks]

  def patterns(self, pattern: Pattern) -> list[Pattern]:
    """Returns the attention pattern of each of `blocks` inside a body with `pattern`."""
    return [pattern & block.pattern for block in self.blocks]

  @property
  def max_length(self) -> int | None:
    return least_max_length(self.blocks)

  def numbers_of_layer(self, repeat: int | Array, place: int) -> dict[str, Any]:
    """Returns the fields of the call of block `place` of a repeat that number the layer."""
    layer = self.first_layer + repeat * len(self.blocks) + place
    return {'place': place, 'repeat': repeat, 'layer': layer}

  def unstacked(self) -> 'Layers':
    """Returns the layers separately, for loops that should not slice stacked parameters at each step."""
    groups = [
      [jax.tree.map(lambda a, group=group: a[group], block) for block in self.blocks]
      for group in range(self.num_groups)
    ]
    layers = [block for group in self.sets.order for block in groups[group]]
    stack = replace_parts(self, blocks=nnx.List([]))
    return Layers(layers, len(self.blocks), stack)

  def unstacked_cache(self, cache: list[dict[str, Cache]]) -> list[dict[str, Cache]]:
    return [
      jax.tree.map(lambda a, r=r: a[r], block) for r in range(self.num_repeats) for block in cache
    ]

  def __call__(
    self,
    x: Float[Array, 'batch length d_model'],
    call: Call,
    cache: list[dict[str, Cache]] | None = None,
  ) -> Result:
    """Applies all layers.

    Returns:
      The residual stream, the caches, auxiliary losses and metrics summed over the layers, and recorded
      arrays: 'blocks.B.NAME' is stacked over the repeats, so its row r belongs to layer r * len(blocks) + B.

    Raises:
      UserError: no block reads the source, the encoding or a recorded name of `call`, or a block raises it.
    """
    check_unread(call, reads_of(self.blocks))
    # All layers read them. A cache has no gradient.
    shared = float32_sums((call.encoding, call.source)) if cache is None else None

    def repeat(blocks, stream, per_repeat):
      number, caches, keys, rates = per_repeat
      results: list[Result] = []
      encoding, source = shared() if shared else (call.encoding, call.source)
      of_layers = dataclasses.replace(call, encoding=encoding, source=source)
      for i, block in enumerate(blocks):
        own = dataclasses.replace(
          of_layers, **self.numbers_of_layer(number, i), **randomness(keys, rates, i)
        )
        stream, result = stream.apply(block, own, None if caches is None else caches[i])
        results.append(result)
      new = None if caches is None else [result.cache for result in results]
      aux = functools.reduce(operator.add, (result.aux for result in results))
      recorded = recorded_by({f'blocks.{i}': result for i, result in enumerate(results)})
      if 'hidden' in call.record:
        recorded |= {
          f'blocks.{i}.hidden': self.ends.collapse(result.x) for i, result in enumerate(results)
        }
      return stream, (new, aux, recorded)

    if self.remat is not None:
      # Without a loop between them, XLA would merge the recomputation with the forward pass.
      is_unrolled = self._unroll() >= self.num_repeats
      repeat = jax.checkpoint(repeat, policy=POLICIES[self.remat], prevent_cse=is_unrolled)
    per_repeat = self._per_repeat(cache, call.key)
    # The shapes of extras depend only on static attributes, so the stacked blocks can build them.
    stream = self.start(x, self.blocks)
    stream, (cache, aux, recorded) = self.sets.scan(
      repeat, stream, self.blocks, per_repeat, self._unroll()
    )
    return Result(self.finish(stream), cache, jax.tree.map(lambda a: a.sum(axis=0), aux), recorded)

  def _unroll(self) -> int:
    """Returns the number of repeats per iteration of the scan."""
    on_gpu = target() == 'gpu' and self.num_repeats <= _UNROLLED_ON_GPUS
    return self.unroll or (self.num_repeats if on_gpu else 1)

  def start(self, x: Array, layers: Iterable[Layer]) -> Any:
    """Returns what the first of the layers receives, for the input `x` of the stack."""
    return Stream(self.ends.expand(x), initial_extras(layers, x))

  def finish(self, stream: Any) -> Array:
    """Returns the output of the stack, for what the last layer returned."""
    return self.ends.collapse(stream.x)

  def _per_repeat(self, cache, key):
    """Returns the scanned inputs except parameters: numbers, caches, keys, drop rates [repeats, blocks]."""
    numbers = jnp.arange(self.num_repeats)
    if key is None:
      return numbers, cache, None, None
    # fold_in, not split: the keys of a repeat do not depend on the number of repeats.
    keys = jax.vmap(fold_in, (None, 0))(key, numbers)
    if self.stochastic_depth == 0.0:
      return numbers, cache, keys, None
    # From the last layer to the first, so that a single layer is the last.
    depth = np.linspace(1.0, 0.0, self.body_layers, dtype=np.float32)[::-1]
    depth = depth[self.first_layer :][: self.num_layers].reshape(self.num_repeats, -1)
    return numbers, cache, keys, jnp.asarray(scalar(self.stochastic_depth) * depth)


class Layers(nnx.Module):
  """The layers of a stack as separate modules, each with its own parameters and cache.

  A decoding loop over them copies neither caches nor parameters. Dropout is not supported.

  Args:
    layers: the layers in the order of application.
    num_blocks: number of layers in one repeat of the stack.
    stack: the stack without its blocks.
  """

  def __init__(self, layers: Sequence[Layer], num_blocks: int, stack: 'Stack'):
    self.layers = nnx.List(layers)
    self.num_blocks = num_blocks
    self.stack = stack

  @property
  def blocks(self) -> Sequence[Layer]:
    return self.layers

  def __call__(
    self,
    x: Float[Array, 'batch length d_model'],
    call: Call,
    cache: list[dict[str, Cache]],
  ) -> Result:
    """Applies all layers; `cache` is a list over the layers."""
    new = []
    stream = self.stack.start(x, self.layers)
    for i, (layer, own) in enumerate(zip(self.layers, cache, strict=True)):
      repeat, place = divmod(i, self.num_blocks)
      layer_call = dataclasses.replace(
        call, place=place, repeat=repeat, layer=self.stack.first_layer + i
      )
      stream, result = stream.apply(layer, layer_call, own)
      new.append(result.cache)
    return Result(self.stack.finish(stream), new)


def _stream_ends(layers: Sequence[Layer], d_model: int, rngs: nnx.Rngs) -> StreamEnds:
  """Builds the ends of the residual streams of a stack, as the wirings of its layers state.

  Raises:
    UserError: the layers have different numbers of streams, or their wirings different ends.
  """
  numbers = {layer.num_streams for layer in layers}
  if len(numbers) > 1:
    raise UserError(
      f'layers of one stack have {" and ".join(map(str, sorted(numbers)))} residual streams: use the same '
      'wiring in all of its blocks'
    )
  wirings = [wiring for layer in layers for wiring in layer.wirings.values()]
  kinds = {getattr(wiring.ends, 'func', wiring.ends): wiring for wiring in wirings}
  if len(kinds) > 1:
    names = sorted(type(wiring).__name__ for wiring in kinds.values())
    raise UserError(
      f'{" and ".join(names)} begin or end the residual streams of a stack differently: use one of them in all of '
      'its blocks'
    )
  build = wirings[-1].ends if wirings else Copies
  return build(d_model, max(numbers), rngs=rngs)


def reads_of(layers: Iterable[Layer]) -> frozenset[str]:
  """Returns the names of the fields of `Call` that any of the layers reads."""
  return frozenset().union(*(layer.reads for layer in layers))


def recordable(reads: Collection[str]) -> frozenset[str]:
  """Returns the names of the arrays that a stack can record whose blocks read these fields."""
  names = (name.removeprefix('record.') for name in reads if name.startswith('record.'))
  return frozenset({'hidden', *names})


def source_arrays(reads: Collection[str]) -> frozenset[str]:
  """Returns the names of encoder-layer arrays that these fields refer to."""
  return frozenset(name.removeprefix('source.') for name in reads if name.startswith('source.'))


def by_layer(recorded: Mapping[str, Array], name: str) -> Array:
  """Returns the arrays NAME that the layers of a body recorded, [batch, layers, ...], in the order of the layers."""
  stages: dict[str, list[Array]] = {}
  # Transformed functions return dicts sorted by key: block 10 before block 2.
  for path in sorted(recorded, key=_numbered):
    if path.rpartition('.')[2] == name:
      stages.setdefault(path.rpartition('blocks.')[0], []).append(recorded[path])
  # Each array is [repeats, batch, ...].
  rows = [jnp.stack(arrays, axis=1) for arrays in stages.values()]
  layers = jnp.concatenate([a.reshape(-1, *a.shape[2:]) for a in rows])
  return jnp.moveaxis(layers, 0, 1)


def _numbered(path: str) -> list[tuple[int, str]]:
  """Returns a key by which the numbers in names are sorted as numbers."""
  return [(int(part), '') if part.isdigit() else (0, part) for part in path.split('.')]


def check_unread(call: Call, reads: Collection[str]) -> None:
  """Raises UserError if the source, encoding or a recorded name of `call` is not among the fields read by a stack."""
  if call.source is not None and 'source' not in reads:
    raise UserError(
      'no block of this stack has cross-attention, so the source would be ignored: bind '
      'Block.cross (for the decoder only: decoder/Block.cross = @MultiHeadAttention)'
    )
  if call.encoding is not None and not reads_encoding(reads, call.encoding):
    name = type(call.encoding).__name__
    raise UserError(
      f'{name} acts in the layers, but no block of this stack reads it: choose an encoding '
      'that is added to the embeddings, or a mixer that reads positions'
    )
  if unknown := call.record - recordable(reads):
    raise UserError(f'no part of this stack records {", ".join(sorted(unknown))}')


def restrict_call(call: Call, layer: Layer) -> Call:
  """Returns `call` without the source or encoding if this layer does not read it."""
  return dataclasses.replace(
    call,
    source=call.source if 'source' in layer.reads else None,
    encoding=call.encoding if reads_encoding(layer.reads, call.encoding) else None,
  )


def randomness(keys: Array | None, rates: Array | None, place: int) -> dict[str, Any]:
  """Returns the fields `key` and `drop` of the call of block `place` of a repeat, from those of the repeat."""
  rate = None if rates is None else rates[place]
  return {'key': named_key(keys, f'blocks.{place}'), 'drop': rate}
