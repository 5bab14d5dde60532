"""Features that a train step redraws: which step, which layers, and the directions of evaluation."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny_lm import causal_lm, full_rows, lm

from t2x.base.step import in_step
from t2x.layers import FavorPlus, LinearAttention, Tokens
from t2x.models import Block, ReversibleStack, Stack
from t2x.parallel import Mesh
from t2x.train import AdamW, Constant, Experiment, Program, Trainer
from t2x.train.step import make_eval_step

part = functools.partial
BATCH = full_rows(4, 12)


def program(stack=Stack, accumulate=1, redraw_every=2):
  features = part(FavorPlus, num_features=8, redraw_every=redraw_every)
  mixer = part(LinearAttention, num_heads=2, features=features, chunk=4)
  model = lm(num_layers=4, mixer=mixer, hidden_dim=16, kinds=[Block, Block], stack=stack)
  trainer = Trainer(
    num_steps=9,
    batch_size=4,
    optimizer=AdamW(),
    schedule=Constant(peak=1e-2),
    accumulate=accumulate,
  )
  return Program(Experiment(model=model, task=causal_lm(12), trainer=trainer, mesh=Mesh()))


def losses(program, steps):
  """The loss, whether it and the gradients are finite, and the gradient norm of a step, from the same parameters."""
  state, frozen = program.init(0)
  step = jax.jit(program.step())
  results = []
  for number in steps:
    _, out = step(dataclasses.replace(state, step=jnp.int32(number)), frozen, BATCH)
    assert out.sums['finite'][0] == 1
    results.append([out.loss, float(out.sums['grad_norm'][0])])
  return np.asarray(results)


def test_a_train_step_has_the_features_of_its_period():
  values = losses(program(), (0, 1, 2, 3, 4))
  np.testing.assert_array_equal(values[0], values[1])
  np.testing.assert_array_equal(values[2], values[3])
  assert len(np.unique(values[:, 0])) == 3


def test_evaluation_has_the_features_of_step_0():
  made = program()
  state, frozen = made.init(0)
  _, task, _ = made.experiment.complete()
  evaluate = jax.jit(make_eval_step(task, 'float32', made.blueprint))
  total, weight = evaluate(made.eval_params(state, frozen), BATCH).sums['loss']
  first, _, later = losses(made, (0, 1, 2))[:, 0]
  np.testing.assert_allclose(total / weight, first, rtol=1e-6)
  assert abs(later - first) > 1e-5


@pytest.mark.parametrize(
  'settings',
  [
    {'accumulate': 2},
    pytest.param({'stack': part(Stack, remat='full')}, marks=pytest.mark.nightly),
  ],
  ids=['accumulated', 'rematerialised'],
)
def test_other_forms_of_the_step_have_the_same_features(settings):
  np.testing.assert_allclose(
    losses(program(**settings), (0, 3)), losses(program(), (0, 3)), rtol=1e-5
  )


def test_the_reversible_stack_has_the_features_of_the_step_in_both_passes():
  """Against the same stack with saved activations, which calls that record arrays have."""
  made = program(ReversibleStack)
  state, frozen = made.init(0)
  model = made.blueprint.model(made.eval_params(state, frozen), 'float32')
  x = jax.random.normal(jax.random.key(1), (2, 6, 16))

  def gradients(step, record):
    def loss(body, x):
      # A function that the final norm does not make constant.
      return jnp.sin(body(x, key=jax.random.key(2), record=frozenset(record)).x).sum()

    with in_step(step=step):
      return jax.value_and_grad(loss, (0, 1))(model.body, x)

  run = jax.jit(gradients, static_argnums=1)
  inverted, saved = run(jnp.int32(2), ()), run(jnp.int32(2), ('hidden',))
  for a, b in zip(jax.tree.leaves(inverted), jax.tree.leaves(saved), strict=True):
    np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4)
  assert abs(run(jnp.int32(4), ())[0] - inverted[0]) > 1e-3


def test_decoding_with_separate_layers_equals_the_forward_pass():
  """Each layer has its own directions, which the unstacked layers find by their place and repeat."""
  made = program()
  state, frozen = made.init(0)
  model = made.blueprint.model(made.eval_params(state, frozen), 'float32')
  x = jax.random.normal(jax.random.key(1), (2, 6, 16))
  expected = jax.jit(lambda body, x: body(x).x)(model.body, x)
  body, cache = model.body.unstacked(model.body.init_cache(2, 6, jnp.float32))
  run, outputs = jax.jit(lambda body, x, tokens, cache: body(x, tokens=tokens, cache=cache)), []
  for i in range(6):
    tokens = Tokens(jnp.full((1, 1), i))
    output = run(body, x[:, i : i + 1], tokens, cache)
    cache = output.cache
    outputs.append(output.x)
  np.testing.assert_allclose(jnp.concatenate(outputs, 1), expected, rtol=1e-5, atol=1e-5)
