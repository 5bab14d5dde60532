"""The command `t2x report`."""

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from t2x.base.errors import UserError
from t2x.base.packages import command, require
from t2x.cli.options import add_json, assignments, positive, refuse

if TYPE_CHECKING:
  from t2x.sweeps.report import Results
  from t2x.sweeps.report.fit import Fit

HELP = 'write results.csv, report.md and report.html of a finished or running sweep'
TAKES_BINDINGS = False

_LABEL = r'--label names a variant, VARIANT=LATEX; the label of the table is \label{tab:SWEEP}'


def arguments(parser: argparse.ArgumentParser) -> None:
  """Adds the arguments of the command."""
  parser.add_argument('sweep', metavar='DIR', help='sweep folder, which contains sweep.json')
  parser.add_argument(
    '--watch',
    action='store_true',
    help='update the report each time a trial ends, until all have ended',
  )
  every = 'seconds between updates of --watch (default: 30)'
  parser.add_argument('--every', type=positive, default=30.0, metavar='SECONDS', help=every)
  add_json(parser)
  parser.add_argument(
    '--latex',
    metavar='FILE.tex',
    help='also write the verdicts (helps, hurts, same, ...) as a LaTeX table (booktabs), with the tests below it',
  )
  parser.add_argument('--caption', metavar='LATEX', help='caption of the LaTeX table')
  parser.add_argument(
    '--label',
    action='append',
    metavar='VARIANT=LATEX',
    help="name of a variant in the LaTeX table, such as both='ALiBi and gate'; may be repeated "
    '(the label of the table is '
    r'\label{tab:SWEEP})',
  )
  parser.add_argument(
    '--figures',
    action='store_true',
    help='also write figures of the differences between variants, the learning curves and the '
    'tuned values as SVG and PDF to DIR/figures',
  )
  fit = parser.add_argument_group('scaling law')
  fit.add_argument(
    '--fit',
    action='store_true',
    help='fit L = E + A N^-alpha + B D^-beta to the trials (N: parameters, D: training tokens), print and plot it',
  )
  fit.add_argument(
    '--by-variant',
    action='store_true',
    help='fit a separate law to each variant, using the points of the grid',
  )
  fit.add_argument(
    '--hold-out',
    action='append',
    default=[],
    metavar='NAME',
    help='leave this variant, or this AXIS=VALUE of the grid, out of the fit, and predict it with '
    'the fit; may be repeated',
  )
  fit.add_argument(
    '--predict',
    action='append',
    default=[],
    type=_size,
    metavar='N[,D]',
    help='number of parameters and of training tokens for which to predict the loss; may be repeated',
  )


def _size(text: str) -> tuple[float, float | None]:
  parameters, comma, tokens = text.partition(',')
  return positive(parameters), positive(tokens) if comma else None


def run(args: argparse.Namespace) -> int:
  """Writes a report on the trials that have ended."""
  if args.fit:
    return _fit(args)
  settings = {
    '--by-variant': args.by_variant,
    '--hold-out': args.hold_out,
    '--predict': args.predict,
  }
  for option, value in settings.items():
    if value:
      raise UserError(f'{option} has no effect without --fit')
  if args.latex is None:
    refuse(args, 'has no effect without --latex', 'caption', 'label')
  from t2x.sweeps import report

  folder = Path(args.sweep)
  labels = assignments('--label', args.label or (), _LABEL)
  if args.latex is not None:
    _check_latex(Path(args.latex))
  if args.figures:
    require({'matplotlib': ('--figures',)})
  for results in report.watch(folder, args.every if args.watch else None):
    if args.latex is not None:
      _write_latex(args, results, labels)
    if args.figures:
      from t2x.sweeps.report.figures import write_figures

      for path in write_figures(folder, results):
        print(f'wrote {path}', file=sys.stderr)
    _print(args, results, [])
  return 0


def _check_latex(file: Path) -> None:
  from t2x.base.files import check_output_file

  if file.suffix != '.tex':
    raise UserError(f'--latex {file}: the name of a LaTeX file must end in .tex')
  check_output_file('--latex', file)


def _write_latex(args: argparse.Namespace, results: 'Results', labels: dict[str, str]) -> None:
  from t2x.base.files import output_file
  from t2x.sweeps.report.latex import latex

  table = latex(results, args.caption, labels)
  with output_file('--latex', Path(args.latex)) as out:
    out.write(table)
  print(f'wrote {args.latex}', file=sys.stderr)


def _fit(args: argparse.Namespace) -> int:
  if args.watch:
    raise UserError('--fit needs a finished sweep: remove --watch')
  refuse(args, 'has no effect with --fit', 'latex', 'caption', 'label', 'figures')
  from t2x.sweeps import report
  from t2x.sweeps.report.fit import fit_results, write_png

  folder = Path(args.sweep)
  results = report.read_results(folder)
  fits = fit_results(
    results, by_variant=args.by_variant, hold_out=args.hold_out, predict=args.predict
  )
  report.write_report(folder, results, fits)
  _print(args, results, fits)
  picture = folder / 'scaling.png'
  if not write_png(picture, fits, results.plan.metric):
    print(f't2x: {picture} was not written: {command(["matplotlib"])}', file=sys.stderr)
  return 0


def _print(args: argparse.Namespace, results: 'Results', fits: 'list[Fit]') -> None:
  from t2x.base.text_table import terminal_width
  from t2x.sweeps.report import report_data, verdict_text

  if args.json:
    print(json.dumps(report_data(results, fits), ensure_ascii=False), flush=True)
  else:
    for fit in fits:
      print(fit.text(results.plan.metric))
    print(verdict_text(results, terminal_width()))
    print(f'{results.progress()}; {Path(args.sweep) / "report.html"}', flush=True)
  for line in results.damaged:
    print(f't2x: {line}', file=sys.stderr)
