"""No command runs the code in a strange folder unless the user trusts it."""

import sys

import pytest

COMMANDS = [
  ['check', 'RUN/config.gin'],
  ['show', 'RUN/config.gin'],
  ['diff', 'RUN', 'RUN'],
  ['train', 'RUN/config.gin', '--out', 'OUT'],
  ['eval', 'RUN'],
  ['generate', 'RUN', '--prompt', 'a'],
  ['sweep', 'RUN/study.gin', '--out', 'OUT'],
  ['convert', 'export', 'RUN', '--to', 'OUT'],
  ['data', 'tokenizer', 'RUN/config.gin'],
  ['data', 'inspect', 'RUN/config.gin'],
]


@pytest.fixture
def command(tmp_path, monkeypatch):
  """`command(*words)`: the words with RUN and OUT for a strange run folder and a free place."""
  monkeypatch.setattr(sys, 'path', list(sys.path))
  run = tmp_path / 'run'
  run.mkdir()
  (run / 'strange_parts.py').write_text(f"open('{tmp_path}/ran', 'w')\n")
  (run / 'config.gin').write_text('import strange_parts\n')
  (run / 'study.gin').write_text(
    "Sweep:\n  base = 'config.gin'\n  baseline = 'a'\n  variants = {'a': {}}\n  seeds = 1\n"
  )

  def words(*words):
    return [word.replace('RUN', str(run)).replace('OUT', f'{tmp_path}/out') for word in words]

  yield words
  sys.modules.pop('strange_parts', None)


@pytest.mark.parametrize('words', COMMANDS, ids=' '.join)
def test_no_command_runs_the_code_of_a_strange_folder(words, command, t2x, tmp_path):
  code, out, err = t2x(*command(*words))
  assert code == 2
  assert out == ''
  assert err.count('\n') == 1
  assert f"{tmp_path}/run/config.gin:1: imports 'strange_parts' from {tmp_path}/run/" in err
  assert 'pass --trust' in err
  assert not (tmp_path / 'ran').exists()
  assert not (tmp_path / 'out').exists()


@pytest.mark.parametrize('words', COMMANDS, ids=' '.join)
def test_every_command_takes_the_option_and_remembers_it(words, command, t2x, tmp_path):
  t2x(*command(*words, '--trust'))
  assert (tmp_path / 'ran').exists()
  (tmp_path / 'ran').unlink()
  sys.modules.pop('strange_parts')
  sys.path.remove(f'{tmp_path}/run')
  t2x(*command(*words))
  assert (tmp_path / 'ran').exists()


def test_the_option_may_precede_the_verb_of_a_command(command, t2x, tmp_path):
  t2x(*command('convert', '--trust', 'export', 'RUN', '--to', 'OUT'))
  assert (tmp_path / 'ran').exists()


@pytest.mark.parametrize('function', ['train', 'fetch', 'draw_patterns', 'connect'])
def test_functions_that_write_files_are_no_parts(function, t2x, tmp_path):
  file = tmp_path / 'x.gin'
  file.write_text(f'Experiment.evaluations = @{function}()\n')
  code, _, err = t2x('check', file)
  assert code == 2
  assert f"no part named '{function}'" in err
