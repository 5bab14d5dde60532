"""The command line answers quickly and fails kindly."""

import json
import subprocess
import sys

import pytest

from t2x.cli import main


def test_help_imports_nothing_heavy():
  code = """
import sys
from t2x.cli import main
try:
  main(['--help'])
except SystemExit:
  pass
heavy = {'jax', 'flax', 'numpy', 'orbax', 'tensorflow_datasets', 'rich', 'gin'}
print(sorted(heavy & set(sys.modules)), file=sys.stderr)
"""
  done = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True, check=True)
  assert done.stderr.strip() == '[]'
  assert 'Exit codes' in done.stdout


@pytest.mark.parametrize('name', ['SIGTERM', 'SIGINT', 'SIGHUP'])
def test_a_signal_before_the_training_steps_ends_with_the_code_to_run_again(name):
  code = f"""
import signal, sys, types
signal.signal(signal.SIGHUP, signal.SIG_DFL)
from t2x.cli import COMMANDS
COMMANDS['train'].run = lambda args: signal.raise_signal(signal.{name})
from t2x.cli import main
main(['train', 'some.gin'])
"""
  done = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True, check=False)
  assert done.returncode == 75
  assert 'run the same command to resume' in done.stderr


@pytest.mark.parametrize(
  'command',
  [
    'train',
    'eval',
    'generate',
    'look',
    'check',
    'plan',
    'show',
    'diff',
    'data',
    'report',
    'runs',
    'launch',
  ],
)
def test_every_command_has_help(command, capsys):
  with pytest.raises(SystemExit) as stop:
    main([command, '--help'])
  assert stop.value.code == 0
  assert command in capsys.readouterr().out


def test_unknown_command_is_bad_usage(capsys):
  with pytest.raises(SystemExit) as stop:
    main(['trian'])
  assert stop.value.code == 2


@pytest.mark.parametrize(
  ('line', 'told'),
  [
    ('trian quickstart', "'trian' does not exist; did you mean 'train'?"),
    ('xyzzy', "'xyzzy' does not exist; expected train, eval, "),
    ('data inspct x.gin', "'inspct' does not exist; did you mean 'inspect'?"),
    ('sweep x.gin --runner slrm', "--runner: 'slrm' does not exist; did you mean 'slurm'?"),
    ('train quikstart', "No such file or directory; did you mean 'quickstart'?"),
    ('train quickstart Trainer.num_steps=20', 'did you mean --gin.Trainer.num_steps=20?'),
    ('train quickstart --Trainer.num_steps=20', 'did you mean --gin.Trainer.num_steps=20?'),
    ('train quickstart --num-steps 20', 'did you mean --gin.Trainer.num_steps=20?'),
    (
      'train quickstart --lr',
      'unrecognized arguments: --lr; did you mean --gin.Cosine.peak=VALUE?',
    ),
    ('train quickstart --lr=1e-3', 'did you mean --gin.Cosine.peak=1e-3?'),
    ('train quickstart --lr 1e-3', 'did you mean --gin.Cosine.peak=1e-3?'),
    ('sweep x.gin Sweep.seeds=3', 'did you mean --gin.Sweep.seeds=3?'),
    ('train quickstart --outt x', 'unrecognized arguments: --outt x; did you mean --out?'),
    ('train quickstart --xyzzy', '--xyzzy; settings of the config are --gin.NAME=VALUE'),
    ('runs --lr 3', 't2x runs: error: unrecognized arguments: --lr'),
    ('eval runs/quikstart', 'it has no config.gin; did you mean runs/quickstart?'),
    ('generate runs --prompt x', 'it has no config.gin; did you mean runs/quickstart?'),
    ('report sweeps/head', 'it has no sweep.json; did you mean sweeps/heads?'),
  ],
)
def test_a_mistyped_command_line_is_answered_with_the_right_one(
  line, told, capsys, tmp_path, monkeypatch
):
  monkeypatch.chdir(tmp_path)
  for file in ('runs/quickstart/config.gin', 'sweeps/heads/sweep.json'):
    (tmp_path / file).parent.mkdir(parents=True)
    (tmp_path / file).write_text('')
  try:
    code = main(line.split())
  except SystemExit as stop:
    code = stop.code
  error = capsys.readouterr().err.splitlines()[-1]
  assert code == 2 and told in error
  assert ('did you mean' in error) == ('did you mean' in told)


def test_configs_import_neither_tensorflow_nor_torch_nor_orbax():
  code = """
import json, sys
from t2x.experiments import registry
parts = registry()
for name in parts.names():
  assert parts.find(name)
print(json.dumps(sorted({'tensorflow', 'torch', 'orbax'} & set(sys.modules))))
"""
  done = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True, check=True)
  assert json.loads(done.stdout) == []


@pytest.mark.parametrize(
  ('arguments', 'told'),
  [
    ('check FILE --devices 0', '--devices: must be at least 1'),
    ('check FILE --devices -1', '--devices: must be at least 1'),
    ('eval RUN --limit 0', '--limit: must be at least 1'),
    ('generate RUN --prompt a --seed -1', '--seed: must be at least 0'),
    ('generate RUN --prompt a --beam 0', '--beam: must be at least 1'),
    (
      'generate RUN --prompt a --temperature nan',
      '--temperature: must be at least 1e-6 and at most 1e6, got nan',
    ),
    ('generate RUN --prompt a --top-k 0', '--top-k: must be at least 1'),
    ('generate RUN --prompt a --top-p 2', '--top-p: must be at least 0 and at most 1, got 2'),
    ('generate RUN --prompt a --min-new-tokens -1', '--min-new-tokens: must be at least 1'),
    ('generate RUN --prompt a --beam 2 --length-penalty inf', '--length-penalty: must be a finite'),
    ('generate RUN --prompt a --suppress x', "--suppress: must be an integer, got 'x'"),
    ('sweep FILE --processes 0', '--processes: must be at least 1'),
    ('sweep FILE --together -1', '--together: must be at least 1'),
    ('report DIR --every -1', '--every: must be above 0, got -1'),
    ('show FILE --length 0', '--length: must be at least 1'),
    ('train FILE --num-processes 0', 'must be at least 1'),
  ],
)
def test_numbers_outside_their_range_are_refused_before_anything_is_read(arguments, told, capsys):
  with pytest.raises(SystemExit) as stop:
    main(arguments.split())
  assert stop.value.code == 2
  assert told in capsys.readouterr().err


@pytest.mark.parametrize('command', ['report DIR', 'data fetch brown', 'convert export RUN --to F'])
def test_bindings_that_would_have_no_effect_are_refused(command, capsys, tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  (tmp_path / 'RUN').mkdir()
  (tmp_path / 'RUN' / 'config.gin').write_text('')
  try:
    code = main([*command.split(), '--gin.Trainer.num_steps=3'])
  except SystemExit as stop:
    code = stop.code
  assert code == 2
  assert '--gin' in capsys.readouterr().err
