"""Files of named arrays in the safetensors format (https://github.com/huggingface/safetensors).

Reading maps the file: a tensor is a view, and only what is taken of it comes into memory. Writing takes
one tensor at a time. A folder may spread its tensors over several files by an index.
"""

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from t2x.errors import UserError

__all__ = ['INDEX', 'SINGLE', 'Spec', 'read_tensors', 'write_tensors']

SINGLE = 'model.safetensors'
INDEX = 'model.safetensors.index.json'

DTYPES: Mapping[str, Any] = {
  'BF16': ml_dtypes.bfloat16,
  'BOOL': np.bool_,
  'F16': np.float16,
  'F32': np.float32,
  'F64': np.float64,
  'I16': np.int16,
  'I32': np.int32,
  'I64': np.int64,
  'I8': np.int8,
  'U8': np.uint8,
}
# No header that anyone writes is near this long; a damaged length field is.
LONGEST_HEADER = 100_000_000

Spec = tuple[tuple[int, ...], Any]


def read_tensors(path: Path) -> dict[str, np.ndarray]:
  """Name -> read-only view of the mapped file, of a .safetensors file or of a folder with one or
  with an index of several.

  Raises:
    UserError: no such file, a pickle instead, or a damaged file.
  """
  if path.is_file():
    return _read_file(path)
  if (path / INDEX).is_file():
    return _read_indexed(path)
  if (path / SINGLE).is_file():
    return _read_file(path / SINGLE)
  pickles = sorted(one.name for one in path.glob('*') if one.suffix in PICKLES)
  if pickles:
    raise _refused(path / pickles[0])
  raise UserError(f'{path} holds neither {SINGLE} nor {INDEX}')


PICKLES = ('.bin', '.pt', '.pth', '.ckpt', '.pkl', '.h5', '.msgpack')


def _refused(path: Path) -> UserError:
  return UserError(
    f'{path} is no safetensors file: a pickle can run any code when it is opened, so none is. Save it '
    'again where it comes from, with save_pretrained(..., safe_serialization=True)'
  )


def _read_indexed(folder: Path) -> dict[str, np.ndarray]:
  try:
    files = json.loads((folder / INDEX).read_text(encoding='utf-8'))['weight_map']
  except (ValueError, KeyError, TypeError) as error:
    raise UserError(f'{folder / INDEX} is no index of tensors: {error!r}') from error
  found: dict[str, np.ndarray] = {}
  for name in sorted(set(files.values())):
    if Path(name).name != name or not (folder / name).is_file():
      raise UserError(f'{folder / INDEX} names {name}, which is not in the folder')
    found |= _read_file(folder / name)
  missing = sorted(set(files) - set(found))
  if missing:
    raise UserError(f'{folder} lacks {len(missing)} tensors of its index: {", ".join(missing[:3])}')
  return {name: found[name] for name in files}


def _read_file(path: Path) -> dict[str, np.ndarray]:
  if path.suffix != '.safetensors':
    raise _refused(path)
  try:
    size = path.stat().st_size
    with path.open('rb') as file:
      length = int.from_bytes(file.read(8), 'little')
      if not 2 <= length <= min(size - 8, LONGEST_HEADER):
        raise ValueError(f'a header of {length} bytes in a file of {size}')
      header = json.loads(file.read(length))
    data = np.memmap(path, np.uint8, 'r', offset=8 + length) if size > 8 + length else np.zeros(0)
    return {name: _view(data, about) for name, about in header.items() if name != '__metadata__'}
  except (OSError, ValueError, KeyError, TypeError) as error:
    raise UserError(f'{path} is cut off or damaged: {error}; fetch it again') from error


def _view(data: np.ndarray, about: Mapping[str, Any]) -> np.ndarray:
  start, stop = about['data_offsets']
  shape = tuple(about['shape'])
  if about['dtype'] not in DTYPES:
    raise ValueError(f'tensors of type {about["dtype"]} are not known')
  dtype = np.dtype(DTYPES[about['dtype']])
  if not 0 <= start <= stop <= len(data) or stop - start != math.prod(shape) * dtype.itemsize:
    raise ValueError(f'bytes {start} to {stop} of {len(data)} for {shape} of {about["dtype"]}')
  return np.asarray(data)[start:stop].view(dtype).reshape(shape)


def write_tensors(
  folder: Path,
  specs: Mapping[str, Spec],
  tensor: Callable[[str], np.ndarray],
  largest: int = 5 * 1000**3,
) -> list[Path]:
  """Writes model.safetensors, or several files and their index where one would be too large.

  Args:
    folder: where; made when missing.
    specs: name -> (shape, dtype) of every tensor.
    tensor: gives the one of a name; asked for one after the other, in order.
    largest: bytes of a file. One tensor alone may be larger.

  Returns:
    The files.
  """
  folder.mkdir(parents=True, exist_ok=True)
  shards = list(_shards(specs, largest))
  if len(shards) == 1:
    return [_write_file(folder / SINGLE, shards[0], specs, tensor)]
  written: list[Path] = []
  files: dict[str, str] = {}
  for number, names in enumerate(shards, 1):
    path = folder / f'model-{number:05}-of-{len(shards):05}.safetensors'
    written.append(_write_file(path, names, specs, tensor))
    files |= dict.fromkeys(names, path.name)
  index = {'metadata': {'total_size': sum(map(_size, specs.values()))}, 'weight_map': files}
  (folder / INDEX).write_text(json.dumps(index, indent=2) + '\n', encoding='utf-8')
  return [*written, folder / INDEX]


def _size(spec: Spec) -> int:
  shape, dtype = spec
  return math.prod(shape) * np.dtype(dtype).itemsize


def _shards(specs: Mapping[str, Spec], largest: int) -> Iterator[list[str]]:
  names: list[str] = []
  total = 0
  for name, spec in specs.items():
    if names and total + _size(spec) > largest:
      yield names
      names, total = [], 0
    names.append(name)
    total += _size(spec)
  yield names


def _write_file(
  path: Path,
  names: Sequence[str],
  specs: Mapping[str, Spec],
  tensor: Callable[[str], np.ndarray],
) -> Path:
  codes = {np.dtype(dtype): code for code, dtype in DTYPES.items()}
  header: dict[str, Any] = {'__metadata__': {'format': 'pt'}}
  end = 0
  for name in names:
    (shape, dtype), start = specs[name], end
    end = start + _size(specs[name])
    header[name] = {
      'dtype': codes[np.dtype(dtype)],
      'shape': list(shape),
      'data_offsets': [start, end],
    }
  text = json.dumps(header, separators=(',', ':')).encode()
  text += b' ' * (-len(text) % 8)
  with path.open('wb') as file:
    file.write(len(text).to_bytes(8, 'little') + text)
    for name in names:
      shape, dtype = specs[name]
      value = np.asarray(tensor(name), dtype, order='C')
      if value.shape != tuple(shape):
        raise ValueError(f'{name} is {value.shape}, announced as {tuple(shape)}')
      file.write(value.reshape(-1).view(np.uint8).data)
  return path
