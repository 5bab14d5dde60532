"""What trials in lockstep do where one of them, or the step of all, goes another way."""

import types
from concurrent import futures

import jax
import jax.numpy as jnp
import pytest

from t2x.sweeps.together import Lockstep, Parted

STEPS = 3


def step(leaves, batch, vector):
  """A state that counts what it was given."""
  total, key = leaves
  return [total + batch, key], {'total': total}, jnp.zeros(())


@pytest.fixture
def lockstep(unchecked):
  program = types.SimpleNamespace(mesh=types.SimpleNamespace(size=1))
  program.at = lambda values: program
  return Lockstep(program, [{}, {}])


def run_all(lockstep, run):
  """`run(index)` for both, at once, each of which leaves in the end."""

  def one(index):
    try:
      return run(index)
    finally:
      lockstep.leave(index)

  with futures.ThreadPoolExecutor(2) as pool:
    return list(pool.map(one, range(2)))


def test_leaves_that_were_restored_are_gone_on_from(lockstep):
  def run(index):
    leaves = [jnp.full((2,), 10.0 * index), jax.random.key(index)]
    for count in range(STEPS):
      if (index, count) == (1, 2):
        leaves = [jnp.full((2,), 500.0), jax.random.key(7)]
      leaves, _, _ = lockstep.step(index, step, leaves, jnp.ones(2), ())
    return [one if one.ndim else jax.random.key_data(one) for one in lockstep.leaves(leaves)]

  first, second = run_all(lockstep, run)
  assert first[0].tolist() == [3.0, 3.0] and second[0].tolist() == [501.0, 501.0]
  assert second[1].tolist() == jax.random.key_data(jax.random.key(7)).tolist()


def test_when_the_step_of_all_fails_all_are_told_and_nothing_is_kept(lockstep):
  def broken(leaves, batch, vector):
    raise MemoryError('too much')

  def run(index):
    with pytest.raises(Parted, match='MemoryError: too much'):
      lockstep.step(index, broken, [jnp.ones(2), jax.random.key(0)], jnp.ones(2), ())
    return True

  assert run_all(lockstep, run) == [True, True]
  assert not lockstep._stacked and not lockstep._given
