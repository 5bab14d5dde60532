"""Checkpoints of train states: saved asynchronously, verified by checksums, restored onto any mesh.

Orbax writes a state as a dict of arrays by name: the files do not depend on Python classes. Checksums detect
corrupt checkpoints; the previous checkpoint is then used.
"""

import contextlib
import functools
import json
import logging
import shutil
import sys
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import jax
import numpy as np
from jax.experimental import multihost_utils

from t2x.base.errors import UserError, first_line
from t2x.base.files import find_damage, write_checksums
from t2x.layers.arrays import named_leaves
from t2x.train.checkpoints.names import read_renamed, saved_names
from t2x.train.checkpoints.retention import Retention

if TYPE_CHECKING:
  from orbax.checkpoint import CheckpointManager

State = TypeVar('State')

log = logging.getLogger('t2x')

# Version of the checkpoint format. Version 1 had names with slashes, and parameters under `model`.
FORMAT = 2


class Checkpoints:
  """The checkpoints of a run, `folder/<step>/`.

  Args:
    folder: created at the first save.
    max_failed_saves: maximum number of consecutive saves that may fail. Each is logged; one more raises. With
      several processes, the first failure raises.
    **retention: fields of `Retention`: which checkpoints are kept.
  """

  def __init__(self, folder: Path | str, *, max_failed_saves: int = 0, **retention: Any):
    self.folder = Path(folder).absolute()
    self.retention = Retention(self.folder, **retention)
    self.max_failed_saves = max_failed_saves
    self._manager: CheckpointManager | None = None
    self._saving, self._failures = False, 0
    # The error of the last save, if it failed and was tolerated.
    self._unsaved: UserError | None = None
    self._corrupt: set[int] = set()
    # The step whose metrics are not on disk yet.
    self._pending_metrics: int | None = None
    quiet_orbax()

  @functools.cached_property
  def orbax(self) -> Any:
    """The functions that read and write files; importing Orbax takes 0.2 s."""
    from t2x.train.checkpoints import orbax_files

    return orbax_files

  def steps(self) -> list[int]:
    """Returns the steps of all complete checkpoints, ascending."""
    if not self.folder.is_dir():
      return []
    return sorted(int(path.name) for path in self.folder.iterdir() if path.name.isdigit())

  def latest_step(self) -> int | None:
    """Returns the step of the newest checkpoint; None if there is no checkpoint."""
    return max(self.steps(), default=None)

  def best_step(self) -> int | None:
    """Returns the step of the best checkpoint, the newest of equals; None if no checkpoint has metrics."""
    return next(iter(self._ranked_steps()), None)

  def save(
    self,
    step: int,
    state: object,
    extra: Mapping[str, Any] | None = None,
    metrics: Mapping[str, float] | None = None,
  ) -> None:
    """Starts an asynchronous save. Returns after `state` is copied; it may then be donated.

    Args:
      step: number of optimizer steps taken; larger than all saved steps.
      state: a pytree of arrays, modules and typed PRNG keys.
      extra: JSON-compatible metadata that `restore` returns with the state.
      metrics: metrics of an evaluation of this state, as in `attach`.

    Raises:
      UserError: more than `max_failed_saves` consecutive saves failed; earlier checkpoints are intact.
    """
    if metrics is not None:
      self.retention.check(metrics)
    named = dict(named_leaves(state))
    arrays = {name: list(leaf.shape) for name, leaf in named.items()}
    about: dict[str, Any] = {'extra': extra or {}, 'arrays': arrays}
    about |= {
      'best': [self.retention.best_metric, self.retention.best_mode],
      'format': FORMAT,
      'step': step,
    }
    about = json.loads(json.dumps(about, default=float))
    self._finish_previous_save()
    try:
      if self._manager is None:
        self._manager = self._open()
      self.orbax.save(self._manager, step, named, about)
      self._saving, self._unsaved = True, None
    except Exception as error:
      self._tolerate(self._save_error(error))
    if metrics is not None:
      self.attach(step, metrics)

  def attach(self, step: int, metrics: Mapping[str, float]) -> None:
    """Adds the metrics of an evaluation to the checkpoint of the same step.

    They are written as soon as the checkpoint is on disk, at the latest when `wait` returns.

    Raises:
      UserError: `best_metric` is missing.
    """
    self.retention.check(metrics)
    if not self._saving and not (self.folder / str(step)).is_dir():
      return  # The save failed and was tolerated.
    self.retention.metrics[step], self._pending_metrics = dict(metrics), step
    with contextlib.suppress(OSError):  # `wait` tries again, and raises.
      self._write_metrics()

  def metrics(self, step: int) -> Mapping[str, float] | None:
    """Returns the metrics of a checkpoint; None if it was not evaluated."""
    return self.retention.metrics.get(step) or self.retention.read(step)

  def _write_metrics(self) -> None:
    """Writes the pending metrics if their checkpoint is on disk."""
    step = self._pending_metrics
    if step is not None and (self.folder / str(step)).is_dir():
      if jax.process_index() == 0:
        self.retention.write(step)
      self._pending_metrics = None

  def _finish_previous_save(self) -> None:
    if self._saving:
      try:
        self.wait()
        self._failures = 0
      except UserError as error:
        self._tolerate(error)

  def _tolerate(self, error: UserError) -> None:
    """Logs the error of a failed save, or raises it if too many have failed."""
    self._failures += 1
    if self._failures > self.max_failed_saves or jax.process_count() > 1:
      raise error
    self._unsaved = error
    message = 'training continues after failed save %d of at most %d in a row: %s'
    log.warning(message, self._failures, self.max_failed_saves, error)

  def wait(self) -> None:
    """Waits until the last save is on disk.

    Raises:
      UserError: the save failed; earlier checkpoints are intact.
    """
    self._saving = False
    try:
      if self._manager is not None:
        self._manager.wait_until_finished()
        self._write_metrics()
        self._remove_old(self._manager)
    except Exception as error:
      if self._pending_metrics is not None:
        self.retention.metrics.pop(self._pending_metrics)
      raise self._save_error(error) from error
    finally:
      self._pending_metrics = None

  def finish(self) -> None:
    """Waits as `wait`; also raises if the last save failed and was tolerated."""
    self.wait()
    if self._unsaved is not None:
      raise self._unsaved

  def intact_before(self, step: int) -> int | None:
    """Returns the last step before `step` with an intact checkpoint; None without such a checkpoint."""
    earlier = [saved for saved in self.steps()[::-1] if saved < step]
    return next((saved for saved in earlier if self._problem(saved) is None), None)

  def _remove_old(self, manager: 'CheckpointManager') -> None:
    """Removes checkpoints that an evaluation after their save has dropped from the best ones."""
    steps = sorted(manager.all_steps())
    for step in sorted(set(steps) - self.retention.retained(steps)):
      manager.delete(step)

  def remove_after(self, step: int) -> None:
    """Removes the checkpoints of later steps."""
    self.wait()
    if self._manager is None:
      self._manager = self._open()
    for later in [saved for saved in self.steps() if saved > step]:
      self._manager.delete(later)
      self.retention.metrics.pop(later, None)
    # The next save opens a new manager: a manager never saves a step below its latest one.
    self.close()

  def close(self) -> None:
    """Waits for the last save and ends the background threads."""
    self.wait()
    if self._manager is not None:
      self._manager.close()
      self._manager = None

  def restore(
    self, abstract: State, which: int | Literal['last', 'best'] = 'last'
  ) -> tuple[State, dict[str, Any]]:
    """Reads a train state and its `extra` metadata.

    If the checkpoint is corrupt, logs a warning and reads the next older (or next best) one.

    Args:
      abstract: a tree like the saved one, of `jax.ShapeDtypeStruct`s with or without shardings.
      which: 'last', 'best', or a step.

    Returns:
      The state, with the shapes and shardings of `abstract`, and `extra`.

    Raises:
      UserError: no such checkpoint, all are corrupt, another format version, or other shapes.
    """
    return self._read(self.intact_step(which), abstract)

  def intact_step(self, which: int | Literal['last', 'best'] = 'last') -> int:
    """Returns the step of the requested checkpoint, or of the next intact one; raises as `restore`."""
    candidates = self._candidates(which)
    for number, step in enumerate(candidates):
      problem = self._problem(step)
      if problem is None:
        self._check_format(step)
        return step
      self._corrupt.add(step)
      following = candidates[number + 1 : number + 2]
      fallback = f'using the checkpoint of step {following[0]}' if following else 'none is left'
      log.warning('checkpoint of step %d is corrupt (%s): %s', step, problem, fallback)
    raise UserError(
      f'no intact checkpoint in {self.folder}: use --fresh to train from the start, or another checkpoint'
    )

  def _check_format(self, step: int) -> None:
    if (version := self.about(step).get('format', 1)) != FORMAT:
      run = self.folder.parent
      convert = f'convert it with `t2x convert run {run} --to NEW_FOLDER`'
      raise UserError(
        f'the checkpoint of step {step} in {run} has run format {version}, this t2x reads {FORMAT}: '
        f'{convert if version < FORMAT else "update t2x"}'
      )

  def about(self, step: int) -> dict[str, Any]:
    """Reads the metadata of a checkpoint: extra, arrays (name -> shape), best (metric, mode), format, step."""
    about = self.orbax.read_about(self.folder / str(step))
    arrays = about['arrays']
    return about | {'arrays': {name: arrays[old] for name, old in saved_names(arrays).items()}}

  def read(self, step: int, abstract: Mapping[str, jax.ShapeDtypeStruct]) -> dict[str, jax.Array]:
    """Reads only the arrays in `abstract`, with its dtypes and shardings."""
    folder = self.folder / str(step)
    read = functools.partial(self.orbax.read_state, folder)
    return read_renamed(read, abstract, self.orbax.read_about(folder)['arrays'])

  def _candidates(self, which: int | str) -> list[int]:
    steps = self.steps()
    if not steps:
      raise UserError(f'no checkpoint in {self.folder}')
    if which == 'last':
      return steps[::-1]
    if which == 'best':
      best = self._ranked_steps()
      if not best:
        raise UserError(f'no evaluated checkpoint in {self.folder}, so none is best: use the last')
      return best
    if which not in steps:
      raise UserError(f'no checkpoint of step {which} in {self.folder}: its steps are {steps}')
    return [int(which)]

  def _ranked_steps(self) -> list[int]:
    """Returns the steps of checkpoints with metrics, best first, newer first among equals."""
    return self.retention.ranked({step: self.metrics(step) for step in self.steps()})

  def _open(self) -> 'CheckpointManager':
    """Creates the Orbax manager, which removes incomplete checkpoints; moves corrupt ones aside."""
    if jax.process_index() == 0:
      self.folder.mkdir(parents=True, exist_ok=True)
      for step in self._corrupt.intersection(self.steps()):
        aside = self.folder / f'corrupt-{step}'
        shutil.rmtree(aside, ignore_errors=True)
        (self.folder / str(step)).rename(aside)
    if jax.process_count() > 1:
      multihost_utils.sync_global_devices('t2x checkpoints are tidied')
    saved = {step: metrics for step in self.steps() if (metrics := self.metrics(step))}
    self.retention.metrics = saved | self.retention.metrics
    return self.orbax.open_manager(self.folder, self.retention, self._write_checksums)

  def _write_checksums(self) -> None:
    """Writes checksums into complete checkpoints before Orbax, whose thread calls this, renames them."""
    if jax.process_index() == 0:
      for folder in self._unfinished():
        write_checksums(folder)

  def _unfinished(self) -> list[Path]:
    return list(self.folder.glob('*.orbax-checkpoint-tmp*'))

  def _problem(self, step: int) -> str | None:
    """Describes the damage to the files of a checkpoint, as seen by the first process; None if intact.

    A folder that was copied or renamed is damaged: it has another step than its name.
    """
    problem = find_damage(self.folder / str(step)) if jax.process_index() == 0 else None
    if jax.process_count() > 1:
      bad = multihost_utils.broadcast_one_to_all(np.array(problem is not None))
      problem = (problem or 'as reported by the first process') if bad else None
    if problem is None and (saved := self.about(step).get('step', step)) != step:
      problem = f'its files are those of step {saved}'
    return problem

  def _read(self, step: int, abstract: State) -> tuple[State, dict[str, Any]]:
    about = self.about(step)
    named = dict(named_leaves(abstract))
    self.check_fit(step, about['arrays'], {name: leaf.shape for name, leaf in named.items()})
    read = self.read(step, named)
    leaves = [read[name] for name in named]
    return jax.tree.unflatten(jax.tree.structure(abstract), leaves), about['extra']

  def check_fit(self, step: int, saved: Mapping[str, Any], expected: Mapping[str, Any]) -> None:
    """Raises UserError if the shapes by name differ; lists trained parameters first."""
    problems = [
      f'{name} is {tuple(saved[name])} in the checkpoint but {tuple(shape)} in the config'
      for name, shape in expected.items()
      if name in saved and tuple(saved[name]) != tuple(shape)
    ]
    problems += [f'{name} is not in the checkpoint' for name in expected if name not in saved]
    problems += [f'{name} is only in the checkpoint' for name in saved if name not in expected]
    if problems:
      problems.sort(key=lambda problem: not problem.startswith('params'))
      more = [f'and {len(problems) - 5} more'] if len(problems) > 5 else []
      summary = '; '.join(problems[:5] + more)
      if all(problem.startswith('opt_state') for problem in problems):
        summary = (
          'its optimizer state is that of another optimizer, or of an earlier t2x with another rule for these '
          f'parameters; Experiment.init_from starts a new run from its parameters: {summary}'
        )
      raise UserError(
        f'checkpoint of step {step} in {self.folder} does not fit the config: {summary}'
      )

  def _save_error(self, error: Exception) -> UserError:
    """Removes the files of a failed save. Returns an error with the last intact checkpoint."""
    self._manager = None
    for folder in self._unfinished():
      shutil.rmtree(folder, ignore_errors=True)
    last = self.latest_step()
    good = 'no earlier checkpoint' if last is None else f'the checkpoint of step {last} is intact'
    first = first_line(error) or type(error).__name__
    return UserError(
      f'cannot save a checkpoint in {self.folder}: {first}; {good}. '
      'Free disk space, then run the same command to resume',
      exit_code=1,
    )


def quiet_orbax() -> None:
  """Hides log messages of Orbax, and messages of asyncio and TensorStore that repeat an error raised here."""
  logging.getLogger('absl').addFilter(_not_orbax)
  logging.getLogger('asyncio').addFilter(_not_orbax)
  hook = sys.unraisablehook
  if getattr(hook, '__name__', '') != 'no_closed_event_loop':

    def no_closed_event_loop(unraisable):
      if str(unraisable.exc_value) != 'Event loop is closed':
        hook(unraisable)

    sys.unraisablehook = no_closed_event_loop


def _not_orbax(record: logging.LogRecord) -> bool:
  raised = record.exc_info[2] if record.exc_info else None
  where = ''.join(traceback.format_tb(raised))
  return 'orbax' not in record.pathname + record.getMessage() + where
