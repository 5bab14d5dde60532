"""The verdicts of a sweep as a LaTeX table for a paper."""

import re

from t2x.base.files import MARK
from t2x.sweeps.report.markdown import decimals, method
from t2x.sweeps.report.results import Results, Row
from t2x.sweeps.report.summary import label, sentence

_ESCAPES = {
  '\\': r'\textbackslash{}',
  '~': r'\textasciitilde{}',
  '^': r'\textasciicircum{}',
  '<': r'\textless{}',
  '>': r'\textgreater{}',
  **{character: f'\\{character}' for character in '&%$#_{}'},
}


def latex(results: Results) -> str:
  """Returns a table of the package booktabs: mean and standard deviation over the seeds, difference, interval, verdict.

  Its caption has the sentence and the tests of the report, and the remarks on variants, such as diverged seeds.
  """
  header = ['variant', 'verdict', results.plan.metric, 'seeds', 'difference']
  header.append(f'{results.level.confidence} interval')
  notes = [f'{label(results, row)}: {row.note}.' for row in results.rows if row.note]
  caption = ' '.join([sentence(results), method(results), *notes])
  rows = [_cells(results, row) for row in results.rows]
  name = re.sub(r'[^0-9A-Za-z]+', '-', results.plan.name).strip('-')
  lines = [
    f'% {MARK}. Needs \\usepackage{{booktabs}}.',
    r'\begin{table}',
    r'  \centering',
    f'  \\caption{{{_escaped(caption)}}}',
    f'  \\label{{tab:{name}}}',
    r'  \smallskip',
    r'  \begin{tabular}{llrrrr}',
    r'    \toprule',
    f'    {" & ".join(map(_escaped, header))} \\\\',
    r'    \midrule',
    *(f'    {" & ".join(cells)} \\\\' for cells in rows),
    r'    \bottomrule',
    r'  \end{tabular}',
    r'\end{table}',
  ]
  return '\n'.join(lines) + '\n'


def _cells(results: Results, row: Row) -> list[str]:
  digits, summary, comparison = decimals(results), row.summary, row.comparison
  mean = _number(summary.mean, f'.{digits}f')
  if mean and summary.std is not None:
    mean = f'{mean} ({summary.std:.{digits}f})'
  cells = [_escaped(label(results, row)), _escaped(row.verdict), mean, str(summary.n)]
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
