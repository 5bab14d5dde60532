"""Safetensors files are compatible with the safetensors library, and malformed files are refused."""

import json
import os

import ml_dtypes
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

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
  library = pytest.importorskip('safetensors.numpy', reason="the extra 'parity' is not installed")
  (path,) = write(tmp_path, tensors)
  assert_same(library.load_file(path), tensors)
  assert_same(read_tensors(tmp_path), tensors)


@MANY
@given(tensors=TENSORS)
def test_files_written_by_the_library_are_read(tmp_path, tensors):
  library = pytest.importorskip('safetensors.numpy', reason="the extra 'parity' is not installed")
  library.save_file(tensors, tmp_path / SINGLE, metadata={'format': 'pt'})
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


@pytest.mark.parametrize(
  'change',
  [
    {'dtype': 'F4'},
    {'shape': [3, 3]},
    {'data_offsets': [0, 4096]},
    {'data_offsets': [-4, 20]},
    {'data_offsets': [24, 0]},
  ],
)
def test_a_header_that_does_not_add_up_is_refused(tmp_path, change):
  (path,) = write(tmp_path, {'a': np.ones((2, 3), np.float32)})
  data = path.read_bytes()[-24:]
  about = {'dtype': 'F32', 'shape': [2, 3], 'data_offsets': [0, 24]} | change
  header = json.dumps({'a': about}).encode()
  path.write_bytes(len(header).to_bytes(8, 'little') + header + data)
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
  ([], 'its header is [], not a JSON object'),
  ('"a"', "its header is 'a', not a JSON object"),
  ('3.5', 'its header is 3.5, not a JSON object'),
  ('{"a": ', 'Expecting value'),
  (b'{"\xff": 1}', 'its header is not UTF-8 text'),
  ('[' * 100_000, 'recursion'),
  ('{"a": ' * 100_000, 'recursion'),
  (
    f'{{"a": {json.dumps(entry(0, 12))}, "a": {json.dumps(entry(12))}}}',
    "its header contains 'a' twice",
  ),
  ({'a': []}, "tensor 'a' is [], not a JSON object"),
  ({'a': None}, "tensor 'a' is None, not a JSON object"),
  ({'a': {}}, "tensor 'a' has no field 'dtype'"),
  ({'a': entry(dtype='F4')}, "tensor 'a': dtype = 'F4' is not supported: must be 'BF16' or"),
  ({'a': entry(dtype=['F32'])}, "tensor 'a': dtype = ['F32']"),
  ({'a': entry(shape=6)}, "tensor 'a': shape = 6"),
  ({'a': entry(shape=[6.0])}, "tensor 'a': shape = [6.0]"),
  ({'a': entry(shape=[True, 6])}, "tensor 'a': shape = [True, 6]"),
  ({'a': entry(shape=[-6])}, "tensor 'a': shape = [-6]"),
  ({'a': entry(shape=[-2, -3])}, "tensor 'a': shape = [-2, -3]"),
  ({'a': entry(shape=['6'])}, "tensor 'a': shape = ['6']"),
  ({'a': entry(shape=[10**30])}, "tensor 'a': shape = [1000"),
  ({'a': entry(shape=[1] * 100)}, "tensor 'a': shape = [1, 1, 1"),
  ({'a': entry(shape=[0, 2**62, 2**62], data_offsets=[0, 0])}, 'damaged'),
  ({'a': entry(shape=[7])}, "tensor 'a': data_offsets [0, 24] do not match shape (7,) of float32"),
  ({'a': entry(data_offsets=[0])}, "tensor 'a': data_offsets = [0]"),
  ({'a': entry(data_offsets=[0, 12, 24])}, "tensor 'a': data_offsets = [0, 12, 24]"),
  ({'a': entry(data_offsets=[0.0, 24])}, "tensor 'a': data_offsets = [0.0, 24]"),
  ({'a': entry(data_offsets=[False, 24])}, "tensor 'a': data_offsets = [False, 24]"),
  ({'a': entry(data_offsets=[-24, 0])}, "tensor 'a': data_offsets = [-24, 0]"),
  ({'a': entry(data_offsets=[24, 0])}, "tensor 'a': data_offsets [24, 0]"),
  ({'a': entry(data_offsets={'0': 24})}, "tensor 'a': data_offsets = {'0': 24}"),
  ({'a': entry(0, 16), 'b': entry(8)}, "tensor 'b': data_offsets [8, 24] overlaps tensor 'a'"),
  ({'a': entry(), 'b': entry()}, "tensor 'b': data_offsets [0, 24] overlaps tensor 'a'"),
  ({'a': entry(0, 8), 'b': entry(16)}, "] leaves a gap after tensor 'a', which ends at 8"),
  ({'a': entry(8)}, "tensor 'a': data_offsets [8, 24] leaves a gap after the header"),
  ({'a': entry(0, 16)}, 'data_offsets require 16 bytes of tensors, the file has 24'),
  ({'a': entry(0, 4096)}, 'data_offsets require 4096 bytes of tensors, the file has 24'),
]


@pytest.mark.parametrize(('header', 'told'), HEADERS)
def test_a_malformed_header_is_refused_with_the_file_and_the_tensor(header, told, tmp_path):
  path = with_header(tmp_path, header)
  with pytest.raises(UserError) as caught:
    read_tensors(tmp_path)
  message = str(caught.value)
  assert message.startswith(f'{path} is truncated or damaged: ')
  assert told in message
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
