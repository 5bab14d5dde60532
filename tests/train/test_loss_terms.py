"""Loss terms of different weights: the train step's gradient is that of the whole batch."""

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from loss_terms import (
  CLASSIFICATION,
  TASKS,
  assert_close,
  batch_of,
  gradient,
  model_of,
  transformer,
)

from t2x.base.errors import UserError
from t2x.layers import Aux, Call, Causal, RowLayout, Tokens
from t2x.models import Output


def mean(values, weights):
  return (values * weights).sum() / weights.sum()


def cross_entropy(logits, labels):
  log_p = logits - jnp.log(jnp.exp(logits).sum(axis=-1, keepdims=True))
  return -(log_p * jax.nn.one_hot(labels, logits.shape[-1])).sum(axis=-1)


@pytest.mark.parametrize('name', TASKS)
def test_accumulation_does_not_change_the_gradient_or_the_metrics(name):
  task = TASKS[name]
  batch, model = batch_of(task), model_of(task)
  weights = task.target_weights(batch)
  assert len({float(weights[part::4].sum()) for part in range(4)}) > 1
  whole, metrics = gradient(task, model, batch)
  assert max(jnp.abs(leaf).max() for leaf in jax.tree.leaves(whole)) > 1e-3
  accumulated, same = gradient(task, model, batch, 4)
  assert_close(accumulated, whole)
  # Moments are about the means of micro-batches.
  assert_close(*({n: v for n, v in one.items() if 'moment/' not in n} for one in (same, metrics)))


def layers(model, x, tokens):
  """The stream after the layers, called one by one, and the sum of their auxiliary losses [batch]."""
  stack, balance = model.body.stack, 0.0
  for layer in range(stack.num_layers):
    block = jax.tree.map(lambda leaf, layer=layer: leaf[layer], stack.blocks[0])
    result = block(x, Call(tokens, Causal()))
    x, balance = result.x, balance + result.aux.losses['balance']
  return model.body.final_norm(x), balance


@pytest.mark.nightly
def test_the_gradient_of_a_causal_lm_with_an_auxiliary_loss_uses_means_over_the_whole_batch():
  """The mean loss over tokens and the mean auxiliary loss over rows."""
  task, model = TASKS['causal_lm'], transformer()
  batch = batch_of(task)
  tokens = Tokens(batch['positions'], batch['segments'], layout=RowLayout.PACKED)
  segments, targets = np.asarray(batch['segments']), np.asarray(batch['tokens'])
  inputs = np.full_like(targets, task.tokenizer.ids.bos_id)
  for row, place in itertools.product(range(8), range(1, task.length)):
    if segments[row, place] == segments[row, place - 1]:
      inputs[row, place] = targets[row, place - 1]

  def expected(model):
    x, balance = layers(model, model.embedding(jnp.asarray(inputs))[0], tokens)
    losses = cross_entropy(model.logits(x), targets)
    return mean(losses, segments) + balance.mean(), balance

  grads, balance = jax.jit(jax.grad(expected, has_aux=True))(model)
  assert np.ptp(balance) > 0.01 * balance.mean()
  for parts in (1, 4):
    ours, metrics = gradient(task, model, batch, parts)
    assert_close(ours, grads, 5e-6)
    assert_close(metrics['balance'], (balance.sum(), 8.0))


@pytest.mark.parametrize('parts', [1, 4])
@pytest.mark.parametrize('name', ['with_language_modelling', 'with_token_modelling'])
def test_the_gradient_of_two_terms_uses_means_over_the_whole_batch(name, parts):
  task = TASKS[name]
  batch, model = batch_of(task), model_of(task)
  texts = batch['weight'].astype(jnp.float32)
  targets = (batch['segments'][:, 1:] != 0) * texts[:, None]

  def expected(model):
    x = model.table[...][batch['tokens']]
    by_class = cross_entropy(x.mean(axis=1) @ model.classes[...], batch['label'])
    by_token = cross_entropy(x[:, :-1] @ model.out[...], batch['tokens'][:, 1:])
    by_text = (by_token * targets).sum(axis=1) / jnp.maximum(targets.sum(axis=1), 1)
    language = {
      'with_language_modelling': mean(by_text, texts),
      'with_token_modelling': mean(by_token, targets),
    }[name]
    return mean(by_class, texts) + 0.5 * language, language

  grads, language = jax.jit(jax.grad(expected, has_aux=True))(model)
  ours, metrics = gradient(task, model, batch, parts)
  assert_close(ours, grads)
  for metric, value in (('lm', 0.5 * language), ('lm_loss', language)):
    total, weight = metrics[metric]
    assert_close(total / weight, value)


def test_a_term_of_weight_0_has_the_gradient_0_and_the_others_keep_theirs():
  task = TASKS['with_token_modelling']
  model, batch = model_of(task), batch_of(task)
  # Texts of one token have no next token.
  batch['segments'] = batch['segments'].at[:, 1:].set(0)
  grads, metrics = gradient(task, model, batch, 2)
  alone, _ = gradient(CLASSIFICATION, model, batch, 2)
  assert metrics['lm'] == (0.0, 0.0)
  assert metrics['finite'] == (1.0, 1.0)
  assert_close(grads, alone)


def adding(task, **extra):
  """The task with further entries in one of its dicts of terms and weights."""

  class Changed(type(task)):
    def sums(self, model, batch, key):
      output = super().sums(model, batch, key)
      return dataclasses.replace(output, further=output.further | extra.get('terms', {}))

    def weights(self, batch):
      return super().weights(batch) | extra.get('weights', {})

  return Changed(**{f.name: getattr(task, f.name) for f in dataclasses.fields(task)})


@pytest.mark.parametrize(
  ('extra', 'message'),
  [
    (
      {'terms': {'z': 1.0}},
      "Changed.sums returns the loss terms 'loss', 'z', but Changed.weights returns weights of 'loss':",
    ),
    (
      {'weights': {'z': 1.0}},
      "Changed.sums returns the loss terms 'loss', but Changed.weights returns weights of 'loss', 'z':",
    ),
  ],
)
def test_terms_and_weights_of_other_names_are_refused_with_both_names(extra, message):
  task = adding(TASKS['causal_lm'], **extra)
  with pytest.raises(UserError, match=message):
    gradient(task, model_of(task), batch_of(task))


@pytest.mark.parametrize(
  ('aux', 'message'),
  [
    ({'balance': jnp.float32(1.0)},
     r"'balance' of the model has shape \(\): return one value per row of the batch, shape \(8,\)"),
    ({'balance': jnp.ones((3, 8))}, r"'balance' of the model has shape \(3, 8\)"),
    ({'accuracy': jnp.ones(8)},
     "duplicate names 'accuracy': auxiliary losses and metrics of the model .* loss terms and metrics of CausalLM"),
  ],
)  # fmt: skip
@pytest.mark.usefixtures('unchecked')
def test_auxiliary_losses_that_are_not_one_value_per_row_or_take_a_name_are_refused(
  aux, message, monkeypatch
):
  task = TASKS['causal_lm']
  model = model_of(task)
  hidden = type(model).hidden
  monkeypatch.setattr(
    type(model),
    'hidden',
    lambda *args, **settings: Output(hidden(*args, **settings).x, aux=Aux(aux)),
  )
  with pytest.raises(UserError, match=message):
    gradient(task, model, batch_of(task))
