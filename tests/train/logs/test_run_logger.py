"""Rates are of the device's time, however far Python runs ahead of it."""

import types

import jax
import numpy as np
import pytest

from t2x.train.faults import Stop
from t2x.train.logs import run_logger
from t2x.train.logs.run_logger import RunLogger
from t2x.train.logs.step_sums import StepSums


class Machine:
  """A clock, and a device that takes a second a step and is given `ahead` steps before it begins."""

  def __init__(self, ahead):
    self.now, self.free, self.ahead, self.waiting = 0.0, 0.0, ahead, []

  def monotonic(self):
    return self.now

  def dispatch(self):
    """Python takes a hundredth of a second, or waits where the device has `ahead` steps left."""
    self.now += 0.01
    self.waiting = [one for one in self.waiting if one > self.now]
    if len(self.waiting) >= self.ahead:
      self.now = self.waiting[0]
    self.free = max(self.free, self.now) + 1.0
    self.waiting.append(self.free)
    return StepSums(('loss', 'finite'), Values(self, self.free))


class Values:
  """Sums and a gradient norm, on the device from a time on."""

  def __init__(self, machine, at):
    self.machine, self.at = machine, at

  def is_ready(self):
    return self.machine.now >= self.at

  def block_until_ready(self):
    self.machine.now = max(self.machine.now, self.at)
    return self

  def __array__(self, dtype=None, copy=None):
    self.block_until_ready()
    return np.array([1.0, 1.0, 1.0, 1.0, 0.0])


class Kept:
  """A writer of what it was told."""

  def __init__(self):
    self.lines = []

  def write(self, step, split, values):
    self.lines.append((step, split, values))

  def close(self):
    pass


@pytest.fixture
def logger_on(unchecked, monkeypatch):
  """`logger_on(machine, compiling)`: a logger of an ordinary run, which keeps what it writes.

  The first means take `compiling` seconds of Python's time.
  """

  def make(machine, compiling):
    first = iter([compiling])

    def summarise(totals):
      machine.now += next(first, 0.0)
      return {}

    monkeypatch.setattr(run_logger, 'time', machine)
    trainer = types.SimpleNamespace(
      num_steps=60,
      nonfinite=Stop(),
      rollback=None,
      schedule=types.SimpleNamespace(build=lambda num_steps: lambda step: 0.1),
    )
    run = types.SimpleNamespace(
      trainer=trainer,
      program=types.SimpleNamespace(
        groups=types.SimpleNamespace(trained={'w': None}),
        trainer=types.SimpleNamespace(compute_dtype='float32'),
      ),
      processes=types.SimpleNamespace(first=False),
      task=types.SimpleNamespace(unit='tokens', summarise=summarise),
    )
    logger = RunLogger(run, 0, {})
    logger.writers, logger.timing = [Kept()], Kept()
    return logger

  return make


@pytest.mark.parametrize(
  ('ahead', 'compiling'), [(1, 0.0), (3, 0.0), (30, 0.0), (1000, 0.0), (1000, 7.0)]
)
def test_rates_of_the_device_are_equal_before_and_after_a_pause(logger_on, ahead, compiling):
  machine = Machine(ahead)
  logger = logger_on(machine, compiling)
  for step in range(1, 61):
    logger.step(step, machine.dispatch(), 7, log=step % 10 == 0)
    if step in (20, 35):  # At the end of an interval, and in the middle of one.
      with logger.paused():
        machine.now += 100.0
  with logger.paused():
    pass
  (kept,) = logger.writers
  assert [step for step, _, _ in kept.lines] == [10, 20, 30, 40, 50, 60]
  rates = [values['tokens_per_second'] for _, _, values in kept.lines]
  # A look comes with every step: that many of the steps of an interval may be off.
  assert rates == pytest.approx([7.0] * 6, rel=0.13)
  seconds = [values['seconds'] for _, _, values in logger.timing.lines]
  assert seconds == pytest.approx([10, 20, 130, 240, 250, 260], abs=2)


def test_the_learning_rate_is_computed_without_a_cpu_backend(logger_on, monkeypatch):
  def absent(backend):
    raise RuntimeError(f'Unknown backend {backend}')

  monkeypatch.setattr(jax, 'local_devices', absent)
  machine = Machine(1)
  logger = logger_on(machine, 0.0)
  for step in range(1, 11):
    logger.step(step, machine.dispatch(), 7, log=step % 10 == 0)
  with logger.paused():
    pass
  ((_, _, values),) = logger.writers[0].lines
  assert values['learning_rate'] == pytest.approx(0.1)
