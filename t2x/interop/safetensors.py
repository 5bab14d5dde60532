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

from t2x.base.errors import UserError
from t2x.base.external_files import (
  LARGE,
  REQUIRED,
  Choice,
  Fields,
  Int,
  Many,
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
# Bytes. Real headers are far smaller; a damaged length field exceeds this.
LONGEST_HEADER = 100_000_000

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
    size = path.stat().st_size
    with path.open('rb') as file:
      length = int.from_bytes(file.read(8), 'little')
      if not 2 <= length <= min(size - 8, LONGEST_HEADER):
        raise ValueError(f'the header has {length} bytes, the file {size}')
      header = _parse_header(file.read(length))
    specs = {
      name: _parse_spec(name, entry) for name, entry in header.items() if name != '__metadata__'
    }
    _check_offsets(specs, size - 8 - length)
    data = np.memmap(path, np.uint8, 'r', offset=8 + length) if size > 8 + length else np.zeros(0)
    return {
      name: np.asarray(data)[start:stop].view(dtype).reshape(shape)
      for name, (shape, dtype, start, stop) in specs.items()
    }
  except (OSError, ValueError, RecursionError) as error:
    raise UserError(f'{path} is truncated or damaged: {error}; download it again') from error


def _parse_header(text: bytes) -> dict[str, Any]:
  """Parses the header of a file. Raises ValueError, RecursionError."""

  def unique(pairs):
    entries = dict(pairs)
    if len(entries) < len(pairs):
      names = [name for name, _ in pairs]
      duplicate = next(name for name in names if names.count(name) > 1)
      raise ValueError(f'its header contains {shown(duplicate)} twice')
    return entries

  try:
    header = json.loads(text.decode('utf-8'), object_pairs_hook=unique)
  except UnicodeDecodeError as error:
    raise ValueError(f'its header is not UTF-8 text: {error}') from error
  if not isinstance(header, dict):
    raise ValueError(f'its header is {shown(header)}, not a JSON object')
  return header


SPEC = {
  'dtype': Choice(REQUIRED, DTYPES),
  'shape': Many(REQUIRED, Int(REQUIRED, high=2**62), most=32),
  'data_offsets': Many(REQUIRED, Int(REQUIRED, high=2**62), least=2, most=2),
}


def _parse_spec(name: str, entry: Any) -> tuple[tuple[int, ...], np.dtype, int, int]:
  """Parses an entry of the header to (shape, dtype, start and end offset in bytes). Raises ValueError."""
  where = f'tensor {shown(name)}'
  if not isinstance(entry, dict):
    raise ValueError(f'{where} is {shown(entry)}, not a JSON object')
  try:
    fields = Fields(entry, SPEC, where)
  except UserError as error:
    raise ValueError(error) from error
  shape, (start, stop) = tuple(fields['shape']), fields['data_offsets']
  dtype = np.dtype(DTYPES[fields['dtype']])
  if stop - start != math.prod(shape) * dtype.itemsize:
    raise ValueError(
      f'{where}: data_offsets [{start}, {stop}] do not match shape {shape} of {dtype}'
    )
  return shape, dtype, start, stop


def _check_offsets(specs: Mapping[str, tuple[Any, Any, int, int]], size: int) -> None:
  """Raises ValueError unless each byte of the data belongs to exactly one tensor."""
  end, previous = 0, 'the header'
  for name, (_, _, start, stop) in sorted(specs.items(), key=lambda item: item[1][2:]):
    if start != end:
      kind = 'overlaps' if start < end else 'leaves a gap after'
      raise ValueError(f'tensor {shown(name)}: data_offsets [{start}, {stop}] {kind} {previous}')
    end, previous = stop, f'tensor {shown(name)}, which ends at {stop}'
  if end != size:
    raise ValueError(f'data_offsets require {end} bytes of tensors, the file has {size}')


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
