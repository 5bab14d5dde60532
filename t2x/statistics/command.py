"""The command `t2x referee`, which also runs as `python -m t2x.statistics` with NumPy and SciPy only."""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from t2x.base.arguments import in_range
from t2x.base.errors import UserError
from t2x.base.ranges import Positive

if TYPE_CHECKING:
  from t2x.statistics.table import Columns, Table

HELP = 'judge a table of results of any framework: verdicts, noise floor, seeds needed'
TAKES_BINDINGS = False
DEFAULT_METRIC = 'loss'


def arguments(parser: argparse.ArgumentParser) -> None:
  """Adds the arguments of the command."""
  parser.add_argument(
    'table',
    metavar='TABLE',
    help='CSV, JSON lines or Parquet with one row per run (or per run and item), or the folder of a sweep of t2x',
  )
  parser.add_argument(
    '--baseline', metavar='NAME', help='variant that the others are compared with'
  )
  add_columns(parser)
  parser.add_argument(
    '--goal',
    choices=('min', 'max'),
    help="whether lower or higher is better (default: min if its name has 'loss')",
  )
  parser.add_argument(
    '--margin',
    type=in_range(Positive),
    metavar='X',
    help="largest negligible difference; needed for the verdict 'same'",
  )
  parser.add_argument('--json', action='store_true', help='print only JSON on stdout')
  parser.add_argument('--html', type=Path, metavar='FILE', help='also write this HTML page')


def add_columns(parser: argparse.ArgumentParser) -> None:
  """Adds the options of a table."""
  group = parser.add_argument_group('columns of the table')
  group.add_argument(
    '--variant',
    action='append',
    metavar='NAME',
    help='column of the variant; several are joined (default: variant)',
  )
  group.add_argument(
    '--seed',
    metavar='NAME',
    help="column of the seed; 'none' numbers the runs of each variant in the order of their rows (default: seed)",
  )
  group.add_argument(
    '--metric',
    action='append',
    metavar='NAME',
    help=f'metric; the first has the verdicts (default: {DEFAULT_METRIC})',
  )
  for name, text in {
    'size': 'size or horizon: variants are compared at each',
    'item': 'evaluated item, whose noise is then part of the intervals',
    'step': 'training step: the last one of each run is used',
    'parameters': 'parameters',
    'embeddings': 'parameters of embeddings',
    'tokens': 'training tokens',
    'flops': 'training FLOPs',
    'seconds': 'training seconds',
  }.items():
    group.add_argument(
      f'--{name}', metavar='NAME', help=f'{text} (default: {name}, if there is one)'
    )
  group.add_argument(
    '--only',
    action='append',
    default=[],
    metavar='VARIANT',
    help='use this variant; may be repeated (default: all)',
  )
  group.add_argument(
    '--failed',
    choices=('refuse', 'worst', 'drop'),
    help='runs whose metric is missing or not finite: refused, failures of their variant, or ignored (default: refuse, '
    'and worst for a sweep)',
  )


def read(args: argparse.Namespace) -> 'tuple[Table, Columns, dict[str, Any]]':
  """Reads the table of a command.

  Returns:
    The table, its columns, and the settings of a sweep (baseline, goal, margin); {} for other tables.

  Raises:
    UserError: the table is invalid.
  """
  from t2x.statistics.sweep_table import read_sweep
  from t2x.statistics.table import OPTIONAL, Columns, read_table

  path = Path(args.table)
  if path.is_dir():
    return read_sweep(path, args)
  columns = Columns(
    variant=args.variant or ('variant',),
    seed=None if args.seed == 'none' else args.seed or 'seed',
    metrics=args.metric or (DEFAULT_METRIC,),
    others={name: value for name in OPTIONAL if (value := getattr(args, name)) is not None},
  )
  return read_table(path, columns, args.only), columns, {}


def goal_of(metric: str, goal: str | None) -> Any:
  """Returns the goal; raises UserError if it is not given and does not follow from the name of the metric."""
  if goal is None and 'loss' not in metric.lower():
    raise UserError(f"--goal is needed for the metric '{metric}': min if lower is better, else max")
  return goal or 'min'


def run(args: argparse.Namespace) -> int:
  """Judges a table."""
  from t2x.base.files import check_output_file, output_file
  from t2x.base.text_table import terminal_width
  from t2x.statistics.multipliers import multipliers
  from t2x.statistics.referee import judge
  from t2x.statistics.referee_report import ruling_data, ruling_page, ruling_text
  from t2x.statistics.table import without_failed

  if args.html is not None:
    check_output_file('--html', args.html)
  table, columns, settings = read(args)
  metric = columns.metrics[0]
  baseline = args.baseline or settings.get('baseline')
  if baseline is None:
    raise UserError(f'--baseline is needed: one of {_names(table.names)}')
  goal = goal_of(metric, args.goal or settings.get('goal'))
  margin = args.margin if args.margin is not None else settings.get('margin')
  failed = args.failed or settings.get('failed', 'refuse')
  ruling = judge(table, columns, baseline, goal, margin=margin, failed=failed)
  of_compute = []
  if goal == 'min':
    of_compute = multipliers(without_failed(table, metric, 'drop')[0], metric, baseline)
  if args.json:
    print(json.dumps(ruling_data(ruling, of_compute), ensure_ascii=False, allow_nan=False))
  else:
    print(ruling_text(ruling, of_compute, terminal_width()))
  if args.html is not None:
    with output_file('--html', args.html) as file:
      file.write(ruling_page(ruling, of_compute))
    print(f'wrote {args.html}', file=sys.stderr)
  return 0


def _names(names: Sequence[str]) -> str:
  return ', '.join(names[:10]) + (f' and {len(names) - 10} more' if len(names) > 10 else '')


def main(argv: Sequence[str] | None = None) -> int:
  """Runs `python -m t2x.statistics`."""
  parser = argparse.ArgumentParser(prog='python -m t2x.statistics', description=HELP)
  arguments(parser)
  try:
    return run(parser.parse_args(argv))
  except UserError as error:
    print(f't2x: {error}', file=sys.stderr)
    return error.exit_code
