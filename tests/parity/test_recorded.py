"""Recorded attention probabilities and hidden vectors against those that transformers returns."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t2x.layers import Tokens

torch = pytest.importorskip('torch', reason="the extra 'parity' is not installed")
transformers = pytest.importorskip('transformers', reason="the extra 'parity' is not installed")

IDS = np.random.default_rng(0).integers(3, 50, (3, 9))
TARGETS = np.random.default_rng(1).integers(3, 50, (3, 6))
# Padded on the right.
VALID = np.arange(9) < np.array([9, 7, 4])[:, None]
TOKENS = Tokens.row(9, segments=jnp.asarray(VALID, jnp.int32))
RECORD = frozenset({'probabilities', 'hidden'})
TOLERANCE = 1e-6
SIZES = {'vocab_size': 50, 'attn_implementation': 'eager'}


def theirs(model, **inputs):
  inputs = {name: torch.tensor(array) for name, array in inputs.items()}
  with torch.no_grad():
    return model(**inputs, output_attentions=True, output_hidden_states=True)


def assert_equal(ours, theirs, rows):
  """`ours` [layers, batch, heads, queries, keys]; `rows` [batch, queries]: the valid tokens."""
  theirs = np.stack([layer.numpy() for layer in theirs])
  assert ours.shape == theirs.shape
  where = np.broadcast_to(rows[None, :, None, :, None], ours.shape)
  np.testing.assert_allclose(np.asarray(ours)[where], theirs[where], atol=TOLERANCE)


@pytest.mark.parametrize('name', ['gpt2', 'bert'])
def test_self_attention_and_hidden_vectors(name, perturbed, imported):
  torch.manual_seed(0)
  if name == 'gpt2':
    config = transformers.GPT2Config(n_embd=24, n_layer=3, n_head=4, n_positions=16, **SIZES)
    model = perturbed(transformers.GPT2LMHeadModel(config))
  else:
    sizes = {'hidden_size': 24, 'num_hidden_layers': 3, 'num_attention_heads': 4}
    config = transformers.BertConfig(
      intermediate_size=40, max_position_embeddings=16, **sizes, **SIZES
    )
    model = perturbed(transformers.BertForPreTraining(config))
  expected = theirs(model, input_ids=IDS, attention_mask=VALID.astype(int))
  mine = imported(model)
  out = jax.jit(lambda m: m.hidden(jnp.asarray(IDS), tokens=TOKENS, record=RECORD))(mine)
  assert_equal(out.recorded['blocks.0.mixer.probabilities'], expected.attentions, VALID)
  hidden = np.asarray(out.recorded['blocks.0.hidden'])
  # transformers also returns the embeddings first; the last vector of GPT-2 is after the final norm.
  wanted = [layer.numpy() for layer in expected.hidden_states[1:]]
  for layer in range(2 if name == 'gpt2' else 3):
    scale = np.abs(wanted[layer][VALID]).max()
    np.testing.assert_allclose(hidden[layer][VALID], wanted[layer][VALID], atol=5e-6 * scale)


def test_cross_attention(perturbed, imported):
  torch.manual_seed(0)
  sides = {
    f'{side}_{what}': size
    for side in ('encoder', 'decoder')
    for what, size in (('layers', 2), ('attention_heads', 4), ('ffn_dim', 40))
  }
  config = transformers.BartConfig(d_model=24, max_position_embeddings=16, **sides, **SIZES)
  model = perturbed(transformers.BartForConditionalGeneration(config))
  expected = theirs(
    model, input_ids=IDS, attention_mask=VALID.astype(int), decoder_input_ids=TARGETS
  )
  mine = imported(model)
  out = jax.jit(
    lambda m: m.hidden(jnp.asarray(IDS), jnp.asarray(TARGETS), source_tokens=TOKENS, record=RECORD)
  )(mine)
  every = np.ones(TARGETS.shape, bool)
  for name, attentions, rows in (
    ('encoder.blocks.0.mixer', expected.encoder_attentions, VALID),
    ('decoder.blocks.0.mixer', expected.decoder_attentions, every),
    ('decoder.blocks.0.cross', expected.cross_attentions, every),
  ):
    assert_equal(out.recorded[f'{name}.probabilities'], attentions, rows)
