"""The files in launch/ are what t2x renders.

After a change of a template, render a file again: remove it, and run the command in its header with --out FILE.
"""

import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from t2x.cli import main

LAUNCH = Path(__file__).parents[2] / 'launch'
FILES = sorted(path for path in LAUNCH.rglob('*') if path.is_file() and path.suffix != '.md')
SHELL = [path for path in FILES if path.suffix in ('.sh', '.sbatch')]


def source(path):
  """The command line in the header of a rendered file, as words; None for other files."""
  lines = path.read_text().splitlines()
  commands = [line for line in lines if line.startswith('#   t2x launch ')]
  return shlex.split(commands[0].removeprefix('#')) if commands else None


EXAMPLES = [path for path in FILES if source(path)]


def test_every_target_has_an_example():
  assert {source(path)[2] for path in EXAMPLES} == {
    'slurm',
    'kubernetes',
    'skypilot',
    'local',
  }


@pytest.mark.parametrize('path', EXAMPLES, ids=lambda path: path.name)
def test_an_example_equals_what_its_command_renders(path, launch):
  code, output = launch(*source(path)[2:])
  assert (code, output.err) == (0, '')
  assert output.out == path.read_text()


@pytest.mark.nightly
@pytest.mark.parametrize('path', EXAMPLES, ids=lambda path: path.name)
def test_the_config_of_an_example_fits_its_devices(path, monkeypatch, capsys):
  monkeypatch.chdir(LAUNCH.parent)
  assert main(source(path)[1:]) == 0
  assert capsys.readouterr().out == path.read_text()


@pytest.mark.skipif(shutil.which('bash') is None, reason='needs bash')
@pytest.mark.parametrize('path', SHELL, ids=lambda path: path.name)
def test_shell_files_parse(path):
  subprocess.run(['bash', '-n', str(path)], check=True)


@pytest.mark.parametrize('path', FILES, ids=lambda path: path.name)
def test_a_file_states_at_its_head_how_to_use_it(path):
  head = path.read_text().splitlines()[:8]
  commands = (
    'bash FILE',
    'sbatch FILE',
    'kubectl apply',
    'sky jobs launch',
    'docker build',
    'launch/',
  )
  assert any(command in line for line in head for command in commands), head


@pytest.mark.parametrize(
  'path', [path for path in EXAMPLES if path.suffix == '.yaml'], ids=lambda path: path.name
)
def test_yaml_files_parse(path):
  assert isinstance(yaml.safe_load(path.read_text()), dict)
