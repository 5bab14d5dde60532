"""Equal configs have one identity, whatever says so; different ones have different identities."""

import dataclasses
import json
import re

import pytest

from t2x.base.errors import UserError
from t2x.base.hyperparameters import Hyperparameter
from t2x.base.json_files import Damaged
from t2x.config import (
  differences,
  hyperparameters,
  identity,
  load,
  read_resolved,
  resolved,
  write_resolved,
)

MODEL = """
  Experiment:
    model = @Model
  Model.d_model = 8
  Stack.num_layers = 2
  Attention.num_heads = 1
  MLP.hidden_dim = 4
"""


def test_files_macros_defaults_and_order_make_no_difference(read):
  same = [
    MODEL,
    MODEL.replace('= 8', '= %d') + '  d = 8\n',
    '  MLP.dropout_rate = 0.0\n' + MODEL,
    MODEL + '  MLP.activation = @gelu\n',
    MODEL.replace('  MLP.hidden', '  m/MLP.hidden').replace('= @Model', '= @m/Model'),
    '  MLP.hidden_dim = 4\n' + MODEL.replace('  MLP.hidden_dim = 4\n', ''),
  ]
  assert len({identity(read(text)) for text in same}) == 1


@pytest.mark.parametrize(
  'override',
  ['Model.d_model=9', 'MLP.dropout_rate=0.1', 'MLP.activation=@relu', 'Experiment.name=a'],
)
def test_a_new_value_changes_the_identity(read, override):
  assert identity(read(MODEL)) != identity(read(MODEL, override))


def test_an_omitted_value_does_not_change_the_identity(read):
  configs = [
    read(
      MODEL + f'  Experiment.trainer = @Trainer()\n  Trainer.num_steps = 5\n  Trainer.seed = {i}\n'
    )
    for i in range(2)
  ]
  assert identity(configs[0]) != identity(configs[1])
  assert len({identity(config, without=['Trainer.seed']) for config in configs}) == 1


def test_a_setting_at_its_default_is_not_part_of_the_identity(read):
  """A new one therefore changes no identity, and a default may be part of it if an earlier one was another."""
  config, path = read(MODEL), 'Experiment.model.encoder.blocks[0].feed_forward.dropout_rate'
  restated = identity(config, restated=[path])
  assert restated != identity(config)
  bound = read(MODEL, 'MLP.dropout_rate=0.1')
  assert identity(bound) == identity(bound, restated=[path]) != restated


def test_settings_are_compared_with_those_of_a_run(read, tmp_path):
  config = read(MODEL + "  Experiment.extra = {'a': [@Window(), (1, 'b\\n')]}\n  Window.size = 3\n")
  write_resolved(tmp_path, resolved(config), {})
  before = read_resolved(tmp_path)
  assert differences(before, resolved(config)) == []
  after = resolved(read(MODEL, 'MLP.hidden_dim=5'))
  assert differences(before, after) == [
    ('Experiment.model.encoder.blocks[0].feed_forward.hidden_dim', '4', '5'),
    ('Experiment.extra', "{'a': [@Window(), (1, 'b\\n')]}", 'None'),
  ]
  assert read_resolved(tmp_path / 'other') is None


def test_a_setting_that_one_side_lacks_is_a_difference_unless_it_has_its_default(read):
  now = resolved(read(MODEL, 'MLP.dropout_rate=0.1'))
  before = json.loads(json.dumps(dataclasses.asdict(now)))
  block = before['settings']['values']['model']['values']['encoder']['values']['blocks']['tuple'][0]
  layer = block['values']['feed_forward']
  # Neither had a version of before.
  del layer['values']['init'], layer['values']['dropout_rate']
  layer['own'].remove('dropout_rate')
  path = 'Experiment.model.encoder.blocks[0].feed_forward.dropout_rate'
  side = dataclasses.replace(now, settings=before['settings'])
  assert differences(side, now) == [(path, '(not set)', '0.1')]
  assert differences(now, side) == [(path, '0.1', '(not set)')]


def test_the_settings_of_a_default_that_is_a_partial_function_count(read):
  config = read('Experiment.extra = @PresetBlock\nMLP.hidden_dim = 2\n')
  tree = resolved(config).settings['values']['extra']['values']['mixer']
  assert tree['values']['num_heads'] == '3' and tree['own'] == []


@pytest.mark.parametrize(
  'change', ['1', '[]', '{"part": "x"}', '{"list": [1]}', '{"dict": [["a"]]}']
)
def test_damaged_settings_of_a_run_are_an_error(read, tmp_path, change):
  write_resolved(tmp_path, resolved(read(MODEL)), {})
  path = tmp_path / 'resolved.json'
  content = json.loads(path.read_text())
  content['settings']['values']['name'] = json.loads(change)
  path.write_text(json.dumps(content))
  with pytest.raises(Damaged, match=r'resolved\.json is damaged: '):
    read_resolved(tmp_path)


def test_a_part_that_replaces_another_may_leave_its_bindings_unused(read, tmp_path):
  assert read(MODEL).notes() == []
  override = ['Block.feed_forward=@GatedMLP', 'GatedMLP.hidden_dim=4']
  files = [tmp_path / 'x.gin']
  outer = tmp_path / 'outer.gin'
  for how in (
    load(files, override, ['fake_parts']),
    load(files, override, ['fake_parts'], base=load(files, (), ['fake_parts'])),
  ):
    assert how.build()
  outer.write_text("include 'x.gin'\n" + '\n'.join(override).replace('=', ' = '))
  config = load([outer], [], ['fake_parts'])
  assert config.build() and {one.target for one in config.replaced} == {'MLP.hidden_dim'}
  assert re.fullmatch(
    r'not used, because their parts were replaced: MLP\.hidden_dim \(.*x\.gin:\d+\)',
    config.notes()[0],
  )


def test_a_binding_unused_by_earlier_files_is_an_error(read, tmp_path):
  read(MODEL)
  files = [tmp_path / 'x.gin']
  # What replaces a part and what sets it stand in one place: one of them is a mistake.
  override = ['Block.feed_forward=@GatedMLP', 'GatedMLP.hidden_dim=4', 'MLP.hidden_dim=4']
  with pytest.raises(UserError, match=r'^command line: nothing uses MLP\.hidden_dim: [^\n]*$'):
    load(files, override, ['fake_parts'])
  with pytest.raises(UserError, match=r'nothing uses Window\.size'):
    load(files, ['Window.size=3'], ['fake_parts'], base=load(files, (), ['fake_parts']))
  with pytest.raises(UserError, match=r'nothing uses Window\.size'):
    load(files, ['Window.size=3'], ['fake_parts'])


def test_hyperparameters_are_the_annotated_parameters_that_are_not_zero(read):
  text = MODEL.replace('model = @Model', 'model = @Model\n    extra = [@Constant(), @d/MLP]')
  text += '  d/MLP.hidden_dim = 2\n  MLP.dropout_rate = 1e-1\n  Constant.value = 0.3\n'
  assert hyperparameters(read(text)) == {'MLP.dropout_rate': 0.1, 'd/MLP.dropout_rate': 0.1}
  assert hyperparameters(read(text, 'd/MLP.dropout_rate=0')) == {'MLP.dropout_rate': 0.1}


def test_a_parameter_is_built_as_a_reference_to_the_hyperparameter(read):
  text = MODEL.replace('model = @Model', 'model = @Model\n    extra = [@MLP, @d/MLP]')
  config = read(text + '  MLP.dropout_rate = 0.1\n')
  rates = [part.keywords['dropout_rate'] for part in config.build(['MLP.dropout_rate']).extra]
  assert rates == [Hyperparameter('MLP.dropout_rate'), 0.1]


def test_an_annotation_with_a_hyperparameter_takes_numbers_in_its_range(read, errors):
  for value, message in (('1', 'at least 0 and below 1, got 1'), ("'a'", "a number, got 'a'")):
    (line,) = errors(MODEL, f'MLP.dropout_rate={value}')
    assert line == f'command line: MLP.dropout_rate must be {message}'
