"""`t2x.look` against transformers: attention probabilities, the logit lens, losses and neighbours."""

import numpy as np
import pytest
import scipy.stats

import t2x
from t2x.look import look_at_image, look_at_pair, look_at_text

torch = pytest.importorskip('torch', reason="the extra 'references' is not installed")
transformers = pytest.importorskip('transformers', reason="the extra 'references' is not installed")

IDS = np.random.default_rng(0).integers(3, 50, 9).astype(np.int32)
TARGET = np.random.default_rng(1).integers(3, 50, 5).astype(np.int32)
START = 2
ATTENTION = {'attn_implementation': 'eager'}
SIZES = {'vocab_size': 50, **ATTENTION}
RECORD = {'output_attentions': True, 'output_hidden_states': True}


def assert_same_attention(ours, theirs):
  assert len(ours.layers) == len(theirs)
  for layer, statistics, other in zip(ours.layers, ours.statistics, theirs, strict=True):
    expected = other[0].numpy()
    np.testing.assert_allclose(layer, expected, rtol=0, atol=1e-6)
    entropy = scipy.stats.entropy(expected.astype(np.float64), axis=-1, base=2).mean(-1)
    np.testing.assert_allclose(statistics.entropy, entropy, atol=1e-4)


def assert_same_lens(lens, expected):
  """`expected`: logits [positions, outputs] after each layer."""
  for ids, probabilities, logits in zip(lens.ids, lens.probabilities, expected, strict=True):
    other = torch.softmax(logits, -1).topk(ids.shape[-1])
    np.testing.assert_array_equal(ids, other.indices.numpy())
    np.testing.assert_allclose(probabilities, other.values.detach().numpy(), rtol=1e-4, atol=1e-6)


@pytest.fixture
def loaded(perturbed, tmp_path):
  """`loaded(model, folder)`: the perturbed model of transformers, and the same loaded by t2x."""

  def load(model):
    perturbed(model).save_pretrained(tmp_path)
    return model, t2x.load(tmp_path).model

  return load


def test_a_causal_language_model(loaded):
  config = transformers.GPT2Config(n_embd=24, n_layer=3, n_head=4, n_positions=16, **SIZES)
  torch.manual_seed(0)
  theirs, ours = loaded(transformers.GPT2LMHeadModel(config))
  ids = torch.tensor(IDS[None], dtype=torch.int64)
  with torch.no_grad():
    out = theirs(ids, **RECORD)
    losses = torch.nn.functional.cross_entropy(out.logits[0, :-1], ids[0, 1:], reduction='none')
    # Their last hidden vectors are after the final norm.
    normed = [theirs.transformer.ln_f(h) for h in out.hidden_states[1:-1]]
    lens = [theirs.lm_head(h)[0] for h in (*normed, out.hidden_states[-1])]
  look = look_at_text(ours, None, IDS)
  (attention,) = look.attention
  assert_same_attention(attention, out.attentions)
  assert_same_lens(look.lens, lens)
  np.testing.assert_allclose(look.losses.losses, losses.numpy(), rtol=1e-5, atol=1e-5)
  ranks = (out.logits[0, :-1] > out.logits[0, :-1].gather(-1, ids[0, 1:, None])).sum(-1)
  np.testing.assert_array_equal(look.losses.ranks, ranks.numpy())
  table = theirs.transformer.wte.weight.detach()
  cosines = torch.nn.functional.cosine_similarity(table[int(IDS[0])][None], table)
  best = cosines.topk(9)
  (near,) = look.neighbours
  assert [one.token for one in near.nearest[0]] == [str(int(i)) for i in best.indices[1:]]
  np.testing.assert_allclose(
    [one.cosine for one in near.nearest[0]], best.values[1:].numpy(), atol=1e-6
  )
  (positions,) = look.positions
  wpe = torch.nn.functional.normalize(theirs.transformer.wpe.weight.detach())
  np.testing.assert_allclose(positions.similarity, (wpe @ wpe.T).numpy(), atol=1e-6)


def test_an_encoder(loaded):
  sizes = {'hidden_size': 24, 'num_hidden_layers': 3, 'num_attention_heads': 4}
  config = transformers.BertConfig(
    intermediate_size=40, max_position_embeddings=16, **sizes, **SIZES
  )
  torch.manual_seed(0)
  theirs, ours = loaded(transformers.BertForMaskedLM(config))
  with torch.no_grad():
    out = theirs(torch.tensor(IDS[None], dtype=torch.int64), **RECORD)
    lens = [theirs.cls(h)[0] for h in out.hidden_states[1:]]
  look = look_at_text(ours, None, IDS)
  assert_same_attention(look.attention[0], out.attentions)
  assert_same_lens(look.lens, lens)


def test_an_encoder_without_logits_has_attention(loaded):
  sizes = {'hidden_size': 24, 'num_hidden_layers': 2, 'num_attention_heads': 4}
  config = transformers.BertConfig(
    intermediate_size=40, max_position_embeddings=16, **sizes, **SIZES
  )
  torch.manual_seed(0)
  theirs, ours = loaded(transformers.BertModel(config))
  with torch.no_grad():
    out = theirs(torch.tensor(IDS[None], dtype=torch.int64), **RECORD)
  look = look_at_text(ours, None, IDS)
  assert_same_attention(look.attention[0], out.attentions)
  assert look.lens is None and look.losses is None


def test_an_encoder_decoder(loaded):
  sides = {
    f'{side}_{what}': size
    for side in ('encoder', 'decoder')
    for what, size in (('layers', 2), ('attention_heads', 4), ('ffn_dim', 40))
  }
  config = transformers.BartConfig(d_model=24, max_position_embeddings=16, **sides, **SIZES)
  torch.manual_seed(0)
  theirs, ours = loaded(transformers.BartForConditionalGeneration(config))
  read = torch.tensor([[START, *TARGET[:-1]]], dtype=torch.int64)
  with torch.no_grad():
    out = theirs(torch.tensor(IDS[None], dtype=torch.int64), decoder_input_ids=read, **RECORD)
    losses = torch.nn.functional.cross_entropy(
      out.logits[0], torch.tensor(TARGET, dtype=torch.int64), reduction='none'
    )
    lens = [theirs.lm_head(h)[0] for h in out.decoder_hidden_states[1:]]
  look = look_at_pair(ours, None, IDS, TARGET.tolist(), start=[START])
  cross, encoder, decoder = look.attention
  assert [one.name for one in look.attention] == [
    'cross-attention',
    'encoder self-attention',
    'decoder self-attention',
  ]
  assert_same_attention(cross, out.cross_attentions)
  assert_same_attention(encoder, out.encoder_attentions)
  assert_same_attention(decoder, out.decoder_attentions)
  # The query that predicts a token is named after it.
  assert cross.queries == tuple(map(str, TARGET)) == look.losses.tokens
  assert decoder.queries == tuple(map(str, [START, *TARGET[:-1]]))
  np.testing.assert_allclose(look.losses.losses, losses.numpy(), rtol=1e-5, atol=1e-5)
  assert_same_lens(look.lens, lens)


def test_a_vision_model(loaded):
  sizes = {'hidden_size': 24, 'num_hidden_layers': 2, 'num_attention_heads': 4, **ATTENTION}
  config = transformers.ViTConfig(
    intermediate_size=40, image_size=12, patch_size=4, num_labels=7, **sizes
  )
  torch.manual_seed(0)
  theirs, ours = loaded(transformers.ViTForImageClassification(config))
  image = np.random.default_rng(0).normal(size=(12, 12, 3)).astype(np.float32)
  with torch.no_grad():
    out = theirs(torch.tensor(image[None]).permute(0, 3, 1, 2), **RECORD)
    normed = [theirs.vit.layernorm(h)[:, 0] for h in out.hidden_states[1:]]
    lens = [theirs.classifier(h) for h in normed]
  look = look_at_image(ours, image, np.zeros((12, 12, 3), np.uint8))
  (attention,) = look.attention
  assert_same_attention(attention, out.attentions)
  assert attention.grid.num_tokens == 10 and attention.queries[:2] == (
    'class token',
    'row 1, column 1',
  )
  assert_same_lens(look.lens, lens)
  np.testing.assert_allclose(lens[-1].numpy(), out.logits.numpy(), atol=1e-5)


def test_a_model_with_windows_and_stages(loaded):
  config = transformers.SwinConfig(
    image_size=16,
    patch_size=2,
    window_size=4,
    embed_dim=8,
    depths=[2, 2],
    num_heads=[2, 4],
    num_labels=3,
    **ATTENTION,
  )
  torch.manual_seed(0)
  theirs, ours = loaded(transformers.SwinForImageClassification(config))
  image = np.random.default_rng(0).normal(size=(16, 16, 3)).astype(np.float32)
  with torch.no_grad():
    out = theirs(torch.tensor(image[None]).permute(0, 3, 1, 2), **RECORD)
  first, second = look_at_image(ours, image, np.zeros((16, 16, 3), np.uint8)).attention
  assert (first.grid.rows, first.grid.columns) == (8, 8) and first.queries[8] == 'row 2, column 1'
  assert (second.grid.rows, second.grid.columns) == (4, 4)
  # transformers returns those of the last layer of a stage. The second stage is one window.
  shifted, whole = (one[0].numpy() if len(one) == 1 else one.numpy() for one in out.attentions)
  np.testing.assert_allclose(second.layers[1], whole, rtol=1e-5, atol=1e-6)
  expected = np.zeros((2, 64, 64), np.float32)
  for number, window in enumerate(shifted):
    row, column = 4 * (number // 2) + 2, 4 * (number % 2) + 2
    places = [(row + i) % 8 * 8 + (column + j) % 8 for i in range(4) for j in range(4)]
    expected[:, np.array(places)[:, None], places] = window
  np.testing.assert_allclose(first.layers[1], expected, rtol=1e-5, atol=1e-6)
