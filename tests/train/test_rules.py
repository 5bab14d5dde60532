"""Parameters of kind 'rule', shown on the bias of experts that their load moves."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from tiny_lm import ATTENTION, causal_lm, full_rows, lm

from t2x.base.errors import UserError
from t2x.base.step import plain_operations
from t2x.layers import MLP, Aux, Capacity, LoadBias, MixtureOfExperts, TopK, param, zeros
from t2x.layers.feed_forward.balancing import LoadRule
from t2x.layers.rules import reported
from t2x.models import Block, ReversibleStack, Stack
from t2x.parallel import Mesh
from t2x.train import AdamW, Constant, Experiment, Group, Program, Trainer
from t2x.train.logs.summary import model_table

part = functools.partial
EXPERTS, RATE = 4, 0.05
BIAS = 'body.stack.blocks.0.feed_forward.router.bias.bias'


@dataclasses.dataclass(frozen=True)
class Counting(Capacity):
  """Capacity that reports how many tokens chose each expert."""

  def __call__(self, experts, x, routing):
    y, aux = super().__call__(experts, x, routing)
    number = [(routing.expert == e).sum(dtype=jnp.float32) for e in range(EXPERTS)]
    return y, aux + Aux(metrics={f'load {e}': (n, jnp.float32(1)) for e, n in enumerate(number)})


def program(*groups, num_layers=2, stack=Stack, layers=None, accumulate=1, **settings):
  feed_forward = part(
    MixtureOfExperts,
    num_experts=EXPERTS,
    expert=part(MLP, hidden_dim=16),
    router=part(TopK, balance=0.0, bias=part(LoadBias, rate=RATE)),
    dispatch=Counting(),
  )
  block = part(Block, mixer=ATTENTION, feed_forward=feed_forward)
  model = lm(num_layers=num_layers, blocks=[block], stack=stack, layers=layers)
  trainer = Trainer(
    num_steps=9,
    batch_size=4,
    optimizer=AdamW(weight_decay=0.1),
    schedule=Constant(peak=1e-2),
    groups=groups,
    accumulate=accumulate,
    **settings,
  )
  return Program(Experiment(model=model, task=causal_lm(12), trainer=trainer, mesh=Mesh()))


def batches():
  """Batches with padding."""
  for seed in range(3):
    rows = full_rows(4, 12, seed)
    yield rows | {'segments': rows['segments'].at[1:, 8:].set(0)}


def biases(program):
  """The biases and the sums of metrics after each step."""
  state, frozen = program.init(0)
  step, results = jax.jit(program.step()), []
  for batch in batches():
    state, out = step(state, frozen, batch)
    params = program.groups.join(state.params, frozen)
    results.append((np.asarray(params[BIAS]), out.sums))
  return results


def test_the_bias_moves_by_the_sign_of_the_mean_load_minus_the_load():
  value = np.zeros(EXPERTS, np.float32)
  for bias, sums in biases(program(num_layers=1)):
    load = np.asarray([sums[f'load {e}'][0] for e in range(EXPERTS)])
    assert load.sum() == 2 * (12 + 3 * 8)
    value = value + np.float32(RATE) * np.sign(load.mean() - load).astype(np.float32)
    np.testing.assert_array_equal(bias[0], value)
  assert len(np.unique(value)) > 2


@pytest.fixture(scope='module')
def whole():
  return biases(program())


def test_accumulation_and_rematerialisation_move_biases_alike(whole):
  """The loads of micro-batches are added up; exact, as they are whole numbers."""
  for other in (program(accumulate=2), program(accumulate=4, layers={'remat': 'full'})):
    for (bias, sums), (same, others) in zip(whole, biases(other), strict=True):
      np.testing.assert_array_equal(bias, same)
      for name in ('busiest_expert', 'unused_experts'):
        np.testing.assert_allclose(sums[name], others[name], rtol=1e-6)
  assert (whole[-1][0][0] != whole[-1][0][1]).any()


@pytest.mark.parametrize('stack', [Stack, ReversibleStack])
def test_each_layer_reports_the_load_of_its_own_choices(stack):
  """In the place of the gradient, whatever the loss is multiplied with."""
  made = program(stack=stack)
  state, frozen = made.init(0)
  model = made.blueprint.model(made.groups.join(state.params, frozen))
  task = made.experiment.complete()[1]
  batch = next(batches())
  loss = jax.jit(
    jax.grad(lambda model, factor: factor * task.sums(model, batch, None).terms['loss'])
  )
  one, other = (made.blueprint.params(loss(model, factor))[BIAS] for factor in (1.0, 7.0))
  np.testing.assert_array_equal(one, other)
  np.testing.assert_array_equal(one.sum(axis=1), [2 * (12 + 3 * 8)] * 2)
  assert (one[0] != one[1]).any()


def test_the_optimizer_has_no_state_and_the_logs_no_gradient_of_it(whole):
  made = program(ema_decay=0.9)
  paths = jax.tree_util.tree_leaves_with_path(made.abstract.opt_state)
  assert not [path for path, _ in paths if 'router.bias' in jax.tree_util.keystr(path)]
  assert BIAS in made.abstract.params and BIAS in made.abstract.ema
  assert BIAS not in made.groups.trained
  norm = whole[0][1]['grad_norm'][0]
  assert 0 < norm < 20
  (line,) = [
    line for line in model_table(made.blueprint.shapes).splitlines() if 'router.bias' in line
  ]
  assert ' rule ' in line and 'float32' in line


def test_a_frozen_bias_stays_and_a_group_with_a_rate_is_refused():
  bias, _ = biases(program(Group(match='.*router.bias.*', frozen=True)))[-1]
  np.testing.assert_array_equal(bias, 0.0)
  rows, _ = biases(program(Group(match='.*router.bias.*', layers=(0, 1), frozen=True)))[-1]
  np.testing.assert_array_equal(rows[0], 0.0)
  assert (rows[1] != 0).any()
  with pytest.raises(UserError, match=r'router.bias.* has no effect.*rules move them'):
    _ = program(Group(match='.*router.bias.*', rate=2.0)).groups


def test_plain_operations_report_nothing():
  def loss(x, p):
    return reported(x, p, jnp.ones(2)).sum()

  x, p = jnp.ones(3), jnp.zeros(2)
  assert jax.grad(loss, argnums=1)(x, p).tolist() == [1.0, 1.0]
  with plain_operations():
    assert jax.jvp(loss, (x, p), (x, p))[1] == 3.0


def test_a_kind_and_a_rule_need_each_other():
  for settings in ({'kind': 'rule'}, {'kind': 'vector', 'rule': LoadRule(rate=0.1)}):
    with pytest.raises(ValueError, match=r"kind 'rule' and a rule need each other"):
      param(zeros(), (2,), ('choices',), nnx.Rngs(0), **settings)
