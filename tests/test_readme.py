"""Every command of the README works, in the order it stands there, at a size for a test."""

import os
import re
import shlex
import shutil
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import pytest

from t2x.cli import main

ROOT = Path(__file__).parents[1]
README = (ROOT / 'README.md').read_text()
BLOCKS = re.findall(r'```bash\n(.*?)```', README, re.DOTALL)
FILES = re.findall(r'```(?:gin|python)\n# (\S+)\n(.*?)```', README, re.DOTALL)
LINES = [line.split('  #')[0].strip() for block in BLOCKS for line in block.splitlines()]
COMMANDS = [part.strip() for line in LINES if line for part in line.split('&&')]
# What makes commands short; a file that lacks one of these names would be refused.
STEPS = [
  'Trainer.num_steps=3',
  'Trainer.eval_every=0',
  'Trainer.eval_batches=1',
  'Cosine.warmup_steps=1',
  'SentencePiece.sample_megabytes=0.5',
]
TRAIN = [
  *STEPS,
  'Samples.num_tokens=4',
  'CausalLM.source=@Part()',
  'Part.source=@StandardLibrary()',
  "Part.examples={'train': 60, 'validation': 2}",
  'vocab_size=512',
]
TWO = "Sweep.variants={'gelu': {}, 'relu': {'MLP.activation': @relu}}"
OWN = ['Trainer.num_steps=3']
SHORT = {'train': TRAIN, 'sweep': [*STEPS, TWO, 'Sweep.seeds=2', "Part.examples={'validation': 2}"]}
# Commands that say by their exit code that there is something to tell.
CODES = {'diff': 1}


def test_there_are_commands():
  assert len(COMMANDS) > 8
  assert {shlex.split(command)[0] for command in COMMANDS} == {'pip', 'pytest', 'python', 't2x'}


@pytest.mark.parametrize('command', [c for c in COMMANDS if c.startswith('pip')])
def test_extras_exist(command):
  known = tomllib.loads((ROOT / 'pyproject.toml').read_text())['project']['optional-dependencies']
  assert set(re.findall(r'\[(.+?)\]', command)) <= set(known)


@pytest.fixture
def folder(tmp_path):
  """A folder with configs, the files that the README shows, and texts."""
  for name in ('configs', 'experiments'):
    (tmp_path / name).symlink_to(ROOT / name)
  for name, text in FILES:
    (tmp_path / name).write_text(text)
  (tmp_path / 'texts').mkdir()
  for split in ('train', 'validation'):
    (tmp_path / 'texts' / f'{split}-0.txt').write_text('A text of somebody else. ' * 100)
  return tmp_path


def test_the_files_of_the_readme_are_right(folder, monkeypatch, capsys):
  assert {name for name, _ in FILES} == {
    'own_text.gin',
    'my_parts.py',
    'own_part.gin',
    'look_inside.py',
  }
  monkeypatch.chdir(folder)
  monkeypatch.setattr(sys, 'path', [*sys.path])
  monkeypatch.setenv('T2X_CACHE', str(folder / 'cache'))
  assert main(['data', 'tokenizer', 'own_text.gin']) == 0
  assert main(['check', 'own_text.gin']) == 0
  assert main(['check', 'own_part.gin']) == 0
  assert 'MLP.hidden_dim' in capsys.readouterr().out


@pytest.mark.slow
def test_every_command_works(folder):
  environment = os.environ | {'JAX_PLATFORMS': 'cpu', 'T2X_CACHE': str(folder / 'cache')}
  for command in COMMANDS:
    words = shlex.split(command)
    if words[0] not in ('t2x', 'python'):
      continue
    if words[1:3] == ['data', 'fetch'] and not shutil.which('apt-get'):
      continue
    short = OWN if 'own_text.gin' in words else SHORT.get(words[1], [])
    words += [f'--gin.{binding}' for binding in short]
    start = time.monotonic()
    done = subprocess.run(
      [sys.executable, *([] if words[0] == 'python' else ['-m', 't2x']), *words[1:]],
      cwd=folder,
      env=environment,
      capture_output=True,
      text=True,
      check=False,
    )
    print(f'{time.monotonic() - start:.1f} s  {command}')
    assert done.returncode == CODES.get(words[1], 0), f'{command}\n{done.stderr}'
    assert 'Traceback' not in done.stderr
