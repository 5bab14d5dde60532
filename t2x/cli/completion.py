"""The command `t2x completion`, which prints a script that completes command lines."""

import argparse
import importlib.resources
import shlex

from t2x.base.packages import imported

HELP = (
  'print a bash or zsh script that completes commands, options, files and the names after --gin.'
)
TAKES_BINDINGS = False

# The last lines of shtab's scripts, which register its function, and their replacements.
_BASH_END = 'complete -o bashdefault -F _shtab_t2x t2x'
_ZSH_ENDS = {
  'compdef _shtab_t2x -N t2x': 'compdef _t2x -N t2x',
  '  _shtab_t2x "$@"\nfi': '  _t2x "$@"\nfi',
}
# Completion functions of arguments, by metavar.
_FILES = {'bash': '_shtab_compgen_files', 'zsh': '_files'}
_FOLDERS = {'bash': '_shtab_compgen_dirs', 'zsh': '_files -/'}
_COMPLETED = {
  'FILE': _FILES,
  'DIR_OR_FILE': _FILES,
  'DIR': _FOLDERS,
  'FOLDER': _FOLDERS,
  'RUN': _FOLDERS,
}


def arguments(parser: argparse.ArgumentParser) -> None:
  """Adds the arguments of the command."""
  parser.epilog = (
    'bash: t2x completion bash > ~/.local/share/bash-completion/completions/t2x\n'
    'zsh:  t2x completion zsh > ~/.local/share/zsh/site-functions/_t2x   # a folder in $fpath\n'
    'The names completed after --gin. are those listed by `t2x parts` and those set by the gin files on the command '
    'line.\nRun the command again after updating t2x.'
  )
  parser.add_argument('shell', choices=('bash', 'zsh'), help='the shell')


def run(args: argparse.Namespace) -> int:
  """Prints the script."""
  print(script(args.shell, args.parser))
  return 0


def script(shell: str, parser: argparse.ArgumentParser) -> str:
  """Returns the script of a shell.

  The script is static: completion does not start Python.

  Args:
    shell: bash or zsh.
    parser: the parser of all commands; commands with an epilog take bindings.

  Raises:
    UserError: shtab is not installed.
  """
  shtab = imported('shtab', 't2x completion')
  _set_completed(parser)
  text = shtab.complete(parser, shell=shell)
  bound = ' '.join(name for name, command in _commands(parser).items() if command.epilog)
  values = {'names': '\n'.join(gin_names()), 'awk': _file('completion.awk'), 'bound': bound}
  own = ''.join(f'_t2x_{name}={shlex.quote(value)}\n' for name, value in values.items())
  own += _file('completion.sh') + _file(f'completion.{shell}')
  if shell == 'bash':
    return _replaced(text, _BASH_END, own)
  for old, new in _ZSH_ENDS.items():
    text = _replaced(text, old, new)
  return _replaced(text, 'typeset -A opt_args\n', f'{own}\ntypeset -A opt_args\n')


def gin_names() -> list[str]:
  """Returns PART.PARAMETER of all parameters that a config can set, sorted."""
  from t2x.config import catalogue
  from t2x.experiments import registry

  parts_by_name = registry()
  parts = {part for interface in catalogue.interfaces(parts_by_name) for part in interface.parts}
  parts |= set(parts_by_name.find('Experiment'))
  return sorted(f'{part.name}.{name}' for part in parts for name, *_ in catalogue.parameters(part))


def _set_completed(parser: argparse.ArgumentParser) -> None:
  """Sets the completion functions for files and folders in a parser and its commands."""
  for action in parser._actions:
    if isinstance(action.metavar, str) and action.metavar in _COMPLETED:
      action.complete = _COMPLETED[action.metavar]  # type: ignore[attr-defined]
  for command in _commands(parser).values():
    _set_completed(command)


def _commands(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
  subparsers = (a for a in parser._actions if isinstance(a, argparse._SubParsersAction))
  return {name: command for action in subparsers for name, command in action.choices.items()}


def _file(name: str) -> str:
  return (importlib.resources.files('t2x.cli') / name).read_text()


def _replaced(text: str, old: str, new: str) -> str:
  if text.count(old) != 1:
    raise RuntimeError(f'the script of shtab has changed: {old!r} does not occur once')
  return text.replace(old, new)
