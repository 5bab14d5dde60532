"""A student learns from a teacher, through the command line."""

import json
import shutil

import numpy as np
import pytest

from t2x.data import BPE
from t2x.experiments import read_config
from t2x.train import TrainingRun
from t2x.train.checkpoints.saved_params import SavedParams
from t2x.train.evaluation import saved_params

SHORT = """
Experiment.evaluations = {}
Trainer:
  num_steps = 4
  log_every = 1
  eval_every = 2
  checkpoint_every = 0
"""

STUDENT = """
Experiment.teacher = @Teacher()
Teacher:
  model = @teacher/{model}
  init_from = @teacher/InitFrom()
teacher/InitFrom.run = '{run}'
teacher/{model}.d_model = 32
teacher/Stack.num_layers = 2
{task}.distillation = @Distillation()
Distillation.temperature = 3.0
d_model = 16
num_layers = 1
"""
CAUSAL = {'model': 'LanguageModel', 'task': 'CausalLM'}


@pytest.fixture(scope='module')
def ended(tmp_path_factory):
  """Where the teacher is kept for all tests of this file."""
  return tmp_path_factory.mktemp('ended')


@pytest.fixture
def teacher(ended, write_experiment, t2x):
  """The folder of a finished run that keeps a moving average."""
  folder = ended / 'teacher'
  if not folder.exists():
    config = write_experiment(ended, 'causal_lm', SHORT + 'Trainer.ema_decay = 0.5\n')
    code, _, err = t2x('train', config, '--out', folder)
    assert code == 0, err
  return folder


def lines_of(folder, split):
  lines = map(json.loads, (folder / 'metrics.jsonl').read_text().splitlines())
  return [line for line in lines if line['split'] == split]


def leaves_of(config, folder):
  """Frozen parameters, names of the trained ones, and the run."""
  run = TrainingRun(read_config([config]).build(), folder)
  state, frozen, _ = run.restore()
  return {name: np.asarray(array) for name, array in frozen.items()}, set(state.params), run


@pytest.mark.slow
def test_a_student_is_distilled_interrupted_resumed_and_evaluated_without_the_folder_of_its_teacher(
  teacher, ended, experiment, t2x, tmp_path, metrics, caplog
):
  moved = shutil.copytree(teacher, tmp_path / 'moved')
  config = experiment('causal_lm', SHORT + STUDENT.format(**CAUSAL, run=moved))
  code, out, err = t2x('check', config)
  assert code == 0, err
  assert 'teacher with ' in out and f'initialised from step 4 of {moved} (moving average)' in out
  folder = tmp_path / 'student'
  code, _, err = t2x('train', config, '--out', folder)
  assert code == 0, err
  assert all(line['distillation'] > 0 for line in lines_of(folder, 'train'))
  assert not any('distillation' in line for line in lines_of(folder, 'eval'))
  assert f'teacher: initialised from step 4 of {moved}' in caplog.text

  frozen, trained, run = leaves_of(config, folder)
  first = TrainingRun(read_config([ended / 'causal_lm.gin']).build(), teacher)
  whole, _, _ = saved_params(first.program, first.checkpoints)
  assert frozen.keys() == {f'teacher.{name}' for name in whole}
  for name, array in whole.items():
    np.testing.assert_array_equal(frozen[f'teacher.{name}'], array, err_msg=name)
  # Nothing else of the run knows of them.
  assert not any(name.startswith('teacher.') for name in trained)
  assert SavedParams(run.checkpoints, 4).shapes.keys() == run.program.blueprint.infos.keys()
  run.checkpoints.close()

  expected = metrics(folder)
  shutil.rmtree(folder / 'checkpoints' / '4')
  shutil.rmtree(moved)
  code, _, err = t2x('train', config, '--out', folder)
  assert code == 0, err
  assert metrics(folder) == expected
  again, _, run = leaves_of(config, folder)
  run.checkpoints.close()
  for name, array in frozen.items():
    np.testing.assert_array_equal(again[name], array, err_msg=name)
  code, out, err = t2x('eval', folder)
  assert code == 0, err
  assert f'{lines_of(folder, "eval")[-1]["loss"]:.6g}' in out


@pytest.mark.slow
def test_a_teacher_with_another_tokenizer_or_another_shape_is_refused_before_training(
  teacher, experiment, t2x, tmp_path
):
  moved = shutil.copytree(teacher, tmp_path / 'moved')
  shutil.rmtree(moved / 'tokenizer')
  BPE(261).train(['the cat sees the dog']).save(moved / 'tokenizer')
  config = experiment('causal_lm', SHORT + STUDENT.format(**CAUSAL, run=moved))
  code, _, err = t2x('train', config, '--out', tmp_path / 'student')
  assert code == 2
  assert f'Experiment.teacher: the tokenizer of {moved} differs from that of this run' in err
  for setting, message in (
    ('teacher/LanguageModel.d_model=24', 'is (261, 32) in the run but (261, 24) in the new model'),
    ("teacher/InitFrom.exclude=['embedding.*']", 'lacks 1 parameters (embedding.table: new (excl'),
  ):
    code, _, err = t2x('check', config, f'--gin.{setting}')
    assert code == 2 and 'Experiment.teacher: ' in err and message in err, err
  assert not (tmp_path / 'student' / 'checkpoints' / 'frozen').exists()


@pytest.mark.parametrize(
  ('name', 'more', 'message'),
  [
    ('causal_lm', 'CausalLM.distillation=None', 'CausalLM.distillation is not'),
    ('causal_lm', 'Experiment.teacher=None', 'Experiment.teacher is not'),
    ('causal_lm', 'teacher/TokenEmbedding.vocab_size=300', 'has 300 logits for each target'),
    (
      'image_classification',
      'teacher/Classifier.num_classes=12',
      'Experiment.teacher: the model has 12 classes',
    ),
  ],
)
def test_a_teacher_that_does_not_fit_is_refused_by_check_in_one_line(
  name, more, message, experiment, t2x
):
  parts = (
    CAUSAL if name == 'causal_lm' else {'model': 'VisionTransformer', 'task': 'ImageClassification'}
  )
  config = experiment(name, STUDENT.format(**parts, run='none'))
  code, _, err = t2x('check', config, f'--gin.{more}')
  assert code == 2 and 'Traceback' not in err
  assert message in err
  assert len([line for line in err.splitlines() if line]) == 1
