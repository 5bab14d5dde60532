"""The command `t2x launch`."""

import argparse
import os
import shlex
import shutil
from pathlib import Path

from t2x.base.errors import UserError
from t2x.base.files import check_output_file, output_file
from t2x.cli.launch_targets import TARGETS, add_repeatable
from t2x.cli.options import GIN, add_files, assignments

HELP = 'write the file that starts a run on Slurm, Kubernetes, TPUs or SkyPilot, or in several local processes'
TAKES_BINDINGS = True


def arguments(parser: argparse.ArgumentParser) -> None:
  """Adds the arguments of the command."""
  targets = parser.add_subparsers(dest='target', required=True, metavar='TARGET')
  for name, (add, _, text) in TARGETS.items():
    target = targets.add_parser(name, help=text, description=f'Writes a file: {text}.', epilog=GIN)
    add_files(target)
    add(target)
    _add_common(target)


def _add_common(parser: argparse.ArgumentParser) -> None:
  group = parser.add_argument_group('options of all targets')
  group.add_argument(
    '--name', metavar='NAME', help='name of the job (default: name of the first FILE)'
  )
  group.add_argument(
    '--run',
    metavar='DIR',
    help='run folder (default: runs/<name of the first FILE>, on the shared volume if there is one)',
  )
  add_repeatable(
    group, '--env', 'NAME=VALUE', 'environment variable, written to the file in plain text'
  )
  add_repeatable(group, '--setup', 'LINE', 'shell line that runs before t2x on each machine')
  group.add_argument(
    '--out',
    metavar='FILE',
    help='file to write (default: print it); an edited file is not replaced',
  )
  group.add_argument('--submit', action='store_true', help='submit the file written by --out')


def run(args: argparse.Namespace) -> int:
  """Checks the config on the devices of the target, renders the file, and submits it."""
  from t2x.experiments import binds_sweep
  from t2x.launch import Job, default_name, render

  args.name = args.name or default_name(args.files[0])
  sweeps = [file for file in args.files if binds_sweep(file)]
  args.is_sweep = bool(sweeps)
  if sweeps and (args.target != 'slurm' or len(args.files) > 1):
    raise UserError(
      f'{sweeps[0]} is a sweep file: only t2x launch slurm accepts it, without other files'
    )
  if args.submit and not args.out:
    raise UserError('--submit requires --out FILE, the file to submit')
  target = TARGETS[args.target][1](args)
  job = Job(
    name=args.name,
    files=args.files,
    folder=args.run or _default_folder(args),
    overrides=args.overrides,
    setup=args.setup,
    variables=assignments('--env', args.env),
    source=_source(args.command_line),
  )
  text = render(target, job)
  if args.out:
    _check_out(Path(args.out), text)
  _check_config(args, target.num_devices)
  if not args.out:
    print(text, end='')
    return 0
  command = [*target.submit, args.out]
  if args.submit and shutil.which(command[0]) is None:
    raise UserError(f'{command[0]} is not installed on this machine: remove --submit', 1)
  _write(Path(args.out), text)
  print(f'wrote {args.out}; to submit it: {shlex.join(command)}', flush=True)
  if args.submit:
    os.execvp(command[0], command)
  return 0


def _default_folder(args: argparse.Namespace) -> str:
  stem = Path(args.files[0]).stem
  if args.is_sweep:
    return 'sweeps'
  if args.target in ('slurm', 'local'):
    return f'runs/{stem}'
  return f'{getattr(args, "mount", "/shared")}/runs/{stem}'


def _source(words: list[str]) -> str:
  """Returns the command line without the options that do not change the file."""
  words = list(words)
  while '--out' in words:
    index = words.index('--out')
    del words[index : index + 2]
  no_effect = ('--submit', '--traceback', '--trust')
  rest = [word for word in words if word not in no_effect and not word.startswith('--out=')]
  return shlex.join(['t2x', *rest])


def _check_config(args: argparse.Namespace, num_devices: int) -> None:
  """Checks the config and its mesh on the devices of the target, as `t2x check` does."""
  if args.is_sweep:
    from t2x.sweeps.sweep import read_sweep

    read_sweep(args.files[0], args.overrides)
    return
  from t2x.experiments import read_experiment
  from t2x.train import check_experiment

  check_experiment(read_experiment(args.files, args.overrides), num_devices)


def _check_out(path: Path, text: str) -> None:
  """Raises UserError if the file cannot be written, or exists with other content."""
  if path.is_file() and path.read_bytes() != text.encode():
    raise UserError(f'--out {path}: exists with other content: remove it, or choose another name')
  if not path.is_file():
    check_output_file('--out', path)


def _write(path: Path, text: str) -> None:
  """Writes a file, unless it exists with this content."""
  if not path.is_file():
    with output_file('--out', path) as file:
      file.write(text)
