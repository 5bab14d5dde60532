"""Non-finite steps are reported or tolerated; consecutive outliers of the loss are a spike."""

import json
import math
import types

import jax.numpy as jnp
import numpy as np
import pytest

from t2x.data import Batches
from t2x.train.faults import Fault, Faults, Rollback, Skip, Spike, Stop
from t2x.train.recovery import record_fault

NAMES = ['a.kernel', 'b.kernel', 'c.scale']


def sums(loss):
  return {'loss': (2.0 * loss, 2.0), 'accuracy': (1.0, 2.0)}


def look(faults, losses, norms=(1.0, 1.0, 1.0)):
  for step, loss in enumerate(losses, 1):
    finite = bool(np.isfinite([loss, *norms]).all())  # As the train step decides.
    faults.check(step, finite, sums(loss), norms)


def test_a_nonfinite_loss_stops_and_names_its_terms():
  with pytest.raises(Fault, match=r'not finite at step 3: loss nan, accuracy 0\.5') as error:
    look(Faults(NAMES, Stop(), None), [1.0, 0.9, math.nan])
  assert error.value.step == 3
  assert error.value.exit_code == 1


def test_a_gradient_that_is_not_finite_is_named():
  with pytest.raises(Fault, match=r'non-finite gradients: b\.kernel$') as error:
    look(Faults(NAMES, Stop(), None), [1.0], (1.0, math.inf, 1.0))
  assert error.value.details['gradients'] == ['b.kernel']


def test_skipped_steps_are_endured_up_to_a_limit_in_a_row():
  look(Faults(NAMES, Skip(limit=2), None), [1.0, math.nan, math.nan, 1.0, math.nan, math.inf, 1.0])
  with pytest.raises(Fault, match=r'not finite at step 4 \(3 consecutive steps\)') as error:
    look(Faults(NAMES, Skip(limit=2), None), [1.0, math.nan, math.nan, math.nan])
  assert error.value.step == 2


def test_skip_keeps_the_old_state_on_the_device_and_stop_does_not():
  new, old = {'w': jnp.ones(2)}, {'w': jnp.zeros(2)}
  for finite in (True, False):
    np.testing.assert_array_equal(Skip().select(jnp.array(finite), new, old)['w'], float(finite))
    assert Stop().select(jnp.array(finite), new, old) is new


def losses_with(*leaps, count=100):
  losses = 2.0 + 0.05 * np.random.default_rng(0).standard_normal(count)
  for step in leaps:
    losses[step - 1] = 6.0
  return losses


def test_a_loss_that_leaps_and_stays_is_a_spike():
  with pytest.raises(Spike) as spike:
    look(Faults(NAMES, Stop(), Rollback(patience=3)), losses_with(60, 61, 62))
  assert (spike.value.first, spike.value.last) == (60, 62)


def test_a_short_leap_noise_and_a_falling_loss_are_none():
  look(Faults(NAMES, Stop(), Rollback(patience=3)), losses_with(40, 60, 61, 80))
  look(Faults(NAMES, Stop(), Rollback(patience=3)), 10.0 / np.arange(1, 400))


def test_a_batch_of_weight_0_is_no_fault_and_no_spike():
  faults = Faults(NAMES, Stop(), Rollback(patience=1))
  look(faults, losses_with())
  before = faults.state()
  faults.check(101, True, {'loss': (0.0, 0.0)}, (0.0, 0.0, 0.0))
  assert faults.state() == before


def test_without_rollback_nothing_is_a_spike():
  look(Faults(NAMES, Stop(), None), losses_with(60, 61, 62))


def test_a_fault_lists_the_rows_of_all_processes(tmp_path):
  rows = [{'x': np.float32(i)} for i in range(64)]
  batches = [Batches(rows, batch_size=8, seed=0, process_index=i, process_count=2) for i in (0, 1)]
  checkpoints = types.SimpleNamespace(wait=lambda: None, latest_step=lambda: None)
  processes = types.SimpleNamespace(first=True)
  run = types.SimpleNamespace(folder=tmp_path, processes=processes, checkpoints=checkpoints)
  record_fault(run, batches[0], Fault('nan', 3, {}), [])
  listed = json.loads((tmp_path / 'fault-3.json').read_text())['rows']
  assert listed == [int(row) for part in batches for row in part.indices(2)[1]]
