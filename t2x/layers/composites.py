"""Parts that consist of several named parts: functions of them, and the base class of parts around another."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar, TypeVar

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from t2x.base.errors import UserError
from t2x.layers.interfaces import ExtrasSublayer, SourceSequence, Sublayer, Wiring
from t2x.layers.positions.encoding import PositionEncoding, held_features

T = TypeVar('T')


class Around(nnx.Module):
  """Base class of sublayers that change the input or the result of one sublayer, and have its fields and its cache.

  Attributes:
    inner_name: name of the attribute with this sublayer.
  """

  implements = (Sublayer,)
  inner_name: ClassVar[str] = 'sublayer'

  @property
  def inner(self) -> Any:
    """The sublayer."""
    return vars(self)[self.inner_name]

  @property
  def reads(self) -> frozenset[str]:
    return self.inner.reads

  @property
  def max_length(self) -> int | None:
    return self.inner.max_length

  def init_extras(self, x: Float[Array, 'batch length d_model']) -> dict[str, Array]:
    return self.inner.init_extras(x)

  def init_cache(
    self,
    batch: int,
    num_slots: int,
    dtype: DTypeLike = jnp.float32,
    source: SourceSequence | None = None,
    **features: PositionEncoding,
  ) -> Any:
    """Returns the cache of the sublayer."""
    return self.inner.init_cache(batch, num_slots, dtype, source, **features)


def set_part(module: nnx.Module, name: str, part: object) -> None:
  """Sets a part as an attribute of a module under construction. The empty name adds no level to the names of
  parameters and recorded arrays.

  Raises:
    UserError: the module already has an attribute of this name.
  """
  if name in dir(module):
    raise UserError(
      f"a part of {type(module).__name__} cannot have the name '{name}', which is an attribute of the class: "
      'choose another name'
    )
  setattr(module, name, part)


def wirings_of(
  part: Any,
  wiring: Callable[..., Wiring] | Mapping[str, Callable[..., Wiring]],
  names: Iterable[str],
) -> Mapping[str, Callable[..., Wiring]]:
  """Returns the builder of the wiring of each sublayer of a part, from one for all or one for each name.

  Raises:
    UserError: the names are not those of the sublayers.
  """
  names = list(names)
  wirings = wiring if isinstance(wiring, Mapping) else dict.fromkeys(names, wiring)
  if wirings.keys() != set(names):
    kind = type(part).__name__
    raise UserError(
      f'{kind}.wiring has the names {", ".join(wirings)}, but the sublayers are {", ".join(names)}: give '
      'each sublayer its wiring'
    )
  return wirings


def least_max_length(parts: Iterable[Any]) -> int | None:
  """Returns the smallest maximum length of parts; None: no part has one."""
  lengths = (part.max_length for part in parts)
  return min((length for length in lengths if length is not None), default=None)


def caches_of(
  parts: Mapping[str, Any],
  batch: int,
  num_slots: int,
  dtype: DTypeLike,
  source: SourceSequence | None,
  encoding: PositionEncoding | None,
) -> dict[str, Any]:
  """Returns the empty caches of sublayers by name, without those of parts that have no state.

  Args:
    parts: the sublayers by name.
    batch: number of rows.
    num_slots: number of tokens per row.
    dtype: dtype of keys, values and states.
    source: the source, for parts that read it.
    encoding: the position encoding of the layer, for parts whose cache holds its features.

  Raises:
    UserError: a part that reads other tokens has no cache.
  """
  caches = {}
  for name, part in parts.items():
    own = source if 'source' in part.reads else None
    cache = part.init_cache(batch, num_slots, dtype, own, **held_features(part, encoding))
    if cache is not None:
      caches[name] = cache
    elif 'pattern' in part.reads:
      raise UserError(
        f'{type(part).__name__} reads other tokens, but its init_cache returns None, so it cannot generate token by '
        'token: return a cache of what it needs of earlier tokens, or leave out evaluations that generate'
      )
  return caches


def recorded_by(results: Mapping[str, Any]) -> dict[str, Array]:
  """Returns the recorded arrays of parts as 'PART.NAME', from their results by name; those of the part '' as NAME."""
  return {
    f'{part}.{name}' if part else name: array
    for part, result in results.items()
    for name, array in result.recorded.items()
  }


def initial_extras(
  parts: Iterable[Any], x: Float[Array, 'batch length d_model']
) -> dict[str, Array]:
  """Returns the initial extras of sublayers, or of the blocks of a stack, for the input `x`.

  Raises:
    UserError: two parts use the same name for arrays of different shapes or dtypes.
  """
  extras: dict[str, Array] = {}
  readers: list[ExtrasSublayer] = [part for part in parts if 'extras' in part.reads]
  for part in readers:
    for name, value in part.init_extras(x).items():
      shared = extras.setdefault(name, value)
      if (shared.shape, shared.dtype) != (value.shape, value.dtype):
        raise UserError(
          f"layers of one stack share '{name}', but it is {shared.dtype}{list(shared.shape)} in one layer "
          f'and {value.dtype}{list(value.shape)} in another: give both layers the same sizes'
        )
  return extras


def replace_parts(module: T, **parts: object) -> T:
  """Returns a shallow copy of a module with the given attributes replaced."""
  leaves, structure = jax.tree.flatten(module)
  copy = jax.tree.unflatten(structure, leaves)
  for name, part in parts.items():
    setattr(copy, name, part)
  return copy
