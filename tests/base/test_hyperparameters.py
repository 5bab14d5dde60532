"""Hyperparameters as scalars in the step's argument give what constants give."""

import dataclasses
import functools
import inspect
from concurrent import futures
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t2x.base.errors import UserError
from t2x.base.hyperparameters import Hyperparameter, scalar
from t2x.base.ranges import TunableRate
from t2x.base.step import in_step
from t2x.config.signature import describe
from t2x.config.type_check import is_tunable
from t2x.data import Bytes, TextFiles
from t2x.layers import (
  MLP,
  Causal,
  MultiHeadAttention,
  PreNorm,
  RowLayout,
  TokenEmbedding,
  Tokens,
  dropout,
)
from t2x.layers.attention.kernels import AttentionInputs, Auto, Blockwise, Dense, DotProduct
from t2x.models import Block, Decoder, LanguageModel, Stack
from t2x.models.losses import classification_sums
from t2x.tasks import CausalLM, TaskOutput
from t2x.train import AdamW, Cosine, Experiment, Program, Trainer, schedules
from t2x.train.step import make_eval_step

ROOT = Path(__file__).parents[2]

RATE = Hyperparameter('PreNorm.dropout_rate')
SCHEDULES = [
  schedule
  for schedule in vars(schedules).values()
  if inspect.isclass(schedule)
  and issubclass(schedule, schedules.Schedule)
  and schedule is not schedules.Schedule
]

# One of each kind.
VALUES = {
  'peak': 7e-3,
  'end': 3e-4,
  'weight_decay': 0.15,
  'label_smoothing': 0.1,
  'attention': 0.13,
  'residual': 0.2,
  'hidden': 0.15,
  'input': 0.1,
  'final': 0.6,
  'stochastic_depth': 0.3,
}
LENGTH, NUM_STEPS = 12, 20


def as_input(function, value):
  """`function(reference)`, the value being an argument of what is compiled."""

  def step(scalars):
    with in_step(scalars=scalars):
      return function(RATE)

  return jax.jit(step)({RATE.name: np.float32(value)})


@pytest.mark.parametrize(
  'schedule, name',
  [
    (one, name)
    for one in SCHEDULES
    for name, parameter in describe(one, one.__name__).parameters.items()
    if is_tunable(parameter.hint)
  ],
)
def test_every_tunable_field_of_a_schedule_equals_the_constant(schedule, name):
  value = 2e-4 if name == 'end' else 3e-2

  def rates(value):
    rate = schedule(warmup_steps=2, **{name: value}).build(12)
    return jnp.stack([rate(step) for step in range(13)])

  np.testing.assert_allclose(as_input(rates, value), rates(value), rtol=1e-6, atol=1e-12)


@pytest.mark.parametrize(
  'kernel', [Dense(), Blockwise(4, 4), Auto(), Auto(dense_scores=1)], ids=str
)
def test_dropout_of_every_kernel_equals_the_constant(kernel):
  q, k, v = jax.random.normal(jax.random.key(0), (3, 2, 8, 2, 4))

  def gradients(rate):
    def loss(q, k, v):
      scores, key = DotProduct(q, k, 0.5), jax.random.key(1)
      out = kernel(
        AttentionInputs(
          scores, v, Causal(), Tokens.row(8), Tokens.row(8), dropout_rate=rate, key=key
        )
      )
      return jnp.sin(out).sum()

    return jax.grad(loss, (0, 1, 2))(q, k, v)

  for ours, theirs in zip(
    as_input(gradients, 0.3), jax.jit(gradients, static_argnums=0)(0.3), strict=True
  ):
    np.testing.assert_allclose(ours, theirs, atol=1e-6)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Smoothed(CausalLM):
  """Language modelling with label smoothing."""

  label_smoothing: TunableRate = 0.0

  def sums(self, model, batch, key):
    tokens, segments = batch['tokens'], batch['segments']
    packed = Tokens(batch['positions'], segments, layout=RowLayout.PACKED)
    out = model(jnp.roll(tokens, 1, axis=1), tokens=packed, key=key)
    smoothing = 0.0 if key is None else self.label_smoothing
    sums = classification_sums(out.x, tokens, self.target_weights(batch), smoothing)
    return TaskOutput(sums, out.aux)


def experiment(values, kernel, remat):
  """A language model with every kind of hyperparameter; the values are floats or references."""
  block = functools.partial(
    Block,
    mixer=functools.partial(
      MultiHeadAttention, num_heads=2, kernel=kernel, dropout_rate=values['attention']
    ),
    feed_forward=functools.partial(MLP, hidden_dim=24, dropout_rate=values['hidden']),
    wiring=functools.partial(PreNorm, dropout_rate=values['residual']),
  )
  depth = values['stochastic_depth']
  stack = functools.partial(
    Stack, num_layers=2, blocks=[block], remat=remat, stochastic_depth=depth
  )
  return Experiment(
    model=functools.partial(
      LanguageModel,
      d_model=16,
      embedding=functools.partial(TokenEmbedding, vocab_size=261),
      body=functools.partial(
        Decoder, stack=stack, input_dropout=values['input'], final_dropout=values['final']
      ),
    ),
    task=Smoothed(
      source=TextFiles(train='none'),
      tokenizer=Bytes(),
      length=LENGTH,
      label_smoothing=values['label_smoothing'],
    ),
    trainer=Trainer(
      num_steps=NUM_STEPS,
      batch_size=4,
      accumulate=2,
      ema_decay=0.9,
      optimizer=AdamW(weight_decay=values['weight_decay']),
      schedule=Cosine(peak=values['peak'], end=values['end'], warmup_steps=3),
    ),
  )


def packed_batches():
  """Rows of two examples, and padding."""
  rng = np.random.default_rng(0)
  place = np.arange(LENGTH)[None]
  for _ in range(NUM_STEPS):
    first, both = rng.integers(2, 7, (4, 1)), rng.integers(8, LENGTH + 1, (4, 1))
    segments = np.where(place < first, 1, np.where(place < both, 2, 0)).astype(np.int32)
    positions = np.where(place < first, place, place - first).astype(np.int32)
    tokens = rng.integers(5, 261, (4, LENGTH)).astype(np.int32)
    yield {'tokens': tokens, 'segments': segments, 'positions': positions}


def losses(experiment, *trials, together=False):
  """The loss of each step and of an evaluation at the end [steps + 1], for each of `trials`, given as
  scalars; `together`: all of them in one vmapped step."""
  program = Program(experiment, dict.fromkeys(trials[0], 0.0))
  step = program.step()
  evaluate = make_eval_step(experiment.task, experiment.trainer.compute_dtype, program.blueprint)
  if together:
    step = jax.vmap(step, in_axes=(0, None, None, 0))
    evaluate = jax.vmap(evaluate, in_axes=(0, None, 0))
    trials = [jax.tree.map(lambda *a: np.stack(a), *trials)]
  step, evaluate, results = jax.jit(step), jax.jit(evaluate), []
  for scalars in trials:
    (state, frozen), found = program.init(0), []
    if together:
      state = jax.tree.map(lambda a: jnp.stack([a, a]), state)
    for batch in packed_batches():
      state, out = step(state, frozen, batch, scalars)
      found.append(out.sums['loss'])
    found.append(evaluate(state.ema, batch, scalars).sums['loss'])
    results.append(np.stack([total / weight for total, weight in found]))
  return results[0].T if together else results


@pytest.mark.parametrize(
  ('kernel', 'remat'),
  [
    pytest.param(Blockwise(4, 4), 'dots', id='blockwise', marks=pytest.mark.nightly),
    pytest.param(Dense(), None, id='dense', marks=pytest.mark.nightly),
  ],
)
def test_a_training_with_every_hyperparameter_as_an_input_equals_constants(kernel, remat, add_row):
  (constant,) = losses(experiment(VALUES, kernel, remat), {})
  shared = experiment({name: Hyperparameter(name) for name in VALUES}, kernel, remat)
  scalars = {name: np.float32(value) for name, value in VALUES.items()}
  others = {name: np.float32(0.7 * value) for name, value in VALUES.items()}
  ours, other = losses(shared, scalars, others)
  difference = np.abs(ours / constant - 1).max()
  add_row('Inputs against constants', str(kernel), {'relative difference': f'{difference:.1e}'})
  np.testing.assert_allclose(ours, constant, rtol=1e-6)
  assert np.abs(other / constant - 1).max() > 1e-3
  together = losses(shared, scalars, others, together=True)
  np.testing.assert_allclose(together, [ours, other], rtol=1e-6)


@pytest.mark.nightly
def test_traces_one_after_another_and_in_threads_keep_their_own_values():
  x = 0.1 * jax.random.normal(jax.random.key(0), (2, 8, 8))

  def gradient(rate):
    """Through a scan, a checkpoint and the kernel's own jit."""

    @jax.checkpoint
    def layer(x, key):
      q = dropout(x, rate, key).reshape(2, 8, 2, 4)
      inputs = AttentionInputs(
        DotProduct(q, q, 0.5), q, Causal(), Tokens.row(8), Tokens.row(8), dropout_rate=rate, key=key
      )
      return x + Blockwise(4, 4)(inputs).reshape(x.shape), None

    keys = jax.random.split(jax.random.key(1), 2)
    return jax.grad(lambda x: jnp.sin(jax.lax.scan(layer, x, keys)[0]).sum())(x)

  constants = {rate: jax.jit(gradient, static_argnums=0)(rate) for rate in (0.2, 0.5)}
  for rate, theirs in constants.items():
    np.testing.assert_allclose(as_input(gradient, rate), theirs, atol=1e-5)
  with futures.ThreadPoolExecutor(2) as pool:
    at_once = list(pool.map(functools.partial(as_input, gradient), constants))
  for ours, theirs in zip(at_once, constants.values(), strict=True):
    np.testing.assert_allclose(ours, theirs, atol=1e-5)


@pytest.mark.parametrize(
  'function',
  [
    bool,
    float,
    int,
    abs,
    lambda rate: 1 - rate,
    lambda rate: rate**2,
    lambda rate: rate > 0,
    lambda rate: np.ones(2) * rate,
    lambda rate: np.float32(2) / rate,
    lambda rate: jnp.ones(2) * rate,
    lambda rate: jnp.ones(2) < rate,
    lambda rate: jnp.exp(rate),
    lambda rate: jnp.asarray(rate),
  ],
)
def test_a_reference_used_as_a_number_names_the_parameter_and_the_remedy(function):
  with pytest.raises(
    UserError, match=r'^PreNorm\.dropout_rate .*t2x\.base\.hyperparameters\.scalar'
  ):
    function(RATE)


def test_a_reference_is_never_zero_and_equal_by_name():
  same, other = Hyperparameter(RATE.name), Hyperparameter('MLP.dropout_rate')
  assert RATE != 0.0 and same == RATE and hash(same) == hash(RATE) and other != RATE


def test_a_reference_has_a_value_only_inside_a_step():
  assert scalar(0.3) == 0.3
  with in_step(scalars={RATE.name: np.float32(0.5)}):
    assert scalar(RATE) == np.float32(0.5)
  with pytest.raises(UserError, match=r'PreNorm\.dropout_rate .* read outside of a training step'):
    scalar(RATE)
