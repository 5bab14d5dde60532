"""The command `t2x train`."""

import argparse
import contextlib
import functools
import logging
from pathlib import Path

from t2x.cli.options import add_files, add_processes, add_quiet, join

HELP = 'train a model, or resume a run'
TAKES_BINDINGS = True


def arguments(parser: argparse.ArgumentParser) -> None:
  """Adds the arguments of the command."""
  add_files(parser)
  parser.add_argument(
    '--out', metavar='DIR', help='run folder (default: runs/<name of the first FILE>)'
  )
  parser.add_argument(
    '--fresh', action='store_true', help='start over; the old run folder is renamed, not deleted'
  )
  amount = parser.add_mutually_exclusive_group()
  amount.add_argument(
    '--verbose',
    action='store_true',
    help='print the parameter table too; summary.txt always contains it',
  )
  add_quiet(amount, 'print only the results and warnings; RUN/log.txt has everything')
  add_processes(parser)


def run(args: argparse.Namespace) -> int:
  """Starts a run, or resumes the run in the folder."""
  from t2x.base.packages import require
  from t2x.base.terminal import log_to_file, wrap_streams
  from t2x.config import render
  from t2x.experiments import changed_settings, data_of, read_config, record_run
  from t2x.run_folder.ownership import claim_folder

  log = logging.getLogger('t2x')
  config = read_config(args.files, args.overrides)
  require(config.packages())
  text = render(config)
  processes = join(args)
  folder = Path(args.out or Path('runs') / Path(args.files[0]).stem)
  with contextlib.ExitStack() as stack:
    # Joining a distributed run may have replaced the streams.
    stack.enter_context(wrap_streams())
    if processes.first:
      data = functools.cache(lambda: data_of(config.build()))
      changed = functools.partial(changed_settings, config, data)
      stack.enter_context(claim_folder(folder, text, changed, args.fresh))
      args.log = folder / 'log.txt'
      stack.enter_context(log_to_file(args.log))
      log.debug('t2x train %s', ' '.join([*args.files, *args.overrides]))
      for note in args.notes:
        log.debug(note)
      for note in config.notes():
        log.info(note)
      record_run(folder, config, data())
    processes.barrier()
    from t2x.train import train

    train(config.build(), folder, text, args.verbose, processes=processes, quiet=args.quiet)
  return 0
