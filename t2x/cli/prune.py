"""The command `t2x prune`."""

import argparse
from pathlib import Path

from t2x.cli.options import add_checkpoint, count, run_folder

HELP = 'write a smaller run without the least important attention heads'
TAKES_BINDINGS = True


def arguments(parser: argparse.ArgumentParser) -> None:
  """Adds the arguments of the command."""
  parser.description = (
    'Ranks the attention heads of a run by the gradient of the loss with respect to a factor that '
    'multiplies the output '
    'of each head (Michel et al. 2019, https://arxiv.org/abs/1905.10650) and writes a run folder without the least '
    'important heads. Every layer keeps at least one head.'
  )
  add_checkpoint(parser)
  parser.add_argument(
    '--heads', type=count, required=True, metavar='N', help='number of heads to remove'
  )
  parser.add_argument('--out', required=True, metavar='FOLDER', help='new run folder')
  parser.add_argument(
    '--split',
    metavar='NAME',
    help="data split used to rank the heads (default: the task's train_split)",
  )
  parser.add_argument(
    '--rows',
    type=count,
    default=1024,
    metavar='N',
    help='number of rows of the split, evenly spaced (default: 1024)',
  )
  parser.add_argument(
    '--batch-size', type=count, metavar='N', help="rows per batch (default: the trainer's, or 32)"
  )


def run(args: argparse.Namespace) -> int:
  """Writes the smaller run."""
  folder = run_folder(args.run)
  from t2x.prune.pruning import prune_run

  prune_run(
    folder,
    Path(args.out),
    args.heads,
    checkpoint=args.checkpoint,
    split=args.split,
    num_rows=args.rows,
    batch_size=args.batch_size,
    overrides=args.overrides,
  )
  return 0
