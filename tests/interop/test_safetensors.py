"""Files of tensors: as the safetensors library reads and writes them, and refused when they are not."""

import json

import ml_dtypes
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from t2x.errors import UserError
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
def test_the_library_reads_what_is_written(tmp_path, tensors):
  library = pytest.importorskip('safetensors.numpy', reason="the extra 'parity' is not installed")
  (path,) = write(tmp_path, tensors)
  assert_same(library.load_file(path), tensors)
  assert_same(read_tensors(tmp_path), tensors)


@MANY
@given(tensors=TENSORS)
def test_what_the_library_writes_is_read(tmp_path, tensors):
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
  with pytest.raises(UserError, match='pickle can run any code'):
    read_tensors(tmp_path)
  with pytest.raises(UserError, match='pickle can run any code'):
    read_tensors(tmp_path / name)


def test_an_empty_folder_is_told(tmp_path):
  with pytest.raises(UserError, match='holds neither'):
    read_tensors(tmp_path)


def test_a_file_cut_off_anywhere_is_refused(tmp_path):
  (path,) = write(tmp_path, {'a': np.ones((2, 3), np.float32), 'b': np.ones(5, np.int8)})
  whole = path.read_bytes()
  for length in range(len(whole)):
    path.write_bytes(whole[:length])
    with pytest.raises(UserError, match='cut off or damaged'):
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
  with pytest.raises(UserError, match='cut off or damaged'):
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
    ('no json', 'is not JSON'),
    ('[]', 'not a JSON object'),
    ('{}', "has no field 'weight_map'"),
  ],
)
def test_a_damaged_index_is_refused(tmp_path, text, told):
  (tmp_path / INDEX).write_text(text)
  with pytest.raises(UserError, match=told):
    read_tensors(tmp_path)


def test_a_tensor_of_another_shape_than_announced_is_a_bug_that_is_seen(tmp_path):
  with pytest.raises(ValueError, match='announced as'):
    write_tensors(tmp_path, {'a': ((2,), np.float32)}, lambda name: np.ones(3))
