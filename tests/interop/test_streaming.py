"""`Checkpoints` reads arrays that were saved in pieces, without an entire array in memory."""

import itertools

import jax
import numpy as np
import pytest
from jax.sharding import SingleDeviceSharding

from t2x.interop import streaming
from t2x.interop.streaming import save_streamed
from t2x.layers.arrays import Lazy
from t2x.train.checkpoints.store import Checkpoints


def lazy(array, taken=None):
  def read(index):
    part = array[index]
    if taken is not None:
      taken.append(part.nbytes)
    return part

  return Lazy(array.shape, array.dtype, read)


def arrays():
  rng = np.random.default_rng(0)
  shapes = {
    'params.table': (37, 8),
    'params.stack.kernel': (5, 4, 6),
    'params.bias': (3,),
    'scale': (),
  }
  return {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}


def test_streamed_files_can_be_read(tmp_path, monkeypatch):
  monkeypatch.setattr(streaming, 'PIECE', 128)
  wanted, taken = arrays(), []
  save_streamed(tmp_path, {n: lazy(a, taken) for n, a in wanted.items()}, {'from': 'afar'})
  checkpoints = Checkpoints(tmp_path)
  assert checkpoints.intact_step() == 0
  about = checkpoints.about(0)
  assert about['extra'] == {'from': 'afar'}
  assert about['arrays'] == {name: list(array.shape) for name, array in wanted.items()}
  shapes = {n: jax.ShapeDtypeStruct(a.shape, a.dtype) for n, a in wanted.items()}
  read = checkpoints.read(0, shapes)
  for name, array in wanted.items():
    np.testing.assert_array_equal(read[name], array)
  assert max(taken) <= 128
  assert sum(taken) == sum(array.nbytes for array in wanted.values())


def test_an_array_is_begun_when_the_one_before_is_written(tmp_path, monkeypatch):
  monkeypatch.setattr(streaming, 'PIECE', 1 << 10)
  order = []

  def named(name):
    def read(index):
      order.append(name)
      return np.ones((64, 64), np.float32)[index]

    return Lazy((64, 64), np.dtype('float32'), read)

  names = [f'params.{i}' for i in range(12)]
  save_streamed(tmp_path, {name: named(name) for name in names}, {})
  assert len(order) == 16 * len(names)
  assert [name for name, _ in itertools.groupby(order)] == sorted(names)


def test_a_damaged_streamed_file_is_an_error(tmp_path):
  save_streamed(tmp_path, {name: lazy(array) for name, array in arrays().items()}, {})
  largest = max((tmp_path / '0').rglob('d/*'), key=lambda path: path.stat().st_size)
  content = bytearray(largest.read_bytes())
  content[len(content) // 2] ^= 1
  largest.write_bytes(content)
  with pytest.raises(Exception, match='no intact checkpoint'):
    Checkpoints(tmp_path).intact_step()


def test_unreadable_files_leave_no_parameters(tmp_path):
  def fails(index):
    raise OSError('the disk is gone')

  with pytest.raises(OSError, match='the disk is gone'):
    save_streamed(tmp_path, {'table': Lazy((4, 2), np.dtype('float32'), fails)}, {})
  assert list(tmp_path.iterdir()) == []


def test_each_device_is_given_its_part():
  array, taken = np.arange(12, dtype=np.float32).reshape(4, 3), []
  placed = lazy(array, taken).on(SingleDeviceSharding(jax.devices()[0]))
  np.testing.assert_array_equal(placed, array)
  assert taken == [array.nbytes]
