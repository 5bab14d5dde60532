"""Writes report.md, the report of a sweep as Markdown."""

import re
import statistics
from collections.abc import Iterable, Sequence

from t2x.base.text_table import fold, text_table
from t2x.statistics import formats
from t2x.statistics.learn_or_not import SPREAD
from t2x.statistics.two_way import FEWEST
from t2x.sweeps.report.agreement import agreements
from t2x.sweeps.report.fit import Fit
from t2x.sweeps.report.load import load_note
from t2x.sweeps.report.results import COSTS, Results
from t2x.sweeps.report.summary import (
  flops_convention,
  label,
  looks,
  lost,
  matched,
  point_text,
  sentence,
  stability,
)
from t2x.sweeps.report.tuning import tuning_data
from t2x.sweeps.tune import FEWEST_SEEDS

_METHOD = (
  "Verdicts: {test}. Dunnett's method corrects their p-values (step-down) and the intervals "
  '(single-step) for all {count} '
  'planned comparisons of the sweep at the level {level:.3g}{margin}.'
)
_SINGLE = 'Verdict: {test} of the only comparison (level {level:.3g}){margin}.'
_DETAILS = (
  'With the same seed all variants have the same data order, so differences are means over the seeds that '
  'finished in both{baseline}. The two-way model estimates a noise variance for each variant, '
  'without the effects of the seeds, and moderates it towards the typical variance of the sweep; with '
  'fewer than {fewest} planned comparisons at a grid point, paired t tests replace the model. The '
  'report also shows the p-values '
  'of the alternative test for information: "p (paired t, Holm)" comes from plain paired t tests '
  "with Holm's correction. With few seeds, all seeds of one variant may learn and all seeds of another may fail by "
  'chance: a verdict also needs a difference of {spread:g} times the ranges, over the seeds, of '
  'the paired differences of '
  'all other comparisons. The largest ranges are ignored while this chance stays below the level '
  '(at 5 %: none with three seeds, six with four, 49 with five){guard}. The intervals are simultaneous: '
  'all of them cover the true differences with probability {confidence}. They contain the noise of training '
  '(initialisation, data order, dropout){examples}. The step-down test is slightly more powerful '
  'than the intervals: if the interval '
  'of "helps" or "hurts" would include 0, its bound is 0, because the test shows only the sign. '
  '"same" requires that the interval at twice the level (90 % instead of 95 %) is within the margin. '
  'Effect: difference in standard deviations of a paired difference, with '
  "Hedges' correction. More seeds: number to add for a power of 0.8 {planned}; empty if the difference is "
  'zero, and larger while the guard against few seeds withholds a verdict. Seeds that diverged or '
  'did not learn have no value and do not count in means and '
  "differences; Barnard's two-sided test compares their rates and can decide in both "
  'directions. A mean difference against the direction of the rates is inconclusive.'
)

_BASELINE = (
  ', and the {count} additional seeds of the baseline improve its mean, with a weight that decreases with the '
  'effects of the seeds'
)

_BASELINE_GUARD = (
  '. If the paired seeds do not support the verdict, it also needs a permutation test of the seeds '
  'of the variant against all seeds of the baseline'
)

_EXAMPLES = (
  ' and the noise of the {count:,} evaluated examples: the variance over the examples of the '
  'paired differences, averaged over the seeds, without the contribution of the seeds'
)
_NO_EXAMPLES = (
  ', but not the noise of the evaluated examples, which are the same for all trials: {reason} with '
  'different examples the differences may change'
)

_UNTUNED = (
  'Every variant has its own value of the tuned parameter. The verdicts come from the tuned sweep.'
)

_TUNED = (
  'Every variant was trained with each value and the tuning seeds {seeds}, which the comparison does not use. '
  'Each tuning seed chose the value of one seed of the comparison, or of a block of seeds whose '
  'mean counts once, so that '
  'the intervals contain the noise of the choice: verdicts are about the expected result of tuning and training '
  'together, by which a variant that is harder to tune is worse. If the value with the best mean '
  'over all tuning seeds is '
  'the smallest or the largest tried, a value beyond it may be better, and verdicts that it takes '
  'part in are withheld: '
  'add values, or increase Tune.max_trials; values with diverged or failed seeds rank last. Verdicts are also withheld '
  'with fewer than {fewest} tuning seeds, and where an older version chose one value for all '
  'seeds. The verdicts of this '
  'report are those after tuning. Those before tuning compare every variant at its own value with '
  'the same seeds{untuned}.'
)

_COSTS_METHOD = (
  'Medians over the finished seeds. Seconds: number of steps times the median seconds per step '
  'between two log lines, without compilation, evaluation and checkpoints; unknown if fewer than two '
  'lines were logged. Compile: maximum over the seeds, as the first may compile for all. '
  'Load: load average of the machine (number of runnable processes).'
)


def costs_method(results: Results) -> str:
  """Describes how the costs were determined."""
  return f'{_COSTS_METHOD} FLOPs: {flops_convention(results)}.'


def markdown(results: Results, fits: Sequence[Fit] = ()) -> str:
  """Returns the content of report.md."""
  plan = results.plan
  parts = [
    f'# {_text(plan.name)}',
    _text(sentence(results)),
    ('' if results.ended == len(results.entries) else 'Partial report: ')
    + f'{results.progress()}.',
    f'**{_UNTUNED}**' if plan.tuning == 'untuned' else '',
    f'**Warning:** {_text(warning)}' if (warning := results.warning()) else '',
    *(f'**Damaged:** {_text(damaged)}' for damaged in results.damaged),
    f'**{_text(look)}**' if (look := results.level.text(plan)) else '',
    _verdicts(results),
    f'<details><summary>Tests and definitions</summary>\n\n{method(results)}\n\n{details(results)}\n\n</details>',
    _tuning(results),
    _stability(results),
    _published(results),
    _scaling(results, fits),
    _costs(results),
    _unfinished(results),
    _matched(results),
    _origin(results),
    _changes(results),
  ]
  return '\n\n'.join(part for part in parts if part) + '\n'


def method(results: Results) -> str:
  """Returns one sentence on the tests of the verdicts."""
  margin = results.plan.margin
  comparisons = [row for row in results.rows if row.comparison is not None]
  model = 't tests in a two-way model (variant and seed) with unequal variances'
  return (_SINGLE if len(comparisons) == 1 else _METHOD).format(
    test='paired t tests' if _most_comparisons(results) < FEWEST else model,
    count=len(comparisons),
    level=results.level.alpha,
    margin='' if margin is None else f'; same: equivalence tests against a margin of {margin:g}',
  )


def _most_comparisons(results: Results) -> int:
  """Returns the largest number of comparisons at a point of the grid, which chooses the test."""
  points = [row.point for row in results.rows if row.comparison is not None]
  return max(map(points.count, points), default=0)


def other_test(results: Results) -> str:
  """Returns the title of the p-values of the test that did not decide the verdicts."""
  return f'p ({"paired t, Holm" if _most_comparisons(results) >= FEWEST else "two-way model"})'


def details(results: Results) -> str:
  """Returns the definitions of the columns of the verdicts."""
  planned = 'if the true difference is a lower 80 % confidence bound of the measured one'
  if results.plan.margin is not None:
    planned = (
      'to detect a difference of the margin, with an upper 80 % confidence bound of the variance'
    )
  seeds = {row.variant: {entry.trial.seed for entry in row.entries} for row in results.rows}
  more = seeds.get(results.plan.baseline, set()) - set().union(
    *(own for name, own in seeds.items() if name != results.plan.baseline)
  )
  return _DETAILS.format(
    fewest=FEWEST,
    spread=SPREAD,
    confidence=results.level.confidence,
    planned=planned,
    baseline=_BASELINE.format(count=len(more)) if more else '',
    guard=_BASELINE_GUARD if more else '',
    examples=_examples(results),
  )


def _examples(results: Results) -> str:
  """Returns whether the intervals contain the noise of the evaluated examples."""
  compared = [row.comparison for row in results.rows if row.comparison and row.comparison.pairs]
  counts = {comparison.examples for comparison in compared}
  if counts and None not in counts:
    return _EXAMPLES.format(count=max(filter(None, counts)))
  reason = 'some trials did not record the metric of each example, or it is not a mean over independent examples;'
  return _NO_EXAMPLES.format(reason=reason)


def decimals(results: Results) -> int:
  """Returns the number of decimals that shows two digits of the median standard deviation."""
  return formats.decimals(row.summary for row in results.rows)


def _table(header: Sequence[str], rows: Iterable[Sequence[str]], right: str = '') -> str:
  """Formats a table; columns whose letter in `right` is 'r' are right-aligned."""
  rules = ['---:' if letter == 'r' else '---' for letter in right.ljust(len(header), 'l')]
  lines = [header, rules, *([_text(cell) for cell in row] for row in rows)]
  return '\n'.join('| ' + ' | '.join(line) + ' |' for line in lines)


def _text(text: str) -> str:
  """Escapes the markup of Markdown and HTML: tags, links, images, code, emphasis, cell separators."""
  escapes = {'&': '&amp;', '<': '&lt;', '\n': ' '} | {sign: f'\\{sign}' for sign in '\\|[]`*~'}
  escaped = ''.join(escapes.get(character, character) for character in text)
  # Underscores inside words are no emphasis.
  return re.sub(r'(?<!\w)_|_(?!\w)', r'\\_', escaped)


def _block(text: str) -> str:
  """Returns a code block with a fence that does not occur in the text."""
  fence = _fence(text, 3)
  return f'{fence}\n{text}\n{fence}'


def _fence(text: str, least: int) -> str:
  return '`' * max(least, 1 + max(map(len, re.findall('`+', text)), default=0))


def verdict_text(results: Results, width: int) -> str:
  """Returns the verdicts as a text table, and the result in a sentence; only the sentence before there are verdicts.

  Args:
    results: the results.
    width: columns of the text.
  """
  lines = fold(sentence(results), width)
  if results.judged is not None:
    header, rows = _verdict_rows(results)
    lines = [text_table([row[:6] for row in (header, *rows)], '<<>>>>', width), '', *lines]
  return '\n'.join(lines)


def _verdicts(results: Results) -> str:
  header, rows = _verdict_rows(results)
  return '## Verdicts\n\n' + _table(header, rows, 'llrrrrrlrrrr')


def _verdict_rows(results: Results) -> tuple[list[str], list[list[str]]]:
  """Returns the header and the rows of the table of verdicts."""
  digits = decimals(results)
  fixed, signed = f'.{digits}f', f'+.{digits}f'
  header = ['variant', 'verdict', 'difference', f'{results.level.confidence} interval', 'seeds']
  header += ['mean', 'sd', 'note', 'p', other_test(results), 'effect (sd)', 'more seeds']
  rows = []
  for row in results.rows:
    s, c = row.summary, row.comparison
    compared, tests = ['', ''], ['', '', '', '']
    if c is not None:
      compared = [formats.number(c.difference, signed), c.interval_text(signed)]
      tests = [
        formats.probability(c.p_corrected),
        formats.probability(c.p_other),
        formats.number(c.effect, '+.2f'),
      ]
      tests.append(formats.more_seeds(c.more_seeds))
    own = [str(s.n), formats.number(s.mean, fixed), formats.number(s.std, fixed), row.note]
    rows.append([label(results, row), row.verdict, *compared, *own, *tests])
  return header, rows


def _tuning(results: Results) -> str:
  data = tuning_data(results)
  if data is None:
    return ''
  seeds = data['seeds']
  untuned = f' ({data["untuned"]})' if data['untuned'] else ', which have not been run'
  text = _TUNED.format(seeds=f'{seeds[0]} to {seeds[-1]}', fewest=FEWEST_SEEDS, untuned=untuned)
  signed = f'+.{decimals(results)}f'
  verdicts, curves = [], []
  for row in data['rows']:
    cells = [row['label'], row['parameter'], f'{row["own"]:g}', row['tuned']]
    edge = f'the {row["edge"]} value' if row['edge'] else ''
    for side in (row['before'], row['after']):
      cells += [formats.number(side['difference'], signed), side['verdict']] if side else ['', '']
    verdicts.append([*cells, '; '.join(filter(None, [edge, row['note']]))])
    for item in row['curve']:
      interval = '' if item['low'] is None else f'{item["low"]:.5g} to {item["high"]:.5g}'
      lost = item['diverged'] + item['failed']
      cells = [row['label'], f'{item["value"]:g}', formats.number(item['mean'], '.5g'), interval]
      curves.append([*cells, str(item['n']), str(item['chosen_by'] or ''), str(lost or '')])
  header = ['variant', 'parameter', 'own', 'tuned', 'before', 'verdict before', 'after']
  header += ['verdict after', 'at the edge']
  curve = [
    'variant',
    'value',
    f'mean {data["metric"]}',
    '95 % interval',
    'seeds',
    'chosen by',
    'diverged or failed',
  ]
  tables = _table(header, verdicts, 'llrrrlrll'), _table(curve, curves, 'lrrrrrr')
  return '\n\n'.join(['## Tuning', _text(text), *tables])


def _matched(results: Results) -> str:
  rows = []
  for row in results.rows:
    trial = row.entries[0].trial
    deviation = f'{trial.gap:+.2%}' if results.plan.matched else ''
    full = trial.full_flops_per_token or trial.flops_per_token
    shape = [f'{trial.parameters:,}', f'{trial.flops_per_token:.4g}', f'{full:.4g}']
    rows.append([label(results, row), *shape, f'{trial.num_steps:,}', trial.knob, deviation])
  text = matched(results)
  header = ['variant', 'parameters', 'FLOPs / token', 'full attention', 'steps']
  table = _table([*header, 'adjusted parameter', 'deviation'], rows, 'lrrrrlr')
  note = f'{text[0].upper()}{text[1:]}. FLOPs: {flops_convention(results)}.'
  return f'## What was matched\n\n{note}\n\n{table}'


def _costs(results: Results) -> str:
  header = ['variant', 'FLOPs', 'seconds', 's / step', 'compile (s)', 'tokens / s', 'memory (MiB)']
  header += ['load', 'concurrent trials', 'on the Pareto front by']
  rows = []
  for row in results.rows:
    memory = row.costs['memory_bytes']
    fronts = [text for name, text in COSTS.items() if row.fronts.get(name)]
    rows.append(
      [
        label(results, row),
        formats.number(row.costs['flops'], '.3g'),
        formats.number(row.costs['seconds'], ',.1f'),
        formats.number(row.costs['step_seconds'], '.3g'),
        formats.number(row.costs['compile_seconds'], ',.1f'),
        formats.number(row.costs['tokens_per_second'], ',.0f'),
        formats.number(memory and memory / 2**20, ',.0f'),
        formats.number(row.costs['load'], '.1f'),
        formats.number(row.costs['at_once'], '.1f'),
        ', '.join(fronts),
      ]
    )
  notes = [costs_method(results), load_note(results)]
  table = _table(header, rows, 'lrrrrrrrrl')
  return '\n\n'.join(['## Cost', *(_text(note) for note in notes if note), table])


def _unfinished(results: Results) -> str:
  rows = [
    [label(results, row), str(entry.trial.seed), entry.status, entry.reason]
    for row, entry in lost(results)
  ]
  if not rows:
    return '## Diverged and failed\n\nNone.'
  return '## Diverged and failed\n\n' + _table(['variant', 'seed', 'status', 'reason'], rows, 'lr')


def _stability(results: Results) -> str:
  ranked = [row for row in results.rows if len(row.ranks or ()) > 1]
  if not ranked:
    return ''
  header = ['variant', 'mean rank', 'ranks over the seeds']
  rows = [
    [label(results, row), f'{statistics.mean(ranks):.1f}', f'{min(ranks)} to {max(ranks)}']
    for row in sorted(ranked, key=lambda row: (row.point, statistics.mean(row.ranks or ())))
    if (ranks := row.ranks)
  ]
  lines = [_text(line) for line in stability(results)]
  return '\n\n'.join(['## Stability of the ranking', *lines, _table(header, rows, 'lrr')])


def _published(results: Results) -> str:
  if (published := results.plan.published) is None:
    return ''
  rows = [
    [point_text(results, item.point), item.group or 'all variants', item.text()]
    for item in agreements(results)
  ]
  text = (
    f"Spearman's rank correlation of the measured means with: {published.label}. Intervals: percentile "
    'bootstrap over the variants. 1: the same order from best to worst; -1: the opposite order.'
  )
  table = _table(['grid point', 'variants', 'rho'], rows)
  return f'## Comparison with published results\n\n{_text(text)}\n\n{table}'


def _scaling(results: Results, fits: Sequence[Fit]) -> str:
  if not fits:
    return ''
  return '\n\n'.join(['## Scaling law', *(_block(fit.text(results.plan.metric)) for fit in fits)])


def _changes(results: Results) -> str:
  parts = ['## Differences from the base config']
  for row in results.rows:
    lines = '\n'.join(row.entries[0].trial.differences) or '# none'
    parts.append(f'{_text(label(results, row))}\n\n{_block(lines)}')
  return '\n\n'.join(parts)


def _origin(results: Results) -> str:
  rows = [[name, ', '.join(values)] for name, values in results.origins.items()]
  rows += [['earlier reports', looks(results)]]
  return '## Provenance\n\n' + _table(['component', 'version'], rows)
