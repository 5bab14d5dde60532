"""On eight fake devices (a separate process): a run with frozen layers trains as on one device, and its
parameters are read onto another mesh; a student learns from it as on one device."""

import pytest
from eight_devices import ROOT, run_on_eight_devices

SCRIPT = """
import sys
from pathlib import Path

import jax
import numpy as np

from t2x.experiments import read_config
from t2x.parallel import check_shardings
from t2x.train import TrainingRun
from t2x.train.evaluation import saved_params

folder = Path(sys.argv[1])
(folder / 'text.txt').write_text('the cat sees the dog. ' * 400)
(folder / 'run.gin').write_text(f'''
include '{sys.argv[2]}/configs/models/small_decoder.gin'
d_model = 16
num_layers = 4
vocab_size = 264
MLP.hidden_dim = 32
MultiHeadAttention.num_heads = 2
Experiment.task = @CausalLM()
CausalLM:
  source = @TextFiles()
  tokenizer = @Bytes()
  length = 16
TextFiles.train = '{folder}/text.txt'
TextFiles.validation = '{folder}/text.txt'
Experiment.trainer = @Trainer()
Trainer:
  num_steps = 10
  batch_size = 8
  accumulate = 2
  ema_decay = 0.9
  schedule = @Constant()
  groups = [@first/Group(), @table/Group(), @rest/Group()]
Constant.peak = 1e-2
first/Group.match = '.*stack.*'
first/Group.layers = (1, 3)
first/Group.frozen = True
table/Group.match = 'embedding.*'
table/Group.frozen = True
rest/Group.match = '.*stack.*'
rest/Group.rate = @LayerDecay()
LayerDecay.decay = 0.5
''')

(folder / 'student.gin').write_text(f'''
include '{folder}/run.gin'
Trainer.groups = [@table/Group()]
CausalLM.distillation = @Distillation()
Experiment.teacher = @Teacher()
Teacher.model = @teacher/LanguageModel
Teacher.init_from = @teacher/InitFrom()
teacher/InitFrom.run = '{folder}/run_single'
teacher/Stack.num_layers = 4
num_layers = 2
''')

def trained(mesh, config='run'):
  run = TrainingRun(read_config([folder / f'{config}.gin', mesh]).build(), folder / f'{config}_{mesh.stem}')
  batches, losses = run.batches(run.rows('train')), []
  (state, frozen), train_step = run.init(), run.program.train_step()
  for step in range(5):
    state, out = train_step(state, frozen, run.on_device(batches[step]))
    losses.append(out.loss)
  check_shardings(run.program.abstract, state)
  run.save(5, state, {})
  run.checkpoints.close()
  return run, losses, run.program.eval_params(state, frozen)

meshes = Path(sys.argv[2]) / 'configs' / 'meshes'
_, alone, _ = trained(meshes / 'single.gin')
run, losses, params = trained(meshes / 'fsdp_tensor.gin')
np.testing.assert_allclose(losses, alone, rtol=2e-6)
assert losses[-1] < losses[0]
name = 'body.stack.blocks.0.mixer.q.kernel'
first = run.program.init(0)[0].params[name]
assert first.shape[0] == 2 and run.program.frozen[name].shape[0] == 2
assert len(run.program.frozen['embedding.table'].sharding.device_set) == 8
for mesh in ('fsdp_tensor', 'single'):
  other = TrainingRun(read_config([folder / 'run.gin', meshes / f'{mesh}.gin']).build(), folder / 'run_fsdp_tensor')
  read, step = saved_params(other.program, other.checkpoints)[:2]
  assert step == 5
  for one, wanted in other.program.params_abstract().items():
    assert read[one].sharding.is_equivalent_to(wanted.sharding, wanted.ndim), one
    np.testing.assert_array_equal(np.asarray(read[one]), np.asarray(params[one]), one)
  state, frozen, _ = other.restore()
  np.testing.assert_array_equal(frozen['embedding.table'], params['embedding.table'])
_, alone, _ = trained(meshes / 'single.gin', 'student')
run, losses, _ = trained(meshes / 'fsdp_tensor.gin', 'student')
np.testing.assert_allclose(losses, alone, rtol=2e-6)
teacher = TrainingRun(read_config([folder / 'run.gin', meshes / 'single.gin']).build(), folder / 'run_single')
expected, _ = saved_params(teacher.program, teacher.checkpoints)[:2]
_, frozen, _ = run.restore()
assert frozen.keys() == {'embedding.table', *(f'teacher.{one}' for one in expected)}
for one, array in expected.items():
  np.testing.assert_array_equal(frozen[f'teacher.{one}'], array, one)
kernel = frozen[f'teacher.{name}']
assert kernel.addressable_shards[0].data.size < kernel.size
"""


@pytest.mark.nightly
@pytest.mark.slow
def test_frozen_layers_and_a_teacher_on_eight_devices_equal_one_device_and_are_read_onto_another_mesh(
  tmp_path,
):
  run_on_eight_devices(SCRIPT, tmp_path, ROOT, T2X_CACHE=str(tmp_path / 'cache'))
