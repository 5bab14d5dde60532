"""Learning rates: they rise to the peak, then do what their name says."""

import jax
import numpy as np
import pytest

from t2x.base.errors import UserError
from t2x.train.schedules import Constant, Cosine, LinearDecay, ReciprocalSqrt, WarmupStableDecay

ALL = [Constant, Cosine, LinearDecay, ReciprocalSqrt, WarmupStableDecay]


def values(schedule, num_steps):
  rate = schedule.build(num_steps)
  return np.array([rate(step) for step in range(num_steps + 1)])


@pytest.mark.parametrize('schedule', ALL)
def test_rises_in_a_line_to_the_peak_and_never_above(schedule):
  rates = values(schedule(peak=2.0, warmup_steps=3), 20)
  np.testing.assert_allclose(rates[:4], [0.5, 1.0, 1.5, 2.0], rtol=1e-6)
  assert rates.max() <= 2.0 + 1e-6
  assert (np.diff(rates[3:]) <= 1e-6).all()


@pytest.mark.parametrize('schedule', ALL)
def test_is_the_same_inside_jit_and_without_warmup_starts_at_the_peak(schedule):
  rate = schedule(peak=0.3).build(10)
  assert float(rate(0)) == pytest.approx(0.3)
  np.testing.assert_allclose(jax.jit(rate)(np.int32(7)), rate(7), rtol=1e-6)


@pytest.mark.parametrize('schedule', ALL)
def test_a_share_of_the_steps_is_the_same_as_their_rounded_number(schedule):
  for num_steps, share, steps in ((20, 0.15, 3), (600, 0.083, 50), (10, 0.04, 0), (10, 0.26, 3)):
    of_share, of_number = schedule(warmup=share), schedule(warmup_steps=steps)
    assert (values(of_share, num_steps) == values(of_number, num_steps)).all()


def test_ends():
  for schedule in (Cosine, LinearDecay, WarmupStableDecay):
    rates = values(schedule(peak=1.0, warmup_steps=2, end=0.1), 12)
    assert rates[-1] == pytest.approx(0.1)
  assert values(Constant(peak=1.0, warmup_steps=2), 12)[-1] == 1.0


def test_middles():
  assert values(Cosine(peak=1.0, end=0.2), 10)[5] == pytest.approx(0.6)
  assert values(LinearDecay(peak=1.0, end=0.2), 10)[5] == pytest.approx(0.6)


def test_reciprocal_square_root():
  rates = values(ReciprocalSqrt(peak=1.0, warmup_steps=4), 40)
  assert rates[4] == pytest.approx(1.0)
  assert rates[16] == pytest.approx(0.5)  # sqrt(4 / 16)
  assert values(ReciprocalSqrt(peak=1.0, timescale=9), 40)[27] == pytest.approx(0.5)
  assert values(ReciprocalSqrt(peak=1.0, warmup_steps=4, end=0.6), 40)[-1] == pytest.approx(0.6)


def test_stable_then_decay():
  rates = values(WarmupStableDecay(peak=1.0, warmup_steps=5, decay_fraction=0.25), 40)
  assert (rates[5:31] == 1.0).all()
  np.testing.assert_allclose(rates[30:], np.linspace(1, 0, 11), atol=1e-6)
  root = values(WarmupStableDecay(peak=1.0, decay_fraction=0.25, sqrt=True), 40)
  np.testing.assert_allclose(root[30:], 1 - np.sqrt(np.linspace(0, 1, 11)), atol=1e-6)


def test_impossible_settings_are_refused():
  with pytest.raises(UserError, match=r'Cosine.warmup_steps = 11 is more than the 10 steps'):
    Cosine(warmup_steps=11).build(10)
  with pytest.raises(UserError, match='warmup_steps = -1'):
    Constant(warmup_steps=-1)
  for share in (-0.1, 1.0):
    with pytest.raises(
      UserError, match=rf'Constant.warmup = {share}: must be at least 0 and below 1'
    ):
      Constant(warmup=share)
  with pytest.raises(UserError, match='warmup_steps = 5 a number: set one of them to 0'):
    Cosine(warmup=0.1, warmup_steps=5)
  with pytest.raises(UserError, match=r'decay_fraction = 1\.5'):
    WarmupStableDecay(decay_fraction=1.5)
