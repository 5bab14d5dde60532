"""Whisper against transformers: outputs, gradients, greedy and beam search, and the folder."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from t2x.decode import AtCurrentLength, AverageLength, Beam, Greedy, generate

torch = pytest.importorskip('torch', reason="the extra 'references' is not installed")
transformers = pytest.importorskip('transformers', reason="the extra 'references' is not installed")

FRAMES, FEATURES, VOCAB, EOS, START = 18, 6, 50, 1, 2
# Prompts of a language, a task and the absence of timestamps, one per recording.
PROMPTS = np.array([[START, 7, 11, 13], [START, 8, 11, 13], [START, 9, 12, 13]])
RANDOM = np.random.default_rng(0)
AUDIO = RANDOM.normal(size=(3, FRAMES, FEATURES)).astype(np.float32)
TARGET = RANDOM.integers(2, VOCAB, (3, 7))


def whisper(**fields):
  """A tiny Whisper, its decoder deeper than its encoder."""
  return transformers.WhisperForConditionalGeneration(
    transformers.WhisperConfig(
      vocab_size=VOCAB,
      num_mel_bins=FEATURES,
      d_model=24,
      encoder_layers=2,
      decoder_layers=3,
      encoder_attention_heads=3,
      decoder_attention_heads=4,
      encoder_ffn_dim=40,
      decoder_ffn_dim=32,
      max_source_positions=FRAMES // 2,
      max_target_positions=20,
      pad_token_id=EOS,
      bos_token_id=EOS,
      eos_token_id=EOS,
      decoder_start_token_id=START,
      **fields,
    )
  )


def frames():
  return torch.tensor(AUDIO.transpose(0, 2, 1))


def theirs(model):
  return model(input_features=frames(), decoder_input_ids=torch.tensor(TARGET)).logits


def ours(model):
  return jax.jit(type(model).__call__)(model, jnp.asarray(AUDIO), jnp.asarray(TARGET)).x


def theirs_loss(model):
  return torch.nn.functional.cross_entropy(
    theirs(model).reshape(-1, VOCAB), torch.tensor(TARGET.reshape(-1))
  )


def ours_loss(model):
  labels = jnp.asarray(TARGET)
  return optax.softmax_cross_entropy_with_integer_labels(ours(model), labels).mean()


def test_whisper(agree, gradients):
  model, mine = agree('Whisper', whisper, theirs, ours)
  gradients('Whisper', model, mine, theirs_loss, ours_loss)
  assert mine.decoder.stack.blocks[0].cross.k.bias is None


@pytest.mark.parametrize('width', [1, 3])
def test_whisper_continues_prompts_as_transformers_does(perturbed, imported, width):
  torch.manual_seed(3)
  model = perturbed(whisper())
  strategy = Greedy() if width == 1 else Beam(width, AverageLength(1.0), AtCurrentLength())
  got = generate(
    imported(model),
    PROMPTS,
    np.full(3, PROMPTS.shape[1], np.int32),
    max_new_tokens=8,
    strategy=strategy,
    eos_id=EOS,
    pad_id=EOS,
    source=AUDIO,
  )
  # Not Whisper's own loop over segments of 30 seconds.
  wanted = transformers.generation.GenerationMixin.generate(
    model,
    frames(),
    decoder_input_ids=torch.tensor(PROMPTS),
    max_new_tokens=8,
    num_beams=width,
    do_sample=False,
  ).numpy()[:, PROMPTS.shape[1] :]
  tokens = np.asarray(got.tokens)[:, 0]
  np.testing.assert_array_equal(tokens[:, : wanted.shape[1]], wanted)
  assert (tokens[:, wanted.shape[1] :] == EOS).all()
  assert len(set(map(tuple, tokens.tolist()))) > 1
