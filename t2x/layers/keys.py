"""Random keys by name: a parameter's initial value and a part's dropout mask depend on the seed and the
name, not on which other parameters and parts a model has."""

import dataclasses
import zlib
from collections.abc import Callable, Mapping
from typing import Any, TypeVar, overload

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array

from t2x.arrays import named_variables

Part = TypeVar('Part')


@overload
def named_key(key: Array, name: str) -> Array: ...
@overload
def named_key(key: None, name: str) -> None: ...
def named_key(key: Array | None, name: str) -> Array | None:
  """Returns the key of `name` derived from `key`, or None for None.

  A part that hands keys to its sub-parts derives each from its own key and the name of the attribute that
  holds the sub-part, and does not draw from its own key: keys of different parts never coincide.
  """
  # Not `hash`, which differs between processes.
  return None if key is None else jax.random.fold_in(key, zlib.crc32(name.encode()))


@dataclasses.dataclass(eq=False)
class _Draws:
  """The parameters made by `param` in one construction of a model, numbered in that order.

  Attributes:
    names: the parameter's name by number; None in the construction that finds the names.
    count: parameters made so far.
  """

  names: Mapping[int, str] | None = None
  count: int = 0


class NamedRngs(nnx.Rngs):
  """Keys for a construction inside `initialized`.

  Args:
    named: the key that the keys of named parameters are derived from.
    unnamed: the key of the streams, for values that are drawn without `param`.
    draws: shared by all keys of one construction.
  """

  def __init__(self, named: Array, unnamed: Array, draws: _Draws):
    super().__init__(default=unnamed, named=named)
    self.draws = draws

  def draw(
    self, init: Callable[..., Array], shape: tuple[int, ...]
  ) -> tuple[Array, dict[str, Any]]:
    """The float32 value of the next parameter and the metadata that its variable has during construction."""
    number = self.draws.count
    self.draws.count += 1
    if self.draws.names is None:
      return jnp.zeros(shape, jnp.float32), {'draw': number}
    name = self.draws.names.get(number)
    key = self.params() if name is None else named_key(self.named.key[...], name)
    return init(key, shape, jnp.float32), {}


def stacked(build: Callable[[nnx.Rngs], Part], num: int, rngs: nnx.Rngs) -> Part:
  """Builds `num` copies of a part as one whose arrays are stacked on a leading axis.

  The construction is traced once. Copy i does not depend on `num`.

  Args:
    build: makes the part.
    num: number of copies.
    rngs: for the parameters of all copies.
  """
  key = rngs.params()
  if not isinstance(rngs, NamedRngs):
    return jax.vmap(lambda key: build(nnx.Rngs(key)))(jax.random.split(key, num))
  fold, named, draws = jax.random.fold_in, rngs.named.key[...], rngs.draws
  return jax.vmap(lambda i: build(NamedRngs(fold(named, i), fold(key, i), draws)))(jnp.arange(num))


def initialized(build: Callable[..., Part], key: Array) -> Part:
  """Builds a model whose initial values are drawn by name.

  The value of a parameter made by `t2x.layers.param` is a function of `key`, its dotted name, its index along
  the stacked axes, its shape and its initializer. Other parameters and the number of layers do not change
  it, except through an initializer that reads the depth (`depth_scaled`). A parameter that several modules
  share has the name of the first one.

  A value that a part draws from `rngs` without `param` depends on how many such draws and how many stacks
  precede it. Neither does it change with the parameters made by `param`, nor they with it.

  Args:
    build: called as `build(rngs=rngs)`; it must construct the same parts each time. It is called twice, the
      first time for shapes only.
    key: a `jax.random.key`.
  """

  def construct(key: Array, draws: _Draws) -> Part:
    return build(rngs=NamedRngs(key, named_key(key, '(unnamed)'), draws))

  # The names are those of the attributes, which are set after the parameters have been made.
  shapes = jax.eval_shape(lambda: construct(jax.random.key(0), _Draws()))
  return construct(key, _Draws(_names(shapes)))


def _names(model: Any) -> Mapping[int, str]:
  """The dotted name of each parameter, by its `draw` number."""
  names: dict[int, str] = {}
  for name, variable in named_variables(model):
    if isinstance(variable, nnx.Variable):
      names.setdefault(variable.get_metadata().get('draw', -1), name)
  return names
