"""A repeating pattern of blocks, its parameters stacked and scanned over the repeats.

`[dense, local]` repeats as in GPT-3, one shared group as in ALBERT
(https://arxiv.org/abs/1909.11942), stochastic depth as in https://arxiv.org/abs/1603.09382.
"""

import dataclasses
import functools
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float

from t2x.errors import UserError
from t2x.hyperparameters import scalar
from t2x.layers import Cache, Call, Pattern, Result, Source, named_key, stacked
from t2x.layers.constraints import constrain
from t2x.layers.initializers import building
from t2x.models.block import Block, initial_extras
from t2x.models.interfaces import Layer
from t2x.ranges import NonEmpty, Size, TunableRate

_POLICIES = jax.checkpoint_policies
# What the backward pass finds saved instead of computing it again, by name.
REMAT_POLICIES = {
  'full': _POLICIES.nothing_saveable,
  'dots': _POLICIES.dots_saveable,
  'dots_no_batch': _POLICIES.dots_with_no_batch_dims_saveable,
}


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Stream:
  """What each layer of a stack hands on to the next.

  Attributes:
    x: the residual stream, [batch, length, d_model].
    extras: arrays that parts pass from layer to layer, by name; see `ExtrasSublayer`.
  """

  # Tree functions put other things than arrays into the fields.
  x: Any
  extras: Mapping[str, Any]

  @staticmethod
  def entering(x: Array, layers: Iterable[Layer]) -> 'Stream':
    """The stream before the first layer."""
    return Stream(x, initial_extras(layers, x))

  def through(self, layer: Layer, call: Call, cache: Any) -> tuple['Stream', Result]:
    """The stream after a layer, and what the layer returned."""
    result = layer(self.x, dataclasses.replace(narrowed(call, layer), extras=self.extras), cache)
    unknown = sorted(result.extras.keys() - self.extras.keys())
    if unknown:
      raise UserError(
        f'{type(layer).__name__} returned the extras {", ".join(unknown)}, which no part of this stack '
        'initialises: return them from init_extras of the part too'
      )
    x = constrain(result.x, 'batch', 'length', 'embed')
    return Stream(x, {**self.extras, **result.extras}), result


class Stack(nnx.Module):
  """`num_layers` layers made of `blocks` in turn: blocks[0], blocks[1], ..., blocks[0], ...

  Args:
    d_model: width of the residual stream.
    num_layers: layers in all; a multiple of the number of `blocks`.
    blocks: builders of the layers of one repeat.
    num_groups: how many sets of parameters the repeats share, neighbours together (ALBERT's
      `num_hidden_groups`; 1 is one set for all). None: each repeat has its own.
    unroll: repeats put into one iteration of the scan. 1 compiles fastest; `num_layers` runs
      fastest on a CPU.
    remat: None saves every activation; 'full', 'dots' and 'dots_no_batch' name what is saved.
    stochastic_depth: probability of dropping the last layer; it grows linearly from 0 at the first.

  Raises:
    UserError: counts that do not divide, an unknown `remat`.
  """

  def __init__(
    self,
    d_model: int,
    *,
    num_layers: Size,
    blocks: Annotated[Sequence[Callable[..., Layer]], NonEmpty] = (Block,),
    num_groups: Size | None = None,
    unroll: Size = 1,
    remat: str | None = None,
    stochastic_depth: TunableRate = 0.0,
    rngs: nnx.Rngs,
  ):
    if num_layers % len(blocks):
      raise UserError(
        f'Stack.num_layers = {num_layers} is no multiple of the {len(blocks)} Stack.blocks'
      )
    self.d_model = d_model
    self.num_repeats = num_layers // len(blocks)
    num_groups = num_groups or self.num_repeats
    if self.num_repeats % num_groups:
      raise UserError(
        f'Stack.num_groups = {num_groups} does not divide {self.num_repeats} repeats of the blocks'
      )
    if remat is not None and remat not in REMAT_POLICIES:
      raise UserError(f"Stack.remat = '{remat}' is none of {', '.join(REMAT_POLICIES)} or None")
    self.num_layers = num_layers
    self.num_groups = num_groups
    self.unroll = unroll
    self.remat = remat
    self.stochastic_depth = stochastic_depth

    def repeat(keys):
      return nnx.List([block(d_model, rngs=keys) for block in blocks])

    with building(num_layers=num_layers):
      self.blocks = stacked(repeat, num_groups, rngs)

  def init_cache(self, batch: int, num_slots: int, dtype: Any) -> list[dict[str, Cache]]:
    """Empty caches: a list over `blocks`, each leaf stacked over the repeats: [repeats, batch, ...]."""

    def stack(leaf):
      return jnp.broadcast_to(leaf, (self.num_repeats, *leaf.shape))

    # Caches are shaped by static attributes alone, so the stacked blocks can make them.
    return [jax.tree.map(stack, block.init_cache(batch, num_slots, dtype)) for block in self.blocks]

  def patterns(self, pattern: Pattern) -> list[Pattern]:
    """The pattern of each block inside a body with `pattern`."""
    return [pattern & block.pattern for block in self.blocks]

  def layers_of(self, block: int) -> tuple[tuple[int, ...], ...]:
    """The layers that use each set of parameters of `blocks[block]`."""
    shared = self.num_repeats // self.num_groups
    layers = [repeat * len(self.blocks) + block for repeat in range(self.num_repeats)]
    return tuple(
      tuple(layers[group * shared : (group + 1) * shared]) for group in range(self.num_groups)
    )

  @property
  def output_dim(self) -> int:
    """Width of the output."""
    return self.d_model

  @property
  def ends_with_norm(self) -> bool:
    """Whether the last block's output is normalised."""
    return self.blocks[-1].ends_with_norm

  @property
  def max_length(self) -> int | None:
    """The longest sequence that all blocks can process; None: any."""
    lengths = [block.max_length for block in self.blocks]
    return min((length for length in lengths if length is not None), default=None)

  def _check_read(self, call: Call) -> None:
    """Raises UserError where something is given that no block reads."""
    reads = frozenset().union(*(block.reads for block in self.blocks))
    if call.source is not None and 'source' not in reads:
      raise UserError(
        'no block of this stack has cross-attention, so that the source would be ignored: bind '
        'Block.cross (for the decoder only: decoder/Block.cross = @MultiHeadAttention)'
      )
    if call.encoding is not None and 'encoding' not in reads:
      name = type(call.encoding).__name__
      raise UserError(
        f'{name} acts in the layers, and no block of this stack would use it: choose an encoding '
        'that is added to the embeddings, or a mixer that reads positions'
      )
    known = {name.removeprefix('record.') for name in reads if name.startswith('record.')}
    unknown = call.record - known - {'hidden'}
    if unknown:
      raise UserError(f'no part of this stack records {", ".join(sorted(unknown))}')

  def source_cache(self, source: Source) -> list[dict[str, Cache]]:
    """What cross-attention computes of the source, stacked as in `init_cache`.

    Raises:
      UserError: no block reads a source.
    """
    self._check_read(Call(source.tokens, source=source))
    per_repeat = self.num_repeats // self.num_groups

    def one(block):
      return jax.tree.map(
        lambda leaf: jnp.repeat(leaf, per_repeat, axis=0),
        jax.lax.map(lambda b: b.source_cache(source), block),
      )

    return [one(block) for block in self.blocks]

  def unstacked(self) -> 'Layers':
    """The layers one by one, for a loop that should not slice their parameters in every iteration."""
    per_group = self.num_repeats // self.num_groups
    groups = [
      [jax.tree.map(lambda a, group=group: a[group], block) for block in self.blocks]
      for group in range(self.num_groups)
    ]
    layers = [block for r in range(self.num_repeats) for block in groups[r // per_group]]
    return Layers(layers, len(self.blocks))

  def unstacked_cache(self, cache: list[dict[str, Cache]]) -> list[dict[str, Cache]]:
    """The caches of the layers one by one."""
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
      The stream, the caches, auxiliary losses and metrics summed over the layers, and what was recorded:
      'blocks.B.NAME' is stacked over the repeats, so that row r is that of layer r * len(blocks) + B.

    Raises:
      UserError: something given that no block reads, or what a block refuses.
    """
    self._check_read(call)

    def repeat(blocks, stream, per_repeat):
      number, caches, keys, rates = per_repeat
      results: list[Result] = []
      for i, block in enumerate(blocks):
        key, keep = self._randomness(stream.x, keys, rates, i)
        own = dataclasses.replace(call, place=i, repeat=number, key=key, keep=keep)
        stream, result = stream.through(block, own, None if caches is None else caches[i])
        results.append(result)
      new = None if caches is None else [result.cache for result in results]
      aux = functools.reduce(operator.add, (result.aux for result in results))
      recorded = {
        f'blocks.{i}.{name}': value
        for i, result in enumerate(results)
        for name, value in result.recorded.items()
      }
      if 'hidden' in call.record:
        recorded |= {f'blocks.{i}.hidden': result.x for i, result in enumerate(results)}
      return stream, (new, aux, recorded)

    if self.remat is not None:
      repeat = jax.checkpoint(repeat, policy=REMAT_POLICIES[self.remat], prevent_cse=False)
    per_repeat = self._per_repeat(cache, call.key)
    # Extras are shaped by static attributes alone, so the stacked blocks can make them.
    stream = Stream.entering(x, self.blocks)
    if self.num_groups == self.num_repeats:
      stream, (cache, aux, recorded) = jax.lax.scan(
        lambda stream, inputs: repeat(inputs[0], stream, inputs[1]),
        stream,
        (self.blocks, per_repeat),
        unroll=self.unroll,
      )
    else:
      stream, (cache, aux, recorded) = self._scan_groups(repeat, stream, per_repeat)
    return Result(stream.x, cache, jax.tree.map(lambda a: a.sum(axis=0), aux), recorded)

  def _scan_groups(self, repeat, stream, per_repeat):
    """The same parameters for neighbouring repeats: a scan over groups of a scan inside."""

    length = self.num_repeats // self.num_groups

    def group(stream, inputs):
      blocks, inside = inputs
      return jax.lax.scan(
        lambda stream, one: repeat(blocks, stream, one),
        stream,
        inside,
        length=length,
        unroll=self.unroll,
      )

    grouped = jax.tree.map(lambda a: a.reshape(self.num_groups, -1, *a.shape[1:]), per_repeat)
    stream, found = jax.lax.scan(group, stream, (self.blocks, grouped))
    return stream, jax.tree.map(lambda a: a.reshape(-1, *a.shape[2:]), found)

  def _per_repeat(self, cache, key):
    """What differs between repeats beside parameters: number, caches, keys, drop rates [repeats, blocks]."""
    numbers = jnp.arange(self.num_repeats)
    if key is None:
      return numbers, cache, None, None
    # By index: the keys of a repeat do not depend on the number of repeats.
    keys = jax.vmap(jax.random.fold_in, (None, 0))(key, numbers)
    depth = np.linspace(0.0, 1.0, self.num_layers, dtype=np.float32).reshape(self.num_repeats, -1)
    return numbers, cache, keys, jnp.asarray(scalar(self.stochastic_depth) * depth)

  def _randomness(self, x, key, rates, index):
    """The key of block `index` of a repeat, and its stochastic-depth multiplier [batch, 1, 1]."""
    if key is None:
      return None, None
    block_key = named_key(key, f'blocks.{index}')
    if self.stochastic_depth == 0.0:
      return block_key, None
    depth_key = named_key(key, f'stochastic_depth.{index}')
    kept = jax.random.bernoulli(depth_key, 1.0 - rates[index], (x.shape[0], 1, 1))
    return block_key, kept / (1.0 - rates[index])


class Layers(nnx.Module):
  """The layers of a stack one by one, each with parameters and a cache of its own.

  A decoding loop over them copies neither caches nor parameters. It has no dropout.

  Args:
    layers: the layers in the order in which they are applied.
    num_blocks: layers of one repeat of the stack.
  """

  def __init__(self, layers: Sequence[Layer], num_blocks: int):
    self.layers = nnx.List(layers)
    self.num_blocks = num_blocks

  def __call__(
    self,
    x: Float[Array, 'batch length d_model'],
    call: Call,
    cache: list[dict[str, Cache]],
  ) -> Result:
    """Applies all layers; `cache` is a list over them."""
    new = []
    stream = Stream.entering(x, self.layers)
    for i, (layer, own) in enumerate(zip(self.layers, cache, strict=True)):
      repeat, place = divmod(i, self.num_blocks)
      layer_call = dataclasses.replace(call, place=place, repeat=repeat)
      stream, result = stream.through(layer, layer_call, own)
      new.append(result.cache)
    return Result(stream.x, new)


def narrowed(call: Call, layer: Layer) -> Call:
  """The call without a source and an encoding that the layer does not read; another layer does."""
  return dataclasses.replace(
    call,
    source=call.source if 'source' in layer.reads else None,
    encoding=call.encoding if 'encoding' in layer.reads else None,
  )
