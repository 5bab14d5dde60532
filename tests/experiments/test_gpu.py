"""The benchmark of a GPU runs at tiny sizes on a CPU, with jax, flax, optax, orbax, scipy and its wheels only."""

import importlib.metadata
import json
import os
import re
import subprocess
import sys
import time
import tomllib
import typing
import zipfile
from pathlib import Path

import numpy as np
import pytest
from packaging.requirements import Requirement

from t2x.statistics.comparisons import Verdict

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / 'experiments' / 'speed'
REQUIREMENTS = [
  Requirement(line)
  for line in (FOLDER / 'gpu_wheels.txt').read_text().splitlines()
  if line and not line.startswith('#')
]
# What the machine has, apart from the wheels.
INSTALLED = ('jax', 'flax', 'optax', 'orbax-checkpoint', 'scipy')
# Python runs this file when it starts. It hides packages, except in folders of PYTHONPATH.
HIDE = """
import os
import sys
from importlib.machinery import PathFinder

class Hidden(PathFinder):
  @classmethod
  def find_spec(cls, name, path=None, target=None):
    if name in {names}:
      path = os.environ['PYTHONPATH'].split(os.pathsep)
    return super().find_spec(name, path, target)

sys.meta_path[:] = [Hidden if finder is PathFinder else finder for finder in sys.meta_path]
"""


def normal(name):
  return re.sub(r'[-_.]+', '-', name).lower()


def with_requirements(names):
  """The names of packages, and of those that they require."""
  found, waiting = set(), [normal(name) for name in names]
  while waiting:
    name = waiting.pop()
    if name not in found:
      found.add(name)
      texts = importlib.metadata.requires(name) or []
      needed = [Requirement(text) for text in texts]
      waiting += [
        normal(r.name) for r in needed if r.marker is None or r.marker.evaluate({'extra': ''})
      ]
  return found


@pytest.fixture(scope='module')
def bare(tmp_path_factory):
  """Variables of processes that find only `INSTALLED`, and a folder of wheels."""
  folder, wheels = tmp_path_factory.mktemp('bare'), tmp_path_factory.mktemp('wheels')
  allowed = with_requirements(INSTALLED)
  hidden = {
    name
    for name, distributions in importlib.metadata.packages_distributions().items()
    if name != 't2x' and not allowed & set(map(normal, distributions))
  }
  assert {'gin', 'jaxtyping', 'filelock', 'tensorboardX', 'sentencepiece', 'sacrebleu'} <= hidden
  code = HIDE.format(names=hidden)
  (folder / 'sitecustomize.py').write_text(code)
  for requirement in REQUIREMENTS:
    wheel(importlib.metadata.distribution(requirement.name), wheels)
  variables = {name: value for name, value in os.environ.items() if not name.startswith('JAX_')}
  return variables | {'PYTHONPATH': str(folder), 'JAX_PLATFORMS': 'cpu'}, wheels


def wheel(distribution, folder):
  """Writes the installed files of a package as a wheel."""
  name = f'{distribution.name}-{distribution.version}-py3-none-any.whl'
  with zipfile.ZipFile(folder / name, 'w') as file:
    for path in distribution.files:
      if '..' not in path.parts and path.suffix != '.pyc':
        file.write(path.locate(), str(path))


def run(variables, *arguments):
  command = [sys.executable, str(FOLDER / 'gpu.py'), *map(str, arguments)]
  return subprocess.run(command, env=variables, capture_output=True, text=True, check=False)


def rows_of(folder):
  (lines,), (table,) = folder.glob('*.jsonl'), folder.glob('*.md')
  rows = [json.loads(line) for line in lines.read_text().splitlines()]
  assert table.read_text().count('\n| ') >= len(rows)
  return rows


@pytest.mark.nightly
@pytest.mark.timeout(5400)
def test_all_sections_run_in_an_environment_without_other_packages(bare, tmp_path):
  variables, wheels = bare
  done = run(variables, '--smoke', '--wheels', wheels, '--out', tmp_path)
  assert done.returncode == 0, done.stdout + done.stderr
  rows = rows_of(tmp_path)
  for row in rows:
    assert {'gpu', 'driver', 'cudnn', 'jax', 'jaxlib', 'sm_mhz', 'max_sm_mhz'} <= row.keys()
    assert {'power_limit_watts', 'repeats'} <= row.keys()
  by_section = {}
  for row in rows:
    by_section.setdefault(row['section'], []).append(row)
  assert list(by_section) == ['resume', 'sweep', 'overhead', 'sizes', 'profile', 'parts']
  trained, *killed = by_section['resume']
  assert trained['steps'] == 400
  for row in killed:
    assert row['result'] == 'ok'
    assert 0 < row['resumed_from'] < row['killed_at'] < 400
    assert row['batches_compared'] == 400 and row['batches_differ'] == 0
    # On a CPU all operations are deterministic.
    assert row['bitwise_equal'] == row['steps_compared'] == 400 - row['resumed_from']
  cost, *variants = by_section['sweep']
  assert cost['repeats'] == 12 and cost['trials_per_hour'] > 0 and cost['together'] == 3
  verdicts = [row['verdict'] for row in variants]
  assert verdicts[0] == 'baseline' and set(verdicts[1:]) <= set(typing.get_args(Verdict))
  assert [row['repeats'] for row in variants] == [3] * 4
  bare_step, *loops = by_section['overhead']
  assert bare_step['what'] == 'bare step' and len(loops) == 3
  assert [bool(row['checkpoint_blocks']) for row in loops] == [True, False, False]
  size, torch = by_section['sizes']
  # 6 N + attention is what t2x counts in the program.
  assert size['flops_per_token'] == size['counted_flops']
  first, last = map(float, size['losses'].split(' to '))
  assert last < first and torch['what'] == 'left out: torch is not installed'
  assert len(by_section['profile']) == 31
  groups = {row['group'] for row in by_section['parts']}
  assert groups == {'generation', 'experts', 'attention', 'sums'}
  results = [row['result'] for row in by_section['parts'] if 'result' in row]
  assert {text.partition(':')[0] for text in results} == {'ok', 'refused'}


def test_t2x_trains_and_sweeps_with_these_packages_only(bare, tmp_path):
  """A package that a start imports, and no section needs, would be one more wheel."""
  variables, wheels = bare
  for path in wheels.glob('*.whl'):
    with zipfile.ZipFile(path) as file:
      file.extractall(tmp_path)
  path = os.pathsep.join([variables['PYTHONPATH'], str(tmp_path), str(ROOT)])
  code = (
    'import t2x.cli, t2x.loaded, t2x.sweeps.run, t2x.sweeps.report, t2x.train, t2x.decode, t2x.plan'
  )
  command = [sys.executable, '-c', code]
  done = subprocess.run(command, env=variables | {'PYTHONPATH': path}, capture_output=True)
  assert done.returncode == 0, done.stderr.decode()


def test_wheels_are_those_of_the_project():
  project = tomllib.loads((ROOT / 'pyproject.toml').read_text())['project']['dependencies']
  ranges = {normal(r.name): r.specifier for r in map(Requirement, project)}
  own = {normal(r.name): r.specifier for r in REQUIREMENTS}
  (other,) = own.keys() - ranges.keys()
  assert other in with_requirements(['jaxtyping'])
  assert {name: own[name] for name in own if name != other} == {
    name: ranges[name] for name in own if name != other
  }


def test_what_does_not_fit_into_the_time_is_a_row(tmp_path):
  done = run(os.environ, '--smoke', '--minutes', '0', '--out', tmp_path)
  assert done.returncode == 0, done.stderr
  rows = rows_of(tmp_path)
  assert all('does not fit into the time' in row['what'] for row in rows)
  sections = [row['section'] for row in rows]
  assert sections == ['resume', 'sweep', 'overhead', 'sizes', 'sizes', 'profile', 'parts']


def test_a_machine_without_a_gpu_is_refused(tmp_path):
  done = run(os.environ | {'PATH': ''}, '--out', tmp_path)
  assert done.returncode == 2
  assert done.stderr == 'gpu.py: nvidia-smi shows no GPU; --smoke runs on a CPU\n'
  assert not list(tmp_path.iterdir())


def test_missing_packages_are_refused_with_the_command_that_gets_them(bare, tmp_path):
  code = "import gpu, importlib.metadata; gpu.missing = lambda path: ['gin-config']; gpu.main()"
  command = [sys.executable, '-c', f'import sys; sys.argv += ["--smoke"]; {code}']
  variables = os.environ | {'PYTHONPATH': str(FOLDER)}
  done = subprocess.run(command, env=variables, capture_output=True, text=True, cwd=tmp_path)
  assert done.stderr.startswith('gpu.py: not installed: gin-config. Where there is internet: pip')
  empty = run(os.environ, '--smoke', '--wheels', tmp_path)
  assert empty.returncode == 2
  assert empty.stderr == f'gpu.py: --wheels {tmp_path}: there are no files *.whl\n'


@pytest.fixture
def gpu(monkeypatch):
  """The modules of the benchmark."""
  monkeypatch.syspath_prepend(str(FOLDER))
  import gpu
  import gpu_machine
  import gpu_runs

  return gpu, gpu_machine, gpu_runs


def test_packages_are_found_in_wheels(gpu, bare, tmp_path):
  _, machine, _ = gpu
  names = [requirement.name for requirement in REQUIREMENTS]
  assert machine.missing([str(tmp_path)]) == names
  machine.unpack(bare[1], tmp_path)
  assert machine.missing([str(tmp_path)]) == []


FAKE = """#!/bin/sh
case "$*" in
  *utilization*) echo '1755, [N/A], 97' ;;
  *-i\\ 3*) echo 'NVIDIA H100 80GB HBM3, 580.1, 700.00, 1980, 2619' ;;
  *) exit 6 ;;
esac
"""


def test_a_row_names_gpu_driver_clocks_and_power_limit(gpu, tmp_path, monkeypatch):
  _, machine, _ = gpu
  (tmp_path / 'nvidia-smi').write_text(FAKE)
  (tmp_path / 'nvidia-smi').chmod(0o755)
  monkeypatch.setenv('PATH', f'{tmp_path}:{os.environ["PATH"]}')
  monkeypatch.setenv('CUDA_VISIBLE_DEVICES', '7')
  assert machine.first_gpu() is None
  monkeypatch.setenv('CUDA_VISIBLE_DEVICES', '3,4')
  assert machine.first_gpu() == '3'
  row = machine.machine('3')
  assert row['gpu'] == 'NVIDIA H100 80GB HBM3' and row['driver'] == '580.1'
  assert row['power_limit_watts'] == '700.00' and row['max_sm_mhz'] == '1980'
  assert row['jax'] == importlib.metadata.version('jax')
  monkeypatch.setattr(machine, 'SECONDS_BETWEEN_SAMPLES', 0.01)
  clocks = machine.Clocks('3')
  deadline = time.monotonic() + 60
  while not clocks._samples and time.monotonic() < deadline:
    time.sleep(0.01)
  assert clocks.row() == {'sm_mhz': 1755.0, 'power_watts': None}
  clocks.close()
  assert machine.Clocks(None).row() == {'sm_mhz': None, 'power_watts': None}


def test_a_part_out_of_time_is_killed_with_the_processes_that_it_started(
  gpu, tmp_path, monkeypatch
):
  gpu, _, _ = gpu
  script = tmp_path / 'part.py'
  script.write_text(
    f'import subprocess\np = subprocess.Popen(["sleep", "600"])\n'
    f'open({str(tmp_path / "pid")!r}, "w").write(str(p.pid))\n'
    'print(\'ROW {"what": "first"}\', flush=True)\np.wait()\n'
  )
  monkeypatch.setattr(gpu, '__file__', str(script))
  monkeypatch.setenv('PYTHONPATH', '')
  rows = []
  reason = gpu.in_process('part', True, 3, tmp_path, lambda **row: rows.append(row))
  assert reason == 'not finished: the time is up' and rows == [{'what': 'first'}]
  pid = int((tmp_path / 'pid').read_text())
  state = Path(f'/proc/{pid}/stat')
  assert not state.exists() or state.read_text().split()[2] == 'Z'


def test_a_part_that_fails_is_a_reason(gpu, tmp_path, monkeypatch):
  monkeypatch.setenv('PYTHONPATH', str(ROOT))
  reason = gpu[0].in_process('no such part', False, 300, tmp_path, lambda **row: None)
  assert reason.startswith('failed with exit code 1: KeyError')


def stored(folder, losses, batches, killed=None):
  """Files of a run: its losses and the digests of its batches by step."""

  def metrics(path, losses):
    lines = [
      {'step': step, 'split': 'train', 'loss': loss, 'mfu': time.time(), **digest(batches[step])}
      for step, loss in losses.items()
    ]
    path.write_text(''.join(json.dumps(line) + '\n' for line in lines))

  folder.mkdir()
  metrics(folder / 'metrics.jsonl', losses)
  if killed is not None:
    metrics(folder.with_suffix('.killed'), killed)
  folder.with_suffix('.log').write_text('')
  return folder


def digest(number):
  return {'batch_high': 7.0, 'batch_low': float(number)}


LOSSES = {step: 5.0 - 0.1 * step for step in range(1, 9)}
BATCHES = {step: 100 + step for step in LOSSES}


def comparison(runs, folder, losses=LOSSES, batches=BATCHES, second=None):
  """Compares a run that was killed at step 5 and resumed from step 3 with one or two others."""
  killed = {step: LOSSES[step] for step in range(1, 6)}

  def run(path, **settings):
    return runs.Run(path, (), {}, False, **settings)

  resumed = stored(folder / 'killed', losses, batches, killed)
  others = [run(stored(folder / 'first', LOSSES, BATCHES))]
  if second is not None:
    others.append(run(stored(folder / 'second', second, BATCHES)))
  return runs.compared(run(resumed, killed_at=5, resumed_from=3), *others)


def test_an_equal_resumed_run_is_ok(gpu, tmp_path):
  row = comparison(gpu[2], tmp_path)
  assert row['result'] == 'ok' and not gpu[0].wrong(row)
  assert row['steps_compared'] == row['bitwise_equal'] == 5
  assert row['batches_compared'] == 8 and row['batches_differ'] == 0
  assert row['steps_trained_twice'] == '2 of 2 bitwise equal'


def test_another_batch_after_a_resume_is_wrong(gpu, tmp_path):
  second = {step: loss + 1e-4 for step, loss in LOSSES.items()}
  row = comparison(gpu[2], tmp_path, batches=BATCHES | {6: 107}, second=second)
  assert row['batches_differ'] == 1 and row['result'] == 'WRONG' and gpu[0].wrong(row)


def test_another_loss_is_wrong_with_deterministic_operations(gpu, tmp_path):
  row = comparison(gpu[2], tmp_path, losses=LOSSES | {7: np.nextafter(LOSSES[7], 9)})
  assert row['bitwise_equal'] == 4 and row['result'] == 'WRONG'


def test_losses_may_differ_as_those_of_two_uninterrupted_runs(gpu, tmp_path):
  second = {step: loss + 1e-4 for step, loss in LOSSES.items()}
  near = {step: loss + 5e-5 * (step > 3) for step, loss in LOSSES.items()}
  row = comparison(gpu[2], tmp_path, losses=near, second=second)
  assert row['result'] == 'ok' and row['difference_of_two_uninterrupted'] == '1.00e-04'
  (tmp_path / 'far').mkdir()
  far = {step: loss + 5e-4 * (step > 3) for step, loss in LOSSES.items()}
  row = comparison(gpu[2], tmp_path / 'far', losses=far, second=second)
  assert row['result'] == 'farther than two uninterrupted runs'


def test_a_run_that_was_not_killed_proves_nothing(gpu, tmp_path):
  runs = gpu[2]
  run = runs.Run(stored(tmp_path / 'run', LOSSES, BATCHES), (), {}, False)
  row = runs.compared(run, run)
  assert row['result'].startswith('not killed') and gpu[0].wrong(row)


def test_the_digest_of_a_batch_is_that_of_its_values_and_their_order(monkeypatch):
  monkeypatch.syspath_prepend(str(FOLDER / 'configs'))
  import recorded_batches

  def expected(batch):
    total = 0
    for i, value in enumerate(v for name in sorted(batch) for v in batch[name].ravel().tolist()):
      x = (value * 0x85EBCA6B + i + 1) % 2**32
      for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        x = (x ^ (x >> shift)) * factor % 2**32
      total += x ^ (x >> 16)
    return total % 2**32

  rng = np.random.default_rng(0)
  batch = {name: rng.integers(0, 261, (4, 32)).astype(np.int32) for name in ('tokens', 'segments')}
  found = int(recorded_batches.digest(batch))
  assert found == expected(batch)
  swapped = batch | {'tokens': batch['tokens'][::-1]}
  assert int(recorded_batches.digest(swapped)) == expected(swapped) != found
