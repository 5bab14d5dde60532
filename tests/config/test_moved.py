"""Settings that have moved: refused in configs with the new lines, converted in stored runs."""

import json

import pytest

from t2x import config as config_lib
from t2x.base.errors import UserError
from t2x.config.settings import RESOLVED
from t2x.experiments import changed_settings, read_config, read_run_config, record_run

TEXT = """
Experiment.model = @LanguageModel
LanguageModel:
  d_model = 8
  body = @Decoder
Decoder.stack = @Stack
Stack:
  num_layers = 1
  blocks = [@Block]
Block.mixer = @MultiHeadAttention
MultiHeadAttention.num_heads = 2
MLP.hidden_dim = 4
TokenEmbedding.vocab_size = 5
"""
JOINT = 'MultiHeadAttention.joint_qk_norm = @RMSNorm\nRMSNorm.epsilon = 1e-5\n'
TODAY = """MultiHeadAttention.qk_norm = @JointNorm
JointNorm.norm = @RMSNorm
RMSNorm.epsilon = 1e-5
"""


@pytest.fixture
def write(tmp_path):
  def written(text, name='own.gin'):
    (tmp_path / name).write_text(TEXT + text)
    return tmp_path / name

  return written


@pytest.mark.parametrize(
  ('line', 'instead'),
  [
    (
      'MultiHeadAttention.joint_qk_norm = @RMSNorm',
      '`MultiHeadAttention.qk_norm = @JointNorm` and `JointNorm.norm = @RMSNorm`',
    ),
    (
      "decoder/MultiHeadAttention.head_norms = {'k': @PerHead}",
      "`decoder/MultiHeadAttention.qk_norm = {'k': @PerHead}`",
    ),
    ('Trainer.failed_saves = 3', '`Trainer.max_failed_saves = 3`'),
  ],
)
def test_a_moved_setting_is_refused_in_one_line_with_the_new_lines(write, line, instead):
  file = write(line + '\n')
  with pytest.raises(UserError) as raised:
    read_config([file])
  (message,) = str(raised.value).splitlines()
  assert message == f'{file}:14: {line.partition(" =")[0]} has moved: write {instead} instead'


def test_a_moved_setting_with_its_default_is_refused_with_the_advice_to_remove_it(write):
  line = 'MultiHeadAttention.joint_qk_norm'
  with pytest.raises(
    UserError, match=f'{line} has moved: remove this line, which sets the default$'
  ):
    read_config([write(f'{line} = None\n')])


def test_the_config_of_a_stored_run_is_that_of_the_new_lines(write, tmp_path):
  write(JOINT, 'config.gin')
  stored, today = read_run_config(tmp_path), read_config([write(TODAY)])
  assert config_lib.diff(stored, today) == []
  assert config_lib.identity(stored) == config_lib.identity(today)
  assert 'joint_qk_norm' not in config_lib.render(stored)
  assert config_lib.render(stored) == config_lib.render(today)


def test_none_the_default_of_a_moved_setting_is_left_out(write, tmp_path):
  write('MultiHeadAttention.joint_qk_norm = None\n', 'config.gin')
  assert config_lib.diff(read_run_config(tmp_path), read_config([write('')])) == []


def test_a_run_resumes_whose_recorded_settings_have_moved(write, tmp_path):
  file, today = write(JOINT, 'config.gin'), read_config([write(TODAY)])
  record_run(tmp_path, today, {})
  content = json.loads((tmp_path / RESOLVED).read_text())
  text = json.dumps(content).replace('"qk_norm"', '"joint_qk_norm"')
  (tmp_path / RESOLVED).write_text(text)
  assert changed_settings(today, dict, file) == []
  assert changed_settings(read_config([write('')]), dict, file)


def test_a_renamed_setting_keeps_the_identity_and_the_settings_of_a_run(write, tmp_path):
  trainer = 'Experiment.trainer = @Trainer()\nTrainer:\n  num_steps = 2\n  batch_size = 2\n  optimizer = @AdamW()\n'
  today = read_config([write(f'{trainer}Trainer.max_failed_saves = 3\n')])
  # The identity of the same config at c8ae56e8, which had the former name.
  assert config_lib.identity(today) == '36a122967552'
  record_run(tmp_path, today, {})
  path = tmp_path / RESOLVED
  path.write_text(path.read_text().replace('max_failed_saves', 'failed_saves'))
  file = write(f'{trainer}Trainer.failed_saves = 3\n', 'config.gin')
  assert config_lib.diff(read_run_config(tmp_path), today) == []
  assert changed_settings(today, dict, file) == []
  (line,) = changed_settings(read_config([write(trainer)]), dict, file)
  assert line == 'Experiment.trainer.max_failed_saves: 3 -> 0'


def test_settings_of_any_name_are_read_as_they_were_recorded(tmp_path):
  inner = {'part': 'own.Inner', 'built': False, 'values': {'part': "'x'"}, 'own': []}
  values = {'part': inner, 'own': '1', 'values': {'list': [{'dict': [["'part'", '2']]}]}}
  settings = {'part': 'own.Outer', 'built': True, 'values': values, 'own': ['part']}
  config_lib.write_resolved(tmp_path, config_lib.Resolved(settings), {})
  assert config_lib.read_resolved(tmp_path).settings == settings
