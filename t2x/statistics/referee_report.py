"""Writes a ruling as text, JSON and a page."""

import itertools
from collections.abc import Sequence
from importlib import resources
from typing import Any

import numpy as np

from t2x.base.html_page import html_page
from t2x.base.text_table import fold, text_table
from t2x.statistics.comparisons import MAX_SEEDS, Comparison
from t2x.statistics.formats import better, confidence, decimals, more_seeds, number, probability
from t2x.statistics.multipliers import Multipliers
from t2x.statistics.referee import EFFECTS, SEEDS, Row, Ruling, SignalToNoise, test_name
from t2x.statistics.summaries import Summary

# Longest folder that is repeated in front of each name.
_SHORT = 12


def ruling_text(ruling: Ruling, multipliers: Sequence[Multipliers], width: int = 80) -> str:
  """Returns a ruling as text.

  Args:
    ruling: the ruling.
    multipliers: compute multipliers, one for each way to count parameters; () without sizes.
    width: columns of the text.
  """
  digits = _digits(ruling)
  signed = f'+.{digits}f'
  header = [
    'variant',
    'verdict',
    'difference',
    f'{confidence(ruling.level)} interval',
    'p',
    'plain p',
  ]
  rows = [[*header, f'{ruling.unit}s']]
  prefix = _prefix([row.variant for row in ruling.rows])
  for row in ruling.rows:
    c = row.comparison
    cells, count = [''] * 4, str(row.summary.n)
    if c is not None:
      cells = [number(c.difference, signed), c.interval_text(signed), probability(c.p_corrected)]
      cells.append(probability(row.p_plain))
      count = f'{c.pairs} + {more_seeds(c.more_seeds)}' if c.more_seeds else str(c.pairs)
    rows.append([_label(row).removeprefix(prefix), row.verdict, *cells, count])
  means = [
    f'{row.summary.mean:.{digits}f}'
    for row in ruling.rows
    if row.comparison is None and row.summary.n
  ]
  against = f'{ruling.baseline} ({"mean" if len(means) == 1 else "means"} {", ".join(means)})'
  lines = fold(f'{ruling.metric} ({better(ruling.goal)}), against {against}', width)
  lines += [text_table(rows, '<<>>>>>', width), '']
  notes = [f'{_label(row)}: {c.note}' for row, c in ruling.compared if c.note]
  notes += [f'Names without {prefix}'] if prefix else []
  for line in [
    *notes,
    *_sentences(ruling),
    *(line for item in multipliers for line in item.lines()),
  ]:
    lines += fold(line, width, '  ')
  return '\n'.join(lines)


def _sentences(ruling: Ruling) -> list[str]:
  """Returns what the table of verdicts does not show, as sentences."""
  pairs, unit, most = ruling.seeds, ruling.unit, len(ruling.compared)
  correction = f'corrected for {most} comparisons' if most > 1 else 'of the only comparison'
  lines = [f'p: {correction} ({test_name(ruling)}); plain p: a paired t test without correction.']
  if any(c.more_seeds for _, c in ruling.compared):
    lines.append(f'More {unit}s (+): needed for a verdict with a probability of 80 %.')
  if ruling.floor is not None:
    deviation = '' if ruling.noise is None else f'; standard deviation of a run: {ruling.noise:.2g}'
    lines.append(
      f'Noise floor: with {pairs} {unit}s, differences below {ruling.floor:.2g} may be luck '
      f'(half the median interval{deviation}).'
    )
  lines += [_signal(item) for item in ruling.signals if item.noise]
  lines += filter(None, [_pairing(ruling), _power(ruling)])
  lines.append(f'Not corrected for: {"; ".join(ruling.uncorrected)}.')
  return lines


def _signal(item: SignalToNoise) -> str:
  return (
    f'Signal to noise of {item.metric}: {item.ratio:.2g} (standard deviation of the variants {item.signal:.2g}, of a '
    f'run {item.noise:.2g}).'
  )


def _pairing(ruling: Ruling) -> str:
  gains = [row.gain for row in ruling.rows if row.gain is not None]
  if not gains or ruling.unit == 'run':
    return ''
  gain = float(np.median(gains))
  if gain < 1.05:
    return f'Pairing by {ruling.unit}: no gain (the median variance of a difference is {gain:.2g} times smaller).'
  return f'Pairing by {ruling.unit}: as precise as {gain:.2g} times the {ruling.unit}s without pairs (median).'


def _power(ruling: Ruling) -> str:
  if ruling.unit == 'item':
    return ''
  effects = ', '.join(f'{effect:g}' for effect in EFFECTS)
  rows = [
    f'{n} seeds: {", ".join(f"{100 * power:.0f} %" for power in powers)}'
    for n, powers in ruling.power()
  ]
  few = f' {SEEDS} seeds are recommended.' if ruling.seeds < SEEDS else ''
  return f'Power of one comparison for a difference of {effects} standard deviations of a run: {"; ".join(rows)}.{few}'


def _digits(ruling: Ruling) -> int:
  if ruling.unit == 'item' and ruling.floor:
    # The deviation of items is far larger than the error of their mean.
    return decimals([Summary(2, std=ruling.floor)])
  return decimals(row.summary for row in ruling.rows)


def _prefix(names: Sequence[str]) -> str:
  """Returns the folder that the names of all variants begin with; '' if it is short."""
  folders = zip(*(name.split('/')[:-1] for name in names), strict=False)
  shared = itertools.takewhile(lambda parts: len({*parts}) == 1, folders)
  prefix = ''.join(f'{parts[0]}/' for parts in shared)
  return prefix if len(prefix) > _SHORT else ''


def _label(row: Row) -> str:
  return f'{row.variant}, {row.size}' if row.size else row.variant


def ruling_data(ruling: Ruling, multipliers: Sequence[Multipliers]) -> dict[str, Any]:
  """Returns a ruling as printed by `t2x referee --json`; referee.schema.json describes it."""
  return {
    'table': ruling.table,
    'metric': ruling.metric,
    'goal': ruling.goal,
    'baseline': ruling.baseline,
    'margin': ruling.margin,
    'level': ruling.level,
    'test': test_name(ruling),
    'unit': ruling.unit,
    'rows': [_row(row) for row in ruling.rows],
    'noise_floor': ruling.floor,
    'noise': ruling.noise,
    'signal_to_noise': [
      {'metric': item.metric, 'signal': item.signal, 'noise': item.noise, 'ratio': item.ratio}
      for item in ruling.signals
    ],
    'power': [{'seeds': n, 'effects': [*EFFECTS], 'power': powers} for n, powers in ruling.power()],
    'recommended_seeds': SEEDS,
    'not_corrected_for': [*ruling.uncorrected],
    'multipliers': [item.data() for item in multipliers],
  }


def _row(row: Row) -> dict[str, Any]:
  c = row.comparison or Comparison(pairs=0)
  low, high = c.interval
  return {
    'variant': row.variant,
    'size': row.size,
    'label': _label(row),
    'verdict': row.verdict,
    'difference': c.difference,
    'difference_low': low,
    'difference_high': high,
    'p': c.p_corrected,
    'p_plain': row.p_plain,
    'p_other': c.p_other,
    'more_seeds': c.more_seeds if row.comparison else None,
    'mean': row.summary.mean,
    'std': row.summary.std,
    'n': row.summary.n,
    'trials': row.summary.n + row.sample.diverged,
    'failed': row.sample.diverged,
    'pairs': c.pairs,
    'pairing_gain': row.gain,
    'examples': c.examples,
    'note': '; '.join(filter(None, [c.note, c.withheld])),
  }


def ruling_page(ruling: Ruling, multipliers: Sequence[Multipliers]) -> str:
  """Returns an HTML page with a ruling."""
  data = ruling_data(ruling, multipliers) | {
    'digits': _digits(ruling),
    'confidence': confidence(ruling.level),
    'most_seeds': MAX_SEEDS,
    'sentences': _sentences(ruling),
    'multiplier_lines': [line for item in multipliers for line in item.lines()],
  }
  base, own = resources.files('t2x.base'), resources.files('t2x.statistics')
  return html_page(
    body=own / 'referee.html',
    title=f'Verdicts on {ruling.metric}',
    styles=(base / 'page.css',),
    scripts=(*(base / name for name in ('core.js', 'charts.js', 'tables.js')), own / 'referee.js'),
    data=data,
  )
