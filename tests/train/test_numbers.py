"""Numbers that stand in for floats: where they become inputs they give what constants give, and where
they cannot they say so."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t2x.layers import Causal, Tokens
from t2x.layers.kernels import Auto, Blockwise, Dense
from t2x.sweeps.plan import _is_number
from t2x.train import schedules
from t2x.train.numbers import Fixed, Inputs, Number, blamed

SCHEDULES = [getattr(schedules, name) for name in schedules.__all__ if name != 'Schedule']
N = Number('n')


def as_input(function, value):
  """`function(number)` with the number as an input of what is compiled."""
  inputs = Inputs()

  def given(vector):
    with inputs.given(vector):
      return function(N)

  step = jax.jit(given)
  jax.eval_shape(step, np.zeros(Inputs.SIZE, np.float32))
  return step(inputs.vector({'n': value}))


@pytest.mark.parametrize(
  'schedule, name',
  [(one, f.name) for one in SCHEDULES for f in dataclasses.fields(one) if _is_number(f.name)],
)
def test_every_number_of_every_schedule_is_an_input(schedule, name, unchecked):
  value = 2e-4 if name == 'end' else 3e-2

  def rates(value):
    rate = schedule(warmup_steps=2, **{name: value}).build(12)
    return jnp.stack([rate(step) for step in range(13)])

  np.testing.assert_allclose(as_input(rates, value), rates(value), rtol=1e-6, atol=1e-12)


@pytest.mark.parametrize(
  'kernel', [Dense(), Blockwise(4, 4), Auto(), Auto(dense_scores=1)], ids=str
)
def test_dropout_of_every_kernel_is_an_input(kernel, unchecked):
  q, k, v = jax.random.normal(jax.random.key(0), (3, 2, 8, 2, 4))
  attend = functools.partial(
    kernel, pattern=Causal(), q_tokens=Tokens(), k_tokens=Tokens(), scale=0.5, key=jax.random.key(1)
  )

  def gradients(rate):
    return jax.grad(lambda *x: jnp.sin(attend(*x, dropout_rate=rate)).sum(), (0, 1, 2))(q, k, v)

  for ours, theirs in zip(
    as_input(gradients, 0.3), jax.jit(gradients, static_argnums=0)(0.3), strict=True
  ):
    np.testing.assert_allclose(ours, theirs, atol=1e-6)
  # A second rate in the same process, and both at once.
  inputs = Inputs()

  def given(vector):
    with inputs.given(vector):
      return gradients(N)

  jax.eval_shape(given, np.zeros(Inputs.SIZE, np.float32))
  both = jnp.stack([inputs.vector({'n': rate}) for rate in (0.1, 0.6)])
  for at_once, alone in zip(jax.vmap(given)(both), as_input(gradients, 0.6), strict=True):
    np.testing.assert_allclose(at_once[1], alone, atol=1e-6)


@pytest.mark.parametrize(
  'function',
  [
    lambda n: n**2,
    lambda n: 2**n,
    lambda n: abs(-n),
    lambda n: np.arange(3.0) * n,
    lambda n: np.float32(2) / n,
    lambda n: jnp.arange(3.0) ** n,
  ],
)
def test_arithmetic_is_that_of_floats(function):
  actual = as_input(lambda n: jnp.asarray(function(n), jnp.float32), 0.7)
  np.testing.assert_allclose(actual, function(0.7), rtol=1e-6)


@pytest.mark.parametrize(
  'function',
  [
    lambda n: bool(1 - n),
    lambda n: n > 0,
    lambda n: n <= 1.0,
    lambda n: jnp.ones(()) < n,
    lambda n: np.ones(2) < n,
    lambda n: round(n, 2),
    lambda n: int(n),
  ],
)
def test_what_needs_the_value_is_refused(function):
  with pytest.raises(Fixed):
    function(N)


def test_a_number_is_neither_nothing_nor_a_word_and_can_be_told():
  assert N and N != 0 and N != 0.0 and N != 'n' and Number('n') == N
  assert f'{N:.3f}' == 'n'


def test_what_fails_is_blamed_on_the_numbers_where_there_are_some():
  with pytest.raises(Fixed, match='ValueError: too large'), blamed(['n']):
    raise ValueError('too large\nby far')
  with pytest.raises(ValueError, match='too large'), blamed([]):
    raise ValueError('too large')
