"""report.md: the tables of a sweep, to be read in a terminal or on a forge."""

import math
import re
import statistics
from collections.abc import Iterable, Sequence

from t2x.sweeps.report.load import load_note
from t2x.sweeps.report.results import Results, Row
from t2x.sweeps.statistics import MOST_SEEDS

METHOD = (
  'A seed gives every variant the same data order, so a variant is compared with the baseline seed '
  'by seed: a paired t test of the seeds that both finished, corrected for all planned comparisons '
  'of the sweep by Holm. It "helps" or "hurts" where the corrected p is at most 0.05. Intervals are '
  '95 % t intervals of one comparison, not corrected. Effect: mean difference in standard '
  "deviations of the differences (Cohen's d_z, Hedges' correction). More seeds: to add for a power "
  'of 0.8 if the effect is what it seems. Diverged seeds have no value and are left out of means '
  'and differences; a variant with any is never said to help, and is said to hurt where '
  "significantly more of its seeds diverge than of the baseline's (Barnard's test)."
)

COSTS_METHOD = (
  'Medians over the finished seeds. Seconds: steps times the median seconds of a step between two '
  'log lines; compilation, evaluation and checkpoints are left out, and the time is unknown where '
  'fewer than two lines were logged. Compile: of the seed that took longest, as the first may have '
  "compiled for all. Load: the machine's load average, how many processes wanted to run."
)


def markdown(results: Results) -> str:
  """The whole report."""
  plan = results.plan
  better = 'lower' if plan.goal == 'min' else 'higher'
  matched = f'matched {plan.matched}' if plan.matched else 'nothing matched'
  parts = [
    f'# {_text(plan.name)}',
    f'Against {_code(plan.baseline)} by {_text(plan.metric)} ({better} is better), {matched}. '
    + ('' if results.ended == len(results.entries) else 'A partial report: ')
    + f'{results.progress()}.',
    f'**Warning:** {_text(warning)}' if (warning := results.warning()) else '',
    *(f'**Damaged:** {_text(damaged)}' for damaged in results.damaged),
    _verdicts(results),
    METHOD,
    _matched(results),
    _costs(results),
    _unfinished(results),
    _stability(results),
    _changes(results),
    _origin(results),
  ]
  return '\n\n'.join(part for part in parts if part) + '\n'


def decimals(results: Results) -> int:
  """Decimals that show two digits of the usual standard deviation."""
  stds = [row.summary.std for row in results.rows if row.summary.std]
  means = [abs(row.summary.mean) / 100 for row in results.rows if row.summary.mean]
  if not (scale := stds or means):
    return 3
  return max(0, min(7, 1 - math.floor(math.log10(statistics.median(scale)))))


def label(results: Results, row: Row) -> str:
  """The variant, with its point where the sweep has a grid."""
  point = results.points[row.point]
  short = {axis: axis.split('.')[-1] for axis in results.axes}
  if len(set(short.values())) < len(short):
    short = {axis: axis for axis in short}
  told = ', '.join(f'{short[axis]} = {value}' for axis, value in point.items())
  return f'{row.variant} ({told})' if told else row.variant


def _table(header: Sequence[str], rows: Iterable[Sequence[str]], right: str = '') -> str:
  """A table; columns whose letter in `right` is 'r' are set to the right."""
  rules = ['---:' if one == 'r' else '---' for one in right.ljust(len(header), 'l')]
  lines = [header, rules, *([_text(cell) for cell in row] for row in rows)]
  return '\n'.join('| ' + ' | '.join(line) + ' |' for line in lines)


def _text(text: str) -> str:
  """Escapes what is markup in Markdown or HTML: tags, links, images, code, the ends of cells."""
  escapes = {'&': '&amp;', '<': '&lt;', '\n': ' '} | {sign: f'\\{sign}' for sign in '\\|[]`'}
  return ''.join(escapes.get(one, one) for one in text)


def _code(text: str) -> str:
  """A code span, with a fence that the text does not hold."""
  fence = _fence(text, 1)
  space = ' ' if len(fence) > 1 else ''
  return f'{fence}{space}{text}{space}{fence}'


def _block(text: str) -> str:
  """A code block, likewise."""
  fence = _fence(text, 3)
  return f'{fence}\n{text}\n{fence}'


def _fence(text: str, least: int) -> str:
  return '`' * max(least, 1 + max(map(len, re.findall('`+', text)), default=0))


def _number(value: float | None, form: str) -> str:
  return '' if value is None else format(value, form)


def _probability(p: float | None) -> str:
  return '' if p is None else '< 0.001' if p < 0.001 else f'{p:.3f}'


def _more(seeds: int | None) -> str:
  if not seeds:
    return ''
  return f'more than {MOST_SEEDS}' if seeds > MOST_SEEDS else str(seeds)


def _verdicts(results: Results) -> str:
  digits = decimals(results)
  fixed, signed = f'.{digits}f', f'+.{digits}f'
  header = ['variant', 'seeds', 'mean', 'sd', '95 % interval', 'difference', '95 % interval']
  header += ['effect', 'p (Holm)', 'verdict', 'more seeds', 'note']

  def interval(low: float | None, high: float | None, form: str) -> str:
    return '' if low is None else f'{_number(low, form)} to {_number(high, form)}'

  rows = []
  for row in results.rows:
    one, of = row.summary, row.comparison
    told = [label(results, row), str(one.n), _number(one.mean, fixed), _number(one.std, fixed)]
    told.append(interval(one.low, one.high, fixed))
    if of is None:
      told += ['', '', '', '', 'baseline', '']
    else:
      told += [_number(of.difference, signed), interval(of.low, of.high, signed)]
      told += [_number(of.effect, '+.2f'), _probability(of.p_holm), of.verdict]
      told += [_more(of.more_seeds)]
    rows.append([*told, row.note])
  return '## Verdicts\n\n' + _table(header, rows, 'lrrrrrrrrlrl')


def _matched(results: Results) -> str:
  rows = []
  for row in results.rows:
    trial = row.entries[0].trial
    told = f'{trial.gap:+.2%}' if results.plan.matched else ''
    shape = [f'{trial.parameters:,}', f'{trial.flops_per_token:.4g}', f'{trial.num_steps:,}']
    rows.append([label(results, row), *shape, trial.knob, told])
  what = results.plan.matched
  gaps = [abs(row.entries[0].trial.gap) for row in results.rows]
  told = f'Matched: {what}; the largest gap is {max(gaps, default=0):.2%}.' if what else ''
  header = ['variant', 'parameters', 'FLOPs / token', 'steps', 'set by the match', 'gap']
  return f'## Budget\n\n{told or "Nothing was matched."}\n\n' + _table(header, rows, 'lrrrlr')


def _costs(results: Results) -> str:
  header = ['variant', 'FLOPs', 'seconds', 's / step', 'compile (s)', 'tokens / s', 'memory (MiB)']
  header += ['load', 'at a time', 'on the Pareto front by']
  names = {'parameters': 'parameters', 'flops': 'FLOPs', 'seconds': 'seconds'}
  rows = []
  for row in results.rows:
    memory = row.costs['memory_bytes']
    fronts = [told for name, told in names.items() if row.fronts.get(name)]
    rows.append(
      [
        label(results, row),
        _number(row.costs['flops'], '.3g'),
        _number(row.costs['seconds'], ',.1f'),
        _number(row.costs['step_seconds'], '.3g'),
        _number(row.costs['compile_seconds'], ',.1f'),
        _number(row.costs['tokens_per_second'], ',.0f'),
        _number(memory and memory / 2**20, ',.0f'),
        _number(row.costs['load'], '.1f'),
        _number(row.costs['at_once'], '.1f'),
        ', '.join(fronts),
      ]
    )
  notes = [COSTS_METHOD, load_note(results)]
  table = _table(header, rows, 'lrrrrrrrrl')
  return '\n\n'.join(['## Cost', *(_text(one) for one in notes if one), table])


def _unfinished(results: Results) -> str:
  rows = [
    [label(results, row), str(entry.trial.seed), entry.status, entry.reason]
    for row in results.rows
    for entry in row.entries
    if entry.status in ('diverged', 'failed')
  ]
  if not rows:
    return '## Diverged and failed\n\nNone.'
  return '## Diverged and failed\n\n' + _table(['variant', 'seed', 'status', 'reason'], rows, 'lr')


def _stability(results: Results) -> str:
  parts = ['## Ranking']
  for index, one in enumerate(results.rankings):
    rows = [row for row in results.rows if row.point == index and row.ranks]
    if one.tau is None:
      continue
    at = ', '.join(f'{axis} = {value}' for axis, value in results.points[index].items())
    told = f'{_text(at)}: mean' if at else 'Mean'
    parts.append(
      f'{told} Kendall tau of the variants between two seeds: {one.tau:.2f} (1: all seeds agree).'
    )
    rows.sort(key=lambda row: (row.ranks or (0, 0), row.variant))
    cells = [[row.variant, ' to '.join(map(str, row.ranks or ()))] for row in rows]
    parts.append(_table(['variant', 'rank over seeds'], cells, 'lr'))
  return '\n\n'.join(parts) if len(parts) > 1 else ''


def _changes(results: Results) -> str:
  parts = ['## What differs from the base config']
  for row in results.rows:
    lines = '\n'.join(row.entries[0].trial.differences) or '# nothing'
    parts.append(f'{_text(label(results, row))}\n\n{_block(lines)}')
  return '\n\n'.join(parts)


def _origin(results: Results) -> str:
  rows = [[name, ', '.join(found)] for name, found in results.origins.items()]
  return '## Versions\n\n' + _table(['what', 'version'], rows)
