"""Pairs of texts that are longer than a row and dropped: the maximum share, and their number beside the metrics."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from t2x.base.errors import UserError

# Share of dropped pairs above which a run warns.
NOTED = 0.01
# The limit of tasks that drop no pairs.
NO_LIMIT: float | None = None


def note_dropped(
  task: str, split: str, rows: Sequence[Mapping[str, Any]], lengths: Mapping[str, int], limit: float
) -> str:
  """Returns a warning if more than one percent of the pairs of a split are dropped.

  Args:
    task: name of the task.
    split: name of the split.
    rows: its rows, with statistics as `info`.
    lengths: the lengths of 'source' and 'target' above which pairs are dropped.
    limit: share of the pairs that may be dropped.

  Raises:
    UserError: more are.
  """
  info: dict[str, Any] = getattr(rows, 'info', {})
  dropped, number = info.get('dropped', 0), info.get('examples', 0)
  if dropped <= NOTED * number:
    return ''
  limits = ' or '.join(f'{task}.{name}_length = {length}' for name, length in lengths.items())
  text = (
    f"{dropped / number:.1%} of the split '{split}' are dropped ({dropped:,} of {number:,} pairs), as they are longer "
    f'than {limits}'
  )
  if 'longest_source' in info:
    fit = [f'{name}_length = {info[f"longest_{name}"]}' for name in lengths]
    text += f'; {" and ".join(fit)} fit all'
  if dropped > limit * number:
    share = math.ceil(100 * dropped / number) / 100
    raise UserError(
      f'{text}: raise the lengths, or accept the loss with {task}.max_dropped = {share:g}'
    )
  return text


def dropped_pairs(info: Mapping[str, Any] | None) -> dict[str, float]:
  """Returns the numbers of pairs in rows and of dropped pairs by the statistics of a split, if pairs are dropped."""
  if not info or not info.get('dropped'):
    return {}
  omitted = info['dropped'] + info.get('empty', 0)
  return {'pairs': info['examples'] - omitted, 'dropped_pairs': info['dropped']}
