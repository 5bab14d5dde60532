"""A pyramid of stacks of growing width, with token merging between the stages."""

import dataclasses
import itertools
from collections.abc import Callable, Sequence
from typing import Annotated, Any, NoReturn

import jax
from flax import nnx
from jaxtyping import Array, Float

from t2x.base.errors import UserError
from t2x.base.ranges import NonEmpty
from t2x.layers import NO_AUX, Call, Merge, PatchMerging, Pattern, Result, named_key
from t2x.layers.initializers import build_context, building
from t2x.models.interfaces import Layer, LayerStack, recorded_by

__all__ = ['Stages']


class Stages(nnx.Module):
  """A sequence of stacks with token merging before every stage except the first (Swin Transformer,
  https://arxiv.org/abs/2103.14030, section 3.1).

  All stages share the body's pattern and position encoding, each applied to its own tokens. Layers are numbered
  through all stages: initialisers and wirings that depend on depth, and the rates of `Stack.stochastic_depth`,
  read the number of layers of the body. Stages have no key/value cache, so such a model cannot generate.

  Args:
    d_model: width of the first stage.
    stages: builds the stack of each stage.
    merge: builds the merging layer between two stages, which sets the width of the second.
  """

  implements = (LayerStack,)
  num_layers: int
  output_dim: int

  def __init__(
    self,
    d_model: int,
    *,
    stages: Annotated[Sequence[Callable[..., LayerStack]], NonEmpty],
    merge: Callable[..., Merge] = PatchMerging,
    rngs: nnx.Rngs,
  ):
    def build(rngs: nnx.Rngs, places: Sequence[tuple[int, int] | None]) -> tuple[Any, Any]:
      built: list[LayerStack] = []
      merges: list[Merge] = []
      width = d_model
      for stage, place in zip(stages, places, strict=True):
        if built:
          merges.append(merge(width, rngs=rngs))
          width = merges[-1].output_dim
        with building(stage=place):
          built.append(stage(width, rngs=rngs))
        width = built[-1].output_dim
      return nnx.List(built), nnx.List(merges)

    # A stage's number of layers is known after its construction, which reads that of all stages.
    with building(counting=True):
      shapes, _ = jax.eval_shape(lambda: build(nnx.Rngs(0), [None] * len(stages)))
    ends = list(itertools.accumulate(stage.num_layers for stage in shapes))
    first, total = build_context().stage or (0, ends[-1])
    starts = [first, *(first + end for end in ends[:-1])]
    self.stages, self.merges = build(rngs, [(start, total) for start in starts])
    self.num_layers, self.output_dim = ends[-1], self.stages[-1].output_dim

  @property
  def blocks(self) -> list[Layer]:
    return [block for stage in self.stages for block in stage.blocks]

  @property
  def max_length(self) -> int | None:
    """Maximum input length in tokens over all stages; None: unlimited."""
    num_merged, lengths = 1, []
    for merge, stage in zip([None, *self.merges], self.stages, strict=True):
      num_merged *= 1 if merge is None else merge.num_merged
      if stage.max_length is not None:
        lengths.append(num_merged * stage.max_length)
    return min(lengths, default=None)

  def patterns(self, pattern: Pattern) -> list[Pattern]:
    """Returns the attention pattern of each block of each stage inside a body with `pattern`."""
    return [block_pattern for stage in self.stages for block_pattern in stage.patterns(pattern)]

  def __call__(
    self, x: Float[Array, 'batch length d_model'], call: Call, cache: Any = None
  ) -> Result:
    """Applies all stages.

    Returns:
      The output and token metadata of the last stage, auxiliary losses and metrics summed over the layers,
      and recorded arrays as 'stages.S.NAME'.

    Raises:
      UserError: `cache` or `call.slots` is set, or a stage or merging layer raises it.
    """
    if cache is not None or call.slots is not None:
      self.refuse_cache()
    tokens, aux = call.tokens, NO_AUX
    recorded: dict[str, Array] = {}
    for i, stage in enumerate(self.stages):
      if i:
        x, tokens = self.merges[i - 1](x, tokens)
      key = named_key(call.key, f'stages.{i}')
      result = stage(x, dataclasses.replace(call, tokens=tokens, key=key))
      x, aux = result.x, aux + result.aux
      tokens = tokens if result.tokens is None else result.tokens
      recorded |= recorded_by({f'stages.{i}': result})
    return Result(x, None, aux, recorded, tokens)

  def refuse_cache(self, *arguments: Any) -> NoReturn:
    """Raises UserError: stages have no cache."""
    raise UserError(
      'Stages has no cache, because its stages have different numbers of tokens: to generate, use a body '
      'whose stack is a Stack'
    )

  init_cache = source_cache = unstacked = unstacked_cache = refuse_cache
