"""Saved train states: asynchronous, checked by checksums, restored onto any mesh.

Written by Orbax, as a dict of arrays by name, so that the files do not depend on the classes that held
them. Each checkpoint carries checksums of its files:
one that a crash or a bad disk has damaged is told from a good one, and the one before is used.
"""

import contextlib
import json
import logging
import shutil
import sys
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar

import jax
import numpy as np
import orbax.checkpoint as ocp
from jax.experimental import multihost_utils
from jax.sharding import SingleDeviceSharding

from t2x.arrays import named_leaves
from t2x.errors import UserError, first_line
from t2x.files import damage_of, write_checksums
from t2x.train.retention import Retention

State = TypeVar('State')

log = logging.getLogger('t2x')

# Of what is written here: 1 had names with slashes and parameters under `model`.
FORMAT = 2


class Checkpoints:
  """The checkpoints of a run: `folder/<step>/`.

  Args:
    folder: made at the first save.
    keep_last: newest checkpoints kept.
    keep_best: best checkpoints kept, of those with metrics.
    keep_every: checkpoints of steps that are multiples of this are kept for good; 0: none.
    best_metric: the metric that decides.
    best_mode: whether it should be small or large.
    failed_saves: saves in a row that may fail, each told; the next one raises. Where several
      processes save together, the first that fails raises.
  """

  def __init__(
    self,
    folder: Path | str,
    *,
    keep_last: int = 2,
    keep_best: int = 1,
    keep_every: int = 0,
    best_metric: str = 'loss',
    best_mode: Literal['min', 'max'] = 'min',
    failed_saves: int = 0,
  ):
    self.folder = Path(folder).absolute()
    self.best_metric, self.best_mode = best_metric, best_mode
    self.retention = Retention(
      self.folder, keep_last, keep_best, keep_every, best_metric, best_mode
    )
    self.failed_saves = failed_saves
    self._manager: ocp.CheckpointManager | None = None
    self._under_way, self._failures = False, 0
    self._corrupt: set[int] = set()
    # The step whose metrics are not on disk yet.
    self._not_written: int | None = None
    quiet_orbax()

  def steps(self) -> list[int]:
    """Steps of the complete checkpoints, ascending."""
    if not self.folder.is_dir():
      return []
    return sorted(int(path.name) for path in self.folder.iterdir() if path.name.isdigit())

  def latest_step(self) -> int | None:
    """The newest checkpoint's step."""
    return max(self.steps(), default=None)

  def best_step(self) -> int | None:
    """The best checkpoint's step; of equal ones the newest. None when none has metrics."""
    return next(iter(self._from_best()), None)

  def save(
    self,
    step: int,
    state: Any,
    extra: Mapping[str, Any] | None = None,
    metrics: Mapping[str, float] | None = None,
  ) -> None:
    """Starts to save; returns once `state` has been copied and may be donated.

    Args:
      step: optimizer steps taken; larger than all saved steps.
      state: a pytree of arrays, modules and typed PRNG keys.
      extra: what `restore` gives back beside the state; anything that JSON holds.
      metrics: as `attach` takes them, of an evaluation that came before the save.

    Raises:
      UserError: this save or the one before failed, after as many as may; the last good checkpoint
        is still there.
    """
    if metrics is not None:
      self.retention.check(metrics)
    named = dict(named_leaves(state))
    arrays = {name: list(leaf.shape) for name, leaf in named.items()}
    about: dict[str, Any] = {'extra': extra or {}, 'arrays': arrays}
    about |= {'best': [self.best_metric, self.best_mode], 'format': FORMAT}
    about = json.loads(json.dumps(about, default=float))
    self._end_the_one_before()
    try:
      if self._manager is None:
        self._manager = self._open()
      self._manager.save(
        step,
        args=ocp.args.Composite(state=ocp.args.StandardSave(named), about=ocp.args.JsonSave(about)),
        force=True,
      )
      self._under_way = True
    except Exception as error:
      self._endure(self._failed(error))
    if metrics is not None:
      self.attach(step, metrics)

  def attach(self, step: int, metrics: Mapping[str, float]) -> None:
    """Adds the metrics of an evaluation to the checkpoint of the same step, to choose the best.

    They are written as soon as the checkpoint is on disk, at the latest when `wait` returns.

    Raises:
      UserError: the metric that chooses the best is not among them.
    """
    self.retention.check(metrics)
    if not self._under_way and not (self.folder / str(step)).is_dir():
      return  # A failed save, which was endured.
    self.retention.metrics[step], self._not_written = dict(metrics), step
    with contextlib.suppress(OSError):  # `wait` tries again, and raises.
      self._write_metrics()

  def metrics(self, step: int) -> Mapping[str, float] | None:
    """The metrics of a checkpoint; None: it has not been evaluated."""
    return self.retention.metrics.get(step) or self.retention.read(step)

  def _write_metrics(self) -> None:
    """Writes the metrics that are not on disk yet, where their checkpoint is."""
    step = self._not_written
    if step is not None and (self.folder / str(step)).is_dir():
      if jax.process_index() == 0:
        self.retention.write(step)
      self._not_written = None

  def _end_the_one_before(self) -> None:
    if self._under_way:
      try:
        self.wait()
        self._failures = 0
      except UserError as error:
        self._endure(error)

  def _endure(self, failed: UserError) -> None:
    """Tells of a failed save, or raises."""
    self._failures += 1
    if self._failures > self.failed_saves or jax.process_count() > 1:
      raise failed
    told = 'failed save %d of %d in a row that may: going on; %s'
    log.warning(told, self._failures, self.failed_saves, failed)

  def wait(self) -> None:
    """Returns when the last save is on disk.

    Raises:
      UserError: it failed; the last good checkpoint is still there.
    """
    self._under_way = False
    try:
      if self._manager is not None:
        self._manager.wait_until_finished()
        self._write_metrics()
        self._remove_old(self._manager)
    except Exception as error:
      if self._not_written is not None:
        self.retention.metrics.pop(self._not_written)
      raise self._failed(error) from error
    finally:
      self._not_written = None

  def _remove_old(self, manager: ocp.CheckpointManager) -> None:
    """Removes what is no longer among the best since an evaluation that came after its save."""
    steps = sorted(manager.all_steps())
    for step in sorted(set(steps) - self.retention.kept(steps)):
      manager.delete(step)

  def forget_after(self, step: int) -> None:
    """Removes the checkpoints of later steps."""
    self.wait()
    if self._manager is None:
      self._manager = self._open()
    for later in [known for known in self.steps() if known > step]:
      self._manager.delete(later)
      self.retention.metrics.pop(later, None)
    # Opened anew at the next save: a manager saves no step below those it has seen.
    self.close()

  def close(self) -> None:
    """Waits, and ends the background threads."""
    self.wait()
    if self._manager is not None:
      self._manager.close()
      self._manager = None

  def restore(
    self, abstract: State, which: int | Literal['last', 'best'] = 'last'
  ) -> tuple[State, dict[str, Any]]:
    """A saved state with the shapes and shardings of `abstract`, and its `extra`.

    A corrupt checkpoint gives way to the next older (or next best) one, with a warning.

    Args:
      abstract: a tree like the saved one, of `jax.ShapeDtypeStruct`s with or without shardings.
      which: 'last', 'best', or a step.

    Raises:
      UserError: there is no such checkpoint, all are corrupt, or a parameter does not fit.
    """
    return self._read(self.intact_step(which), abstract)

  def intact_step(self, which: int | Literal['last', 'best'] = 'last') -> int:
    """The checkpoint asked for; as in `restore`, a corrupt one gives way, and one in the format of
    another version raises UserError."""
    candidates = self._candidates(which)
    for number, step in enumerate(candidates):
      problem = self._problem(step)
      if problem is None:
        self._check_format(step)
        return step
      self._corrupt.add(step)
      following = candidates[number + 1 : number + 2]
      told = f'using the one of step {following[0]}' if following else 'there is no other'
      log.warning('checkpoint of step %d is corrupt (%s): %s', step, problem, told)
    raise UserError(
      f'no intact checkpoint in {self.folder}: use --fresh to start again, or another checkpoint'
    )

  def _check_format(self, step: int) -> None:
    if (found := self.about(step).get('format', 1)) != FORMAT:
      run = self.folder.parent
      convert = f'convert it with `t2x convert run {run} --to NEW_FOLDER`'
      raise UserError(
        f'the checkpoint of step {step} in {run} has run format {found}, this t2x reads {FORMAT}: '
        f'{convert if found < FORMAT else "update t2x"}'
      )

  def about(self, step: int) -> dict[str, Any]:
    """What is beside the arrays: 'extra', 'metrics', 'arrays' (name -> shape), and which metric
    and mode choose the 'best' checkpoint."""
    reader = ocp.Checkpointer(ocp.CompositeCheckpointHandler())
    args = ocp.args.Composite(about=ocp.args.JsonRestore())
    return reader.restore(self.folder / str(step), args=args).about

  def read(self, step: int, wanted: Mapping[str, jax.ShapeDtypeStruct]) -> dict[str, jax.Array]:
    """Some of a checkpoint's arrays, with the types and shardings of `wanted`, and no others."""
    reader = ocp.Checkpointer(ocp.CompositeCheckpointHandler())
    args = ocp.args.Composite(state=restore_args(wanted))
    return reader.restore(self.folder / str(step), args=args).state

  def _candidates(self, which: int | str) -> list[int]:
    steps = self.steps()
    if not steps:
      raise UserError(f'there is no checkpoint in {self.folder}')
    if which == 'last':
      return steps[::-1]
    if which == 'best':
      best = self._from_best()
      if not best:
        raise UserError(f'no checkpoint in {self.folder} has been evaluated: there is no best one')
      return best
    if which not in steps:
      raise UserError(f'no checkpoint of step {which} in {self.folder}: there are {steps}')
    return [int(which)]

  def _from_best(self) -> list[int]:
    """Steps with metrics, best first, newer first among equals."""
    return self.retention.ranked({step: self.metrics(step) for step in self.steps()})

  def _open(self) -> ocp.CheckpointManager:
    """The writer; what was cut off while being written is removed, what is corrupt set aside."""
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
    options = ocp.CheckpointManagerOptions(
      preservation_policy=self.retention,
      cleanup_tmp_directories=True,
      async_options=ocp.AsyncOptions(post_finalization_callback=self._write_checksums),
    )
    return ocp.CheckpointManager(self.folder, options=options)

  def _write_checksums(self) -> None:
    """Runs in Orbax's thread when all files are written, before they are moved to their place."""
    if jax.process_index() == 0:
      for folder in self._unfinished():
        write_checksums(folder)

  def _unfinished(self) -> list[Path]:
    return list(self.folder.glob('*.orbax-checkpoint-tmp*'))

  def _problem(self, step: int) -> str | None:
    """What is wrong with a checkpoint's files, as the first process sees them."""
    problem = damage_of(self.folder / str(step)) if jax.process_index() == 0 else None
    if jax.process_count() > 1:
      bad = multihost_utils.broadcast_one_to_all(np.array(problem is not None))
      problem = (problem or 'as the first process says') if bad else None
    return problem

  def _read(self, step: int, abstract: State) -> tuple[State, dict[str, Any]]:
    about, reader = self.about(step), ocp.Checkpointer(ocp.CompositeCheckpointHandler())
    named = dict(named_leaves(abstract))
    self.check_fit(step, about['arrays'], {name: leaf.shape for name, leaf in named.items()})
    target = {name: target_of(leaf) for name, leaf in named.items()}
    args = ocp.args.Composite(state=ocp.args.StandardRestore(target))
    read = reader.restore(self.folder / str(step), args=args).state
    leaves = [read[name] for name in named]
    return jax.tree.unflatten(jax.tree.structure(abstract), leaves), about['extra']

  def check_fit(self, step: int, saved: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    """Raises UserError that names the parameters that differ, the model's first."""
    problems = [
      f'{name} is {tuple(saved[name])} in the checkpoint and {tuple(shape)} here'
      for name, shape in wanted.items()
      if name in saved and tuple(saved[name]) != tuple(shape)
    ]
    problems += [f'{name} is not in the checkpoint' for name in wanted if name not in saved]
    problems += [f'{name} of the checkpoint is not here' for name in saved if name not in wanted]
    if problems:
      problems.sort(key=lambda problem: not problem.startswith('params'))
      more = [f'and {len(problems) - 5} more'] if len(problems) > 5 else []
      told = '; '.join(problems[:5] + more)
      raise UserError(f'checkpoint of step {step} in {self.folder} does not fit: {told}')

  def _failed(self, error: Exception) -> UserError:
    """After a failed save: frees what it had written, and says which checkpoint is still good."""
    self._manager = None
    for folder in self._unfinished():
      shutil.rmtree(folder, ignore_errors=True)
    last = self.latest_step()
    good = 'there is no earlier one' if last is None else f'the one of step {last} is still good'
    first = first_line(error) or type(error).__name__
    return UserError(
      f'a checkpoint could not be saved in {self.folder}: {first}; {good}. '
      'Make room, then run the same command again',
      exit_code=1,
    )


def quiet_orbax() -> None:
  """Keeps Orbax's notes, and the echoes of an error that is raised here, out of users' sight: one
  from each task that wrote a file, and one from TensorStore for each that outlived its event loop."""
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


def restore_args(wanted: Mapping[str, jax.ShapeDtypeStruct]) -> ocp.args.PyTreeRestore:
  """Orbax's arguments for reading these arrays and no others."""
  target = {name: target_of(leaf) for name, leaf in wanted.items()}
  types = ocp.checkpoint_utils.construct_restore_args(target)
  return ocp.args.PyTreeRestore(target, types, partial_restore=True)


def target_of(leaf: Any) -> jax.ShapeDtypeStruct:
  """What Orbax restores into: the first device where no sharding is asked for."""
  sharding = getattr(leaf, 'sharding', None) or SingleDeviceSharding(jax.local_devices()[0])
  return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)
