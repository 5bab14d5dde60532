"""Describes the results of a sweep in words."""

import collections
from collections.abc import Sequence

from t2x.statistics.formats import better
from t2x.sweeps.report.results import Entry, Results, Row
from t2x.sweeps.report.sources import accepted_trials
from t2x.train.logs.flops import CONVENTION


def label(results: Results, row: Row) -> str:
  """Returns the name of the variant, with the values of its point if the sweep has a grid."""
  point = results.points[row.point]
  short = {axis: axis.split('.')[-1] for axis in results.axes}
  if len(set(short.values())) < len(short):
    short = {axis: axis for axis in short}
  values = ', '.join(f'{short[axis]} = {value}' for axis, value in point.items())
  return f'{row.variant} ({values})' if values else row.variant


def point_text(results: Results, index: int) -> str:
  """Returns a point of the grid as text: 'Stack.num_layers = 4'; '' without a grid."""
  return ', '.join(f'{axis} = {value}' for axis, value in results.points[index].items())


# Names of a verdict in a sentence; more variants are counted.
_MOST_NAMES = 4


def sentence(results: Results) -> str:
  """Returns the result in a sentence: variants, difference with its interval, verdicts, seeds, budget, caution."""
  compared = [row for row in results.rows if row.comparison is not None]
  if results.judged is None:
    return (
      f'No verdict yet against {_baseline(results)}: {results.ended} of {len(results.entries)} trials have ended; '
      f'{_seeds(results)}; {matched(results)}.'
    )
  lead = _single(results, compared[0]) if len(compared) == 1 else _several(results, compared)
  if results.ended < len(results.entries):
    lead = f'So far, with {results.level.seeds} seeds, {lead}'
  elif len(compared) != 1:
    lead = lead[0].upper() + lead[1:]
  return f'{lead}; {_seeds(results)}; {matched(results)}{caution(results)}.'


def _single(results: Results, row: Row) -> str:
  """Returns the verdict on the only comparison, with its difference."""
  withheld = row.comparison.withheld if row.comparison else ''
  verdict = {
    'same': f'is the same (within {results.plan.margin or 0:g})',
    'inconclusive': 'is inconclusive',
    'withheld': f'has no verdict ({withheld})',
  }.get(row.verdict, row.verdict)
  return f'{label(results, row)} {verdict} against {_baseline(results)}{_size(results, row)}'


def _several(results: Results, compared: Sequence[Row]) -> str:
  """Returns the largest effect, with its difference, then all further verdicts."""
  rows: dict[str, list[Row]] = collections.defaultdict(list)
  for row in sorted(compared, key=_magnitude, reverse=True):
    rows[row.verdict].append(row)
  all_of_them, against = _variants(results, len(compared)), _baseline(results)
  helps, hurts = rows['helps'], rows['hurts']
  first = [*helps, *hurts, *sorted(compared, key=_magnitude, reverse=True)][:1]
  name = ', '.join(label(results, row) for row in first)
  size = ''.join(_size(results, row) for row in first)
  if len(helps) > 1:
    lead = f'of {all_of_them}, {len(helps)} help against {against}, most {name}{size}'
    lead += f', then {_names(results, helps[1:])}'
  elif helps:
    lead = f'of {all_of_them}, {name} helps against {against}{size}'
  elif hurts:
    most = ' most' * (len(hurts) > 1)
    lead = f'of {all_of_them}, none helps against {against}, and {name} hurts{most}{size}'
    lead += f', then {_names(results, hurts[1:])}' if len(hurts) > 1 else ''
  else:
    lead = f'of {all_of_them}, none helps or hurts verifiably against {against}'
    lead += f'; the largest difference is that of {name}{size}' if size else ''
  parts = [lead]
  if helps and hurts:
    parts.append(f'{_names(results, hurts)} {"hurts" if len(hurts) == 1 else "hurt"}')
  if same := rows['same']:
    is_same = f'{"is" if len(same) == 1 else "are"} the same (within {results.plan.margin or 0:g})'
    parts.append(f'{_names(results, same)} {is_same}')
  if unclear := rows['inconclusive']:
    parts.append(f'{_names(results, unclear)} {"is" if len(unclear) == 1 else "are"} inconclusive')
  reasons: dict[str, list[Row]] = collections.defaultdict(list)
  for row in rows['withheld']:
    reasons[row.comparison.withheld if row.comparison else ''].append(row)
  for reason, withheld in reasons.items():
    parts.append(f'for {_names(results, withheld)} the verdict is withheld ({reason})')
  return '; '.join(parts)


def _magnitude(row: Row) -> float:
  difference = None if row.comparison is None else row.comparison.difference
  return -1.0 if difference is None else abs(difference)


def _names(results: Results, rows: Sequence[Row]) -> str:
  """Lists the variants in the order of the report, or counts them if they are many."""
  if len(rows) == sum(row.comparison is not None for row in results.rows):
    return 'all of them'
  if len(rows) > _MOST_NAMES:
    return f'{len(rows)} others' if len(results.points) == 1 else f'{len(rows)} comparisons'
  *others, last = [label(results, row) for row in results.rows if row in rows]
  return f'{", ".join(others)} and {last}' if others else last


def _size(results: Results, row: Row) -> str:
  """Returns the difference of a row with its interval: ': -0.12 (95 % interval -0.15 to -0.09)'."""
  comparison = row.comparison
  if comparison is None or comparison.difference is None:
    return ''
  size = f': {comparison.difference:+.3g}'
  if interval := comparison.interval_text('+.3g'):
    size += f' ({results.level.confidence} interval {interval})'
  return size


def caution(results: Results) -> str:
  """Returns why the verdicts are exploratory, and what the intervals leave out; '' if there is neither."""
  reason = results.level.exploratory
  text = f'; exploratory: {reason}' if reason else ''
  compared = [row.comparison for row in results.rows if row.comparison is not None]
  counts = {comparison.examples for comparison in compared if comparison.pairs}
  if None in counts:
    text += '; the intervals leave out the noise of the evaluated examples'
  if accepted := accepted_trials(results.plan.trials):
    text += f'; {accepted}'
  return text


def _baseline(results: Results) -> str:
  plan = results.plan
  return f'the baseline {plan.baseline} by {plan.metric} ({better(plan.goal)})'


def matched(results: Results) -> str:
  """Describes the matched budget: 'matched parameters, largest deviation 0.85 %'."""
  plan = results.plan
  if not plan.matched:
    return f'no budget was matched{_stopped(results)}'
  deviation = 100 * max((abs(row.entries[0].trial.gap) for row in results.rows), default=0.0)
  text = f'matched {plan.matched}, largest deviation {deviation:.2f} %'
  text = f'{text} ({flops_convention(results)})' if 'flops' in plan.matched else text
  return f'{text}{_stopped(results)}'


def _stopped(results: Results) -> str:
  """Describes the trials that early stopping ended: the matched budget is then a maximum."""
  finished = [entry for entry in results.entries if entry.status == 'finished']
  early = [entry for entry in finished if entry.num_steps < entry.trial.num_steps]
  if not early:
    return ''
  shares = [100 * entry.num_steps / entry.trial.num_steps for entry in early]
  return (
    f'; Trainer.patience stopped {len(early)} of {len(finished)} trials after {min(shares):.0f} to '
    f'{max(shares):.0f} % of their steps, so budgets are maxima'
  )


def flops_convention(results: Results) -> str:
  """Describes how attention is counted in FLOPs, which files of older versions do in full."""
  is_old = any(entry.trial.full_flops_per_token is None for entry in results.entries)
  return 'full attention' if is_old else CONVENTION


def _variants(results: Results, compared: int) -> str:
  variants = len(results.plan.variants) - 1
  text = f'{variants} {"variant" if variants == 1 else "variants"}'
  points = len(results.points)
  return text if points == 1 else f'{compared} comparisons ({text} at {points} points of the grid)'


def _seeds(results: Results) -> str:
  counts = [len({entry.trial.seed for entry in row.entries}) for row in results.rows]
  low, high = min(counts, default=0), max(counts, default=0)
  if low == high:
    return f'{low} {"seed" if low == 1 else "seeds"} each'
  return f'{low} to {high} seeds each'


def lost(results: Results) -> list[tuple[Row, Entry]]:
  """Returns the trials that diverged or failed, with their rows."""
  return [
    (row, entry)
    for row in results.rows
    for entry in row.entries
    if entry.status in ('diverged', 'failed')
  ]


def stability(results: Results) -> list[str]:
  """Describes the agreement of the seeds on the ranking, one line for each point of the grid."""
  lines = []
  for index, ranking in enumerate(results.rankings):
    if ranking.tau is None:
      continue
    at = point_text(results, index)
    pairs = len(ranking.taus)
    lines.append(
      f"{f'{at}: ' if at else ''}Kendall's tau between the rankings of two seeds: mean {ranking.tau:.2f}, "
      f'range {min(ranking.taus):.2f} to {max(ranking.taus):.2f} over {pairs} '
      f'{"pair" if pairs == 1 else "pairs"} of seeds (1: equal rankings; 0: as in random order).'
    )
  return lines


def looks(results: Results) -> str:
  """Describes when complete results were reported, as further seeds after a report affect the verdicts."""
  if not results.looks:
    return 'none before this report'
  return '; '.join(f'{len(look.seeds)} seeds on {look.date or "?"}' for look in results.looks)
