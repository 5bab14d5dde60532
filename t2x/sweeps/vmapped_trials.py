"""Trials of one program trained together: one step of all of them is one vmapped step.

Each trial is an ordinary training in a thread of its own, with its own batches, metrics and
checkpoints. Where it would take a step it waits for the others, and one of them takes the step of
all. A trial that ends, well or badly, leaves the others going. Trials that cannot be trained together
(memory does not suffice for all) are trained one after another.
"""

import contextlib
import copy
import dataclasses
import functools
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent import futures
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from t2x.errors import Interrupted, UserError, in_a_line
from t2x.signals import asked_to_stop, passed_on
from t2x.sweeps.records import Outcome, Trial, usable_outcome
from t2x.sweeps.trial import (
  Busy,
  Programs,
  config_of,
  held,
  told_to,
  train_trial,
)
from t2x.train import TrainProgram
from t2x.train.program import memory_of
from t2x.train.step import TrainState

log = logging.getLogger('t2x')


class Parted(Exception):
  """The step of all failed: each is to go on alone."""


# What may fail for the company alone.
_APART = (Parted, jax.errors.JaxRuntimeError)


def run_together(trials: Sequence[Trial], folder: Path, programs: Programs) -> dict[str, Outcome]:
  """Trains trials of one program in lockstep, as `run_trial` would one after another.

  Arguments are those of `run_trial`. What the trials say together is in the log.txt of the first.

  Returns:
    The outcomes by run folder, those that there were before included; trials that another process
    holds have none.

  Raises:
    Interrupted: the process was asked to stop; the trials go on next time.
  """
  outcomes: dict[str, Outcome] = {}
  with contextlib.ExitStack() as stack:
    mine: list[Trial] = []
    for trial in trials:
      with contextlib.suppress(Busy):
        stack.enter_context(held(folder / trial.folder))
        outcome = usable_outcome(folder / trial.folder)
        if outcome is None:
          mine.append(trial)
        else:
          outcomes[trial.folder] = outcome
    if mine:
      stack.enter_context(told_to(folder / mine[0].folder / 'log.txt'))
      outcomes |= _trained(mine, folder, programs)
  return outcomes


def _trained(trials: Sequence[Trial], folder: Path, programs: Programs) -> dict[str, Outcome]:
  """In lockstep, and those that cannot be, one after another."""
  try:
    lockstep = _lockstep(trials, folder, programs)
  except Exception as error:
    found: dict[str, Outcome | str] = {trial.folder: in_a_line(error) for trial in trials}
  else:
    found = _in_threads(lockstep, trials, folder)
  outcomes = {name: one for name, one in found.items() if isinstance(one, Outcome)}
  left = [trial for trial in trials if trial.folder not in outcomes]
  if left:
    reason = found[left[0].folder]
    log.warning('%s: %d trials are trained one after another instead', reason, len(left))
  for trial in left:
    run = folder / trial.folder
    with told_to(run / 'log.txt'):
      program_of = functools.partial(programs.of, trial)
      outcomes[trial.folder] = train_trial(trial, run, program_of)
  return outcomes


def _lockstep(trials: Sequence[Trial], folder: Path, programs: Programs) -> 'Lockstep':
  program = programs.of(trials[0], config_of(trials[0], folder / trials[0].folder))
  return Lockstep(program, [trial.numbers for trial in trials])


def _in_threads(
  lockstep: 'Lockstep', trials: Sequence[Trial], folder: Path
) -> dict[str, Outcome | str]:
  """What became of each, or why it is to be trained alone.

  Raises:
    Interrupted: the process was asked to stop; the trials have saved and go on next time.
  """

  def train_one(index: int) -> Outcome | str:
    try:
      trial, member = trials[index], lockstep.members[index]
      run = folder / trial.folder
      return train_trial(trial, run, lambda _: member, passes=_APART, together=len(trials))
    except _APART as error:
      return in_a_line(error)
    finally:
      lockstep.leave(index)

  stopped = asked_to_stop()
  with passed_on(), futures.ThreadPoolExecutor(len(trials)) as pool:
    found = list(pool.map(train_one, range(len(trials))))
  if stopped():  # When all were at their ends.
    raise Interrupted
  return {trial.folder: one for trial, one in zip(trials, found, strict=True)}


@dataclasses.dataclass(frozen=True)
class _Slot:
  """Stands for a trial's state, which lies among those of the others."""

  index: int


class Lockstep:
  """What trials that are trained together share.

  Args:
    program: theirs; on one device.
    values: the hyperparameters of each trial.
  """

  def __init__(self, program: TrainProgram, values: Sequence[Mapping[str, float]]):
    if program.mesh.size > 1:
      raise UserError(
        'trials are trained together on one device: use --together 1 on a larger mesh'
      )
    self.program = program
    self.members = [_Member.of(program, self, i, one) for i, one in enumerate(values)]
    self.disk = threading.Lock()
    self._turn = threading.Condition()
    self._active = set(range(len(values)))
    self._order: list[int] = []  # The trials that took a first step: the rows of what is stacked.
    self._given: dict[int, tuple[Any, Any]] = {}
    # States that do not lie among the others', new or restored, and the frozen parameters beside them.
    self._own: dict[int, Any] = {}
    self._arrived: set[int] = set()
    self._steps = 0
    self._stacked: Any = None  # States and frozen parameters.
    self._out: Any = None
    self._error = ''
    self._jitted: Any = None
    self._shapes: Any = None  # Of the arguments of its first call.

  def leave(self, index: int) -> None:
    """The trial takes no more steps."""
    with self._turn:
      self._active.discard(index)
      self._advance_if_all()
      if not self._active:  # What comes next may want the memory.
        self._stacked, self._out = None, None
        self._given.clear()

  def step(
    self, index: int, function: Callable, state: Any, frozen: Any, batch: Any, scalars: Any
  ) -> Any:
    """Waits for the others, and gives the trial's part of the step of all.

    Raises:
      Parted: it failed.
    """
    with self._turn:
      self._given[index] = batch, scalars
      if not isinstance(state, _Slot):
        self._own[index] = state, frozen
      self._arrived.add(index)
      number = self._steps
      self._jitted = self._jitted or _vmapped(function)
      self._advance_if_all()
      self._turn.wait_for(lambda: self._steps > number or self._error)
      if self._error:
        raise Parted(self._error)
      row = self._order.index(index)
      return _Slot(row), jax.tree.map(lambda a: a[row], self._out)

  def state(self, slot: _Slot) -> TrainState:
    """A trial's own state."""
    return jax.tree.map(lambda leaf: leaf[slot.index], self._stacked[0])

  def memory_bytes(self) -> int | None:
    """What the step of all takes of the device's memory; None: there was none."""
    with self._turn:
      return None if self._shapes is None else memory_of(self._jitted, *self._shapes)

  def _advance_if_all(self) -> None:
    if self._error or not self._active or self._arrived < self._active:
      return
    try:
      self._gather()
      # The last batch of a trial that has left goes in once more, for nothing.
      batches, scalars = ([self._given[i][k] for i in self._order] for k in (0, 1))
      states, frozen = self._stacked
      arguments = states, frozen, batches, scalars
      self._shapes = self._shapes or jax.tree.map(_shape, arguments)
      states, self._out = self._jitted(*arguments)
      self._stacked = states, frozen
    except Exception as error:
      self._error = in_a_line(error)
    self._arrived.clear()
    self._steps += 1
    self._turn.notify_all()

  def _gather(self) -> None:
    """What the trials have of their own goes to their rows."""
    own, self._own = self._own, {}
    if self._stacked is None:
      self._order = sorted(own)
      self._stacked = jax.tree.map(lambda *a: jnp.stack(a), *(own[i] for i in self._order))
      return
    for index, one in own.items():
      row = self._order.index(index)
      self._stacked = jax.tree.map(lambda a, b, row=row: a.at[row].set(b), self._stacked, one)


def _shape(array: jax.Array) -> jax.ShapeDtypeStruct:
  sharding = array.sharding if array.committed else None
  return jax.ShapeDtypeStruct(
    array.shape, array.dtype, sharding=sharding, weak_type=getattr(array, 'weak_type', False)
  )


def _vmapped(function: Callable) -> Callable:
  def step(states, frozen, batches, scalars):
    batch, values = (jax.tree.map(lambda *a: jnp.stack(a), *one) for one in (batches, scalars))
    return jax.vmap(function)(states, frozen, batch, values)

  return jax.jit(step, donate_argnums=0)


class _Member(TrainProgram):
  """The program as one trial sees it."""

  lockstep: Lockstep
  index: int

  @classmethod
  def of(
    cls, program: TrainProgram, lockstep: Lockstep, index: int, values: Mapping[str, float]
  ) -> '_Member':
    """A view on `program`, which shares all that is compiled."""
    member = cls.__new__(cls)
    vars(member).update(vars(copy.copy(program.at(values))), lockstep=lockstep, index=index)
    return member

  def state(self, held):
    return self.lockstep.state(held) if isinstance(held, _Slot) else held

  def memory_bytes(self):
    return self.lockstep.memory_bytes()

  @contextlib.contextmanager
  def at_disk(self, finish):
    # Orbax counts its saves in one place for all threads: they must not meet.
    with self.lockstep.disk:
      yield
      finish()

  def train_step(self):
    function, scalars = self.step(), self.scalars

    def step(state, frozen, batch):
      return self.lockstep.step(self.index, function, state, frozen, batch, scalars)

    return step
