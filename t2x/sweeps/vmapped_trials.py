"""Runs trials: one, or several of one program at once, with one vmapped step for all of them.

Each trial is an ordinary training in its own thread, with its own batches, metrics and checkpoints.
At each step the threads wait until all have arrived; the last one to arrive computes the vmapped step.
A trial may finish or fail without stopping the rest. Trials that cannot be trained together, for
instance because memory is exhausted, are trained one after another.
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

from t2x.base.errors import Interrupted, UserError, error_line
from t2x.base.signals import forward_signals, stop_flag
from t2x.sweeps.leases import Busy, Leases
from t2x.sweeps.records import Outcome, Trial, usable_outcome
from t2x.sweeps.trial import (
  Programs,
  config_of,
  outcome_before,
  output_to,
  train_trial,
)
from t2x.train import Program
from t2x.train.params import Params
from t2x.train.program import memory_of
from t2x.train.step import Batch, Scalars, TrainState

log = logging.getLogger('t2x')


class VmappedStepError(Exception):
  """Raised in each trial if the vmapped step failed: the trials must be trained separately."""


# Errors that may not occur when a trial is trained on its own.
_VMAP_ERRORS = (VmappedStepError, jax.errors.JaxRuntimeError)


def run_trials(
  trials: Sequence[Trial], folder: Path, programs: Programs, leases: Leases
) -> dict[str, Outcome]:
  """Trains or resumes trials of one program, several of them at once, and writes their outcomes.

  Their joint output is appended to the log.txt of the first trial.

  Args:
    trials: the trials.
    folder: OUT/trials, with the run folders of the trials and their config.gin.
    programs: cache of the program of earlier trials.
    leases: leases of this process.

  Returns:
    The outcomes by run folder, including existing ones. Trials in another process are missing. Of several trials,
    trials with a killed last process are missing, too; they must be trained separately.

  Raises:
    Interrupted: the process was asked to stop; the next run resumes the trials.
  """
  outcomes: dict[str, Outcome] = {}
  with contextlib.ExitStack() as stack:
    held: list[Trial] = []
    for trial in trials:
      run = folder / trial.folder
      # Without a lease: a trial that has ended needs no attempt.
      if outcome := usable_outcome(run):
        outcomes[trial.folder] = outcome
        continue
      with contextlib.ExitStack() as own, contextlib.suppress(Busy):
        deaths = own.enter_context(leases.hold(run))
        if outcome := outcome_before(run, deaths):
          outcomes[trial.folder] = outcome
        elif not deaths or len(trials) == 1:
          held.append(trial)
          stack.push(own.pop_all())
    if held:
      stack.enter_context(output_to(folder / held[0].folder / 'log.txt'))
      outcomes |= _train(held, folder, programs)
  return outcomes


def _train(trials: Sequence[Trial], folder: Path, programs: Programs) -> dict[str, Outcome]:
  """Trains the trials together, and those for which that fails one after another."""
  results: dict[str, Outcome | str] = {}
  if len(trials) > 1:
    try:
      stepper = _build_stepper(trials, folder, programs)
    except Exception as error:
      results = {trial.folder: error_line(error) for trial in trials}
    else:
      results = _train_in_threads(stepper, trials, folder)
  outcomes = {name: result for name, result in results.items() if isinstance(result, Outcome)}
  remaining = [trial for trial in trials if trial.folder not in outcomes]
  if remaining and results:
    reason = results[remaining[0].folder]
    log.warning('%s: training %d trials one after another instead', reason, len(remaining))
  for trial in remaining:
    run = folder / trial.folder
    with output_to(run / 'log.txt') if results else contextlib.nullcontext():
      program_of = functools.partial(programs.of, trial)
      outcomes[trial.folder] = train_trial(trial, run, program_of)
  return outcomes


def _build_stepper(trials: Sequence[Trial], folder: Path, programs: Programs) -> 'VmappedStepper':
  program = programs.of(trials[0], config_of(trials[0], folder / trials[0].folder))
  return VmappedStepper(program, [trial.numbers for trial in trials])


def _train_in_threads(
  stepper: 'VmappedStepper', trials: Sequence[Trial], folder: Path
) -> dict[str, Outcome | str]:
  """Returns for each trial its outcome, or the error because of which it must be trained separately.

  Raises:
    Interrupted: the process was asked to stop; the trials are saved and the next run resumes them.
  """

  def train_one(index: int) -> Outcome | str:
    try:
      trial, program = trials[index], stepper.programs[index]
      run = folder / trial.folder
      return train_trial(trial, run, lambda _: program, reraise=_VMAP_ERRORS, together=len(trials))
    except _VMAP_ERRORS as error:
      return error_line(error)
    finally:
      stepper.leave(index)

  stopped = stop_flag()
  with forward_signals(), futures.ThreadPoolExecutor(len(trials)) as pool:
    results = list(pool.map(train_one, range(len(trials))))
  if stopped():  # The signal may arrive after all trials have ended.
    raise Interrupted
  return {trial.folder: result for trial, result in zip(trials, results, strict=True)}


@dataclasses.dataclass(frozen=True)
class _Row:
  """Placeholder for the state of a trial: a row of the stacked states."""

  index: int


class VmappedStepper:
  """Computes the steps of several trials, each called from its own thread, as one vmapped step.

  Args:
    program: program of the trials, on one device.
    values: hyperparameters of each trial.
  """

  def __init__(self, program: Program, values: Sequence[Mapping[str, float]]):
    if program.mesh.size > 1:
      raise UserError(
        'trials can only be trained together on one device: use --together 1 on a larger mesh'
      )
    if program.trainer.profile_steps is not None:
      raise UserError(
        'trials that are trained together cannot be profiled: use --together 1 or leave out '
        'Trainer.profile_steps'
      )
    self.program = program
    self.programs = [_MemberProgram.of(program, self, i, v) for i, v in enumerate(values)]
    self.disk = threading.Lock()
    self._turn = threading.Condition()
    self._active = set(range(len(values)))
    self._order: list[int] = []  # Indices of the trials in the rows of the stacked states.
    self._inputs: dict[int, tuple[Any, Any]] = {}
    # New or restored states that are not stacked yet, with their frozen parameters.
    self._unstacked: dict[int, Any] = {}
    self._arrived: set[int] = set()
    self._steps = 0
    self._stacked: Any = None  # Stacked states and frozen parameters.
    self._out: Any = None
    self._error = ''
    self._jitted: Any = None
    self._shapes: Any = None  # Shapes of the arguments of the first vmapped step.

  def leave(self, index: int) -> None:
    """Removes a trial that takes no more steps."""
    with self._turn:
      self._active.discard(index)
      self._step_if_all_arrived()
      if not self._active:  # The memory may be needed for the next trials.
        self._stacked, self._out = None, None
        self._inputs.clear()

  def step(
    self,
    index: int,
    function: Callable,
    state: TrainState | _Row,
    frozen: Params,
    batch: Batch,
    scalars: Scalars,
  ) -> Any:
    """Waits for the steps of all active trials, and returns the result of this trial.

    Args:
      index: index of the trial.
      function: the step, `(state, frozen, batch, scalars) -> (state, sums)`.
      state: train state of the trial, or what the last call returned for it.
      frozen: frozen parameters.
      batch: batch of the trial.
      scalars: hyperparameters of the trial.

    Returns:
      A placeholder for the state (see `state`), and the sums.

    Raises:
      VmappedStepError: the vmapped step failed.
    """
    with self._turn:
      self._inputs[index] = batch, scalars
      if not isinstance(state, _Row):
        self._unstacked[index] = state, frozen
      self._arrived.add(index)
      number = self._steps
      self._jitted = self._jitted or _vmapped(function)
      self._step_if_all_arrived()
      self._turn.wait_for(lambda: self._steps > number or self._error)
      if self._error:
        raise VmappedStepError(self._error)
      row = self._order.index(index)
      return _Row(row), jax.tree.map(lambda a: a[row], self._out)

  def state(self, row: _Row) -> TrainState:
    """Returns the train state of a trial."""
    return jax.tree.map(lambda leaf: leaf[row.index], self._stacked[0])

  def memory_bytes(self) -> int | None:
    """Returns the device memory of the vmapped step; None before the first step."""
    with self._turn:
      return None if self._shapes is None else memory_of(self._jitted.lower(*self._shapes))

  def _step_if_all_arrived(self) -> None:
    if self._error or not self._active or self._arrived < self._active:
      return
    try:
      self._stack_states()
      # The last batch of a removed trial is reused, and its result is ignored.
      batches, scalars = ([self._inputs[i][k] for i in self._order] for k in (0, 1))
      states, frozen = self._stacked
      arguments = states, frozen, batches, scalars
      self._shapes = self._shapes or jax.tree.map(_shape, arguments)
      states, self._out = self._jitted(*arguments)
      self._stacked = states, frozen
    except Exception as error:
      self._error = error_line(error)
    self._arrived.clear()
    self._steps += 1
    self._turn.notify_all()

  def _stack_states(self) -> None:
    """Stacks new states, or writes restored ones to their rows."""
    states, self._unstacked = self._unstacked, {}
    if self._stacked is None:
      self._order = sorted(states)
      self._stacked = jax.tree.map(lambda *a: jnp.stack(a), *(states[i] for i in self._order))
      return
    for index, state in states.items():
      row = self._order.index(index)
      self._stacked = jax.tree.map(lambda a, b, row=row: a.at[row].set(b), self._stacked, state)


def _shape(array: jax.Array) -> jax.ShapeDtypeStruct:
  sharding = array.sharding if array.committed else None
  return jax.ShapeDtypeStruct(
    array.shape, array.dtype, sharding=sharding, weak_type=getattr(array, 'weak_type', False)
  )


def _vmapped(function: Callable) -> Callable:
  def step(states, frozen, batches, scalars):
    batch, values = (jax.tree.map(lambda *a: jnp.stack(a), *trees) for trees in (batches, scalars))
    return jax.vmap(function)(states, frozen, batch, values)

  return jax.jit(step, donate_argnums=0)


class _MemberProgram(Program):
  """Program of one trial, whose steps are computed by the vmapped step of all trials."""

  stepper: VmappedStepper
  index: int

  @classmethod
  def of(
    cls, program: Program, stepper: VmappedStepper, index: int, values: Mapping[str, float]
  ) -> '_MemberProgram':
    """Returns a copy of `program` that shares its compiled functions."""
    member = cls.__new__(cls)
    vars(member).update(vars(copy.copy(program.at(values))), stepper=stepper, index=index)
    return member

  def state(self, held):
    return self.stepper.state(held) if isinstance(held, _Row) else held

  def memory_bytes(self):
    return self.stepper.memory_bytes()

  @contextlib.contextmanager
  def at_disk(self, finish):
    # Orbax counts its saves globally, so that saves of different threads must not overlap.
    with self.stepper.disk:
      yield
      finish()

  def train_step(self):
    function, scalars = self.step(), self.scalars

    def step(state, frozen, batch):
      return self.stepper.step(self.index, function, state, frozen, batch, scalars)

    return step
