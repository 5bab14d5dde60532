"""What the machines did while the trials ran: whether the seconds of two variants can be compared."""

import dataclasses
from collections.abc import Sequence

from t2x.sweeps.records import Conditions
from t2x.sweeps.report.results import Entry, Results

# Trials at a time that make no difference: one that has just begun when another one ends.
_SAME = 0.5


def load_note(results: Results) -> str:
  """Returns the load under which the finished trials ran, in a line or two; '' where none tells it."""
  entries = [one for one in results.entries if one.status == 'finished' and one.outcome]
  told = {
    one.folder: (one, one.outcome.conditions)
    for one in entries
    if one.outcome and one.outcome.conditions
  }
  if not told:
    return ''
  found = [conditions for _, conditions in told.values()]
  loads = [load for one in found for load in (one.load_before, one.load_after)]
  counts = [one.at_once or 1.0 for one, _ in told.values()]
  missing = len({one.folder for one in entries}) - len(told)
  note = (
    f'Load of the machine: {"; ".join(_machines(found))}; load average {_span(loads)}; '
    f'{_span(counts)} trials at a time.'
  )
  if missing:
    note += f' Of {missing} trials, which an older version ran, it is not known.'
  reasons = [*_differences(found, counts, [entry for entry, _ in told.values()])]
  if reasons:
    note += f' Seconds cannot be compared between all trials: {", ".join(reasons)}.'
  return note


def _machines(found: Sequence[Conditions]) -> list[str]:
  """Each machine with its CPUs."""
  texts = (
    f'{one.host} with {one.cpus} CPUs' + (f', {one.cores} for a trial' * (one.cores < one.cpus))
    for one in sorted(found, key=dataclasses.astuple)
  )
  return [*dict.fromkeys(texts)]


def _differences(found: Sequence[Conditions], counts: Sequence[float], entries: Sequence[Entry]):
  """What makes the seconds of some trials longer than those of others."""
  if len({one.host for one in found}) > 1:
    yield 'they ran on several machines'
  if len({one.cores for one in found}) > 1:
    yield 'on different numbers of CPUs'
  if len({entry.outcome.together for entry in entries if entry.outcome}) > 1:
    yield 'some were trained together by one step'
  if max(counts) - min(counts) > _SAME:
    yield 'with different numbers of trials at a time'
  if any(max(one.load_before, one.load_after) > one.cpus + _SAME for one in found):
    yield 'more processes wanted to run than there were CPUs'


def _span(values: Sequence[float]) -> str:
  low, high = f'{min(values):.1f}', f'{max(values):.1f}'
  return low if low == high else f'{low} to {high}'
