"""Finds run folders and reads their state: steps, metrics, and how the last process ended.

Reads only the files that a run writes, without importing JAX or building anything. Any file may be missing, damaged or
from an untrusted source.
"""

import dataclasses
import hashlib
import io
import json
import os
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent import futures
from pathlib import Path
from typing import Any, Literal

from t2x.base.errors import UserError, printable
from t2x.base.files import is_locked
from t2x.base.json_files import Damaged, dataclass_from_json, is_number, read_json
from t2x.base.signals import INTERRUPTED
from t2x.run_folder.status import SILENT, STATUS, Status, running_kernel

State = Literal['running', 'done', 'preempted', 'failed', 'unknown']
# A folder with one of these files is a run folder. Its subfolders are not searched.
_MARKS = frozenset({'config.gin', 'metrics.jsonl', STATUS})
# Reading waits for the file system, not for the processor.
_THREADS = 8
_TRAIN, _EVAL = b'"split": "train"', b'"split": "eval"'
_KILLED = 'its process was killed'


@dataclasses.dataclass(frozen=True, kw_only=True)
class Run:
  """State of a run folder; missing values are None.

  Attributes:
    folder: path of the folder.
    state: 'preempted' if the same command resumes it; 'unknown' without a valid status.json.
    reason: why it is preempted, failed or unknown, in one line; '' otherwise.
    step: last step in metrics.jsonl or among the checkpoints.
    num_steps: last step of the run.
    metric: name of the metric that selects the best checkpoint.
    best: best value of the metric in the evaluations.
    best_step: step of this evaluation; the last step in a tie.
    last: value of the metric in the last evaluation.
    train_loss: mean loss of the last log interval.
    updated: when metrics.jsonl was written or the process ended, in seconds since 1970.
    started: when the last process started, in seconds since 1970.
    host: name of the machine of the last process.
    modules: digests of the user's modules by name.
  """

  folder: str
  state: State
  reason: str = ''
  step: int | None = None
  num_steps: int | None = None
  metric: str = 'loss'
  best: float | None = None
  best_step: int | None = None
  last: float | None = None
  train_loss: float | None = None
  updated: float | None = None
  started: float | None = None
  host: str = ''
  modules: Mapping[str, str] = dataclasses.field(default_factory=dict)


def find_runs(folder: Path) -> list[Run]:
  """Returns the state of all run folders in and below a folder, in the natural order of their paths.

  Raises:
    UserError: the folder does not exist.
  """
  if not folder.is_dir():
    raise UserError(f'{folder} is not a folder')
  with futures.ThreadPoolExecutor(_THREADS) as pool:
    return sort_runs(pool.map(read_run, _run_folders(str(folder))), 'path')


def _run_folders(folder: str) -> Iterator[Path]:
  """Yields the run folders, and the folders that cannot be read."""
  pending = [folder]
  while pending:
    path = pending.pop()
    try:
      with os.scandir(path) as entries:
        files: list[str] = []
        folders: list[str] = []
        for entry in entries:
          (folders if entry.is_dir(follow_symlinks=False) else files).append(entry.name)
    except OSError:
      yield Path(path)
      continue
    if not _MARKS.isdisjoint(files):
      yield Path(path)
    else:
      pending += [os.path.join(path, name) for name in folders if not name.startswith('.')]


def read_run(folder: Path) -> Run:
  """Reads the state of a run folder; describes damaged or missing files in `Run.reason`."""
  name = printable(str(folder))
  try:
    names = set(os.listdir(folder))
  except OSError as error:
    return Run(folder=name, state='unknown', reason=f'cannot be read: {error.strerror}')
  problem, status = '', None
  try:
    status = dataclass_from_json(Status, read_json(folder / STATUS), folder / STATUS)
  except FileNotFoundError:
    problem = 'no status.json: imported, or trained by an older version'
    if names.isdisjoint({'metrics.jsonl', 'checkpoints'}):
      problem = 'not started'
  except Damaged as error:
    problem = str(error)
  metric, mode = (status.metric, status.mode) if status else ('loss', 'min')
  metrics = _read_metrics(folder / 'metrics.jsonl', metric, mode)
  steps = [
    step for step in (metrics.pop('step', None), _last_checkpoint(folder)) if step is not None
  ]
  fields: dict[str, Any] = {
    'folder': name,
    'metric': metric,
    'step': max(steps, default=None),
    'modules': _modules(folder / 'config.gin'),
  } | metrics
  if status is None:
    state: State = 'running' if is_locked(folder / '.lock') else 'unknown'
    return Run(**fields, state=state, reason='' if state == 'running' else problem)
  state, reason = _state(folder, status)
  fields['updated'] = max(fields.get('updated') or status.started, status.ended or 0.0)
  return Run(
    **fields,
    state=state,
    reason=reason,
    num_steps=status.num_steps,
    started=status.started,
    host=status.host,
  )


def _modules(path: Path) -> dict[str, str]:
  """Returns the digests of the user's modules in a config.gin."""
  from t2x.config.parse import pins_in

  try:
    with path.open('rb') if path.is_file() else io.BytesIO() as file:
      text = file.read(1 << 16).decode(errors='replace')
  except OSError:
    return {}
  return {pin.module: pin.digest for pin in pins_in(text, str(path))}


def _state(folder: Path, status: Status) -> tuple[State, str]:
  """Returns the state and the reason for it."""
  if status.state != 'running':
    return status.state, status.reason
  killed, locked = _KILLED, is_locked(folder / '.lock')
  if locked:
    return 'running', ''
  if locked is None or status.kernel != running_kernel():
    # The lock of another host may not be visible here.
    silence = time.time() - _modified(folder / STATUS)
    if silence < SILENT:
      return 'running', ''
    killed = f'no heartbeat from {status.host} for {age_text(silence)}'
  # Processes that exit without unwinding, such as hanging processes, print why.
  message = _last_message(folder / 'log.txt')
  if message == INTERRUPTED:
    return 'preempted', message
  return 'failed', message or killed


def _modified(path: Path) -> float:
  try:
    return path.stat().st_mtime
  except OSError:
    return 0.0


def _last_message(path: Path) -> str:
  """Returns the message of t2x in the last line of a log file; '' if the last line has no message."""
  line = _tail(path, 4096).rstrip().rpartition(b'\n')[2].decode(errors='replace')
  match = re.fullmatch(r'(?:[\d-]{10} [\d:]{8}  )?t2x: (.*)', line)
  return printable(match[1]) if match else ''


def _tail(path: Path, size: int) -> bytes:
  """Returns the last bytes of a regular file; b'' if it cannot be read."""
  try:
    if not path.is_file():
      return b''
    with path.open('rb') as file:
      file.seek(max(0, os.fstat(file.fileno()).st_size - size))
      return file.read(size)
  except OSError:
    return b''


def _last_checkpoint(folder: Path) -> int | None:
  try:
    names = os.listdir(folder / 'checkpoints')
  except OSError:
    return None
  return max((int(name) for name in names if re.fullmatch(r'\d{1,18}', name)), default=None)


def _read_metrics(path: Path, metric: str, mode: str) -> dict[str, Any]:
  """Returns the fields of `Run` that metrics.jsonl determines."""
  try:
    content = path.read_bytes() if path.is_file() else b''
  except OSError:
    content = b''
  if not content:
    return {}
  fields: dict[str, Any] = {'updated': _modified(path)}
  # Only the lines of evaluations and the last line of training are parsed.
  at = content.rfind(_TRAIN)
  while at >= 0:
    if train := _parsed(content[content.rfind(b'\n', 0, at) + 1 :]):
      fields |= {'step': train['step'], 'train_loss': _number(train.get('loss'))}
      break
    at = content.rfind(_TRAIN, 0, at)
  values = []
  for line in _lines_with(content, _EVAL):
    if record := _parsed(line):
      fields['step'] = max(fields.get('step', 0), record['step'])
      if (value := _number(record.get(metric))) is not None:
        values.append((value, record['step']))
  if values:
    sign = 1 if mode == 'max' else -1
    best, step = max(values, key=lambda pair: (sign * pair[0], pair[1]))
    fields |= {'best': best, 'best_step': step, 'last': values[-1][0]}
  return fields


def _lines_with(content: bytes, text: bytes) -> Iterator[bytes]:
  at = content.find(text)
  while at >= 0:
    start, end = content.rfind(b'\n', 0, at) + 1, content.find(b'\n', at)
    end = len(content) if end < 0 else end
    yield content[start:end]
    at = content.find(text, end)


def _parsed(line: bytes) -> dict[str, Any] | None:
  """Returns the first line as an object with a step; None if it is damaged or incomplete."""
  try:
    record = json.loads(line.partition(b'\n')[0])
  except (ValueError, RecursionError):
    return None
  valid = isinstance(record, dict) and type(record.get('step')) is int
  return record if valid and abs(record['step']) < 2**53 else None


def _number(value: object) -> float | None:
  return float(value) if is_number(value) else None


_ORDER = ('running', 'failed', 'preempted', 'unknown', 'done')


def sort_runs(runs: Iterable[Run], key: str, reverse: bool = False) -> list[Run]:
  """Sorts runs; unknown values come last in both directions.

  Args:
    runs: the runs.
    key: 'path', 'age', or the name of an attribute of a run.
    reverse: sort in descending order.
  """

  def value(run: Run) -> Any:
    if key == 'path':
      parts = re.split(r'(\d+)', run.folder)
      return [(int(part), '') if i % 2 else (0, part) for i, part in enumerate(parts)]
    if key == 'state':
      return _ORDER.index(run.state)
    if key == 'age':
      return None if run.updated is None else -run.updated
    return getattr(run, key) or None if key == 'host' else getattr(run, key)

  runs = list(runs)
  defined = [run for run in runs if value(run) is not None]
  missing = [run for run in runs if value(run) is None]
  return sorted(defined, key=value, reverse=reverse) + missing


def age_text(seconds: float) -> str:
  """Formats a duration with its largest unit: '40 s', '3 min', '5 h', '12 d'."""
  for size, unit in ((86400, 'd'), (3600, 'h'), (60, 'min')):
    if seconds >= size:
      return f'{seconds / size:.0f} {unit}'
  return f'{max(seconds, 0):.0f} s'


_REASON_WIDTH = 72
_MOST_MODULES = 3


def table_rows(runs: Sequence[Run], now: float) -> list[tuple[str, ...]]:
  """Returns the cells of the table of runs, the header first.

  Args:
    runs: the runs.
    now: the current time, in seconds since 1970.
  """
  head = ('run', 'state', 'step', 'metric', 'best', 'at step', 'last', 'train loss', 'age', 'host')
  rows = [(*head, 'reason'), *(_cells(run, now) for run in runs)]
  if not any(run.modules for run in runs):
    return rows
  code = ['code', *(code_text(run.modules) for run in runs)]
  return [(*row[:-1], text, row[-1]) for row, text in zip(rows, code, strict=True)]


def code_text(modules: Mapping[str, str]) -> str:
  """Formats the user's modules with six digits of digests: 'attn 0a1b2c, helper 3d4e5f', or one digest of many."""
  if len(modules) <= _MOST_MODULES:
    return ', '.join(f'{name} {digest[:6]}' for name, digest in modules.items())
  digest = hashlib.sha256(json.dumps(modules, sort_keys=True).encode()).hexdigest()
  return f'{len(modules)} modules {digest[:6]}'


def _cells(run: Run, now: float) -> tuple[str, ...]:
  def text(value: float | None, form: str = '.4g') -> str:
    return '' if value is None else format(value, form)

  steps = text(run.step, 'd')
  if run.num_steps is not None:
    steps = f'{steps or 0}/{run.num_steps}'
  reason = run.reason
  if len(reason) > _REASON_WIDTH:
    reason = reason[: _REASON_WIDTH - 1] + '\u2026'
  return (
    run.folder,
    run.state,
    steps,
    printable(run.metric),
    text(run.best),
    text(run.best_step, 'd'),
    text(run.last),
    text(run.train_loss),
    '' if run.updated is None else age_text(now - run.updated),
    run.host,
    reason,
  )
