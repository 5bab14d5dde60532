"""The time of a step, apart from what else takes time."""

import time

import jax
import jax.numpy as jnp
import pytest

from t2x.sweeps.records import Conditions
from t2x.sweeps.timing import Compilation, at_once, conditions, median_rate, step_seconds


def line(step, split, seconds, **more):
  return {'step': step, 'split': split, 'seconds': seconds, **more}


def test_a_step_is_timed_without_compilation_evaluation_and_checkpoints():
  lines = [
    line(10, 'train', 60.0),  # Compiled.
    line(20, 'train', 62.0),
    line(20, 'eval', 90.0),
    line(20, 'checkpoint', 95.0, waited=5.0),
    line(25, 'checkpoint', 99.0, waited=3.0),
    line(30, 'train', 100.0),
    line(40, 'train', 102.0),
  ]
  assert step_seconds(lines) == pytest.approx(0.2)


def test_an_interval_with_an_evaluation_is_omitted():
  lines = [
    line(10, 'train', 1.0),
    line(15, 'eval', 50.0),
    line(20, 'train', 51.0),
    line(30, 'train', 53.0),
  ]
  assert step_seconds(lines) == pytest.approx(0.2)


@pytest.mark.parametrize(
  'lines', [[], [line(10, 'train', 9.0)], [line(10, 'train', 9.0), line(10, 'eval', 9.5)]]
)
def test_too_few_lines_give_no_time(lines):
  assert step_seconds(lines) is None


def test_the_rate_leaves_the_first_interval_out():
  rates = [{'split': 'train', 'tokens_per_second': one} for one in (1.0, 50.0, 60.0)]
  evaluation = {'split': 'eval', 'tokens_per_second': 9.0}
  assert median_rate([rates[0], evaluation, *rates[1:]]) == 55.0
  assert median_rate(rates[:1]) is None


def test_compilation_is_measured_once_for_functions_within_functions():
  slept = []

  @jax.jit
  def inner(x):
    slept.append(time.sleep(0.2))
    return x + 1

  x = jnp.ones(3)
  with Compilation() as compilation:
    began = time.monotonic()
    jax.jit(lambda x: inner(x) * 2)(x)
    whole = time.monotonic() - began
    first = compilation.seconds()
    inner(x + 1)
  assert 0.2 <= first <= whole and len(slept) == 1
  # Nobody listens any more.
  after = compilation.seconds()
  jax.jit(lambda x: x - 7)(x)
  assert compilation.seconds() == after


def test_the_load_is_noted():
  with conditions() as found:
    assert found == []
  (one,) = found
  assert one.cpus >= one.cores >= 1 and one.load_before >= 0 <= one.load_after
  assert one.began <= one.ended


def test_the_number_of_concurrent_trials_follows_the_machine():
  def ran(began, ended, host='a'):
    return Conditions(
      host=host, cpus=2, cores=2, load_before=0.0, load_after=0.0, began=began, ended=ended
    )

  trials = [ran(0.0, 10.0), ran(5.0, 15.0), ran(0.0, 10.0, 'b'), ran(20.0, 20.0)]
  assert [at_once(one, trials) for one in trials] == [1.5, 1.5, 1.0, 1.0]
