"""Several sublayers as one residual branch: side by side, so that their outputs are added, or in sequence.

PaLM (https://arxiv.org/abs/2204.02311, section 2) and GPT-NeoX (https://arxiv.org/abs/2204.06745, section 2.1) have
attention beside the feed-forward layer, the Evolved Transformer (https://arxiv.org/abs/1901.11117) two convolutions,
DeepSeekMoE (https://arxiv.org/abs/2401.06066) shared experts beside routed ones. ConvS2S
(https://arxiv.org/abs/1705.03122) has a convolution and an attention in sequence.
"""

import dataclasses
import functools
import operator
from collections.abc import Callable, Mapping
from typing import Annotated, Any

import jax
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from t2x.base.errors import UserError
from t2x.base.ranges import NonEmpty
from t2x.layers.building import at_position, build_context, given
from t2x.layers.caches import Cache
from t2x.layers.composites import (
  caches_of,
  initial_extras,
  least_max_length,
  recorded_by,
  set_part,
  wirings_of,
)
from t2x.layers.interfaces import (
  Call,
  Norm,
  Result,
  SourceSequence,
  Sublayer,
  Wiring,
  reads_encoding,
)
from t2x.layers.keys import named_key
from t2x.layers.positions.encoding import PositionEncoding
from t2x.layers.wiring.residual import Plain

__all__ = ['Parallel', 'Sequential']


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class PartCaches(Cache):
  """Caches of the parts of a sublayer.

  Attributes:
    parts: caches by the name of the part.
  """

  parts: Mapping[str, Any]

  def share(self, copies: int, num_slots: int) -> 'PartCaches | None':
    shared = {name: cache.share(copies, num_slots) for name, cache in self.parts.items()}
    return None if None in shared.values() else PartCaches(shared)


class _Parts(nnx.Module):
  """Base class of sublayers that consist of named sublayers, which are attributes.

  Attributes:
    names: names of the parts.
  """

  implements = (Sublayer,)
  names: tuple[str, ...]

  @property
  def _parts(self) -> dict[str, Any]:
    return {name: vars(self)[name] for name in self.names}

  @property
  def reads(self) -> frozenset[str]:
    return frozenset().union(*(part.reads for part in self._parts.values()))

  @property
  def max_length(self) -> int | None:
    return least_max_length(self._parts.values())

  def init_extras(self, x: Float[Array, 'batch length d_model']) -> dict[str, Array]:
    return initial_extras(self._parts.values(), x)

  def init_cache(
    self,
    batch: int,
    num_slots: int,
    dtype: DTypeLike,
    source: SourceSequence | None = None,
    *,
    encoding: PositionEncoding | None = None,
  ) -> PartCaches | None:
    caches = caches_of(self._parts, batch, num_slots, dtype, source, encoding)
    return PartCaches(caches) if caches else None

  def _call(self, call: Call, name: str) -> Call:
    """Returns the call of a part."""
    part = self._parts[name]
    return dataclasses.replace(
      call,
      key=named_key(call.key, name),
      encoding=call.encoding if reads_encoding(part.reads, call.encoding) else None,
      source=call.source if 'source' in part.reads else None,
    )


class Parallel(_Parts):
  """Sum of sublayers of the same input: part_1(norm_1(x)) + part_2(norm_2(x)) + ....

  It is one residual branch: the wiring around it adds the sum to the residual stream, with one draw of stochastic
  depth. For initialisers that depend on depth, n parts multiply the number of branches by n, so that the sum has the
  variance of a single part.

  Args:
    d_model: width of the input.
    parts: builders of the sublayers by name.
    norm: builds the norm of the input, which the parts share; None: no norm.
    own_norms: builders of norms by part, which replace the shared norm.
    reads_source: whether the parts attend to the source; see `FromSource`.

  Raises:
    UserError: a name is taken, `own_norms` names no part, or no part uses `norm`.
  """

  def __init__(
    self,
    d_model: int,
    *,
    parts: Annotated[Mapping[str, Callable[..., Sublayer]], NonEmpty],
    norm: Callable[..., Norm] | None = None,
    own_norms: Mapping[str, Callable[..., Norm]] | None = None,
    reads_source: bool = False,
    rngs: nnx.Rngs,
  ):
    own_norms = own_norms or {}
    if unknown := sorted(own_norms.keys() - parts.keys()):
      raise UserError(
        f"Parallel.own_norms has a norm for '{unknown[0]}', but the parts are {', '.join(parts)}"
      )
    if norm is not None and own_norms.keys() == parts.keys():
      raise UserError(
        'Parallel.norm has no effect, because each part has its own norm: leave it out'
      )
    self.names = tuple(parts)
    self.norm: Norm | None = norm and norm(d_model, rngs=rngs)
    for name, build_norm in own_norms.items():
      set_part(self, f'{name}_norm', build_norm(d_model, rngs=rngs))
    position, num = build_context().position, len(parts)
    for index, (name, build) in enumerate(parts.items()):
      with at_position(
        num_branches=None if position.num_branches is None else num * position.num_branches,
        branch=None if position.branch is None else num * position.branch + index,
      ):
        set_part(self, name, given(build, reads_source=reads_source)(d_model, rngs=rngs))

  def __call__(
    self, x: Float[Array, 'batch length d_model'], call: Call, cache: PartCaches | None = None
  ) -> Result:
    """Returns the sum of the outputs of the parts; recorded arrays are those of the parts as 'PART.NAME'."""
    calls = {name: self._call(call, name) for name in self.names}
    norms = {name: vars(self).get(f'{name}_norm') for name in self.names}
    return added(x, self._parts, calls, cache, self.norm, norms)


def added(
  x: Float[Array, 'batch length d_model'],
  parts: Mapping[str, Sublayer],
  calls: Mapping[str, Call],
  cache: PartCaches | None,
  norm: Norm | None,
  own_norms: Mapping[str, Norm | None],
) -> Result:
  """Returns the sum of the outputs of parts, each with its call, of the shared or their own norm of the same input."""
  old = {} if cache is None else cache.parts
  shared = x if norm is None else norm(x)
  results: dict[str, Result] = {}
  for name, part in parts.items():
    own_norm = own_norms.get(name)
    own = shared if own_norm is None else own_norm(x)
    results[name] = part(own, calls[name], old.get(name))
  return Result(
    functools.reduce(operator.add, (result.x for result in results.values())),
    None if cache is None else PartCaches({name: results[name].cache for name in old}),
    functools.reduce(operator.add, (result.aux for result in results.values())),
    recorded_by(results),
    extras={name: value for r in results.values() for name, value in r.extras.items()},
  )


class Sequential(_Parts):
  """Sublayers in sequence, each inside its own wiring: wiring_2(wiring_1(x, part_1), part_2)....

  It is one residual branch: the wiring around it adds its output to the residual stream.

  Args:
    d_model: width of the input.
    parts: builders of the sublayers by name, in the order of application.
    wiring: builds the wiring of each part, or such builders by the names of all parts.
    reads_source: whether the parts attend to the source; see `FromSource`.

  Raises:
    UserError: a name is taken, `wiring` does not have the names of the parts, or a wiring has several streams.
  """

  def __init__(
    self,
    d_model: int,
    *,
    parts: Annotated[Mapping[str, Callable[..., Sublayer]], NonEmpty],
    wiring: Callable[..., Wiring] | Mapping[str, Callable[..., Wiring]] = Plain,
    reads_source: bool = False,
    rngs: nnx.Rngs,
  ):
    wirings = wirings_of(self, wiring, parts)
    self.names = tuple(parts)
    for name, build in parts.items():
      set_part(self, name, given(build, reads_source=reads_source)(d_model, rngs=rngs))
      own = wirings[name](d_model, rngs=rngs)
      if own.num_streams > 1:
        raise UserError(
          f'Sequential.wiring = @{type(own).__name__} has {own.num_streams} residual streams, but '
          'Sequential is one branch of a block: use it as the wiring of the block'
        )
      set_part(self, f'{name}_wiring', own)

  def __call__(
    self, x: Float[Array, 'batch length d_model'], call: Call, cache: PartCaches | None = None
  ) -> Result:
    """Returns the output of the last part; recorded arrays are those of the parts as 'PART.NAME'."""
    old, extras = {} if cache is None else cache.parts, dict(call.extras)
    results: dict[str, Result] = {}
    for name, part in self._parts.items():
      own = dataclasses.replace(self._call(call, name), extras=extras)
      apply = functools.partial(part, call=own, cache=old.get(name))
      key = named_key(call.key, f'{name}_wiring')
      results[name] = vars(self)[f'{name}_wiring'](x, apply, key)
      x, extras = results[name].x, extras | dict(results[name].extras)
    return Result(
      x,
      None if cache is None else PartCaches({name: results[name].cache for name in old}),
      functools.reduce(operator.add, (result.aux for result in results.values())),
      recorded_by(results),
      extras=extras,
    )
