"""`t2x.load` of a model folder gives what transformers computes."""

import numpy as np
import pytest

import t2x
from t2x.base.errors import UserError

torch = pytest.importorskip('torch', reason="the extra 'references' is not installed")
transformers = pytest.importorskip('transformers', reason="the extra 'references' is not installed")

IDS = np.random.default_rng(0).integers(3, 50, (2, 7)).astype(np.int32)
TARGETS = np.random.default_rng(1).integers(3, 50, (2, 5)).astype(np.int32)


def assert_close(ours, theirs):
  assert len(ours) == len(theirs)
  for layer, (one, other) in enumerate(zip(ours, theirs, strict=True)):
    other = other.numpy()
    np.testing.assert_allclose(one, other, atol=1e-5 * np.abs(other).max(), err_msg=str(layer))


def test_a_decoder(perturbed, tmp_path):
  torch.manual_seed(0)
  config = transformers.GPT2Config(
    n_embd=24, n_layer=3, n_head=4, n_positions=16, vocab_size=50, attn_implementation='eager'
  )
  model = perturbed(transformers.GPT2LMHeadModel(config))
  model.save_pretrained(tmp_path)
  with torch.no_grad():
    theirs = model(torch.tensor(IDS), output_attentions=True, output_hidden_states=True)
  ours = t2x.load(tmp_path)
  assert_close([ours.logits(IDS)], [theirs.logits])
  assert_close(ours.attention(IDS), theirs.attentions)
  # transformers also returns the embeddings first, and its last vector is after the final norm.
  assert_close(ours.hidden(IDS)[:-1], theirs.hidden_states[1:-1])
  with pytest.raises(UserError, match='omit the targets'):
    ours.logits(IDS, TARGETS)
  with pytest.raises(UserError, match='has no tokenizer: pass token ids'):
    ours.logits('a text')
  with pytest.raises(UserError, match=r'Experiment\.task is not set'):
    ours.generate('a text')


def test_an_encoder_decoder(perturbed, tmp_path):
  torch.manual_seed(0)
  sides = {
    f'{side}_{what}': size
    for side in ('encoder', 'decoder')
    for what, size in (('layers', 2), ('attention_heads', 4), ('ffn_dim', 40))
  }
  config = transformers.BartConfig(
    d_model=24, max_position_embeddings=16, vocab_size=50, attn_implementation='eager', **sides
  )
  model = perturbed(transformers.BartForConditionalGeneration(config))
  model.save_pretrained(tmp_path)
  settings = {'output_attentions': True, 'output_hidden_states': True}
  with torch.no_grad():
    theirs = model(torch.tensor(IDS), decoder_input_ids=torch.tensor(TARGETS), **settings)
  ours = t2x.load(tmp_path)
  assert_close([ours.logits(IDS, TARGETS)], [theirs.logits])
  assert_close(ours.attention(IDS, TARGETS), theirs.decoder_attentions)
  assert_close(ours.attention(IDS, TARGETS, side='encoder'), theirs.encoder_attentions)
  assert_close(ours.attention(IDS, TARGETS, sublayer='cross'), theirs.cross_attentions)
  assert_close(ours.hidden(IDS, TARGETS), theirs.decoder_hidden_states[1:])


def test_a_vision_model(perturbed, tmp_path):
  torch.manual_seed(0)
  sizes = {'hidden_size': 24, 'num_hidden_layers': 2, 'num_attention_heads': 4}
  config = transformers.ViTConfig(
    intermediate_size=40, image_size=8, patch_size=4, attn_implementation='eager', **sizes
  )
  model = perturbed(transformers.ViTForImageClassification(config))
  model.save_pretrained(tmp_path)
  images = np.random.default_rng(0).normal(size=(2, 8, 8, 3)).astype(np.float32)
  with torch.no_grad():
    theirs = model(torch.tensor(images).permute(0, 3, 1, 2), output_attentions=True)
  ours = t2x.load(tmp_path)
  assert_close([ours.logits(images)], [theirs.logits])
  assert_close(ours.attention(images), theirs.attentions)
  with pytest.raises(UserError, match=r"no layer of the model records 'cross\.probabilities'"):
    ours.attention(images, sublayer='cross')
