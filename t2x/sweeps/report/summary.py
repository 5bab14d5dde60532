"""Describes the results of a sweep in words."""

import collections

from t2x.sweeps.records import Plan
from t2x.sweeps.report.results import Entry, Results, Row
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


def sentence(results: Results) -> str:
  """Returns the metric, the baseline, the verdicts, the number of seeds, and the matched budget."""
  plan = results.plan
  compared = [row for row in results.rows if row.comparison is not None]
  if len(compared) == 1:
    return _single(results, compared[0])
  counts = {
    verdict: sum(row.verdict == verdict for row in compared)
    for verdict in ('helps', 'hurts', 'same', 'inconclusive')
  }
  parts = [
    f'{counts["helps"]} {"helps" if counts["helps"] == 1 else "help"}',
    f'{counts["hurts"]} {"hurts" if counts["hurts"] == 1 else "hurt"}',
  ]
  if plan.margin is not None:
    parts.append(
      f'{counts["same"]} {"is" if counts["same"] == 1 else "are"} the same (within {plan.margin:g})'
    )
  parts.append(f'for {counts["inconclusive"]} the data cannot tell (inconclusive)')
  withheld = (row.comparison.withheld for row in compared if row.comparison)
  reasons = collections.Counter(filter(None, withheld))
  parts += [f'for {count} the verdict is withheld ({reason})' for reason, count in reasons.items()]
  before = 'Against' if results.ended == len(results.entries) else 'So far, against'
  return (
    f'{before} the baseline {plan.baseline} by {plan.metric} ({_better(plan)}), of '
    f'{_variants(results, len(compared))}, {", ".join(parts[:-1])}, and {parts[-1]}; {_seeds(results)}; '
    f'{matched(results)}.'
  )


def _single(results: Results, row: Row) -> str:
  """Returns the sentence of a single comparison, with its difference."""
  plan, comparison = results.plan, row.comparison
  verdict = {
    'same': f'is the same (within {plan.margin or 0:g})',
    'inconclusive': 'is inconclusive (the data cannot tell)',
    'withheld': f'has no verdict ({comparison.withheld if comparison else ""})',
  }.get(row.verdict, row.verdict)
  size = ''
  if comparison is not None and comparison.difference is not None:
    size = f': {comparison.difference:+.3g}'
    if comparison.low is not None and comparison.high is not None:
      size += f' ({comparison.low:+.3g} to {comparison.high:+.3g})'
  before = '' if results.ended == len(results.entries) else 'So far, '
  return (
    f'{before}{label(results, row)} {verdict} against the baseline {plan.baseline} by {plan.metric} '
    f'({_better(plan)}){size}; {_seeds(results)}; {matched(results)}.'
  )


def _better(plan: Plan) -> str:
  return f'{"lower" if plan.goal == "min" else "higher"} is better'


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
