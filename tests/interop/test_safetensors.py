"""Safetensors files are compatible with the safetensors library, and malformed files are refused."""

import json
import os

import ml_dtypes
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from safetensors.numpy import load_file, save_file

from t2x.base.errors import UserError
from t2x.interop.safetensors import INDEX, SINGLE, read_tensors, write_tensors

DTYPES = [np.float32, np.float64, np.float16, np.int64, np.int32, np.int8, np.uint8, np.bool_]
SHAPES = arrays.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4)
TENSORS = st.dictionaries(
  st.text(st.characters(exclude_categories=['Cs']), min_size=1).filter('__metadata__'.__ne__),
  st.sampled_from(DTYPES).flatmap(lambda dtype: arrays.arrays(dtype, SHAPES)),
  min_size=1,
  max_size=4,
)
MANY = settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])


def write(folder, tensors, **more):
  specs = {name: (tensor.shape, tensor.dtype) for name, tensor in tensors.items()}
  return write_tensors(folder, specs, tensors.__getitem__, **more)


def assert_same(got, wanted):
  assert set(got) == set(wanted)
  for name, tensor in wanted.items():
    assert got[name].dtype == tensor.dtype
    np.testing.assert_array_equal(got[name], tensor)


@MANY
@given(tensors=TENSORS)
def test_the_library_reads_written_files(tmp_path, tensors):
  (path,) = write(tmp_path, tensors)
  assert_same(load_file(path), tensors)
  assert_same(read_tensors(tmp_path), tensors)


@MANY
@given(tensors=TENSORS)
def test_files_written_by_the_library_are_read(tmp_path, tensors):
  save_file(tensors, tmp_path / SINGLE, metadata={'format': 'pt'})
  assert_same(read_tensors(tmp_path), tensors)


def test_bfloat16_is_read_and_written(tmp_path):
  tensors = {'w': np.arange(6).reshape(2, 3).astype(ml_dtypes.bfloat16)}
  write(tmp_path, tensors)
  assert_same(read_tensors(tmp_path), tensors)


def test_tensors_too_large_for_one_file_have_an_index(tmp_path):
  tensors = {f'w{i}': np.full((10,), i, np.float32) for i in range(5)}
  paths = write(tmp_path, tensors, largest=80)
  assert [path.name for path in paths] == [
    'model-00001-of-00003.safetensors',
    'model-00002-of-00003.safetensors',
    'model-00003-of-00003.safetensors',
    INDEX,
  ]
  assert json.loads((tmp_path / INDEX).read_text())['metadata'] == {'total_size': 200}
  assert_same(read_tensors(tmp_path), tensors)
  assert_same(read_tensors(paths[1]), {name: tensors[name] for name in ('w2', 'w3')})


def test_reading_gives_views_of_the_file(tmp_path):
  write(tmp_path, {'w': np.zeros((1000, 1000), np.float32)})
  tensor = read_tensors(tmp_path)['w']
  assert not tensor.flags.owndata
  assert not tensor.flags.writeable


@pytest.mark.parametrize('name', ['pytorch_model.bin', 'model.pt', 'model.ckpt', 'tf_model.h5'])
def test_a_pickle_is_refused(tmp_path, name):
  (tmp_path / name).write_bytes(b'')
  with pytest.raises(
    UserError, match='pickle files are not opened because they can execute any code'
  ):
    read_tensors(tmp_path)
  with pytest.raises(
    UserError, match='pickle files are not opened because they can execute any code'
  ):
    read_tensors(tmp_path / name)


def test_an_empty_folder_is_an_error(tmp_path):
  with pytest.raises(UserError, match='contains neither'):
    read_tensors(tmp_path)


def test_a_file_cut_off_anywhere_is_refused(tmp_path):
  (path,) = write(tmp_path, {'a': np.ones((2, 3), np.float32), 'b': np.ones(5, np.int8)})
  whole = path.read_bytes()
  for length in range(len(whole)):
    path.write_bytes(whole[:length])
    with pytest.raises(UserError, match='truncated or damaged'):
      read_tensors(tmp_path)


def with_header(folder, header, size=24):
  """Writes a file with a header (text, bytes or an object) and `size` bytes of data."""
  if not isinstance(header, (str, bytes)):
    header = json.dumps(header)
  text = header if isinstance(header, bytes) else header.encode()
  path = folder / SINGLE
  path.write_bytes(len(text).to_bytes(8, 'little') + text + bytes(size))
  return path


def entry(start=0, stop=24, **change):
  return {'dtype': 'F32', 'shape': [(stop - start) // 4], 'data_offsets': [start, stop]} | change


HEADERS = [
  '[]',
  '{"a": ',
  b'{"\xff": 1}',
  '[' * 100_000,
  '{"a": ' * 100_000,
  f'{{"a": {json.dumps(entry(0, 12))}, "a": {json.dumps(entry(12))}}}',
  {'a': []},
  {'a': {}},
  {'a': entry(dtype='F4')},
  {'a': entry(dtype='F8_E4M3', shape=[24])},
  {'a': entry(shape=[True, 6])},
  {'a': entry(shape=[-2, -3])},
  {'a': entry(shape=[10**30])},
  {'a': entry(shape=[1] * 100)},
  {'a': entry(shape=[0, 2**62, 2**62], data_offsets=[0, 0])},
  {'a': entry(shape=[7])},
  {'a': entry(data_offsets=[0, 12, 24])},
  {'a': entry(data_offsets=[-24, 0])},
  {'a': entry(data_offsets=[24, 0])},
  {'a': entry(0, 16), 'b': entry(8)},
  {'a': entry(0, 8), 'b': entry(16)},
  {'a': entry(8)},
  {'a': entry(0, 16)},
  {'a': entry(0, 4096)},
]


@pytest.mark.parametrize('header', HEADERS)
def test_a_malformed_header_is_refused_in_one_line_with_the_file(header, tmp_path):
  path = with_header(tmp_path, header)
  with pytest.raises(UserError, match=r'is truncated or damaged: .*; download it again') as caught:
    read_tensors(tmp_path)
  message = str(caught.value)
  assert message.startswith(str(path))
  assert '\n' not in message
  assert len(message) < 500


def test_tensors_may_be_in_any_order(tmp_path):
  with_header(tmp_path, {'b': entry(16), 'empty': entry(16, 16, shape=[0, 3]), 'a': entry(0, 16)})
  read = read_tensors(tmp_path)
  assert {name: tensor.shape for name, tensor in read.items()} == {
    'a': (4,),
    'b': (2,),
    'empty': (0, 3),
  }


INDEXES = [
  ({'weight_map': []}, 'weight_map = [] is not supported: must be a JSON object'),
  ({'weight_map': None}, 'weight_map = None'),
  ({'weight_map': {'a': 3}}, "weight_map assigns 'a' to the file 3"),
  ({'weight_map': {'a': ['model.safetensors']}}, "weight_map assigns 'a' to the file ['model"),
  ({'weight_map': {'a': '/etc/passwd'}}, "weight_map assigns 'a' to the file '/etc/passwd'"),
  ({'weight_map': {'a': '../x.safetensors'}}, "weight_map assigns 'a' to the file '../x"),
  ({'weight_map': {'a': '..'}}, "weight_map assigns 'a' to the file '..'"),
  ({'weight_map': {'a': ''}}, "weight_map assigns 'a' to the file ''"),
  ({'weight_map': {'a': 'x' * 1000}}, "weight_map assigns 'a' to the file 'xxx"),
  ({'weight_map': {'a': 'x\0'}}, "weight_map assigns 'a' to the file 'x\\x00'"),
]


@pytest.mark.parametrize(('index', 'told'), INDEXES)
def test_an_index_of_another_kind_is_refused_with_its_field(index, told, tmp_path):
  (tmp_path / INDEX).write_text(json.dumps(index))
  with pytest.raises(UserError) as caught:
    read_tensors(tmp_path)
  assert str(caught.value).startswith(f'{tmp_path / INDEX}: ')
  assert told in str(caught.value)


@pytest.mark.parametrize('name', [SINGLE, INDEX])
def test_a_pipe_is_refused_and_not_waited_for(name, tmp_path):
  os.mkfifo(tmp_path / name)
  with pytest.raises(UserError, match=f'{name}.* not a regular file'):
    read_tensors(tmp_path)


@pytest.mark.parametrize('name', ['gone.safetensors', '../elsewhere.safetensors'])
def test_an_index_of_files_that_are_not_there_is_refused(tmp_path, name):
  (tmp_path / INDEX).write_text(json.dumps({'weight_map': {'a': name}}))
  with pytest.raises(UserError, match='which is not in the folder'):
    read_tensors(tmp_path)


def test_an_index_of_tensors_that_are_not_there_is_refused(tmp_path):
  (path,) = write(tmp_path, {'a': np.ones(2, np.float32)})
  files = {'a': path.name, 'b': path.name}
  (tmp_path / INDEX).write_text(json.dumps({'weight_map': files}))
  with pytest.raises(UserError, match='lacks 1 tensors of its index: b'):
    read_tensors(tmp_path)


@pytest.mark.parametrize(
  ('text', 'told'),
  [
    ('no json', 'is not valid JSON'),
    ('[]', 'not a JSON object'),
    ('{}', "has no field 'weight_map'"),
  ],
)
def test_a_damaged_index_is_refused(tmp_path, text, told):
  (tmp_path / INDEX).write_text(text)
  with pytest.raises(UserError, match=told):
    read_tensors(tmp_path)


def test_a_tensor_of_another_shape_than_announced_raises(tmp_path):
  with pytest.raises(ValueError, match='expected'):
    write_tensors(tmp_path, {'a': ((2,), np.float32)}, lambda name: np.ones(3))
