"""A reversible stack, whose backward pass computes the inputs of each layer from its outputs instead of saving them
(Reformer: Kitaev et al. 2020, https://arxiv.org/abs/2001.04451; RevNets: Gomez et al. 2017,
https://arxiv.org/abs/1707.04585)."""

import dataclasses
import functools
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, cast

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from t2x.base.errors import UserError
from t2x.base.ranges import NonEmpty, Size, TunableRate
from t2x.base.step import is_plain
from t2x.layers import NO_AUX, Aux, BranchWiring, Cache, Call, InputMemory, Result
from t2x.layers.arrays import Leaf
from t2x.layers.composites import recorded_by
from t2x.layers.constraints import constrain
from t2x.layers.dtypes import Dtypes
from t2x.models.block import Block, SublayerBlock
from t2x.models.interfaces import Layer
from t2x.models.inversion import Branch, reversible_scan, traced_branch
from t2x.models.orders import Order, sequence
from t2x.models.stack import Stack, check_unread, randomness, reads_of, restrict_call

__all__ = ['ReversibleStack', 'concatenated_streams', 'mean_of_streams']

Merge = Callable[[Array, Array], Array]


def mean_of_streams(
  first: Float[Array, 'batch length d_model'], second: Float[Array, 'batch length d_model']
) -> Float[Array, 'batch length d_model']:
  """Returns the mean of both streams of a `ReversibleStack`."""
  return (first + second) / 2


def concatenated_streams(
  first: Float[Array, 'batch length d_model'], second: Float[Array, 'batch length d_model']
) -> Float[Array, 'batch length width']:
  """Returns both streams of a `ReversibleStack` side by side, [batch, length, 2 d_model], as the Reformer of
  transformers does; the head must accept that width."""
  return jnp.concatenate([first, second], axis=-1)


@functools.partial(
  jax.tree_util.register_dataclass,
  data_fields=['first', 'second'],
  meta_fields=['merge', 'dtype'],
)
@dataclasses.dataclass(frozen=True)
class ReversibleStream:
  """The two streams that each layer of a `ReversibleStack` passes to the next.

  Attributes:
    first: the stream that the next sublayer adds to, [batch, length, d_model], in float32 or wider.
    second: the stream that the next sublayer reads, of the same shape and dtype.
    merge: computes the output of the stack from both.
    dtype: dtype of the inputs of sublayers and of the output.
  """

  first: Leaf
  second: Leaf
  merge: Merge
  dtype: DTypeLike

  @staticmethod
  def initial(x: Array, merge: Merge) -> 'ReversibleStream':
    """Returns the streams before the first layer, which are copies of `x`."""
    wide = x.astype(jnp.promote_types(x.dtype, Dtypes.reductions))
    return ReversibleStream(wide, wide, merge, x.dtype)

  @property
  def output(self) -> Any:
    """The output of the stack, [batch, length, output_dim]."""
    return self.merge(self.first, self.second).astype(self.dtype)

  def apply(
    self, layer: SublayerBlock, call: Call, cache: Mapping[str, Cache] | None
  ) -> tuple['ReversibleStream', Result]:
    """Applies a layer. Returns the streams after it, and the layer's result."""
    call, old = restrict_call(call, layer), cache or {}
    first, second, new, aux = self.first, self.second, dict(old), NO_AUX
    recorded: dict[str, Array] = {}
    for name in layer.wirings:
      result = layer.branch(name, second.astype(self.dtype), call, old.get(name))
      branch = constrain(result.x, 'batch', 'length', 'embed').astype(first.dtype)
      first, second = second, first + branch
      if name in old:
        new[name] = cast(Cache, result.cache)
      aux += result.aux
      recorded |= recorded_by({name: result})
    stream = dataclasses.replace(self, first=first, second=second)
    return stream, Result(stream.output, None if cache is None else new, aux, recorded)


class ReversibleStack(Stack):
  """A stack with two alternating residual streams: each sublayer reads one stream and adds its output to the second.

  For blocks of a mixer F and a feed-forward layer G, y1 = x1 + F(x2) and y2 = x2 + G(y1), with the norms and
  dropout of the wirings inside F and G. Both streams start as copies of the input. With cross-attention, or another
  number of sublayers, the streams still alternate from one sublayer to the next, as in the Reformer of trax.

  The backward pass starts from the streams after the last layer and computes the streams before each sublayer by
  subtraction, so that the memory of activations does not grow with the number of layers; each sublayer is computed
  once more. The streams are in float32 or wider, whatever the dtype of the sublayers. Subtraction rounds: a
  choice among discrete values (hashes, experts) of a token at the border of two may differ in the backward pass.
  Metrics have no gradient. Calls that record intermediate arrays, or have `plain_operations`, save all activations, as
  `Stack` does.

  The parameters are those of `Stack` with the same blocks.

  Args:
    d_model: width of each stream.
    blocks: builders of the layers of one repeat: `Block` or `SublayerBlock` with wirings that add a branch
      (`BranchWiring`: `PreNorm`, `ReZero`, ..., but not `PostNorm`).
    num_groups: number of parameter sets; see `Stack`.
    order: which repeats share a set; see `Stack`.
    stochastic_depth: probability of dropping the branches of the last layer; see `Stack`.
    merge: computes the output from both streams.

  Raises:
    UserError: `num_layers`, `num_groups` and `order` do not fit (see `Stack`), or a block cannot be inverted.
  """

  def __init__(
    self,
    d_model: int,
    *,
    num_layers: Size,
    blocks: Annotated[Sequence[Callable[..., Layer]], NonEmpty] = (Block,),
    num_groups: Size | None = None,
    order: Order | Sequence[int] = sequence,
    stochastic_depth: TunableRate = 0.0,
    merge: Merge = mean_of_streams,
    rngs: nnx.Rngs,
  ):
    super().__init__(
      d_model,
      num_layers=num_layers,
      blocks=blocks,
      num_groups=num_groups,
      order=order,
      stochastic_depth=stochastic_depth,
      rngs=rngs,
    )
    self.merge = merge
    stream = jax.ShapeDtypeStruct((1, 1, d_model), jnp.float32)
    self.output_dim = int(jax.eval_shape(merge, stream, stream).shape[-1])
    for block in self.blocks:
      _check_block(block)

  def __call__(
    self,
    x: Float[Array, 'batch length d_model'],
    call: Call,
    cache: list[dict[str, Cache]] | None = None,
  ) -> Result:
    """Applies all layers; see `Stack.__call__`.

    Raises:
      UserError: no block reads the source, the encoding or a recorded name of `call`, a block raises it, or the
        cache is the memory of `Segments`.
    """
    is_memory = [isinstance(c, InputMemory) for block in cache or [] for c in block.values()]
    if any(is_memory):
      raise UserError(
        'ReversibleStack does not save the inputs of layers, which are the memory of Segments: use '
        'Segments.stack = @Stack'
      )
    if cache is not None or call.record or is_plain():
      return super().__call__(x, call, cache)
    check_unread(call, reads_of(self.blocks))
    numbers, _, keys, rates = self._per_repeat(None, call.key)
    per_repeat = numbers, keys, rates
    branches, arrays = self._branches(x, call, per_repeat)
    stream = self.start(x, self.blocks)
    blocks = self.sets.each(self.blocks, self.sets.uses)
    leaves = [jax.tree.leaves(block) for block in blocks]
    pair, losses, metrics = reversible_scan(
      branches, (stream.first, stream.second), leaves, arrays, self.sets.in_runs(per_repeat)
    )
    parts = [Aux(*values) for values in zip(losses, metrics, strict=True)]
    aux = jax.tree.map(lambda a: a.sum(axis=(0, 1)), functools.reduce(operator.add, parts))
    first, second = pair
    stream = dataclasses.replace(stream, first=first, second=second)
    return Result(stream.output, None, aux)

  def start(self, x, layers):
    return ReversibleStream.initial(x, self.merge)

  def finish(self, stream):
    return stream.output

  def _branches(self, x: Array, call: Call, per_repeat: object) -> tuple[list[Branch], list[Any]]:
    """Returns the traced sublayers of one repeat, and the arrays that they enclose."""
    wide = jax.ShapeDtypeStruct(x.shape, jnp.promote_types(x.dtype, Dtypes.reductions))
    first = functools.partial(jax.tree.map, lambda a: a[0])
    own_inputs = jax.eval_shape(first, per_repeat)
    branches, arrays = list[Branch](), list[Any]()
    for place, block in enumerate(self.blocks):
      for name in block.wirings:

        def branch(block, h, number, keys, rates, place=place, name=name):
          fields = self.numbers_of_layer(number, place) | randomness(keys, rates, place)
          own = dataclasses.replace(call, **fields)
          result = block.branch(name, h.astype(x.dtype), restrict_call(own, block))
          y = constrain(result.x, 'batch', 'length', 'embed').astype(h.dtype)
          return y, dict(result.aux.losses), dict(result.aux.metrics)

        inputs = jax.eval_shape(first, block), wide, *own_inputs
        branches.append(traced_branch(branch, inputs, place, arrays))
    return branches, arrays


def _check_block(block: Layer) -> None:
  """Raises UserError if the input of a block cannot be computed from its output."""
  kind = type(block).__name__
  if not isinstance(block, SublayerBlock):
    raise UserError(
      f'{kind} in ReversibleStack.blocks does not have its sublayers in sequence: use Block or SublayerBlock'
    )
  for name, wiring in block.wirings.items():
    if not isinstance(wiring, BranchWiring):
      raise UserError(
        f'{kind}.wiring = @{type(wiring).__name__} of {name} does not only add to the residual stream, so '
        'ReversibleStack cannot invert it: use PreNorm'
      )
  if 'extras' in block.reads:
    raise UserError(
      f'a sublayer of {kind} passes arrays to later layers (value residuals), which ReversibleStack does not save: '
      'use Stack'
    )
  if block.encoding is not None and 'embed' in block.encoding.hooks:
    raise UserError(
      f'{kind}.encoding = @{type(block.encoding).__name__} is added to the input of each layer, which '
      'ReversibleStack cannot invert: use it as the encoding of the body'
    )
