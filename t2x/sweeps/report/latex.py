"""The verdicts of a sweep as a LaTeX table for a paper."""

import re
from collections.abc import Mapping

from t2x.base.errors import UserError
from t2x.base.files import MARK
from t2x.base.suggestions import did_you_mean
from t2x.statistics.formats import better
from t2x.sweeps.report.markdown import decimals, method
from t2x.sweeps.report.results import Results, Row
from t2x.sweeps.report.summary import caution, label, matched

_ESCAPES = {
  '\\': r'\textbackslash{}',
  '~': r'\textasciitilde{}',
  '^': r'\textasciicircum{}',
  '<': r'\textless{}',
  '>': r'\textgreater{}',
  **{character: f'\\{character}' for character in '&%$#_{}'},
}


def latex(
  results: Results, caption: str | None = None, labels: Mapping[str, str] | None = None
) -> str:
  """Returns a table of the package booktabs: mean and standard deviation over the seeds, difference, interval, verdict.

  The lines below it name the tests, the matched budget, and the remarks on variants, such as diverged seeds.

  Args:
    results: the results of the sweep.
    caption: LaTeX code of the caption; None: metric, goal and baseline.
    labels: LaTeX code of the names of variants; others have the names of the sweep.

  Raises:
    UserError: a label is that of no variant.
  """
  labels = labels or {}
  for name in labels:
    if name not in results.plan.variants:
      known = did_you_mean(name, results.plan.variants)
      raise UserError(f"--label: the sweep has no variant '{name}'{known}")
  header = ['variant', 'verdict', results.plan.metric, 'seeds', 'difference']
  header.append(f'{results.level.confidence} interval')
  rows = [[_name(results, row, labels), *_cells(results, row)] for row in results.rows]
  if caption is None:
    plan = results.plan
    baseline = labels.get(plan.baseline, _escaped(plan.baseline))
    caption = f'Differences in {_escaped(plan.metric)} from {baseline} ({better(plan.goal)}).'
  name = re.sub(r'[^0-9A-Za-z]+', '-', results.plan.name).strip('-')
  lines = [
    f'% {MARK}. Needs \\usepackage{{booktabs}}.',
    r'\begin{table}',
    r'  \centering',
    f'  \\caption{{{caption}}}',
    f'  \\label{{tab:{name}}}',
    r'  \smallskip',
    # Short names fit the text width of an article of 10 pt.
    r'  \small\setlength{\tabcolsep}{4pt}',
    r'  \begin{tabular}{llrrrr}',
    r'    \toprule',
    f'    {" & ".join(map(_escaped, header))} \\\\',
    r'    \midrule',
    *(f'    {" & ".join(cells)} \\\\' for cells in rows),
    r'    \bottomrule',
    r'  \end{tabular}',
    r'  \par\smallskip',
    f'  \\parbox{{\\linewidth}}{{\\footnotesize {" ".join(_notes(results, labels))}}}',
    r'\end{table}',
  ]
  return '\n'.join(lines) + '\n'


def _name(results: Results, row: Row, labels: Mapping[str, str]) -> str:
  """Returns the name of a variant, with its point of the grid."""
  name = _escaped(row.variant)
  point = _escaped(label(results, row)).removeprefix(name)
  return labels.get(row.variant, name) + point


def _notes(results: Results, labels: Mapping[str, str]) -> list[str]:
  """Returns the sentences below the table."""
  budget = f'{matched(results)}{caution(results)}.'
  texts = ['Means and standard deviations over the seeds.', method(results)]
  texts += [f'{budget[0].upper()}{budget[1:]}', results.warning()]
  if results.ended < len(results.entries):
    texts.append(f'Partial report: {results.progress()}.')
  notes = [_escaped(text) for text in texts if text]
  for row in results.rows:
    rates = bool(row.comparison and row.comparison.by_rates)
    test = "the verdict follows from the divergence rates (Barnard's test)" if rates else ''
    if note := '; '.join(filter(None, [row.note, test])):
      notes.append(f'{_name(results, row, labels)}: {_escaped(note)}.')
  return notes


def _cells(results: Results, row: Row) -> list[str]:
  digits, summary, comparison = decimals(results), row.summary, row.comparison
  mean = _number(summary.mean, f'.{digits}f')
  if mean and summary.std is not None:
    mean = f'{mean} ({summary.std:.{digits}f})'
  cells = [_escaped(row.verdict), mean, str(summary.n)]
  if comparison is None:
    return [*cells, '', '']
  signed = f'+.{digits}f'
  ends = filter(None, comparison.interval_text(signed).split(' to '))
  interval = ' to '.join(f'${end}$' for end in ends)
  return [*cells, _number(comparison.difference, signed), interval]


def _number(value: float | None, form: str) -> str:
  """Returns a number in math mode, whose minus is as wide as its plus."""
  return '' if value is None else f'${value:{form}}$'


def _escaped(text: str) -> str:
  return ''.join(_ESCAPES.get(character, character) for character in text)
