"""Arrays by name, and arrays that are read part by part: what checkpoints and conversion share."""

import dataclasses
import math
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
from flax import nnx
from jax.sharding import Sharding


@dataclasses.dataclass(frozen=True)
class Lazy:
  """An array of which parts are read when they are wanted.

  Attributes:
    shape: of the array.
    dtype: of the array.
    read: index (a slice for each dimension) -> that part.
  """

  shape: tuple[int, ...]
  dtype: Any
  read: Callable[[Any], np.ndarray]

  @property
  def size(self) -> int:
    """Number of elements."""
    return math.prod(self.shape)

  def on(self, sharding: Sharding) -> jax.Array:
    """On devices, each of which is given its part alone."""
    return jax.make_array_from_callback(self.shape, sharding, self.read)


def name_of(path: tuple) -> str:
  """The name of a leaf, given its path in a tree: `body.stack.blocks.0.mixer.q.kernel`.

  The only spelling of a parameter's name: in checkpoints, errors, patterns and tables.
  """
  return jax.tree_util.keystr(path, simple=True, separator='.')


def named_variables(tree: Any) -> Iterator[tuple[str, Any]]:
  """(name, variable) in the order of `jax.tree.leaves`; a leaf outside of variables stands for itself."""
  for path, variable in jax.tree_util.tree_leaves_with_path(
    tree, is_leaf=lambda x: isinstance(x, nnx.Variable)
  ):
    yield name_of(path), variable


def named_leaves(tree: Any) -> Iterator[tuple[str, Any]]:
  """(name, leaf) in the order of `jax.tree.leaves`; a variable's name is that of its attribute."""
  for name, variable in named_variables(tree):
    leaves = jax.tree.leaves(variable)
    for number, leaf in enumerate(leaves):
      yield name if len(leaves) == 1 else f'{name}.{number}', leaf
