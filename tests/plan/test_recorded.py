"""Plans of the sizes that were trained on one H100 against the record, experiments/speed/results/h100.md."""

import functools
import sys

import pytest

from t2x.experiments import read_experiment
from t2x.plan import DEVICES
from t2x.plan.cost import nearest_recorded, step_time
from t2x.plan.footprint import footprint
from t2x.plan.hardware import RECORDED
from t2x.plan.planner import FIT_MARGIN, Planner, no_time
from t2x.train import Program
from tests.plan.tiny import FILES, ROOT, SETTINGS

sys.path.append(str(ROOT / 'experiments' / 'speed'))

from gpu_models import SIZES, experiment_of

H100 = DEVICES['h100']
RECORD = ROOT / 'experiments' / 'speed' / 'results' / 'h100.md'


def rows(part):
  """Rows of steps in the sections of the record with this name, the last section first."""
  sections = RECORD.read_text().split('# Before\n')[0].split('\n## ')
  for section in reversed(sections):
    if section.splitlines()[0] == part:
      lines = [line.strip('| ').split(' | ') for line in section.splitlines() if line[:1] == '|']
      steps = [line for line in lines if 'one batch' in line[0]]
      yield from (dict(zip(lines[0], line, strict=True)) for line in steps)


def row(name):
  """The row of the second machine, which ran all sizes."""
  return [*rows(f'train {name}')][1 if name == '124M' else 0]


@functools.cache
def traced(name):
  experiment = experiment_of(SIZES[name], num_steps=10)
  program = Program(experiment, mesh=experiment.mesh.abstract(1))
  return program, footprint(program, 'gpu')


def test_the_recorded_steps_are_those_of_the_record():
  for run in RECORDED:
    one = next(rows(f'experts {run.name}')) if run.experts else row(run.name)
    assert run.mfu == float(one['mfu'])
    assert run.flops == float(one['counted_flops'])


@pytest.mark.parametrize('name', SIZES)
def test_memory_is_that_of_the_record(name):
  _, traces = traced(name)
  assert traces.total == pytest.approx(1e9 * float(row(name)['gigabytes']), rel=FIT_MARGIN)


@pytest.mark.parametrize('name', SIZES)
def test_each_recorded_time_is_estimated_from_the_other_sizes(name):
  program, traces = traced(name)
  others = [run for run in RECORDED if run.name != name]
  nearest = nearest_recorded(program.flops.visible, False, others)
  time = step_time(traces.flops, nearest.mfu, [], H100, {'data': 1})
  assert 1e3 * time.estimate == pytest.approx(float(row(name)['milliseconds']), rel=0.3)


def test_the_plan_of_files_has_the_memory_and_the_time_of_the_record():
  base = Planner(FILES, (), 1, H100).base
  packed = next(rows('packed 124M'))
  assert base.footprint.total == pytest.approx(1e9 * float(packed['gigabytes']), rel=FIT_MARGIN)
  assert 1e3 * base.time.estimate == pytest.approx(float(packed['milliseconds']), rel=0.3)


def test_the_program_of_a_gpu_is_traced_on_any_machine():
  """With the kernels and loops of CPUs, memory was 74 to 96 % above the record."""
  program, traces = traced('124M')
  assert footprint(program, 'cpu').total > 1.5 * traces.total


def test_recomputed_layers_save_as_much_unrolled_as_in_a_loop():
  """The input of each layer, not the products whose sum it is."""
  saved = []
  for unroll in (1, 12):
    settings = [f'Stack.unroll={unroll}', "Stack.remat='full'"]
    experiment = read_experiment(FILES, settings)
    saved.append(footprint(Program(experiment, mesh=experiment.mesh.abstract(1)), 'gpu').saved)
  assert saved[1] == pytest.approx(saved[0], rel=0.05)


def test_models_that_are_much_smaller_than_the_recorded_ones_have_no_time():
  program = Program(read_experiment(FILES, SETTINGS))
  assert 'too small to estimate' in no_time(program)
  assert no_time(traced('124M')[0]) is None


def test_mixtures_of_experts_have_a_record_of_their_own():
  assert nearest_recorded(1e12, experts=True).mfu == 0.215
  assert nearest_recorded(1e12, experts=False).name == '1.3B'
