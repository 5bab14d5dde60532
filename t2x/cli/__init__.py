"""The command line: `t2x train | eval | generate | check | plan | show | diff | sweep | report | ...`.

Each command is a module with `arguments(parser)` and `run(args)`. It imports jax only in `run`, so that
`t2x --help` is fast.
"""

import argparse
import contextlib
import errno
import logging
import os
import sys
import traceback
from typing import Any

from t2x.base.errors import EXIT_INTERRUPTED, UserError, error_line, printable
from t2x.base.signals import exit_on_signals
from t2x.cli import (
  check,
  completion,
  convert,
  data,
  diff,
  gate,
  generate,
  launch,
  look,
  new,
  parts,
  plan,
  prune,
  referee,
  report,
  runs,
  show,
  sweep,
  systems,
  test_part,
  train,
)
from t2x.cli import eval as evaluate
from t2x.cli.options import GIN
from t2x.cli.usage import Parser, unknown
from t2x.process.allocator import set_allocator
from t2x.process.compile_cache import set_compile_cache
from t2x.process.gpu_flags import set_gpu_flags

COMMANDS: dict[str, Any] = {
  'train': train,
  'eval': evaluate,
  'generate': generate,
  'look': look,
  'check': check,
  'plan': plan,
  'show': show,
  'diff': diff,
  'parts': parts,
  'systems': systems,
  'sweep': sweep,
  'report': report,
  'referee': referee,
  'gate': gate,
  'runs': runs,
  'launch': launch,
  'convert': convert,
  'prune': prune,
  'data': data,
  'new': new,
  'test-part': test_part,
  'completion': completion,
}
# Errors of a full disk, a read-only one, and missing permissions, which need no traceback.
_OF_DISKS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM)
# Commands that need NumPy and SciPy only: they also run after `pip install --no-deps t2x`, without rich, gin and jax.
STANDALONE = ('referee', 'gate')
# Commands that run the same programs again and again.
CACHED = ('train', 'eval', 'generate', 'look', 'sweep')


class _Command(Parser):
  """The parser of one command, with the options of all commands."""

  def __init__(self, **settings: Any):
    super().__init__(formatter_class=argparse.RawDescriptionHelpFormatter, **settings)
    self.add_argument('--traceback', action='store_true', help='print the traceback of an error')
    # No default: the default of a subcommand would override the value of its command.
    self.add_argument(
      '--trust',
      action='store_true',
      default=argparse.SUPPRESS,
      help='permanently trust the Python modules next to a gin file or run folder; their code can '
      'do anything you can, so review it first',
    )


def parser() -> argparse.ArgumentParser:
  """Returns the parser of the command line, except for `--gin.` bindings."""
  top = Parser(
    prog='t2x', description='Train Transformers from gin files and compare them.', epilog=GIN
  )
  top.formatter_class = argparse.RawDescriptionHelpFormatter
  top.add_argument('--version', action='store_true', help='print the version')
  commands = top.add_subparsers(dest='command', metavar='COMMAND', parser_class=_Command)
  for name, command in COMMANDS.items():
    epilog = GIN if command.TAKES_BINDINGS else None
    command.arguments(commands.add_parser(name, help=command.HELP, epilog=epilog))
  return top


def _refuse(top: argparse.ArgumentParser, name: str | None, arguments: list[str]) -> None:
  """Ends the process with a usage error about arguments that no option takes."""
  (commands,) = (one for one in top._actions if isinstance(one, argparse._SubParsersAction))
  command = commands.choices[name] if name else top
  command.error(unknown(arguments, command, name is not None and COMMANDS[name].TAKES_BINDINGS))


def main(argv: list[str] | None = None) -> int:
  """Runs a command and returns its exit code."""
  argv = sys.argv[1:] if argv is None else argv
  overrides = [arg.removeprefix('--gin.') for arg in argv if arg.startswith('--gin.')]
  top = parser()
  top.set_defaults(trust=False)
  args, rest = top.parse_known_args([arg for arg in argv if not arg.startswith('--gin.')])
  if rest:
    _refuse(top, args.command, rest)
  if args.version:
    from t2x import __version__

    print(__version__)
    return 0
  if args.command is None:
    top.print_help()
    return 2
  if overrides and not COMMANDS[args.command].TAKES_BINDINGS:
    top.error(f't2x {args.command} does not accept --gin. bindings')
  args.overrides, args.command_line, args.parser = overrides, argv, top
  if args.command in STANDALONE:
    return _run_command(args)
  from t2x.base.terminal import LogHandler, wrap_streams

  logging.basicConfig(format='%(message)s', handlers=[LogHandler()])
  LogHandler.least = logging.WARNING if getattr(args, 'quiet', False) else logging.INFO
  logging.getLogger('t2x').setLevel(logging.INFO)
  args.notes = [set_allocator()]
  if args.command in CACHED:
    args.notes += [set_compile_cache(), set_gpu_flags()]
  if args.command not in ('train', 'sweep'):
    return _run_command(args)
  # Long-running commands continue if their terminal is closed.
  with wrap_streams(), exit_on_signals(lambda message: _end_others(args, message)):
    return _run_command(args)


def _end_others(args: argparse.Namespace, message: str) -> None:
  """Ends the other processes of this run, if it has several."""
  if (processes := getattr(args, 'processes', None)) is not None:
    processes.fail(message, EXIT_INTERRUPTED)


def _trust(args: argparse.Namespace) -> contextlib.AbstractContextManager[None]:
  if not args.trust:
    return contextlib.nullcontext()
  from t2x.config import trust_everything

  return trust_everything()


def _run_command(args: argparse.Namespace) -> int:
  try:
    with _trust(args):
      code = COMMANDS[args.command].run(args)
    # Waits for the other processes.
    if (processes := getattr(args, 'processes', None)) is not None:
      processes.finish()
    return code
  except UserError as error:
    return _fail(args, error, str(error), error.exit_code)
  except OSError as error:
    if isinstance(error, BrokenPipeError):
      os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
      return 1
    if error.filename is None or error.errno not in _OF_DISKS:
      return _unexpected(args, error)
    return _fail(args, error, f'{error.filename}: {error.strerror}', 1)
  except KeyboardInterrupt as error:
    return _fail(args, error, 'interrupted', 130)
  except Exception as error:
    return _unexpected(args, error)


def _unexpected(args: argparse.Namespace, error: Exception) -> int:
  log = getattr(args, 'log', None)
  where = 'use --traceback for details' if log is None else f'{log} has the traceback'
  return _fail(args, error, f'{error_line(error)} ({where})', 1)


def _fail(args: argparse.Namespace, error: BaseException, message: str, code: int) -> int:
  if args.traceback:
    traceback.print_exception(error)
  processes = getattr(args, 'processes', None)
  if processes is not None:
    # An interrupt reaches all processes, which end by themselves. Other failures must end the others.
    if code == EXIT_INTERRUPTED:
      processes.finish()
    else:
      processes.fail(message, code)
  if processes is None or processes.first:
    print(f't2x: {printable(message, lines=True)}', file=sys.stderr)
  return code
