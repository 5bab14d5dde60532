"""The script of `t2x completion` completes command lines in a real shell."""

import subprocess
from pathlib import Path

import pytest

from t2x.cli import main

ROOT = Path(__file__).parents[1]
# Calls the function that bash calls on Tab, and prints what it offers.
TRY = """
source "$1"; shift
compopt() { :; }
COMP_WORDS=("$@"); COMP_CWORD=$(( $# - 1 )); COMPREPLY=()
_t2x t2x
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.fixture(scope='module')
def complete(tmp_path_factory):
  """`complete(word, ...)`: what bash offers for the last word of `t2x word ...`."""
  path = tmp_path_factory.mktemp('completion') / 't2x.bash'
  with pytest.MonkeyPatch.context() as patch, path.open('w') as file:
    patch.setattr('sys.stdout', file)
    assert main(['completion', 'bash']) == 0

  def run(*words, cwd=ROOT):
    command = ['bash', '--norc', '-c', TRY, 'try', path, 't2x', *words]
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=True)
    assert not done.stderr
    return done.stdout.split()

  return run


def test_commands_options_and_files(complete):
  assert complete('tr') == ['train']
  assert complete('data', 'tok') == ['tokenizer']
  assert complete('new', '') == ['part', 'mixer', 'encoding', 'task', 'sweep']
  assert complete('prune', 'run', '--he') == ['--help', '--heads']
  assert complete('train', 'configs/runs/quick') == ['configs/runs/quickstart.gin']
  assert 'configs/runs' in complete('eval', 'configs/r')
  assert complete('eval', 'configs/runs/quick') == []


def test_gin_names_of_parts_come_in_two_steps(complete):
  assert complete('train', 'x.gin', '--g') == ['--gin.']
  assert complete('train', 'x.gin', '--gin.MultiH') == ['--gin.MultiHeadAttention.']
  assert complete('eval', 'run', '--gin.MultiHeadAttention.num_h') == [
    '--gin.MultiHeadAttention.num_heads='
  ]
  assert complete('train', '--gin.any/Experiment.mo') == ['--gin.any/Experiment.model=']
  assert complete('parts', '--g') == []


def test_gin_names_of_the_files_on_the_command_line(complete, tmp_path):
  file = 'configs/runs/libreoffice_en_de.gin'
  assert complete('train', file, '--gin.d_') == ['--gin.d_model=']
  assert complete('train', file, '--gin.decoder/Block.cr') == ['--gin.decoder/Block.cross=']
  assert complete('train', '--gin.d_') == []
  # A run folder stands for its config, and an include may be in another folder.
  (tmp_path / 'a' / 'run').mkdir(parents=True)
  (tmp_path / 'own.gin').write_text(
    'own_width = 3\nMy:\n  size = [\n    1,\n  ]\n  name = "a = b"\n'
  )
  (tmp_path / 'a' / 'run' / 'config.gin').write_text("include '../../own.gin'\nother = 1\n")
  assert complete('eval', 'a/run', '--gin.o', cwd=tmp_path) == ['--gin.own_width=', '--gin.other=']
  assert complete('eval', 'a/run', '--gin.My.', cwd=tmp_path) == [
    '--gin.My.size=',
    '--gin.My.name=',
  ]


def test_the_script_of_zsh_registers_our_function(capsys):
  assert main(['completion', 'zsh']) == 0
  out = capsys.readouterr().out
  assert out.startswith('#compdef t2x')
  assert 'compdef _t2x -N t2x' in out and "_t2x_bound='train eval" in out
