"""The train step: what accumulation, the moving average and the seed mean."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny_lm import ATTENTION, causal_lm, lm

from t2x.layers import RoPE
from t2x.layers.arrays import named_leaves
from t2x.parallel import Mesh
from t2x.tasks import CausalLM
from t2x.train import AdamW, Constant, Experiment, Program, Skip, Trainer


def experiment(dropout_rate=0.0, **settings):
  model = lm(mixer=functools.partial(ATTENTION, dropout_rate=dropout_rate), encoding=RoPE)
  defaults = {'num_steps': 4, 'batch_size': 8, 'optimizer': AdamW(), 'clip_norm': None}
  trainer = Trainer(**(defaults | {'schedule': Constant(peak=1e-2)} | settings))
  return Experiment(model=model, task=causal_lm(12), trainer=trainer, mesh=Mesh())


def batches(num):
  rng = np.random.default_rng(0)
  for _ in range(num):
    # Rows of different lengths, so that parts of a batch have different weights.
    lengths = rng.integers(1, 13, size=8)
    segments = (np.arange(12)[None] < lengths[:, None]).astype(np.int32)
    tokens = rng.integers(5, 261, size=(8, 12)).astype(np.int32) * segments
    positions = np.broadcast_to(np.arange(12, dtype=np.int32), (8, 12)) * segments
    yield jax.tree.map(
      jnp.asarray, {'tokens': tokens, 'segments': segments, 'positions': positions}
    )


def run(experiment, num=3):
  program = Program(experiment)
  state, frozen = program.init(experiment.trainer.seed)
  step = jax.jit(program.step())
  losses = []
  for batch in batches(num):
    state, out = step(state, frozen, batch)
    losses.append(out.loss)
  return state, losses


@pytest.mark.parametrize('parts', [pytest.param(2, marks=pytest.mark.nightly), 4])
def test_accumulation_equals_one_batch(parts):
  whole, losses = run(experiment())
  accumulated, same = run(experiment(accumulate=parts))
  np.testing.assert_allclose(losses, same, rtol=1e-6)
  for a, b in zip(jax.tree.leaves(whole.params), jax.tree.leaves(accumulated.params), strict=True):
    np.testing.assert_allclose(a, b, atol=2e-5)


def test_each_step_draws_its_own_masks():
  """Of the same parameters and batch: the masks of a step are a function of the seed and its number."""
  (batch,) = batches(1)

  def losses(rate):
    program = Program(experiment(rate))
    first, frozen = program.init(0)
    step = jax.jit(program.step())
    numbered = (dataclasses.replace(first, step=jnp.int32(number)) for number in (0, 1, 2, 0))
    return [step(state, frozen, batch)[1].loss for state in numbered]

  *others, again = losses(0.5)
  assert len(set(others)) == 3 and again == others[0]
  assert len(set(losses(0.0))) == 1


def test_ema_is_the_moving_average_of_the_parameters():
  # The decay grows to its value: 1/10, 2/11, 3/12.
  states = [run(experiment(ema_decay=0.2), num)[0] for num in range(4)]
  expected = jax.tree.map(np.asarray, states[0].params)
  for state, decay in zip(states[1:], (0.1, 2 / 11, 0.2), strict=True):
    expected = jax.tree.map(
      lambda e, p, d=decay: d * e + (1 - d) * np.asarray(p), expected, state.params
    )
  for a, b in zip(jax.tree.leaves(expected), jax.tree.leaves(states[-1].ema), strict=True):
    np.testing.assert_allclose(a, b, atol=1e-6)
  assert states[-1].eval_params is states[-1].ema


def test_skipped_steps_do_not_count_for_the_moving_average():
  settings = experiment(ema_decay=0.9, nonfinite=Skip())
  program = Program(settings)
  step = jax.jit(program.step())
  first, frozen = program.init(0)
  (batch,) = batches(1)
  broken = dataclasses.replace(
    first, params=jax.tree.map(lambda a: jnp.full_like(a, jnp.nan), first.params)
  )
  skipped, _ = step(broken, frozen, batch)
  skipped = dataclasses.replace(skipped, params=first.params, step=first.step)
  for a, b in zip(
    jax.tree.leaves(step(skipped, frozen, batch)[0].ema),
    jax.tree.leaves(step(first, frozen, batch)[0].ema),
    strict=True,
  ):
    np.testing.assert_array_equal(a, b)


def empty(batch):
  return jax.tree.map(jnp.zeros_like, batch)


def stepped(experiment, given):
  """The states before, between and after the steps on some batches, and the sums of each."""
  program = Program(experiment)
  first, frozen = program.init(0)
  step, states, told = jax.jit(program.step()), [first], []
  for batch in given:
    state, out = step(states[-1], frozen, batch)
    states.append(state)
    told.append(jax.device_get(out).sums)
  return states, told


def test_a_step_returns_its_sums_and_norms_in_one_array_that_names_them():
  program, (batch,) = Program(experiment()), batches(1)
  _, out = jax.jit(program.step())(*program.init(0), batch)
  assert [leaf.shape for leaf in jax.tree.leaves(out)] == [
    (2 * len(out.names) + len(program.groups.trained),)
  ]
  sums, norms = jax.device_get(out).sums, jax.device_get(out).norms
  assert list(sums) == ['loss', 'accuracy', 'grad_norm', 'finite']
  assert sums['finite'] == (1.0, 1.0) and sums['loss'][1] == (batch['segments'] != 0).sum()
  assert sums['grad_norm'][0] == pytest.approx(np.linalg.norm(norms), rel=1e-6)
  together = dataclasses.replace(out, values=jnp.stack([out.values, 2 * out.values]))
  np.testing.assert_array_equal(together.sums['loss'][0], [sums['loss'][0], 2 * sums['loss'][0]])


def test_a_batch_of_weight_0_is_finite_and_takes_a_step_with_a_gradient_of_0():
  (batch,) = batches(1)
  states, sums = stepped(experiment(optimizer=AdamW(weight_decay=0.0)), [empty(batch), batch])
  assert [one['finite'] for one in sums] == [(1.0, 1.0), (1.0, 1.0)]
  assert sums[0]['loss'] == (0.0, 0.0)
  first, second, third = (jax.tree.leaves(state.params) for state in states)
  for a, b, c in zip(first, second, third, strict=True):
    np.testing.assert_array_equal(a, b)
    assert not np.array_equal(b, c)


def test_momentum_and_weight_decay_still_act_on_a_batch_of_weight_0():
  (batch,) = batches(1)

  def moved(weight_decay, *given):
    states, _ = stepped(experiment(optimizer=AdamW(weight_decay=weight_decay)), given)
    change = jax.tree.leaves(states[-2].params)[-1] - jax.tree.leaves(states[-1].params)[-1]
    return float(jnp.abs(change).max())

  assert moved(0.0, batch, empty(batch)) > 0  # Momentum.
  assert moved(0.1, empty(batch)) > 0  # Weight decay.


def test_a_loss_that_is_not_finite_is_reported_by_the_step(monkeypatch):
  (batch,) = batches(1)
  sums_of = CausalLM.sums
  monkeypatch.setattr(
    CausalLM,
    'sums',
    lambda *args: jax.tree.map(lambda a: a * jnp.inf, sums_of(*args)),
  )
  _, sums = stepped(experiment(), [batch])
  assert sums[0]['finite'] == (0.0, 1.0)


def test_the_seed_decides_everything():
  first, losses = run(experiment(dropout_rate=0.3))
  again, same = run(experiment(dropout_rate=0.3))
  _, other = run(experiment(dropout_rate=0.3, seed=1))
  assert losses == same
  assert losses != other
  for a, b in zip(jax.tree.leaves(first.params), jax.tree.leaves(again.params), strict=True):
    np.testing.assert_array_equal(a, b)


def test_parameters_stay_float32_under_bf16_compute():
  state, losses = run(experiment(compute_dtype='bfloat16'))
  assert {leaf.dtype for leaf in jax.tree.leaves(state.params)} == {jnp.dtype('float32')}
  _, full = run(experiment())
  np.testing.assert_allclose(losses, full, rtol=2e-2)
  assert losses != full


def test_scales_and_biases_of_norms_are_not_rounded():
  blueprint = Program(experiment()).blueprint
  params = {name: jnp.zeros(info.shape) for name, info in blueprint.infos.items()}
  working = blueprint.model(params, 'bfloat16')
  assert working.body.final_norm.scale[...].dtype == jnp.float32
  assert working.body.stack.blocks[0].mixer_wiring.norm.bias[...].dtype == jnp.float32
  rest = {leaf.dtype for name, leaf in named_leaves(working) if 'norm' not in name}
  assert rest == {jnp.dtype('bfloat16')}


def test_impossible_settings_of_the_trainer_are_refused():
  settings = dataclasses.asdict(Trainer(num_steps=1, batch_size=8))
  assert settings['accumulate'] == 1
  with pytest.raises(Exception, match='accumulate = 3'):
    Trainer(num_steps=1, batch_size=8, accumulate=3)


def test_states_of_two_constructions_have_one_structure():
  one, two = (Program(experiment()) for _ in range(2))
  assert jax.tree.structure(one.abstract) == jax.tree.structure(two.abstract)
  assert jax.tree.structure(one.blueprint.shapes) == jax.tree.structure(two.blueprint.shapes)
