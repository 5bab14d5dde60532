"""The wheel works without the checkout: it contains configs, templates and pages."""

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = (
  't2x',
  'configs',
  'experiments',
  'pyproject.toml',
  'setup.py',
  'MANIFEST.in',
  'README.md',
  'LICENSE',
)


@pytest.fixture(scope='module')
def installed(tmp_path_factory):
  """A folder with the files of the wheel, which is built from the source distribution."""
  folder = tmp_path_factory.mktemp('wheel')
  copy = folder / 'checkout'
  skipped = shutil.ignore_patterns('__pycache__', '*.png', '*.svg', '*.csv', '*.jsonl')
  for name in SOURCES:
    if (ROOT / name).is_dir():
      shutil.copytree(ROOT / name, copy / name, ignore=skipped)
    else:
      shutil.copy(ROOT / name, copy / name)
  (copy / 'tests').mkdir()
  shutil.copy(ROOT / 'tests' / 'differences.json', copy / 'tests')

  def build(kind, source):
    command = [sys.executable, 'setup.py', '-q', kind, '--dist-dir', str(folder / 'dist')]
    subprocess.run(command, cwd=source, check=True, capture_output=True)

  build('sdist', copy)
  shutil.unpack_archive(next((folder / 'dist').glob('*.tar.gz')), folder)
  build('bdist_wheel', folder / 't2x-0.1.0')
  with zipfile.ZipFile(next((folder / 'dist').glob('*.whl'))) as wheel:
    wheel.extractall(folder / 'installed')
  return folder / 'installed'


@pytest.fixture
def run(installed, tmp_path):
  """`run(*arguments)` runs t2x of the wheel in an empty folder and returns what it printed."""

  def start(*arguments):
    command = [sys.executable, '-P', '-m', 't2x', *arguments]
    environment = os.environ | {'PYTHONPATH': str(installed)}
    done = subprocess.run(
      command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr

  return start


def test_the_wheel_has_what_the_commands_read(installed, run):
  names = {
    str(path.relative_to(installed / 't2x' / 'shipped'))
    for path in installed.glob('t2x/shipped/**/*.*')
  }
  for folder in ('configs', 'experiments'):
    assert {str(path.relative_to(ROOT)) for path in (ROOT / folder).rglob('*.gin')} <= names
  assert {path.name for path in installed.iterdir() if '-' not in path.name} == {'t2x'}
  # Pages, templates and the like are package data.
  files = [*(ROOT / 't2x').rglob('*.*')]
  kinds = ('.html', '.css', '.js', '.json', '.txt', '.awk', '.bash', '.sh', '.zsh', '.yaml')
  assert {str(path.relative_to(ROOT)) for path in files if path.suffix in kinds} <= {
    str(path.relative_to(installed)) for path in installed.rglob('*.*')
  }
  assert (
    run('systems')
    == subprocess.run(
      [sys.executable, '-m', 't2x', 'systems'], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
  )


def test_first_commands_work_in_an_empty_folder(run, tmp_path):
  short = ['Trainer.num_steps=2', 'Trainer.eval_batches=1']
  part = [
    'CausalLM.source=@Part()',
    'Part.source=@StandardLibrary()',
    "Part.examples={'train': 20, 'validation': 2}",
  ]
  assert 'next        t2x eval' in run(
    'train', 'quickstart', *(f'--gin.{one}' for one in [*short, *part])
  )
  assert (tmp_path / 'runs' / 'quickstart' / 'status.json').exists()
  run('new', 'sweep', 'MyHeads')
  run('sweep', 'my_heads.gin', '--dry-run')


def test_the_wheel_has_the_modules_of_all_folders(installed):
  modules = {path.relative_to(ROOT) for path in (ROOT / 't2x').rglob('*.py')}
  assert {path.relative_to(installed) for path in (installed / 't2x').rglob('*.py')} == modules


def test_a_config_names_parts_of_domains_and_samples(run):
  assert 'ok;' in run('check', 't2x:runs/spoken_strings.gin')
