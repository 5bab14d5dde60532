"""The command `t2x data`."""

import argparse
from pathlib import Path
from typing import Any

from t2x.cli.options import GIN, add_files, count, natural, refuse_bindings
from t2x.errors import UserError

HELP = 'fetch sample data sets, train tokenizers and inspect batches'
TAKES_BINDINGS = True


def arguments(parser: argparse.ArgumentParser) -> None:
  """Adds the arguments of the command."""
  commands = parser.add_subparsers(dest='verb', required=True, metavar='COMMAND')
  fetch = commands.add_parser('fetch', help='download a sample data set')
  names = 'brown, factbook, fashion_mnist, libreoffice_help, minilm or sentiment'
  fetch.add_argument('name', metavar='NAME', help=names)
  fetch.add_argument(
    '--out', metavar='DIR', help='output folder (default: the default folder of its source)'
  )
  fetch.set_defaults(action=_fetch)
  tokenizer = commands.add_parser('tokenizer', help='train the tokenizer of a config', epilog=GIN)
  add_files(tokenizer)
  tokenizer.add_argument('--text', metavar='TEXT', help='print the tokens of this text')
  tokenizer.add_argument('--out', metavar='DIR', help='save the tokenizer to this folder')
  tokenizer.set_defaults(action=_tokenizer)
  inspect = commands.add_parser(
    'inspect', help='print decoded batches and the throughput', epilog=GIN
  )
  add_files(inspect)
  inspect.add_argument(
    '--batches', type=count, default=2, metavar='N', help='number of batches (default: 2)'
  )
  inspect.add_argument(
    '--step', type=natural, default=0, metavar='N', help='step of the first batch (default: 0)'
  )
  inspect.set_defaults(action=_inspect)


def run(args: argparse.Namespace) -> int:
  """Runs the command."""
  args.action(args)
  return 0


def _fetch(args: argparse.Namespace) -> None:
  refuse_bindings(args)
  from t2x.data import fetch

  print(fetch(args.name, args.out))


def _tokenizer(args: argparse.Namespace) -> None:
  task = _experiment(args).task
  tokenizer = task.fit_tokenizer()
  if tokenizer is None:
    raise UserError(f'{type(task).__name__} has no tokenizer')
  print(f'{task.tokenizer}: {tokenizer.vocab_size} tokens, fingerprint {tokenizer.fingerprint}')
  if args.out:
    tokenizer.save(Path(args.out))
    print(f'wrote {args.out}')
  if args.text is not None:
    print(' '.join(repr(piece) for piece in tokenizer.pieces(tokenizer.encode(args.text))))


def _inspect(args: argparse.Namespace) -> None:
  from t2x.data import Batches, inspect_batches
  from t2x.tasks import ImageClassification

  experiment = _experiment(args)
  trainer, tokenizer = experiment.trainer, experiment.task.fit_tokenizer()
  task = experiment.task.bound(tokenizer)
  batches = Batches(
    task.rows(task.train_split),
    task.transform(train=True),
    batch_size=trainer.batch_size if trainer else 8,
    seed=trainer.seed if trainer else 0,
  )
  inspect_batches(batches, tokenizer, start=args.step, num_batches=args.batches)
  if isinstance(task, ImageClassification):
    print(task.statistics())


def _experiment(args: argparse.Namespace) -> Any:
  """Builds the experiment; raises UserError if it has no task."""
  from t2x.api import read_experiment

  experiment = read_experiment(args.files, args.overrides)
  if experiment.task is None:
    raise UserError('Experiment.task is not set: bind it to a task with a data source')
  return experiment
