"""`t2x convert` of folders that others wrote: refused with the file and the field, and nothing is left."""

import json
import os

import hub_folders
import numpy as np
import pytest
import tiny_models

from t2x.interop.safetensors import read_tensors, write_tensors


@pytest.fixture
def folder(tmp_path):
  """A tiny GPT-2 without tokenizer."""
  tiny_models.write_folder(tmp_path / 'theirs', 'gpt2')
  return tmp_path / 'theirs'


@pytest.fixture
def refused(folder, t2x, tmp_path):
  """`refused(*parts)`: the import ends with exit code 2 and one message that holds the parts."""

  def check(*parts):
    code, out, err = t2x('convert', 'import', folder, '--out', tmp_path / 'run')
    assert code == 2, err
    assert out == ''
    assert 'Traceback' not in err
    assert 'model.gin' not in err
    assert str(folder) in err
    for part in parts:
      assert part in err
    assert sorted(path.name for path in tmp_path.iterdir()) == ['theirs']

  return check


def change(path, **fields):
  path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def test_a_value_cannot_bring_statements_of_its_own(folder, refused, tmp_path, monkeypatch):
  (tmp_path / 'theirs' / 'modeling_evil.py').write_text(f"open('{tmp_path}/ran', 'w')")
  evil = f'1e-5\n# modules in: {folder}\nimport modeling_evil'
  change(folder / 'config.json', layer_norm_epsilon=evil)
  refused('config.json: layer_norm_epsilon = ')
  change(folder / 'config.json', layer_norm_epsilon=1e-5, activation_function=f'gelu_new\n{evil}')
  refused('config.json: activation_function = ')


@pytest.mark.parametrize(
  ('fields', 'told'),
  [
    (
      {'n_layer': 10**9},
      'n_layer = 1000000000 is not supported: must be an integer from 1 to 1000',
    ),
    ({'n_layer': 900}, 'tensors are missing'),
    ({'n_embd': 10**12}, 'n_embd = 1000000000000 is not supported'),
    ({'n_embd': 2**31 - 1}, 'n_embd = 2147483647 is larger than any dimension of the tensors'),
    ({'vocab_size': 2**31 - 1}, 'vocab_size = 2147483647 is larger than any dimension'),
    ({'n_head': 10**9}, 'n_head = 1000000000 is larger than any dimension'),
    ({'n_positions': 10**9}, 'n_positions = 1000000000 is larger than any dimension'),
    ({'n_inner': 10**9}, 'n_inner = 1000000000 is larger than any dimension'),
    ({'n_head': 3}, 'config.json: '),
  ],
)
def test_sizes_that_no_tensor_has_are_refused(folder, refused, fields, told):
  change(folder / 'config.json', **fields)
  refused(told)


@pytest.mark.parametrize(
  ('file', 'contents', 'told'),
  [
    ('config.json', '[]', 'not a JSON object'),
    ('config.json', '3', 'contains 3, not a JSON object'),
    ('config.json', '{"model_type": ["gpt2"]}', "model_type = ['gpt2'] is not supported"),
    (
      'config.json',
      '{"model_type": "gpt2", "architectures": "GPT2Model"}',
      "architectures = 'GPT2",
    ),
    ('config.json', '{"model_type": "gpt2", "architectures": [3]}', 'architectures = [3]'),
    ('config.json', '{"model_type": "vit", "id2label": ["a"]}', "id2label = ['a']"),
    ('config.json', '{"model_type": "vit", "num_labels": "3"}', "num_labels = '3'"),
    ('config.json', '[' * 100_000, 'too many nested brackets'),
    ('config.json', '{"model_type": "gpt2", "n_embd": ' + '9' * 5000 + '}', 'is not valid JSON'),
    ('model.safetensors.index.json', '[]', 'not a JSON object'),
    ('model.safetensors.index.json', '{"weight_map": []}', 'weight_map = []'),
  ],
)
def test_a_file_of_another_kind_is_refused(folder, refused, file, contents, told):
  (folder / file).write_text(contents)
  refused(file, told)


@pytest.mark.parametrize('file', ['config.json', 'model.safetensors'])
def test_a_pipe_is_not_waited_for(folder, refused, file):
  (folder / file).unlink()
  os.mkfifo(folder / file)
  refused(file, 'not a regular file')


def test_a_config_larger_than_any_is_not_read(folder, refused):
  with (folder / 'config.json').open('ab') as file:
    file.truncate(10**12)
  refused('config.json is larger than')


def test_weights_that_are_no_floats_are_refused(folder, refused):
  tensors = {name: tensor.astype(np.int8) for name, tensor in read_tensors(folder).items()}
  write_tensors(folder, {n: (t.shape, t.dtype) for n, t in tensors.items()}, tensors.__getitem__)
  refused('transformer.wte.weight is of type int8: it must be floating point')


def test_two_spellings_of_one_tensor_are_refused(folder, refused):
  tiny_models.write_folder(folder, 'bert')
  tensors = {name: np.array(tensor) for name, tensor in read_tensors(folder).items()}
  tensors['bert.embeddings.LayerNorm.gamma'] = tensors['bert.embeddings.LayerNorm.weight']
  write_tensors(folder, {n: (t.shape, t.dtype) for n, t in tensors.items()}, tensors.__getitem__)
  refused('two tensors for bert.embeddings.LayerNorm.weight')


@pytest.mark.parametrize(
  ('file', 'contents', 'told'),
  [
    ('generation_config.json', '[]', 'not a JSON object'),
    ('generation_config.json', '{"num_beams": "four"}', "num_beams = 'four'"),
    ('generation_config.json', '{"eos_token_id": [1, 500]}', 'eos_token_id = [1, 500]'),
    ('generation_config.json', '{"eos_token_id": {}}', 'eos_token_id = {}'),
    ('tokenizer_config.json', '[]', 'not a JSON object'),
    ('tokenizer_config.json', '{"eos_token": 3}', 'eos_token = 3'),
    ('tokenizer.json', '[]', 'not a JSON object'),
    ('tokenizer.json', '{"model": 3}', 'cannot be read as a tokenizer'),
    ('vocab.json', '{"a": "b"}', 'pieces must have distinct ids'),
    ('generation_config.json', None, 'not a regular file'),
    ('tokenizer.json', None, 'not a regular file'),
  ],
)
def test_a_damaged_tokenizer_or_generation_config_is_refused(
  folder, refused, file, contents, told, tmp_path
):
  hub_folders.make(tmp_path / 'tokenizer', 'gpt2')
  for path in (tmp_path / 'tokenizer').iterdir():
    if path.name != 'config.json':
      path.rename(folder / path.name)
  (tmp_path / 'tokenizer' / 'config.json').unlink()
  (tmp_path / 'tokenizer').rmdir()
  if contents is None:
    os.mkfifo(folder / file)
  else:
    (folder / file).write_text(contents)
  refused(file, told)


@pytest.mark.parametrize(
  ('file', 'contents'),
  [
    ('config.json', '[]'),
    ('config.json', '{"id2label": 3}'),
    ('config.json', '{"id2label": ["a"]}'),
    ('generation_config.json', '3'),
    ('generation_config.json', '{'),
  ],
)
def test_a_damaged_file_that_an_imported_run_keeps_stops_the_export(
  folder, t2x, tmp_path, file, contents
):
  run = tmp_path / 'run'
  code, _, err = t2x('convert', 'import', folder, '--out', run)
  assert code == 0, err
  (run / 'hub' / file).write_text(contents)
  code, _, err = t2x('convert', 'export', run, '--to', tmp_path / 'back')
  assert code == 2, err
  assert f'{run}/hub/{file}' in err
  assert not (tmp_path / 'back').exists()
