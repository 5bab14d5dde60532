"""Describes the load of the machines during the trials, which limits the comparison of seconds."""

import dataclasses
from collections.abc import Sequence

from t2x.sweeps.records import Conditions
from t2x.sweeps.report.results import Entry, Results

# Tolerated difference in the number of concurrent trials: a trial may start just before another ends.
_TOLERANCE = 0.5


def load_note(results: Results) -> str:
  """Returns one or two sentences on the load during the finished trials; '' if it was not recorded."""
  entries = [entry for entry in results.entries if entry.status == 'finished' and entry.outcome]
  recorded = {
    entry.folder: (entry, entry.outcome.conditions)
    for entry in entries
    if entry.outcome and entry.outcome.conditions
  }
  if not recorded:
    return ''
  conditions = [conditions for _, conditions in recorded.values()]
  loads = [load for item in conditions for load in (item.load_before, item.load_after)]
  counts = [entry.at_once or 1.0 for entry, _ in recorded.values()]
  missing = len({entry.folder for entry in entries}) - len(recorded)
  note = (
    f'Load of the machine: {"; ".join(_machines(conditions))}; load average {_span(loads)}; '
    f'{_span(counts)} concurrent trials.'
  )
  if missing:
    note += f' It is unknown for {missing} trials of an older version.'
  reasons = [*_differences(conditions, counts, [entry for entry, _ in recorded.values()])]
  if reasons:
    note += f' Seconds are not comparable between all trials: {", ".join(reasons)}.'
  return note


def _machines(conditions: Sequence[Conditions]) -> list[str]:
  """Describes each machine and its CPUs."""
  texts = (
    f'{item.host} with {item.cpus} CPUs' + (f', {item.cores} per trial' * (item.cores < item.cpus))
    for item in sorted(conditions, key=dataclasses.astuple)
  )
  return [*dict.fromkeys(texts)]


def _differences(
  conditions: Sequence[Conditions], counts: Sequence[float], entries: Sequence[Entry]
):
  """Yields differences between trials that affect their seconds."""
  if len({item.host for item in conditions}) > 1:
    yield 'they ran on different machines'
  if len({item.cores for item in conditions}) > 1:
    yield 'they had different numbers of CPUs'
  if len({entry.outcome.together for entry in entries if entry.outcome}) > 1:
    yield 'some were trained together with vmapped steps'
  if max(counts) - min(counts) > _TOLERANCE:
    yield 'the numbers of concurrent trials differ'
  if any(max(item.load_before, item.load_after) > item.cpus + _TOLERANCE for item in conditions):
    yield 'more processes were runnable than there were CPUs'


def _span(values: Sequence[float]) -> str:
  low, high = f'{min(values):.1f}', f'{max(values):.1f}'
  return low if low == high else f'{low} to {high}'
