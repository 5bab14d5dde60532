"""Reader and writer of the safetensors format (https://github.com/huggingface/safetensors).

Files are memory-mapped: a tensor is a view, and only the accessed part is loaded. The writer holds one
tensor at a time. The tensors of a folder may be split over several files with an index.
"""

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from safetensors import SafetensorError, safe_open

from t2x.base.errors import UserError
from t2x.base.external_files import (
  LARGE,
  REQUIRED,
  Fields,
  Object,
  printed,
  read_json,
  shown,
)

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

Spec = tuple[tuple[int, ...], Any]


def read_tensors(path: Path) -> dict[str, np.ndarray]:
  """Returns name -> read-only view of the memory-mapped file.

  Args:
    path: a .safetensors file, or a folder that contains model.safetensors or its index.

  Raises:
    UserError: the file is missing or damaged, or is in pickle format.
  """
  if path.is_file():
    return _read_file(path)
  if (path / INDEX).exists():
    return _read_indexed(path)
  if (path / SINGLE).exists():
    return _read_file(path / SINGLE)
  pickles = sorted(file.name for file in path.glob('*') if file.suffix in PICKLES)
  if pickles:
    raise _unsupported(path / pickles[0])
  raise UserError(f'{path} contains neither {SINGLE} nor {INDEX}')


PICKLES = ('.bin', '.pt', '.pth', '.ckpt', '.pkl', '.h5', '.msgpack')


def _unsupported(path: Path) -> UserError:
  return UserError(
    f'{path} is not a safetensors file, and pickle files are not opened because they can execute any code: '
    'save the model again with save_pretrained(..., safe_serialization=True)'
  )


def _read_indexed(folder: Path) -> dict[str, np.ndarray]:
  where = str(folder / INDEX)
  files = Fields(read_json(folder / INDEX, LARGE), {'weight_map': Object(REQUIRED)}, where)[
    'weight_map'
  ]
  present = {path.name for path in folder.iterdir() if path.is_file()}
  for name, file in files.items():
    if not isinstance(file, str) or file not in present:
      raise UserError(
        f'{where}: weight_map assigns {shown(name)} to the file {shown(file)}, which is not in the folder'
      )
  tensors = {file: _read_file(folder / file) for file in sorted(set(files.values()))}
  missing = [name for name, file in files.items() if name not in tensors[file]]
  if missing:
    names = ', '.join(map(printed, missing[:3]))
    raise UserError(f'{folder} lacks {len(missing)} tensors of its index: {names}')
  return {name: tensors[file][name] for name, file in files.items()}


def _read_file(path: Path) -> dict[str, np.ndarray]:
  if path.suffix != '.safetensors':
    raise _unsupported(path)
  try:
    if not path.is_file():
      raise ValueError('not a regular file')
    # Validates the header: each byte of the data belongs to exactly one tensor.
    with safe_open(path, 'np'), path.open('rb') as file:
      length = int.from_bytes(file.read(8), 'little')
      header = json.loads(file.read(length))
    header.pop('__metadata__', None)
    for name, entry in header.items():
      if entry['dtype'] not in DTYPES:
        raise ValueError(f'tensor {shown(name)} has the unsupported type {entry["dtype"]}')
    start = 8 + length
    data = (
      np.memmap(path, np.uint8, 'r', offset=start) if path.stat().st_size > start else np.zeros(0)
    )
    return {
      name: np.asarray(data)[slice(*entry['data_offsets'])]
      .view(DTYPES[entry['dtype']])
      .reshape(entry['shape'])
      for name, entry in header.items()
    }
  except (OSError, ValueError, SafetensorError) as error:
    raise UserError(f'{path} is truncated or damaged: {error}; download it again') from error


def write_tensors(
  folder: Path,
  specs: Mapping[str, Spec],
  tensor: Callable[[str], np.ndarray],
  largest: int = 5 * 1000**3,
) -> list[Path]:
  """Writes model.safetensors, or several files and an index if it would be too large.

  Args:
    folder: the output folder; created if missing.
    specs: name -> (shape, dtype) of every tensor.
    tensor: maps a name to its tensor; called once per name, in order.
    largest: maximum bytes of tensors per file. A single larger tensor gets its own file.

  Returns:
    The paths of the files.
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
        raise ValueError(f'{name} has shape {value.shape}, expected {tuple(shape)}')
      file.write(value.reshape(-1).view(np.uint8).data)
  return path
