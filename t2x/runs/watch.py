"""Evaluation of each new checkpoint of a run beside its training: `t2x eval --watch`.

All files are in the subfolder `watch` of the run, because the training process truncates its own files when it resumes,
and because TensorBoard stops reading an event file once its folder has a newer one.
"""

import contextlib
import json
import logging
import time
import types
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from t2x import config as config_lib
from t2x.api import load
from t2x.base.errors import Interrupted, UserError
from t2x.base.files import CHECKSUMS, file_lock, find_damage, write_atomically
from t2x.base.signals import handle_signals
from t2x.experiments import read_config
from t2x.runs.folders import read_run

log = logging.getLogger('t2x')

FOLDER = 'watch'
# Seconds between two looks at the folder of checkpoints.
POLL = 5.0
Report = Callable[[Mapping[str, Any], Sequence[Mapping[str, str]]], None]


def watch(
  folder: Path,
  report: Report,
  *,
  overrides: Sequence[str] = (),
  split: str | None = None,
  num_examples: int | None = None,
  batch_size: int | None = None,
) -> None:
  """Evaluates each checkpoint of a run once, in the order of steps, until the run is done.

  Metrics are written to `watch/metrics.jsonl`, `watch/samples.jsonl`, `watch/tensorboard`, and to the
  experiment trackers of the run, in which they are a run of their own. A second call evaluates only checkpoints
  that have no metrics there.

  Args:
    folder: the run folder.
    report: called with the metrics and samples of each checkpoint.
    overrides: `NAME=VALUE` each; they override the config of the run.
    split: split of the data source; None: the task's `eval_split`.
    num_examples: examples for each of Experiment.evaluations; None: all.
    batch_size: rows per batch.

  Raises:
    Interrupted: SIGTERM, SIGINT or SIGHUP was received.
    UserError: the run failed, or earlier metrics were computed with other settings.
  """
  with handle_signals(_interrupt):
    _wait_for_config(folder)
    config = read_config([folder / 'config.gin'], overrides)
    settings = f'# split {split}, limit {num_examples}\n{config_lib.render(config)}'
    with _claimed(folder / FOLDER, settings):
      watcher = Watcher(folder, report, overrides, split, num_examples, batch_size)
      with contextlib.closing(watcher):
        _follow(folder, watcher)


def _interrupt(number: int, frame: types.FrameType | None) -> None:
  raise Interrupted()


def _wait_for_config(folder: Path) -> None:
  """Waits until a training process that has just started has written config.gin."""
  while not (folder / 'config.gin').exists():
    if read_run(folder).state != 'running':
      raise UserError(f'{folder} is not a run folder: it has no config.gin')
    time.sleep(POLL)


@contextlib.contextmanager
def _claimed(folder: Path, settings: str) -> Iterator[None]:
  """Holds the lock of the folder; raises UserError if it has metrics of other settings."""

  def busy() -> None:
    raise UserError(f'another process evaluates into {folder}: wait until it ends', 1)

  folder.mkdir(exist_ok=True)
  with file_lock(folder / '.lock', busy):
    path = folder / 'config.gin'
    if path.exists() and path.read_text(encoding='utf-8') != settings:
      raise UserError(
        f'{folder} has metrics of another config, split or limit: rename it to evaluate all checkpoints again'
      )
    write_atomically(path, settings.encode())
    yield


def _follow(folder: Path, watcher: 'Watcher') -> None:
  logged = ''
  while True:
    # Read before the checkpoints: those of a run that is done are complete.
    run = read_run(folder)
    watcher.evaluate_new()
    if run.state in ('done', 'unknown'):
      watcher.finish()
      return
    if run.state == 'failed':
      raise UserError(f'the run has failed: {run.reason}', 1)
    message = f'the run is {run.state}: waiting for checkpoints'
    if message != logged:
      log.info(message)
    logged = message
    time.sleep(POLL)


class Watcher:
  """Evaluates the checkpoints of a run that have no metrics yet; see `watch` for the arguments.

  Attributes:
    evaluated: hash of each evaluated checkpoint by its step.
  """

  def __init__(
    self,
    folder: Path,
    report: Report,
    overrides: Sequence[str] = (),
    split: str | None = None,
    num_examples: int | None = None,
    batch_size: int | None = None,
  ):
    from t2x.train.checkpoints.store import Checkpoints

    self.folder, self.report = folder, report
    self.overrides, self.split = overrides, split
    self.num_examples, self.batch_size = num_examples, batch_size
    self.checkpoints = Checkpoints(folder / 'checkpoints')
    self.evaluated = _read_hashes(folder / FOLDER / 'metrics.jsonl')
    self._loaded: Any = None
    self._trackers: list[Any] = []
    self._writers: list[Any] = []

  def evaluate_new(self) -> None:
    """Evaluates the checkpoints that are complete and have no metrics."""
    for step in self.checkpoints.steps():
      identity = self._hash(step)
      if identity is None or self.evaluated.get(step) == identity:
        continue
      if self._load(step, identity):
        self._evaluate(step, identity)
      self.evaluated[step] = identity

  def _hash(self, step: int) -> str | None:
    """Returns a hash of a checkpoint, which differs if the run saved the step again; None if it was removed."""
    try:
      return f'{zlib.crc32((self.checkpoints.folder / str(step) / CHECKSUMS).read_bytes()):08x}'
    except OSError:
      return None

  def _load(self, step: int, identity: str) -> bool:
    """Reads a checkpoint; returns whether it was intact until it was read."""
    problem = find_damage(self.checkpoints.folder / str(step))
    if problem is None:
      try:
        self._read(step)
        return True
      except Exception:
        # Training may remove a checkpoint while it is read.
        if self._hash(step) == identity:
          raise
    if self._hash(step) == identity:
      log.warning('checkpoint of step %d is corrupt (%s): not evaluated', step, problem)
    else:
      log.warning('checkpoint of step %d was removed before it was read: not evaluated', step)
    return False

  def _read(self, step: int) -> None:
    if self._loaded is None:
      settings: dict[str, Any] = {'overrides': self.overrides, 'batch_size': self.batch_size}
      self._loaded = load(self.folder, checkpoint=step, **settings)
    else:
      self._loaded = self._loaded.with_checkpoint(self.checkpoints, step)

  def _evaluate(self, step: int, identity: str) -> None:
    split = self.split or self._loaded.task.eval_split
    metrics, samples = self._loaded.evaluate(split, num_examples=self.num_examples)
    # The name of the trainer's evaluations, so that charts show both.
    name = self.split or 'eval'
    self._append('samples', step, name, samples)
    for writer in self._open_writers():
      writer.write(step, name, metrics)
    # Written last: an interrupted evaluation is repeated.
    self._append('metrics', step, name, [{**metrics, 'checkpoint': identity}])
    self.evaluated = {s: saved for s, saved in self.evaluated.items() if s < step}
    self.report({'step': step, 'split': split, **metrics}, samples)

  def _append(self, name: str, step: int, split: str, records: Sequence[Mapping]) -> None:
    """Writes lines; removes those of this and later steps, to which the run went back."""
    from t2x.train.logs.writers import JsonLines

    path = self.folder / FOLDER / f'{name}.jsonl'
    with contextlib.closing(JsonLines(path, after=step - 1)) as lines:
      for record in records:
        lines.write(step, split, record)

  def _open_writers(self) -> list[Any]:
    from t2x.train.logs.trackers import Guarded
    from t2x.train.logs.writers import TensorBoard

    if not self._writers:
      folder, trainer = self.folder / FOLDER, self._loaded.experiment.trainer
      self._trackers = [Guarded(build, folder) for build in (trainer.writers if trainer else ())]
      self._writers = [TensorBoard(folder), *self._trackers]
    return self._writers

  def finish(self) -> None:
    """Marks the runs in the trackers as finished."""
    for tracker in self._trackers:
      tracker.finish({})

  def close(self) -> None:
    """Closes TensorBoard's file and the trackers."""
    for writer in self._writers:
      writer.close()


def _read_hashes(path: Path) -> dict[int, str]:
  """Returns the hash of the checkpoint of each step in metrics.jsonl."""
  hashes = {}
  with contextlib.suppress(FileNotFoundError):
    for line in path.read_bytes().splitlines():
      with contextlib.suppress(ValueError, KeyError):
        record = json.loads(line)
        hashes[int(record['step'])] = str(record['checkpoint'])
  return hashes
