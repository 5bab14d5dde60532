"""A sequence of stacks, with an optional merge of tokens between two of them."""

import dataclasses
import itertools
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import jax
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from t2x.base.errors import UserError
from t2x.base.ranges import NonEmpty
from t2x.layers import (
  NO_AUX,
  Cache,
  Call,
  Full,
  Join,
  Merge,
  Norm,
  PatchMerging,
  Pattern,
  PositionEncoding,
  Result,
  SourceSequence,
  Tokens,
  named_key,
)
from t2x.layers.building import Position, build_context, building
from t2x.layers.composites import recorded_by, replace_parts
from t2x.layers.interfaces import reads_encoding, without_encoding
from t2x.models.interfaces import Layer, LayerStack
from t2x.models.stack import check_unread, reads_of, recordable

__all__ = ['Stages']


class Stages(nnx.Module):
  """A sequence of stacks: a pyramid with token merging before every stage except the first (Swin Transformer,
  https://arxiv.org/abs/2103.14030, section 3.1), or, without merging, layers of different kinds, such as the first
  layers of a decoder with a dense feed-forward layer and all others with experts (DeepSeekMoE,
  https://arxiv.org/abs/2401.06066, section 4.1.2).

  Layers are numbered through all stages: initialisers and wirings that depend on depth, and the rates of
  `Stack.stochastic_depth`, read the number of layers of the body. A stage whose blocks do not read the source, the
  encoding or an array to record does not receive it. If all merges keep the tokens, stages have key/value caches.

  Args:
    d_model: width of the first stage.
    stages: builds the stack of each stage.
    merge: builds the merging layer between two stages, which sets the width of the second; None: no layer. A list has
      one entry per boundary.
    pattern: narrows the pattern of the body in the stages. A list has one entry per stage.
    encoding: builds a position encoding for each stage, which replaces the body's in its layers; vectors that it adds
      to tokens are added to the input of the stage. None: the body's. A list has one entry per stage.
    norm: builds a norm of the output of each stage, which the next stage reads (PVT v2,
      https://arxiv.org/abs/2106.13797; SegFormer). None: no norm.
    join: builds the part that computes the output from those of all stages, such as `AllMLP`. None: the output
      of the last stage.

  Raises:
    UserError: a list has another number of entries, or no block of a stage reads its pattern.
  """

  implements = (LayerStack,)
  num_layers: int
  output_dim: int

  def __init__(
    self,
    d_model: int,
    *,
    stages: Annotated[Sequence[Callable[..., LayerStack]], NonEmpty],
    merge: Callable[..., Merge] | Sequence[Callable[..., Merge] | None] | None = PatchMerging,
    pattern: Pattern | Sequence[Pattern] = Full(),
    encoding: Callable[..., PositionEncoding]
    | Sequence[Callable[..., PositionEncoding] | None]
    | None = None,
    norm: Callable[..., Norm] | None = None,
    join: Callable[..., Join] | None = None,
    rngs: nnx.Rngs,
  ):
    merges = [None, *_each('merge', merge, len(stages) - 1, 'boundaries')]
    encodings = _each('encoding', encoding, len(stages), 'stages')
    self.stage_patterns = tuple(_each('pattern', pattern, len(stages), 'stages'))

    def build(rngs: nnx.Rngs, places: Sequence[Position]) -> list[nnx.List]:
      built = []
      width = d_model
      around = build_context().pattern
      for build_merge, build_encoding, stage, place, own in zip(
        merges, encodings, stages, places, self.stage_patterns, strict=True
      ):
        merging = build_merge and build_merge(width, rngs=rngs)
        width = width if merging is None else merging.output_dim
        positions = build_encoding and build_encoding(width, rngs=rngs)
        narrowed = own if around is None else around & own
        with building(position=place, pattern=narrowed):
          built.append((stage(width, rngs=rngs), merging, positions))
        width = built[-1][0].output_dim
      return [nnx.List(parts) for parts in zip(*built, strict=True)]

    places, self.num_layers = layer_places(lambda *args: build(*args)[0], len(stages))
    self.stages, merging, self.encodings = build(rngs, places)
    self.merges = nnx.List(merging[1:])
    widths = [stage.output_dim for stage in self.stages]
    self.norms = nnx.List([norm and norm(width, rngs=rngs) for width in widths])
    self.join = join and join(widths, rngs=rngs)
    self.output_dim = widths[-1] if self.join is None else self.join.output_dim
    for own, stage in zip(self.stage_patterns, self.stages, strict=True):
      if own != Full() and 'pattern' not in reads_of(stage.blocks):
        raise UserError(
          f'Stages.pattern has {own} for a stage whose blocks do not read a pattern: use Full() there'
        )

  @property
  def blocks(self) -> list[Layer]:
    return [block for stage in self.stages for block in stage.blocks]

  @property
  def max_length(self) -> int | None:
    """Maximum input length in tokens over all stages; None: unlimited."""
    num_merged, lengths = 1, []
    for merge, stage, encoding in zip(
      [None, *self.merges], self.stages, self.encodings, strict=True
    ):
      num_merged *= 1 if merge is None else merge.num_merged
      limits = [stage.max_length, None if encoding is None else encoding.max_length]
      lengths += [num_merged * limit for limit in limits if limit is not None]
    return min(lengths, default=None)

  def patterns(self, pattern: Pattern) -> list[Pattern]:
    """Returns the attention pattern of each block of each stage inside a body with `pattern`."""
    pairs = zip(self.stages, self.stage_patterns, strict=True)
    return [one for stage, own in pairs for one in stage.patterns(pattern & own)]

  def init_cache(
    self, batch: int, num_slots: int, dtype: DTypeLike, source: SourceSequence | None = None
  ) -> list[dict[str, Cache]]:
    """Returns the empty caches of all stages, one after another.

    Raises:
      UserError: a merge changes the tokens, a part joins the stages, or no stage reads the source.
    """
    if self.join is not None:
      raise UserError(
        f'Stages.join = @{type(self.join).__name__} reads the outputs of all stages, which no '
        'cache holds: use an Encoder'
      )
    if source is not None:
      self._check_unread(Call(source.tokens, source=source))
    for merge in self.merges:
      if merge is not None and not merge.keeps_tokens:
        raise UserError(
          f'Stages.merge = @{type(merge).__name__} changes the tokens, so the stages have no cache: to generate, use '
          'a body whose stack is a Stack, or Stages.merge = None'
        )
    caches: list[dict[str, Cache]] = []
    for stage in self.stages:
      own = source if 'source' in reads_of(stage.blocks) else None
      caches += stage.init_cache(batch, num_slots, dtype, own)
    return caches

  def unstacked(self) -> 'Stages':
    return replace_parts(self, stages=nnx.List([stage.unstacked() for stage in self.stages]))

  def unstacked_cache(self, cache: list[dict[str, Cache]]) -> list[dict[str, Cache]]:
    pairs = zip(self.stages, self._by_stage(cache), strict=True)
    return [layer for stage, own in pairs for layer in stage.unstacked_cache(own)]

  def _by_stage(self, cache: list[Any]) -> list[list[Any]]:
    """Splits caches, which are a list over `blocks`, by stage."""
    ends = itertools.accumulate((len(stage.blocks) for stage in self.stages), initial=0)
    return [cache[start:end] for start, end in itertools.pairwise(ends)]

  def _check_unread(self, call: Call) -> None:
    """Raises UserError if no stage reads the source, encoding or a recorded name of `call`."""
    reads: set[str] = set()
    for stage, encoding in zip(self.stages, self.encodings, strict=True):
      own = reads_of(stage.blocks)
      reads |= own if encoding is None else without_encoding(own)
    check_unread(call, reads)

  def __call__(
    self,
    x: Float[Array, 'batch length d_model'],
    call: Call,
    cache: list[dict[str, Cache]] | None = None,
  ) -> Result:
    """Applies all stages.

    Returns:
      The output and token metadata of the last stage or of `join`, caches, auxiliary losses and metrics summed over the
      layers, and recorded arrays as 'stages.S.NAME'.

    Raises:
      UserError: no stage reads the source, the encoding or a recorded name of `call`, or a stage or merging layer
        raises it.
    """
    self._check_unread(call)
    tokens, aux = call.tokens, NO_AUX
    recorded: dict[str, Array] = {}
    outputs: list[tuple[Array, Tokens]] = []
    new: list[dict[str, Cache]] = []
    caches = [None] * len(self.stages) if cache is None else self._by_stage(cache)
    for i, (stage, own) in enumerate(zip(self.stages, caches, strict=True)):
      results: dict[str, Result] = {}
      merge = self.merges[i - 1] if i else None
      if merge is not None:
        name = f'merges.{i - 1}'
        plain = Call(tokens, slots=call.slots, key=named_key(call.key, name), step=call.step)
        results[name] = merge(x, plain)
        x, tokens = results[name].x, results[name].tokens or tokens
      encoding = self.encodings[i]
      if encoding is not None:
        x = encoding.embed(x, tokens)
      result = stage(x, self._call(i, call, tokens), own)
      norm = self.norms[i]
      x, tokens = result.x if norm is None else norm(result.x), result.tokens or tokens
      outputs.append((x, tokens))
      new += [] if own is None else result.cache
      results[f'stages.{i}'] = result
      recorded |= recorded_by(results)
      for part in results.values():
        aux += part.aux
    if self.join is not None:
      x, tokens = self.join(outputs)
    return Result(x, None if cache is None else new, aux, recorded, tokens)

  def _call(self, i: int, call: Call, tokens: Tokens) -> Call:
    """Returns the call of stage `i`, without what its blocks do not read."""
    reads, encoding = reads_of(self.stages[i].blocks), self.encodings[i]
    if encoding is not None:
      shared = encoding if encoding.acts_in_layers else None
    else:
      shared = call.encoding if reads_encoding(reads, call.encoding) else None
    return dataclasses.replace(
      call,
      tokens=tokens,
      pattern=call.pattern & self.stage_patterns[i],
      encoding=shared,
      source=call.source if 'source' in reads else None,
      key=named_key(call.key, f'stages.{i}'),
      record=call.record & recordable(reads),
    )


def _each(name: str, value: object, number: int, kind: str) -> list[Any]:
  """Returns the entries of a setting of `Stages` that is one value for all or a list.

  Raises:
    UserError: the list has another number of entries.
  """
  if not isinstance(value, Sequence):
    return [value] * number
  if len(value) != number:
    raise UserError(
      f'Stages.{name} has {len(value)} entries for {number} {kind}: write one entry for each, or one value for all'
    )
  return list(value)


def layer_places(
  build: Callable[..., Sequence[LayerStack]], count: int
) -> tuple[list[Position], int]:
  """Returns the positions of stacks whose layers are numbered in order, and their number of layers.

  Args:
    build: builds the stacks from random keys and positions. A stack's number of layers is known after its
      construction, which reads that of all stacks.
    count: number of stacks.
  """
  with building(counting=True):
    shapes = jax.eval_shape(lambda: build(nnx.Rngs(0), [Position()] * count))
  ends = list(itertools.accumulate(stack.num_layers for stack in shapes))
  first, total = build_context().position.stage(ends[-1])
  starts = [first, *(first + end for end in ends[:-1])]
  return [Position(layer=start, num_layers=total) for start in starts], ends[-1]
