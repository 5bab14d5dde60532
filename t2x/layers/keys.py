"""Random keys derived from names: the initial value of a parameter and the dropout mask of a part depend only
on the seed and its name."""

import dataclasses
import functools
import math
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar, overload

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float

from t2x.base.errors import UserError
from t2x.layers.arrays import named_leaves, named_variables
from t2x.layers.building import build_context
from t2x.layers.initializers import std_of

__all__ = ['initialized', 'named_key', 'stacked']

T = TypeVar('T')


@overload
def named_key(key: Array, name: str) -> Array: ...
@overload
def named_key(key: None, name: str) -> None: ...
def named_key(key: Array | None, name: str) -> Array | None:
  """Returns the key, or the keys of the rows, of `name` derived from `key`, or None for None.

  A part derives the key of each sub-part from its own key and the name of the sub-part's attribute, and does
  not use its own key otherwise. Then keys of different parts never coincide.
  """
  # Not `hash`, which differs between processes.
  return None if key is None else fold_in(key, zlib.crc32(name.encode()))


def row_keys(key: Array, rows: int | Sequence[int] | Array) -> Array:
  """Returns one key for each row, [rows], which depends on the number of the row only.

  Args:
    key: the key [].
    rows: the numbers of the rows; an integer: how many, from 0.
  """
  numbers = jnp.arange(rows) if isinstance(rows, int) else jnp.asarray(rows)
  return jax.vmap(jax.random.fold_in, (None, 0))(key, numbers)


def fold_in(key: Array, number: int | Array) -> Array:
  """Returns `jax.random.fold_in(key, number)` for a key [], a key per row [batch], or one per token [batch, length]."""
  fold: Callable[[Array, Any], Array] = jax.random.fold_in
  for _ in key.shape:
    fold = jax.vmap(fold, (0, None))
  return fold(key, number)


def bernoulli(key: Array, probability: float | Array, shape: Sequence[int]) -> Bool[Array, '...']:
  """Returns booleans that are True with a probability.

  With one key per row, row i depends only on its key, so that neither micro-batches nor devices change it.

  Args:
    key: one key [], one key per row [batch], or one key per token [batch, length].
    probability: the probability, float32 [].
    shape: shape of the result. With one key per row, its first dimension is the batch, or 1, which becomes the
      batch.

  Raises:
    UserError: there is one key per row, and the first dimension is not the batch.
  """
  return _by_row(lambda key, shape: jax.random.bernoulli(key, probability, shape), key, shape)


def uniform(key: Array, shape: Sequence[int]) -> Float[Array, '...']:
  """Returns float32 numbers from [0, 1), with keys as in `bernoulli`."""
  return _by_row(jax.random.uniform, key, shape)


def _by_row(
  draw: Callable[[Array, Sequence[int]], Array], key: Array, shape: Sequence[int]
) -> Array:
  if not key.ndim:
    return draw(key, shape)
  if key.shape == tuple(shape[:2]):
    return jax.vmap(functools.partial(_by_row, draw, shape=shape[1:]))(key)
  if shape[0] not in (1, len(key)):
    raise UserError(
      f'random numbers of shape {tuple(shape)} for a batch of {len(key)} rows, each with a key: put the batch first'
    )
  return jax.vmap(lambda key: draw(key, shape[1:]))(key)


def initial_value(
  init: Callable[..., Array], key: Array, shape: tuple[int, ...], matrix: tuple[int, int] | None
) -> Array:
  """Returns the float32 value of a parameter; see `t2x.layers.param`."""
  if matrix is None:
    return init(key, shape, jnp.float32)
  copies = math.prod(shape) // math.prod(matrix)
  if copies == 1:
    return init(key, matrix, jnp.float32).reshape(shape)
  keys = jax.random.split(key, copies)
  return jax.vmap(lambda key: init(key, matrix, jnp.float32))(keys).reshape(shape)


@dataclasses.dataclass(frozen=True)
class Drawn:
  """Initialisation of a parameter.

  Attributes:
    shape: shape of the parameter, without the axis of stacked layers.
    axes: logical axis of each dimension.
    matrix: (inputs, outputs) of a matrix that multiplies hidden vectors; None for other parameters.
    std: standard deviation of the initial values; NaN if the initialiser does not define it.
    copies: number of copies along the axes of stacks.
  """

  shape: tuple[int, ...]
  axes: tuple[str | None, ...]
  matrix: tuple[int, int] | None
  std: float
  copies: int = 1


@dataclasses.dataclass(eq=False)
class _Draws:
  """Parameters created by `param` during one construction of a model, numbered in order of creation.

  Attributes:
    names: the name of each parameter by number; None during the construction that determines the names.
    count: number of parameters created so far.
    drawn: the parameters by number, in the construction that determines the names.
  """

  names: Mapping[int, str] | None = None
  count: int = 0
  drawn: dict[int, Drawn] = dataclasses.field(default_factory=dict)


class NamedRngs(nnx.Rngs):
  """Random keys for a construction inside `initialized`.

  Args:
    named: key from which the keys of parameters are derived by name.
    unnamed: key of the streams, for values that are drawn without `param`.
    draws: counter of the construction, shared by all its keys.
  """

  def __init__(self, named: Array, unnamed: Array, draws: _Draws):
    super().__init__(default=unnamed, named=named)
    self.draws = draws

  def draw(
    self,
    init: Callable[..., Array],
    shape: tuple[int, ...],
    axes: tuple[str | None, ...],
    matrix: tuple[int, int] | None,
  ) -> tuple[Array, dict[str, Any]]:
    """Returns the float32 value of the next parameter and the metadata of its variable."""
    number = self.draws.count
    self.draws.count += 1
    if self.draws.names is None:
      self.draws.drawn[number] = Drawn(shape, axes, matrix, std_of(init, matrix or shape))
      return jnp.zeros(shape, jnp.float32), {'draw': number}
    name = self.draws.names.get(number)
    key = self.params() if name is None else named_key(self.named.key[...], name)
    value = initial_value(init, key, shape, matrix)
    factor = build_context().scale.factors.get(name or '', 1.0)
    return value if factor == 1.0 else value * factor, {}


def stacked(
  build: Callable[[Array, nnx.Rngs], T], num: int, rngs: nnx.Rngs, axis: str = 'layers'
) -> T:
  """Builds `num` copies of a part as one part whose arrays are stacked along a leading axis.

  The construction is traced once. The values of copy i do not depend on `num`.

  Args:
    build: builds one copy from its index, a traced integer, and its keys.
    num: number of copies.
    rngs: random keys of all copies.
    axis: logical name of the leading axis, which becomes the first of the metadata `stacked` of the variables.
  """
  key, indices = rngs.params(), jnp.arange(num)
  if not isinstance(rngs, NamedRngs):
    keys = jax.random.split(key, num)
    part = jax.vmap(lambda i, key: build(i, nnx.Rngs(key)))(indices, keys)
  else:
    fold, named, draws = jax.random.fold_in, rngs.named.key[...], rngs.draws
    part = jax.vmap(lambda i: build(i, NamedRngs(fold(named, i), fold(key, i), draws)))(indices)
  for _, variable in named_variables(part):
    if isinstance(variable, nnx.Variable):
      variable.set_metadata(stacked=(axis, *variable.get_metadata().get('stacked', ())))
  return part


def initialized(build: Callable[..., T], key: Array) -> T:
  """Builds a model whose parameters are initialised with keys derived from their names.

  The value of a parameter created by `t2x.layers.param` is a function of `key`, its dotted name, its index
  along the stacked axes, its shape and its initialiser. Other parameters and the number of layers do not
  affect it, except through initialisers that read the depth (`depth_scaled`). A parameter shared by several
  modules has the name of its first occurrence.

  A value that a part draws from `rngs` without `param` depends on the number of such draws and of stacks
  that precede it. It is independent of the parameters created by `param`.

  Args:
    build: called as `build(rngs=rngs)`, twice, the first time for shapes only. It must construct the same
      parts each time.
    key: a `jax.random.key`.
  """

  shapes, _ = _traced(build)
  return _construct(build, key, _Draws(_names(shapes)))


def drawn(build: Callable[..., Any]) -> dict[str, Drawn]:
  """Returns how the parameters of a model are initialised, by name.

  Args:
    build: as in `initialized`.
  """
  shapes, draws = _traced(build)
  sizes = {name: variable.size for name, variable in named_leaves(shapes)}
  names = {name: draws.drawn[number] for number, name in _names(shapes).items() if number >= 0}
  return {
    name: dataclasses.replace(parameter, copies=sizes[name] // math.prod(parameter.shape))
    for name, parameter in names.items()
  }


def _construct(build: Callable[..., T], key: Array, draws: _Draws) -> T:
  return build(rngs=NamedRngs(key, named_key(key, '(unnamed)'), draws))


def _traced(build: Callable[..., Any]) -> tuple[Any, _Draws]:
  """Returns the model with abstract parameters, and how they are drawn."""
  draws = _Draws()
  return jax.eval_shape(lambda: _construct(build, jax.random.key(0), draws)), draws


def _names(model: object) -> Mapping[int, str]:
  """Returns the dotted name of each parameter, that of the attribute, by its number, the metadata `draw`."""
  names: dict[int, str] = {}
  for name, variable in named_variables(model):
    if isinstance(variable, nnx.Variable):
      names.setdefault(variable.get_metadata().get('draw', -1), name)
  return names


@overload
def repeated_keys(key: Array, times: int) -> Array: ...
@overload
def repeated_keys(key: None, times: int) -> None: ...
def repeated_keys(key: Array | None, times: int) -> Array | None:
  """Returns different keys for `times` consecutive rows of each example, [batch * times], from one
  key per example, [batch].

  None, a key [] for all rows, and the keys of one row per example are returned unchanged.
  """
  if key is None or not key.shape or times == 1:
    return key
  return jnp.stack([fold_in(key, number) for number in range(times)], axis=1).reshape(-1)
