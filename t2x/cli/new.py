"""The command `t2x new`, which writes the examples of the pages under another name, as files to start from."""

import argparse
import importlib.resources
import importlib.util
import keyword
import os
import re
from pathlib import Path

from t2x.base.errors import UserError
from t2x.base.files import check_folder, output_file
from t2x.base.packages import is_installed

HELP = 'write template files with comments: a part, mixer, encoding or task, each with its test, or a sweep'
TAKES_BINDINGS = False

# By kind: what it is, the class of the example, templates by the ending of the file that they become, and the
# commands to try.
KINDS = {
  'part': (
    'a feed-forward layer',
    'Bilinear',
    {'part.py': '{}.py', 'part_test.py': 'test_{}.py', 'part.gin': '{}.gin'},
    (
      'python -m pytest test_bilinear.py',
      't2x test-part bilinear.Bilinear --gin.Bilinear.hidden_dim=32',
      't2x train bilinear.gin',
    ),
  ),
  'mixer': (
    'a token mixer with a cache',
    'RunningMean',
    {'mixer.py': '{}.py', 'mixer_test.py': 'test_{}.py', 'mixer.gin': '{}.gin'},
    (
      'python -m pytest test_running_mean.py',
      't2x test-part running_mean.RunningMean',
      't2x train running_mean.gin',
    ),
  ),
  'encoding': (
    'a position encoding',
    'LogDistance',
    {'encoding.py': '{}.py', 'encoding_test.py': 'test_{}.py', 'encoding.gin': '{}.gin'},
    (
      'python -m pytest test_log_distance.py',
      't2x test-part MultiHeadAttention --gin.MultiHeadAttention.num_heads=4 --encoding log_distance.LogDistance '
      '--gin.LogDistance.num_heads=4',
      't2x train log_distance.gin',
    ),
  ),
  'task': (
    'a task with its data source and evaluator',
    'Sums',
    {'task.py': '{}.py', 'task_test.py': 'test_{}.py', 'task.gin': '{}.gin'},
    ('python -m pytest test_sums.py', 't2x data inspect sums.gin', 't2x train sums.gin'),
  ),
  'sweep': (
    'an ablation and the experiment it varies',
    'Heads',
    {'sweep.gin': '{}.gin', 'sweep_base.gin': '{}_base.gin'},
    (
      't2x sweep heads.gin --dry-run',
      't2x sweep heads.gin --out sweeps',
      't2x report sweeps/heads',
    ),
  ),
}


def arguments(parser: argparse.ArgumentParser) -> None:
  """Adds the arguments of the command."""
  kinds = '; '.join(f'{kind}: {what}' for kind, (what, *_) in KINDS.items())
  parser.add_argument('kind', choices=tuple(KINDS), help=f'what to write; {kinds}')
  parser.add_argument('name', metavar='NAME', help='name of the class or sweep, such as MyMixer')


def run(args: argparse.Namespace) -> int:
  """Writes the files into the current folder and prints the commands that try them."""
  texts, commands = rendered(args.kind, args.name)
  module = file_name(args.name)
  check_folder('the current folder', Path())
  for name in texts:
    if os.path.lexists(name):
      raise UserError(f'{name} exists already: choose another name, or move the file')
  if args.kind != 'sweep' and keyword.iskeyword(module):
    raise UserError(
      f'Python cannot import {module}.py, because {module} is one of its keywords: choose another name'
    )
  if args.kind != 'sweep' and importlib.util.find_spec(module) is not None:
    raise UserError(f'{module}.py would hide the Python module {module}: choose another name')
  sweep = f'{module}.gin' if args.kind == 'sweep' else None
  for name, text in texts.items():
    with output_file('', Path(name)) as file:
      file.write(text)
    # The name of a sweep, unlike that of a class, looks like a choice of the settings to compare.
    note = ': an example that compares head counts; edit variants' if name == sweep else ''
    print(f'wrote {name}{note}')
  if any('pytest' in command for command in commands) and not is_installed('pytest'):
    commands = ['pip install pytest', *commands]
  print('try:\n' + '\n'.join(f'  {command}' for command in commands))
  return 0


def rendered(kind: str, name: str) -> tuple[dict[str, str], list[str]]:
  """Returns the texts of the files by their names, and the commands that try them.

  Args:
    kind: one of `KINDS`.
    name: name of the class, or of the sweep.

  Raises:
    UserError: no class can have this name.
  """
  if len(name) > 80:
    raise UserError(f"'{name[:20]}...' has {len(name)} letters: choose a name of at most 80")
  if not re.fullmatch('[A-Za-z][A-Za-z0-9_]*', name) or (kind != 'sweep' and name[0].islower()):
    raise UserError(
      f"'{name}' is not the name of a {'sweep' if kind == 'sweep' else 'class'}: write letters and "
      'digits, such as MyName'
    )
  _, example, templates, commands = KINDS[kind]
  texts = {}
  for template, target in templates.items():
    text = (importlib.resources.files('t2x.cli') / 'templates' / f'{template}.txt').read_text()
    texts[target.format(file_name(name))] = _renamed(text, example, name)
  return texts, [_renamed(command, example, name) for command in commands]


def file_name(name: str) -> str:
  """Returns the name of the files of a class: my_mixer for MyMixer."""
  return re.sub('(?<=[a-z0-9])(?=[A-Z])', '_', name).lower()


def _renamed(text: str, example: str, name: str) -> str:
  """Returns a text with the name of the example replaced, also in names of files and of further classes."""
  old, new = file_name(example), file_name(name)
  text = text.replace(example, name)
  return re.sub(rf'(?<![a-z]){old}(?=\.|_base|$)|(?<=import ){old}\b|(?<=from ){old}\b', new, text)
