"""Tasks with global tokens in front of their texts."""

import dataclasses
import functools

import pytest
import tiny_tasks
from flax import nnx

from t2x.base.errors import UserError
from t2x.data import Bytes, FullRows
from t2x.layers import (
  MLP,
  Global,
  GlobalTokenBias,
  MultiHeadAttention,
  TokenEmbedding,
  Window,
  normal,
)
from t2x.models import (
  Block,
  Classifier,
  Encoder,
  GlobalTokens,
  LanguageModel,
  LMHead,
  SequenceClassifier,
  Stack,
)

part = functools.partial
HEADS = {
  'MaskedLM': LMHead,
  'SequenceClassification': part(SequenceClassifier, classifier=part(Classifier, num_classes=2)),
}


def encoder(name):
  block = part(
    Block,
    mixer=part(MultiHeadAttention, num_heads=2, kernel_init=normal(0.3)),
    feed_forward=part(MLP, hidden_dim=32, kernel_init=normal(0.3)),
    pattern=Window(4) | Global(2),
  )
  return LanguageModel(
    d_model=16,
    embedding=part(GlobalTokens, n=2, embedding=part(TokenEmbedding, vocab_size=264)),
    body=part(
      Encoder,
      stack=part(Stack, num_layers=2, blocks=[block]),
      encoding=part(GlobalTokenBias, num_heads=2),
    ),
    head=HEADS[name],
    rngs=nnx.Rngs(0),
  )


@pytest.fixture(scope='module')
def tasks(tmp_path_factory):
  folder = tmp_path_factory.mktemp('data')
  tiny_tasks.write_data(folder)
  return tiny_tasks.make(folder)


@pytest.mark.parametrize(
  ('name', 'settings', 'rate'),
  [('MaskedLM', {'pieces': None, 'packing': FullRows}, 0.2), ('SequenceClassification', {}, 0.1)],
)
def test_tasks_train(tasks, name, settings, rate):
  task = dataclasses.replace(tasks[name], tokenizer=Bytes(), **settings)
  task = task.bound(task.fit_tokenizer())
  model = encoder(name)
  task.check_model(model)
  losses = tiny_tasks.trained_losses(task, model, num_steps=60, rate=rate)
  assert losses[-1] < 0.8 * losses[0]


def test_packed_documents_are_refused(tasks):
  task = dataclasses.replace(tasks['MaskedLM'], tokenizer=Bytes(), pieces=None)
  task = task.bound(task.fit_tokenizer())
  with pytest.raises(UserError, match='GlobalTokens needs rows of one document'):
    tiny_tasks.trained_losses(task, encoder('MaskedLM'))
