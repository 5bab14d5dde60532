"""Tasks over pairs of texts that drop pairs longer than a row."""

import dataclasses
import math
from typing import Any, ClassVar

from t2x.base.errors import UserError
from t2x.base.ranges import Fraction
from t2x.tasks.text import TextTask

# Share of dropped pairs above which a run warns.
NOTED = 0.01


@dataclasses.dataclass(frozen=True, kw_only=True)
class DroppedPairs(TextTask):
  """Limits how many pairs of a split are dropped, and reports their number beside the metrics.

  Attributes:
    max_dropped: share of the pairs of a split that may be dropped as too long; more are an error.
  """

  max_dropped: Fraction = 0.1

  data_fields: ClassVar[frozenset[str]] = TextTask.data_fields | {'max_dropped'}

  def note_rows(self, split, rows):
    """Returns a warning if more than one percent of a split are dropped.

    Raises:
      UserError: more than `max_dropped` are.
    """
    info: dict[str, Any] = getattr(rows, 'info', {})
    dropped, number = info.get('dropped', 0), info.get('examples', 0)
    if dropped <= NOTED * number:
      return ''
    kind, lengths = type(self).__name__, self.plan.lengths
    limits = ' or '.join(f'{kind}.{name}_length = {length}' for name, length in lengths.items())
    text = (
      f"{dropped / number:.1%} of the split '{split}' are dropped ({dropped:,} of {number:,} "
      'pairs), as they are longer '
      f'than {limits}'
    )
    if 'longest_source' in info:
      fit = [f'{name}_length = {info[f"longest_{name}"]}' for name in lengths]
      text += f'; {" and ".join(fit)} fit all'
    if dropped > self.max_dropped * number:
      share = math.ceil(100 * dropped / number) / 100
      raise UserError(
        f'{text}: raise the lengths, or accept the loss with {kind}.max_dropped = {share:g}'
      )
    return text

  def summarise(self, means, info=None):
    """Also returns the numbers of pairs in rows and of dropped pairs, if pairs are dropped."""
    metrics = super().summarise(means, info)
    if not info or not info.get('dropped'):
      return metrics
    omitted = info['dropped'] + info.get('empty', 0)
    return metrics | {'pairs': info['examples'] - omitted, 'dropped_pairs': info['dropped']}
