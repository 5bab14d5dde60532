"""Named arrays and lazily read arrays, for checkpoints and conversion."""

import dataclasses
import math
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from flax import nnx
from jax.sharding import Sharding
from jax.typing import DTypeLike

if TYPE_CHECKING:
  Leaf = jax.Array
else:
  # Tree functions put leaves other than arrays into the fields of a pytree, so that none is checked at run time.
  Leaf = Any


@dataclasses.dataclass(frozen=True)
class Lazy:
  """An array whose parts are read on demand.

  Attributes:
    shape: shape of the array.
    dtype: dtype of the array.
    read: returns a part of the array for an index (a slice per dimension).
  """

  shape: tuple[int, ...]
  dtype: DTypeLike
  read: Callable[[Any], np.ndarray]

  @property
  def size(self) -> int:
    """Number of elements."""
    return math.prod(self.shape)

  def on(self, sharding: Sharding) -> jax.Array:
    """Returns a sharded array; each device reads only its shard."""
    return jax.make_array_from_callback(self.shape, sharding, self.read)


def name_of(path: tuple) -> str:
  """Returns the name of a leaf from its path in a tree: `body.stack.blocks.0.mixer.q.kernel`.

  Checkpoints, errors, patterns and tables all use these names. Parts with an empty name are left out.
  """
  name = jax.tree_util.keystr(path, simple=True, separator='.')
  return '.'.join(filter(None, name.split('.')))


def named_variables(tree: object) -> Iterator[tuple[str, Any]]:
  """Yields (name, variable) in the order of `jax.tree.leaves`; also leaves that are not in variables."""
  for path, variable in jax.tree_util.tree_leaves_with_path(
    tree, is_leaf=lambda x: isinstance(x, nnx.Variable)
  ):
    yield name_of(path), variable


def named_leaves(tree: object) -> Iterator[tuple[str, Any]]:
  """Yields (name, leaf) in the order of `jax.tree.leaves`; names of variables are their attributes."""
  for name, variable in named_variables(tree):
    leaves = jax.tree.leaves(variable)
    for number, leaf in enumerate(leaves):
      yield name if len(leaves) == 1 else f'{name}.{number}', leaf
