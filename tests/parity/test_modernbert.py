"""ModernBERT against transformers: masked tokens and classes."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from t2x.layers import Tokens

torch = pytest.importorskip('torch', reason="the extra 'references' is not installed")
transformers = pytest.importorskip('transformers', reason="the extra 'references' is not installed")

IDS = np.random.default_rng(0).integers(3, 50, (3, 11))
VALID = np.arange(11) < np.array([4, 11, 9])[:, None]
SEGMENTS = jnp.asarray(VALID, jnp.int32)
TOKENS = Tokens.row(11, segments=SEGMENTS)
SIZES = {
  'hidden_size': 24,
  'intermediate_size': 40,
  'num_hidden_layers': 5,
  'num_attention_heads': 4,
  'vocab_size': 50,
  # A query sees two tokens on each side.
  'local_attention': 4,
  'pad_token_id': 0,
  'eos_token_id': 1,
  'bos_token_id': 2,
  'cls_token_id': 2,
  'sep_token_id': 1,
}
BIASES = dict.fromkeys(('attention_bias', 'classifier_bias', 'mlp_bias', 'norm_bias'), True)
MODELS = {
  'ModernBERT': {},
  'ModernBERT, biases, layers of other kinds': BIASES
  | {
    'layer_types': [f'{kind}_attention' for kind in ('full', 'sliding', 'sliding', 'full', 'full')],
    'decoder_bias': False,
    'norm_eps': 1e-3,
    'classifier_activation': 'relu',
  },
}


def call(model, **more):
  return model(input_ids=torch.tensor(IDS), attention_mask=torch.tensor(VALID).long(), **more)


def theirs(model):
  return call(model).logits[torch.tensor(VALID)]


def ours(model):
  return np.asarray(jax.jit(lambda m: m(jnp.asarray(IDS), tokens=TOKENS).x)(model))[VALID]


def theirs_loss(model):
  return call(model, labels=torch.tensor(np.where(VALID, IDS, -100))).loss


def ours_loss(model):
  logits = model(jnp.asarray(IDS), tokens=TOKENS).x
  losses = optax.softmax_cross_entropy_with_integer_labels(logits, jnp.asarray(IDS))
  return losses.mean(where=jnp.asarray(VALID))


@pytest.mark.parametrize('name', MODELS)
def test_masked_tokens(agree, gradients, name):
  config = transformers.ModernBertConfig(**SIZES, **MODELS[name])
  build = transformers.ModernBertForMaskedLM
  model, mine = agree(name, lambda: build(config), theirs, ours)
  if name == 'ModernBERT':
    gradients(name, model, mine, theirs_loss, ours_loss)


@pytest.mark.parametrize('pooling', ['cls', 'mean'])
def test_classes(agree, pooling):
  config = transformers.ModernBertConfig(**SIZES, classifier_pooling=pooling, num_labels=3)

  @jax.jit
  def rows(model):
    return model.head.classify(model.hidden(jnp.asarray(IDS), tokens=TOKENS).x, SEGMENTS)

  build = transformers.ModernBertForSequenceClassification
  agree(f'ModernBERT, classes of {pooling}', lambda: build(config), lambda m: call(m).logits, rows)
