"""Every config file resolves and shapes, the largest ones on a laptop; its parameters have the stored names, shapes and
axes, and the kinds of the reviewed table."""

import json
import subprocess
import sys
from pathlib import Path

import gpt2_tokenizer
import pytest

from t2x.cli import main
from t2x.experiments import read_config
from tests.golden import parameter_kinds, parameters

ROOT = Path(__file__).parents[1]
FILES = sorted(ROOT.glob('configs/**/*.gin'))


def case(file):
  """A config; those of published models are built by the test of stored parameters too."""
  is_rare = file.parent.name == 'models' and not file.stem.startswith('small_')
  name = str(file.relative_to(ROOT))
  return pytest.param(file, id=name, marks=[pytest.mark.nightly] if is_rare else [])


@pytest.mark.parametrize('file', map(case, FILES))
def test_check_passes(file, capsys, tmp_path, monkeypatch):
  # The folder that the recipe of GPT-2 downloads.
  monkeypatch.chdir(gpt2_tokenizer.write(tmp_path / 'gpt2').parent)
  # A precision is that of a trainer.
  config = ['quickstart'] if file.parent.name == 'precision' else []
  with parameters.shared(file):
    code = main(['check', *config, str(file)])
  captured = capsys.readouterr()
  assert code == 0, captured.err
  assert ': ok' in captured.out


# The models of the configs above are traced there; those of studies here.
@pytest.mark.slow
@pytest.mark.parametrize(
  'file', [pytest.param(f, id=str(f.relative_to(ROOT))) for f in parameters.configs()]
)
def test_names_shapes_and_axes_are_those_stored(file):
  path = parameters.stored(file)
  assert parameters.listed(file) == (path.read_text() if path.exists() else None)


def test_no_list_of_parameters_is_left_of_another_config():
  files = {parameters.stored(file) for file in parameters.configs()}
  assert {*parameters.FOLDER.rglob('*.txt')} <= files


@pytest.mark.slow
def test_parameters_of_all_configs_are_in_the_table_of_kinds():
  known = parameter_kinds.part_rows()
  assert {
    row: file for row, file in parameter_kinds.config_rows().items() if row not in known
  } == {}


@pytest.mark.skipif(not Path('/proc/self/status').exists(), reason='peak memory is read from /proc')
@pytest.mark.slow
def test_gpt3_is_checked_in_little_memory():
  code = r"""
import json, re, sys
from t2x.cli import main
code = main(['check', sys.argv[1]])
# Not getrusage: its peak is inherited from the process that started this one.
peak = int(re.search(r'VmHWM:\s+(\d+) kB', open('/proc/self/status').read())[1]) / 2**20
print(json.dumps([code, peak]))
"""
  file = ROOT / 'configs' / 'models' / 'gpt3_175b.gin'
  command = [sys.executable, '-c', code, str(file)]
  done = subprocess.run(command, capture_output=True, text=True, check=True)
  exit_code, gigabytes = json.loads(done.stdout.splitlines()[-1])
  assert exit_code == 0
  assert gigabytes < 2


def test_show_prints_origins_and_diff_prints_differences(capsys):
  file = str(ROOT / 'configs' / 'runs' / 'quickstart.gin')
  assert main(['show', file, '--gin.Trainer.seed=7']) == 0
  shown = capsys.readouterr().out
  assert 'seed = 7' in shown
  assert 'command line' in shown
  assert 'quickstart.gin:' in shown
  assert main(['diff', file, file]) == 0
  other = str(ROOT / 'configs' / 'runs' / 'stdlib_lm.gin')
  assert main(['diff', file, other]) == 1
  printed = capsys.readouterr().out
  assert 'Experiment.trainer.schedule.warmup_steps: 0 -> 100' in printed
  assert 'Experiment.trainer.schedule.warmup: 0.083 -> 0.0' in printed


def test_pattern_picture(tmp_path, capsys):
  file = str(ROOT / 'configs' / 'models' / 'gpt3_175b.gin')
  target = tmp_path / 'pattern.png'
  assert main(['show', file, '--pattern', str(target), '--length', '32']) == 0
  assert target.read_bytes().startswith(b'\x89PNG')
  assert (tmp_path / 'pattern-2.png').exists()


def test_full_configs_and_meshes_of_accelerators_name_the_precision():
  for file in (ROOT / 'configs' / 'meshes').glob('[gt]pu_*.gin'):
    assert (
      f'#   t2x train CONFIG t2x:meshes/{file.name} t2x:precision/bf16.gin\n' in file.read_text()
    )
  for file in (ROOT / 'configs' / 'runs').glob('*_full.gin'):
    # Measured on a CPU, with full attention.
    if file.stem != 'stdlib_4096_full':
      assert read_config([file]).build().trainer.compute_dtype == 'bfloat16'
