"""Trials in lockstep: they end as alone, also where one of them, or the step of all, goes another way."""

import os
import signal
import statistics
import time
import types
from concurrent import futures

import jax
import jax.numpy as jnp
import pytest

from t2x.base.errors import UserError
from t2x.base.signals import stop_flag
from t2x.run_folder.lines import metric_lines
from t2x.sweeps import vmapped_trials
from t2x.sweeps.records import read_plan
from t2x.sweeps.report import write_report
from t2x.sweeps.vmapped_trials import VmappedStepError, VmappedStepper

pytestmark = pytest.mark.nightly

STEPS = 3


def step(state, frozen, batch, scalars):
  """A state that counts what it was given."""
  total, key = state
  return [total + frozen * batch, key], {'total': total}


@pytest.fixture
def stepper():
  program = types.SimpleNamespace(
    mesh=types.SimpleNamespace(size=1), trainer=types.SimpleNamespace(profile_steps=None)
  )
  program.at = lambda values: program
  return VmappedStepper(program, [{}, {}])


def run_all(stepper, run):
  """`run(index)` for both, at once, each of which leaves in the end."""

  def one(index):
    try:
      return run(index)
    finally:
      stepper.leave(index)

  with futures.ThreadPoolExecutor(2) as pool:
    return list(pool.map(one, range(2)))


def before_step(monkeypatch, number, action):
  """Calls `action` before a step of all; the first is 1."""
  whole, steps = vmapped_trials._vmapped, []

  def vmapped(function):
    step = whole(function)

    def one(*arguments):
      steps.append(1)
      if len(steps) == number:
        action()
      return step(*arguments)

    return one

  monkeypatch.setattr(vmapped_trials, '_vmapped', vmapped)


def test_a_restored_state_and_frozen_parameters_of_its_own_are_used(stepper):
  def run(index):
    state, frozen = [jnp.full((2,), 10.0 * index), jax.random.key(index)], jnp.float32(1 + index)
    for count in range(STEPS):
      if (index, count) == (1, 2):
        state = [jnp.full((2,), 500.0), jax.random.key(7)]
      state, _ = stepper.step(index, step, state, frozen, jnp.ones(2), {})
    return [one if one.ndim else jax.random.key_data(one) for one in stepper.state(state)]

  first, second = run_all(stepper, run)
  assert first[0].tolist() == [3.0, 3.0] and second[0].tolist() == [502.0, 502.0]
  assert second[1].tolist() == jax.random.key_data(jax.random.key(7)).tolist()


def test_a_failed_joint_step_fails_all_trials_and_saves_nothing(stepper):
  def broken(state, frozen, batch, scalars):
    raise MemoryError('too much')

  def run(index):
    with pytest.raises(VmappedStepError, match='MemoryError: too much'):
      stepper.step(index, broken, [jnp.ones(2), jax.random.key(0)], {}, jnp.ones(2), {})
    return True

  assert run_all(stepper, run) == [True, True]
  assert not stepper._stacked and not stepper._inputs


@pytest.mark.parametrize('count', [2, 3])
@pytest.mark.nightly
def test_trained_together_they_are_the_same_to_rounding(
  count, sweep, metrics, tmp_path, outcomes, assert_close
):
  seeds = '--gin.Sweep.seeds=3'
  sweep(seeds, out='apart')
  code, told = sweep(seeds, '--together', str(count))
  assert code == 0 and f'up to {count} of a program together' in told.out
  found = outcomes()
  sizes = sorted(one.together for one in found.values())
  assert sizes == ([1, 1, 2, 2, 2, 2] if count == 2 else [3] * 6)
  for trial in read_plan(tmp_path / 'out' / 'study').trials:
    ours, theirs = (metrics(tmp_path / out / 'trials' / trial.folder) for out in ('out', 'apart'))
    assert_close(ours, theirs, 1e-4)
    # Its share of what all cost.
    outcome = found[trial.folder]
    lines = metric_lines(tmp_path / 'out' / 'trials' / trial.folder / 'timing.jsonl')
    assert outcome.seconds * outcome.together == pytest.approx(lines[-1]['seconds'])
    rates = [
      value
      for line in metric_lines(tmp_path / 'out' / 'trials' / trial.folder / 'metrics.jsonl')[1:]
      for name, value in line.items()
      if name.endswith('_per_second')
    ]
    assert outcome.tokens_per_second == pytest.approx(outcome.together * statistics.median(rates))
    assert outcome.memory_bytes > 4 * trial.parameters * 3


def test_a_step_of_all_that_fails_leaves_each_to_itself(
  sweep, metrics, tmp_path, monkeypatch, caplog, assert_close
):
  def fail():
    raise MemoryError('too large for all')

  before_step(monkeypatch, 6, fail)
  sweep(variants="{'gelu': {}}", out='apart')
  code, told = sweep('--together', '2', variants="{'gelu': {}}")
  assert code == 0 and '2 finished' in told.out
  lines = [line for line in caplog.messages if 'one after another' in line]
  assert len(lines) == 1 and 'too large for all: training 2 trials' in lines[0]
  for folder in (tmp_path / 'apart' / 'trials').iterdir():
    assert_close(metrics(tmp_path / 'out' / 'trials' / folder.name), metrics(folder), 1e-4)


def test_a_program_that_cannot_be_set_up_for_all_is_run_for_each(sweep, monkeypatch):
  def refuse(*_):
    raise UserError('not for all')

  monkeypatch.setattr(VmappedStepper, '__init__', refuse)
  variants = "{'gelu': {}, 'rate': {'Cosine.peak': 3e-3}}"
  code, told = sweep('--together', '2', '--gin.Sweep.seeds=1', variants=variants)
  assert code == 0 and '2 finished' in told.out


def test_one_that_diverges_leaves_the_others_going(
  sweep, metrics, tmp_path, outcomes, assert_close
):
  variants = "{'gelu': {}, 'mild': {'Cosine.peak': 3e-3}, 'wild': {'AdamW.weight_decay': 1e30}}"
  arguments = ('--gin.Sweep.seeds=1', '--gin.Trainer.clip_norm=None')
  sweep(*arguments, variants=variants, out='apart')
  sweep(*arguments, '--together', '3', variants=variants)
  plan, found = read_plan(tmp_path / 'out' / 'study'), outcomes()
  assert len({trial.program for trial in plan.trials}) == 1
  assert {trial.variant: found[trial.folder].status for trial in plan.trials} == {
    'gelu': 'finished',
    'mild': 'finished',
    'wild': 'diverged',
  }
  logs = [path.read_text() for path in tmp_path.glob('out/trials/*/log.txt')]
  assert len(logs) == 1  # Together to the end.
  for trial in plan.trials:
    ours, theirs = (metrics(tmp_path / out / 'trials' / trial.folder) for out in ('out', 'apart'))
    if trial.variant == 'wild':
      assert len(ours) == len(theirs) < 4
    else:
      assert_close(ours, theirs, 1e-4)


def test_trials_trained_together_stop_on_request_save_and_resume(
  sweep, metrics, tmp_path, monkeypatch
):
  # Nothing is saved but at the end, or when asked.
  line = {'variants': "{'gelu': {}}"}
  more = ('--together', '2', '--gin.Trainer.checkpoint_every=0')

  def ask():
    stopped = stop_flag()
    os.kill(os.getpid(), signal.SIGTERM)
    while not stopped():
      time.sleep(0.01)

  with monkeypatch.context() as patched:
    before_step(patched, 6, ask)
    code, told = sweep(*more, **line)
  assert code == 75 and 'interrupted' in told.err
  assert not list(tmp_path.glob('out/trials/*/trial.json'))
  assert len({path.parent for path in tmp_path.glob('out/trials/*/checkpoints/6')}) == 2
  assert sweep(*more, **line)[0] == sweep(*more, **line, out='whole')[0] == 0
  for folder in (tmp_path / 'whole' / 'trials').iterdir():
    assert metrics(tmp_path / 'out' / 'trials' / folder.name) == metrics(folder)
  results = [write_report(tmp_path / out / 'study')[0].read_bytes() for out in ('out', 'whole')]
  assert results[0] == results[1]
