"""Auxiliary objectives of text tasks: names, keys, parts of the model that only they run, and what is refused."""

import dataclasses
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from loss_terms import TASKS, TEXT, assert_close, batch_of, gradient, model_of

from t2x.base.errors import UserError
from t2x.experiments import read_config
from t2x.layers import Aux, Causal, Full, Input, named_key
from t2x.models import ModelSpec
from t2x.tasks import (
  Auxiliary,
  AuxiliaryOutput,
  CausalLM,
  LanguageModelling,
  MaskedLM,
  MultiTokenPrediction,
  SequenceClassification,
)

ROOT = Path(__file__).parents[2]
KINDS = [
  'causal_lm',
  'masked_lm',
  'span_corruption',
  'translation',
  'prefix_lm',
  'sequence_classification',
  'span_prediction',
  'word_classification',
  'mixture',
]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Size(Auxiliary):
  """The mean square of the hidden vectors, plus noise in training."""

  def check_model(self, model, task):
    pass

  def term_weight(self, batch, weights):
    return jnp.float32(len(weights))

  def __call__(self, model, out, batch, weights, key):
    by_row = jnp.square(out.x).mean(axis=(1, 2))
    noise = 0.0 if key is None else jax.vmap(jax.random.normal)(key).sum()
    aux = Aux({'extra': jnp.ones(len(weights))}, {'seen': (jnp.float32(1.0), jnp.float32(1.0))})
    metrics = {'square': (by_row.sum(), jnp.float32(len(weights)))}
    return AuxiliaryOutput(by_row.sum() + noise, metrics, aux)


def with_size(task):
  if hasattr(task, 'tasks'):
    return dataclasses.replace(task, tasks={n: with_size(t) for n, t in task.tasks.items()})
  return dataclasses.replace(task, auxiliaries={'one': Size(), 'two': Size()})


@pytest.mark.parametrize('name', KINDS)
def test_every_text_task_adds_its_auxiliaries_under_their_names(name):
  task = with_size(TASKS[name])
  model, batch = model_of(task), batch_of(task)
  keys = jax.random.split(jax.random.key(0), 8)
  plain = task.sums(model, batch, None)
  output = task.sums(model, batch, keys)
  assert output.further.keys() == task.weights(batch).keys() - {'loss'} == {'one', 'two'}
  assert {'one_square', 'two_square', 'seen'} <= output.reported.keys()
  np.testing.assert_array_equal(output.aux.losses['extra'], 2 * np.ones(8))
  # All hidden vectors of the rows, and in training keys by row and by name.
  full = np.square(np.asarray(hidden(task, model, batch))).mean(axis=(1, 2)).sum()
  assert float(plain.further['one']) == pytest.approx(full, rel=1e-5)
  for term in ('one', 'two'):
    noise = jax.vmap(jax.random.normal)(named_key(keys, f'task.{term}')).sum()
    assert float(output.further[term] - plain.further[term]) == pytest.approx(
      float(noise), abs=1e-3
    )


def hidden(task, model, batch):
  """The hidden vectors of all tokens: those of `Bag` for the ids that the task passes."""
  outputs = []
  original = type(model).hidden

  def recorded(self, *args, **settings):
    outputs.append(original(self, *args, **settings).x)
    return original(self, *args, **settings)

  type(model).hidden = recorded
  try:
    task.sums(model, batch, None)
  finally:
    type(model).hidden = original
  return outputs[0]


def test_the_setting_auxiliary_has_the_name_lm():
  plain = TASKS['sequence_classification']
  old = dataclasses.replace(plain, auxiliary=LanguageModelling())
  new = dataclasses.replace(plain, auxiliaries={'lm': LanguageModelling()})
  model, batch = model_of(plain), batch_of(plain)
  assert_close(gradient(old, model, batch), gradient(new, model, batch), 0)


class Outputs:
  def __init__(self, *outputs, pattern=Causal()):
    self.spec = ModelSpec(
      inputs={'tokens': Input(vocab_size=512)},
      outputs=frozenset(outputs),
      patterns=(pattern,),
      num_classes=2,
    )


CAUSAL = CausalLM(**TEXT, length=8)
CLASSES = SequenceClassification(**TEXT, labels=['a', 'b'], length=8)
ALL = ('token logits', 'class logits')


@pytest.mark.parametrize(
  ('task', 'auxiliaries', 'model', 'message'),
  [
    (CAUSAL, {'lm': LanguageModelling()}, Outputs(*ALL), 'is the loss of CausalLM itself'),
    (CLASSES, {'lm': LanguageModelling()}, Outputs(*ALL, pattern=Full()), 'attends to later'),
    (CAUSAL, {'mtp': MultiTokenPrediction()}, Outputs(*ALL), 'bind @MultiTokenHead'),
    (CLASSES, {'mtp': MultiTokenPrediction()}, Outputs(*ALL), 'does not predict the next token'),
    (MaskedLM(**TEXT, length=8), {'loss': Size()}, Outputs(*ALL), 'is a loss term of the task'),
  ],
)
def test_an_objective_that_the_task_or_the_model_does_not_support_is_refused(
  task, auxiliaries, model, message
):
  with pytest.raises(UserError, match=message):
    dataclasses.replace(task, auxiliaries=auxiliaries).check_model(model)


def test_a_metric_with_the_name_of_a_metric_of_the_task_is_refused():
  class Clash(Size):
    def __call__(self, *args):
      return dataclasses.replace(
        super().__call__(*args), metrics={'accuracy': (jnp.float32(0.0), jnp.float32(1.0))}
      )

  clash = dataclasses.replace(TASKS['span_prediction'], auxiliaries={'span': Clash()})
  with pytest.raises(UserError, match="the task has a metric 'span_accuracy'"):
    clash.sums(model_of(clash), batch_of(clash), None)


def test_a_loss_over_the_whole_batch_cannot_be_accumulated():
  class Whole(CausalLM):
    whole_batch = True

  task = Whole(**TEXT, length=8)
  model, batch = model_of(task), batch_of(task)
  gradient(task, model, batch)
  with pytest.raises(
    UserError, match=r'Trainer.accumulate = 2: the loss of Whole compares all rows'
  ):
    gradient(task, model, batch, 2)


EARLIER = """
import dataclasses


@dataclasses.dataclass(frozen=True, kw_only=True)
class Earlier:
  def check_model(self, model, length):
    pass

  def term_weight(self, batch, weights):
    return weights.sum()

  def __call__(self, model, x, batch, weights):
    return {}, 0.0
"""


def test_an_objective_of_the_earlier_interface_is_an_error_with_the_new_arguments(
  tmp_path, monkeypatch
):
  (tmp_path / 'earlier_objective.py').write_text(EARLIER)
  monkeypatch.syspath_prepend(tmp_path)
  config = tmp_path / 'earlier.gin'
  config.write_text(
    f"import earlier_objective\ninclude '{ROOT}/configs/runs/quickstart.gin'\n"
    "CausalLM.auxiliaries = {'x': @Earlier()}\n"
  )
  call = r'Earlier\.__call__ cannot be called as \(model, out, batch, weights, key\)'
  with pytest.raises(UserError, match=call):
    read_config([config])
