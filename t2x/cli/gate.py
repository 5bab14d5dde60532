"""The command `t2x gate`."""

import argparse
from pathlib import Path

from t2x.base.errors import UserError
from t2x.cli.options import count, positive, refuse
from t2x.statistics.command import DEFAULT_METRIC, add_columns, goal_of, read

HELP = 'confirm a chosen variant with fresh seeds: exit code 0 only if it helps'
TAKES_BINDINGS = False


def arguments(parser: argparse.ArgumentParser) -> None:
  """Adds the arguments of the command."""
  parser.epilog = (
    'Exit codes: 0 helps, 3 hurts or same, 4 inconclusive or withheld, 5 refused (judged before, edge of a grid, '
    'incomplete pairs).'
  )
  parser.add_argument(
    'table', nargs='?', metavar='TABLE', help='results of the fresh seeds (see t2x referee)'
  )
  parser.add_argument(
    '--ledger',
    type=Path,
    required=True,
    metavar='FILE',
    help='JSON file with all choices; one per search',
  )
  parser.add_argument(
    '--choose', metavar='VARIANT', help='record this choice and print the fresh seeds to run'
  )
  parser.add_argument('--baseline', metavar='NAME', help='with --choose: the baseline')
  parser.add_argument(
    '--goal', choices=('min', 'max'), help='with --choose: whether lower or higher is better'
  )
  parser.add_argument(
    '--margin', type=positive, metavar='X', help='with --choose: smallest difference that counts'
  )
  parser.add_argument(
    '--seeds', type=count, metavar='N', help='with --choose: number of seeds (default: 5 or more)'
  )
  parser.add_argument(
    '--tuned',
    metavar='VALUE:V1,V2,...',
    help='with --choose: tuned value and all values that were tried; refused at their edge',
  )
  add_columns(parser)


def run(args: argparse.Namespace) -> int:
  """Records a choice, or confirms the last one."""
  refuse(args, 'has no effect: failed runs count as failures', 'failed')
  if args.only:
    raise UserError('--only has no effect: a confirmation has one variant and the baseline')
  if (args.choose is None) == (args.table is None):
    raise UserError('pass either --choose VARIANT or the TABLE that confirms the choice')
  return _confirm(args) if args.choose is None else _choose(args)


def _choose(args: argparse.Namespace) -> int:
  from t2x.statistics.gate import check_grid, choose
  from t2x.statistics.power import paired_power
  from t2x.statistics.referee import EFFECTS
  from t2x.statistics.table import OPTIONAL

  refuse(args, 'belongs to the TABLE of a confirmation', 'variant', 'seed', *OPTIONAL)
  if args.baseline is None:
    raise UserError('--choose needs --baseline NAME')
  if args.tuned is not None:
    check_grid(args.tuned)
  metric, *others = args.metric or (DEFAULT_METRIC,)
  if others:
    raise UserError(f'--metric {others[0]} has no effect: a choice has one metric, {metric}')
  goal = goal_of(metric, args.goal)
  choice = choose(
    args.ledger, args.choose, args.baseline, metric, goal, margin=args.margin, seeds=args.seeds
  )
  n = len(choice.seeds)
  powers = (f'{100 * paired_power(effect, n, choice.level):.0f} %' for effect in EFFECTS)
  print(
    f'choice {choice.number}: {choice.variant} against {choice.baseline} by {metric}, level {choice.level:.2g}\n'
    f'run both with the seeds {" ".join(map(str, choice.seeds))}\n'
    f'power for a difference of {", ".join(f"{e:g}" for e in EFFECTS)} standard deviations of a run: '
    f'{", ".join(powers)}'
  )
  return 0


def _confirm(args: argparse.Namespace) -> int:
  from t2x.statistics.formats import number, probability
  from t2x.statistics.gate import EXIT_CODES, REFUSED, confirm, open_choice

  refuse(args, 'belongs to --choose', 'baseline', 'goal', 'margin', 'seeds', 'tuned')
  choice = open_choice(args.ledger)
  if args.metric not in (None, [choice.metric]):
    raise UserError(f'the choice was made for the metric {choice.metric}: remove --metric')
  if args.seed == 'none':
    raise UserError('the gate needs the seeds of the runs: remove --seed none')
  args.metric, args.only = [choice.metric], [choice.variant, choice.baseline]
  table, columns, settings = read(args)
  if edge := settings.get('edges', {}).get(choice.variant):
    raise UserError(
      f'the tuned value of {choice.variant} is the {edge} of its grid: extend the grid first',
      REFUSED,
    )
  comparison = confirm(args.ledger, choice, table, columns)
  interval = comparison.interval_text('+.3g')
  remarks = '; '.join(filter(None, [comparison.note, comparison.withheld]))
  print(
    f'{comparison.verdict}: {choice.variant} against {choice.baseline} by {choice.metric}, difference '
    f'{number(comparison.difference, "+.3g")} ({interval}), p {probability(comparison.p)} at the level '
    f'{choice.level:.2g} of confirmation {choice.number}{f" ({remarks})" if remarks else ""}'
  )
  return EXIT_CODES[comparison.verdict]
