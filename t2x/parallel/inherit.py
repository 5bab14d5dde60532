"""That a state really is where it was asked to be: nothing is silently replicated."""

from typing import Any

import jax
from jax.sharding import Sharding

from t2x.arrays import name_of
from t2x.errors import UserError

__all__ = ['check_shardings']


def check_shardings(asked: Any, state: Any) -> None:
  """Compares where a train state is with where it was asked to be.

  Beside the comparison leaf by leaf, whatever holds an array for each parameter (moments, averages,
  accumulators) must lie as the parameters do, whatever was asked.

  Args:
    asked: shapes with shardings, as `Program.abstract`.
    state: the arrays, in the same structure; parameters are under `params`.

  Raises:
    UserError: a leaf that is elsewhere, by name.
  """
  wrong = []
  leaves = jax.tree_util.tree_leaves_with_path(state)
  params: dict[tuple, jax.Array] = {}
  for (path, leaf), wanted in zip(leaves, jax.tree.leaves(asked), strict=True):
    if not _alike(leaf.sharding, wanted.sharding, leaf.ndim):
      wrong.append(f'{name_of(path)} {leaf.shape} is {_told(leaf)}, asked for {_told(wanted)}')
    if name_of(path[:1]) == 'params':
      params[path[1:]] = leaf
  for path, leaf in leaves:
    for start in range(1, len(path)):
      parameter = params.get(path[start:])
      if parameter is None or parameter.shape != leaf.shape or name_of(path[:1]) == 'params':
        continue
      if not _alike(leaf.sharding, parameter.sharding, leaf.ndim):
        wrong.append(
          f'{name_of(path)} {leaf.shape} is {_told(leaf)}, its parameter {_told(parameter)}'
        )
      break
  if wrong:
    more = f' (and {len(wrong) - 1} more)' if len(wrong) > 1 else ''
    raise UserError(f'after the first step {wrong[0]}{more}: the state is not laid out as asked')


def _alike(one: Sharding, other: Sharding, ndim: int) -> bool:
  return one.is_equivalent_to(other, ndim)


def _told(leaf: Any) -> str:
  spec = getattr(leaf.sharding, 'spec', leaf.sharding)
  return 'replicated' if leaf.sharding.is_fully_replicated else str(spec)
