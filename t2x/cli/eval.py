"""The command `t2x eval`."""

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from t2x.base.errors import UserError
from t2x.base.files import check_folder, check_output_file
from t2x.cli.options import add_checkpoint, add_json, add_processes, count, join, run_folder

HELP = 'evaluate a run on a split, once or at each new checkpoint'
TAKES_BINDINGS = True


def arguments(parser: argparse.ArgumentParser) -> None:
  """Adds the arguments of the command."""
  add_checkpoint(parser)
  add_json(parser)
  add_processes(parser)
  parser.add_argument(
    '--split',
    metavar='NAME',
    help="split of the data source, in place of the task's eval_split and of the splits of Experiment.evaluations",
  )
  parser.add_argument(
    '--limit',
    type=count,
    metavar='N',
    help='number of examples for each of Experiment.evaluations, taken evenly across the split (default: all)',
  )
  parser.add_argument(
    '--watch',
    action='store_true',
    help='evaluate each checkpoint while the run is training, until the run is done; writes to RUN/watch; run the same '
    'command to resume',
  )
  parser.add_argument(
    '--batch-size', type=count, metavar='N', help="rows per batch (default: the trainer's, or 32)"
  )
  parser.add_argument(
    '--pictures',
    metavar='FOLDER',
    help='write the pictures that evaluators make to FOLDER/NAME.png',
  )
  parser.add_argument(
    '--mistakes',
    type=count,
    metavar='N',
    help='write RUN/mistakes-SPLIT.html: the N wrongly predicted examples with the highest loss and, for a classifier, '
    'the confusion matrix',
  )


def run(args: argparse.Namespace) -> int:
  """Prints the metrics, and samples of generated texts."""
  if args.watch:
    return _watch(args)
  if args.pictures is not None:
    check_folder('--pictures', Path(args.pictures))
  from t2x.api import load

  folder = run_folder(args.run)
  loaded = load(
    folder,
    checkpoint=args.checkpoint,
    overrides=args.overrides,
    processes=join(args),
    batch_size=args.batch_size,
  )
  if args.limit is not None and not loaded.experiment.evaluations:
    raise UserError('--limit has no effect: the run has no Experiment.evaluations; remove it')
  split = args.split or loaded.task.eval_split
  page = folder / f'mistakes-{split}.html'
  if args.mistakes is not None:
    from t2x.runs.mistakes import classifier, write_mistakes

    classifier(loaded)
    check_output_file('--mistakes', page)
  result = loaded.evaluation(args.split, num_examples=args.limit)
  if args.processes.first:
    _print({'step': loaded.step, 'split': split, **result.metrics}, result.samples, args.json)
    if args.pictures is not None:
      write_pictures(Path(args.pictures), result.images)
    if args.mistakes is not None:
      write_mistakes(loaded, split, result, args.mistakes, page)
      print(f'wrote {page}', file=sys.stderr)
  return 0


def write_pictures(folder: Path, images: Mapping[str, Any]) -> None:
  """Writes pictures, uint8 [height, width, 3], as PNG files."""
  from t2x.base.drawing import save_picture

  if not images:
    raise UserError(
      '--pictures has no effect: no evaluator of Experiment.evaluations draws, as @CompletedImages() does'
    )
  for name, image in images.items():
    save_picture(image, folder / f'{name.replace("/", "_")}.png')


def _watch(args: argparse.Namespace) -> int:
  """Evaluates each new checkpoint until the run is done."""
  if args.pictures is not None:
    raise UserError('--pictures has no effect on --watch: remove it')
  if args.mistakes is not None:
    raise UserError('--mistakes has no effect on --watch: remove it')
  if args.checkpoint != 'last':
    raise UserError('--checkpoint has no effect on --watch, which evaluates all: remove it')
  if join(args).count > 1:
    raise UserError('--watch evaluates in one process: start it once')
  from t2x.runs.watch import watch

  watch(
    Path(args.run),
    lambda values, samples: _print(values, samples, args.json),
    overrides=args.overrides,
    split=args.split,
    num_examples=args.limit,
    batch_size=args.batch_size,
  )
  return 0


def _print(values: Mapping[str, Any], samples: Sequence[Mapping[str, str]], as_json: bool) -> None:
  from t2x.train.logs.writers import json_value

  if as_json:
    print(json.dumps({name: json_value(value) for name, value in values.items()}), flush=True)
    return
  for name, value in values.items():
    print(f'{name:20} {value if isinstance(value, str) else f"{value:.6g}"}')
  for sample in samples:
    print('\n' + '\n'.join(f'{name:8} {text}' for name, text in sample.items()))
  print(end='', flush=True)
