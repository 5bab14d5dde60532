"""The command `t2x eval`."""

import argparse
import json

from t2x.cli.options import add_checkpoint, add_json, add_processes, count, join, run_folder

HELP = 'evaluate a run on a split'
TAKES_BINDINGS = True


def arguments(parser: argparse.ArgumentParser) -> None:
  """Adds the arguments of the command."""
  add_checkpoint(parser)
  add_json(parser)
  add_processes(parser)
  parser.add_argument(
    '--split', metavar='NAME', help="split of the data source (default: the task's eval_split)"
  )
  parser.add_argument(
    '--limit',
    type=count,
    metavar='N',
    help='examples for each of Experiment.evaluations, evenly spaced in the split (default: all)',
  )
  parser.add_argument(
    '--batch-size', type=count, metavar='N', help="rows per batch (default: the trainer's, or 32)"
  )


def run(args: argparse.Namespace) -> int:
  """Prints the metrics, and samples of generated texts."""
  from t2x.api import load

  folder = run_folder(args.run)
  loaded = load(
    folder,
    checkpoint=args.checkpoint,
    overrides=args.overrides,
    processes=join(args),
    batch_size=args.batch_size,
  )
  from t2x.train.writers import json_value

  split = args.split or loaded.task.eval_split
  metrics, samples = loaded.evaluate(split, num_examples=args.limit)
  if not args.processes.first:
    return 0
  values = {'step': loaded.step, 'split': split, **metrics}
  if args.json:
    print(json.dumps({name: json_value(value) for name, value in values.items()}))
    return 0
  for name, value in values.items():
    print(f'{name:20} {value if isinstance(value, str) else f"{value:.6g}"}')
  for sample in samples:
    print('\n' + '\n'.join(f'{name:8} {text}' for name, text in sample.items()))
  return 0
