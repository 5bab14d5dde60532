"""The traced estimate against XLA's memory analysis of the compiled train step."""

import json
from pathlib import Path

import pytest
from eight_devices import run_on_eight_devices

from t2x.experiments import read_experiment
from t2x.plan import hlo
from t2x.plan.footprint import footprint
from t2x.plan.saved import saved_bytes
from t2x.train import Program
from tests.plan.tiny import FILES, FLOAT32, SETTINGS

TOLERANCE = 0.05
# Of the total with temporaries.
ESTIMATE = 0.1


@pytest.fixture(scope='module')
def single():
  """(traced, compiled) on one device."""
  program = Program(
    read_experiment(FILES, [*SETTINGS, FLOAT32, 'Mesh.num_devices=1', 'Experiment.mesh=@Mesh()'])
  )
  return footprint(program), program.lower_step().compile()


def test_the_arguments_of_the_step_are_counted(single):
  traced, compiled = single
  assert traced.arguments == compiled.memory_analysis().argument_size_in_bytes


def test_saved_activations_match_the_compiled_program(single):
  traced, compiled = single
  assert traced.saved == pytest.approx(saved_bytes(hlo.Program(compiled.as_text())), rel=TOLERANCE)


def test_temporaries_are_estimated(single):
  """In float32 and without a mesh, where the compiler for CPUs adds no conversions and copies."""
  traced, compiled = single
  memory = compiled.memory_analysis()
  total = memory.argument_size_in_bytes + memory.temp_size_in_bytes
  assert traced.total == pytest.approx(total, rel=ESTIMATE)


def test_the_products_of_the_step_match_the_compiled_program(single):
  traced, compiled = single
  assert traced.flops == hlo.Program(compiled.as_text()).flops()


@pytest.mark.parametrize('activation', ['gelu', pytest.param('relu', marks=pytest.mark.nightly)])
def test_saved_activations_of_unrolled_layers_match_the_compiled_program(activation):
  """Arrays of all layers are live one by one, and the compiler repeats cheap operations in the backward pass."""
  settings = ['Stack.unroll=4', f'MLP.activation=@{activation}', 'Experiment.mesh=@Mesh()']
  program = Program(read_experiment(FILES, [*SETTINGS, FLOAT32, *settings, 'Mesh.num_devices=1']))
  traced, compiled = footprint(program), program.lower_step().compile()
  saved = saved_bytes(hlo.Program(compiled.as_text()))
  assert traced.saved == pytest.approx(saved, rel=TOLERANCE)
  memory = compiled.memory_analysis()
  # The compiler for CPUs orders operations by concurrency: its temporaries are an upper bound.
  assert traced.total < memory.argument_size_in_bytes + memory.temp_size_in_bytes
  assert traced.flops == hlo.Program(compiled.as_text()).flops()


def test_the_parts_sum_to_the_total(single):
  traced, _ = single
  assert sum(traced.parts().values()) == traced.total


# Meshes, optimizers, rematerialisation policies, micro-batches, dtypes.
BFLOAT16 = "Trainer.compute_dtype='bfloat16'"
CASES = {
  'ddp': ('ddp', [FLOAT32]),
  'fsdp': ('fsdp', [FLOAT32]),
  'fsdp bfloat16': ('fsdp', [BFLOAT16]),
  'fsdp_tensor': ('fsdp_tensor', [FLOAT32]),
  'context': ('context', [FLOAT32]),
  'ring': ('context', [FLOAT32, 'CausalLM.length=1024', 'LearnedPositions.max_length=1024']),
  'experts': (
    'expert',
    [
      FLOAT32,
      'Block.feed_forward=@MixtureOfExperts',
      'MixtureOfExperts.num_experts=8',
      'MixtureOfExperts.expert=@MLP',
    ],
  ),
  'adafactor': ('fsdp', [FLOAT32, 'Trainer.optimizer=@Adafactor()']),
  'muon': ('fsdp', [FLOAT32, 'Trainer.optimizer=@Muon()']),
  'accumulate': ('fsdp', [FLOAT32, 'Trainer.accumulate=2']),
  'ema': ('single', [FLOAT32, 'Trainer.ema_decay=0.99']),
  'unrolled': ('fsdp', [FLOAT32, 'Stack.unroll=4']),
  'single accumulate': ('single', [BFLOAT16, 'Trainer.accumulate=4']),
  **{
    f'remat {name}': ('fsdp', [BFLOAT16, f"Stack.remat='{name}'"])
    for name in ('full', 'dots', 'dots_no_batch', 'attention', 'dots_no_batch+attention')
  },
}


@pytest.fixture(scope='module')
def compared():
  """Numbers of each case, compiled for eight fake devices in a process of its own."""
  script = Path(__file__).with_name('compare.py')
  done = run_on_eight_devices(script, input=json.dumps(CASES), seconds=1800)
  return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.nightly
@pytest.mark.timeout(1800)
@pytest.mark.parametrize('case', CASES)
def test_traced_and_compiled_agree_on_every_layout(compared, case, add_row):
  traced, compiled = compared[case]['traced'], compared[case]['compiled']
  add_row(
    'traced / compiled', case, {name: f'{traced[name] / compiled[name]:.3f}' for name in traced}
  )
  assert traced['arguments'] == pytest.approx(compiled['arguments'], rel=TOLERANCE)
  assert traced['saved'] == pytest.approx(compiled['saved'], rel=TOLERANCE)
  if case != 'ring':  # Compiled, all tiles are counted.
    # A part of attention over split rows is computed by each device.
    limit = 0.1 if case == 'context' else 1e-9
    assert traced['flops'] == pytest.approx(compiled['flops'], rel=limit)
