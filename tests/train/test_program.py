"""What an experiment is compiled to: initial values and keys by name, and how often it is traced."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny_lm import ATTENTION, causal_lm, lm

from t2x.data import Bytes
from t2x.layers import LayerNorm
from t2x.models import LMHead
from t2x.parallel import batch_sharding
from t2x.tasks import CausalLM
from t2x.train import Constant, Experiment, Program, Trainer
from t2x.train.checks import check_evaluations


def state(num_layers=2, head_norm=None, **settings):
  mixer = functools.partial(ATTENTION, qk_norm=head_norm)
  settings |= {'vocab_size': 16, 'hidden_dim': 16, 'num_layers': num_layers}
  model = lm(8, mixer=mixer, **settings)
  trainer = Trainer(num_steps=1, batch_size=1, schedule=Constant(peak=1e-3), ema_decay=0.9)
  built, _ = Program(Experiment(model=model, trainer=trainer)).init(5)
  return built


def test_additions_to_a_model_leave_its_initial_values_and_the_key_of_training():
  small, large = state(), state(num_layers=3, head_norm=LayerNorm, head=LMHead)
  np.testing.assert_array_equal(*(jax.random.key_data(one.key) for one in (small, large)))
  for name, value in small.params.items():
    np.testing.assert_array_equal(large.params[name][: len(value)], value, err_msg=name)
  assert len(large.params) > len(small.params)


@pytest.mark.parametrize('accumulate', [1, 2])
def test_the_train_step_and_the_evaluation_step_are_each_traced_once(accumulate, monkeypatch):
  traced = []
  sums = CausalLM.sums

  def counted(self, model, batch, key):
    traced.append('evaluation' if key is None else 'training')
    return sums(self, model, batch, key)

  monkeypatch.setattr(CausalLM, 'sums', counted)
  model = lm(8, num_layers=1, hidden_dim=16)
  trainer = Trainer(num_steps=3, batch_size=4, accumulate=accumulate)
  task = causal_lm(8).bound(Bytes().train([]))
  program = Program(Experiment(model=model, task=task, trainer=trainer))
  rows = {name: jnp.ones(one.shape, one.dtype) for name, one in program.batch().items()}
  rows = jax.device_put(rows, batch_sharding(program.mesh))
  check_evaluations(program)
  state, frozen = program.init(0)
  step = program.train_step()
  for _ in range(3):
    state, _ = step(state, frozen, rows)
  evaluate = program.eval_step()
  for _ in range(2):
    evaluate(program.eval_params(state, frozen), rows)
  assert program.memory_bytes() > 0
  assert sorted(traced) == ['evaluation', 'training']
