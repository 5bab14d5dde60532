"""Encoder-decoders against transformers."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from t2x.layers import Tokens

torch = pytest.importorskip('torch', reason="the extra 'references' is not installed")
transformers = pytest.importorskip('transformers', reason="the extra 'references' is not installed")

PAD = 1
SOURCE_VALID = np.arange(11) < np.array([7, 11, 4])[:, None]
TARGET_VALID = np.arange(9) < np.array([9, 5, 8])[:, None]
RANDOM = np.random.default_rng(0)
SOURCE = np.where(SOURCE_VALID, RANDOM.integers(2, 50, (3, 11)), PAD)
TARGET = np.where(TARGET_VALID, RANDOM.integers(2, 50, (3, 9)), PAD)


def theirs(model):
  """Returns the logits of valid target tokens."""
  out = model(
    input_ids=torch.tensor(SOURCE),
    attention_mask=torch.tensor(SOURCE_VALID).long(),
    decoder_input_ids=torch.tensor(TARGET),
    decoder_attention_mask=torch.tensor(TARGET_VALID).long(),
    use_cache=False,
  )
  return out.logits[torch.tensor(TARGET_VALID)]


def ours(model):
  """Returns the logits of valid target tokens."""
  out = jax.jit(type(model).__call__)(
    model,
    jnp.asarray(SOURCE),
    jnp.asarray(TARGET),
    source_tokens=Tokens.row(SOURCE_VALID.shape[1], segments=jnp.asarray(SOURCE_VALID, jnp.int32)),
    target_tokens=Tokens.row(TARGET_VALID.shape[1], segments=jnp.asarray(TARGET_VALID, jnp.int32)),
  )
  return out.x[TARGET_VALID]


def theirs_loss(model):
  """Returns the mean cross-entropy of the target, without shifting it."""
  losses = torch.nn.functional.cross_entropy
  return losses(theirs(model), torch.tensor(TARGET[TARGET_VALID]))


def ours_loss(model):
  """Returns the same loss of the t2x model."""
  labels = jnp.asarray(TARGET[TARGET_VALID])
  return optax.softmax_cross_entropy_with_integer_labels(ours(model), labels).mean()


def t5_config(**fields):
  """A tiny T5, its decoder deeper than its encoder, its heads wider than the model."""
  return transformers.T5Config(
    vocab_size=50,
    d_model=24,
    d_kv=8,
    d_ff=40,
    num_layers=2,
    num_decoder_layers=3,
    num_heads=4,
    relative_attention_num_buckets=8,
    relative_attention_max_distance=10,
    **fields,
  )


def test_t5(agree, gradients):
  model, mine = agree(
    'T5', lambda: transformers.T5ForConditionalGeneration(t5_config()), theirs, ours
  )
  gradients('T5', model, mine, theirs_loss, ours_loss)


def test_t5_v1_1(agree):
  def make():
    # The weights of seed 0 amplify rounding: transformers in float32 then differs by 9e-6 from float64.
    torch.manual_seed(1)
    config = t5_config(feed_forward_proj='gated-gelu', tie_word_embeddings=False)
    model = transformers.T5ForConditionalGeneration(config)
    # A new model is always tied, a loaded model with a separate head is not.
    model.lm_head.weight = torch.nn.Parameter(torch.randn(50, 24))
    return model

  agree('T5 v1.1', make, theirs, ours)


def test_switch_transformers(agree, gradients):
  """Three slots per expert: of rows of eleven and nine tokens some are dropped."""
  config = transformers.SwitchTransformersConfig(
    vocab_size=50,
    d_model=24,
    d_kv=8,
    d_ff=40,
    expert_capacity=3,
    num_layers=2,
    num_sparse_encoder_layers=1,
    num_decoder_layers=3,
    num_sparse_decoder_layers=3,
    num_heads=4,
    num_experts=4,
    relative_attention_num_buckets=8,
    relative_attention_max_distance=10,
    attn_implementation='eager',
  )
  name, family = 'Switch Transformers', transformers.SwitchTransformersForConditionalGeneration
  model, mine = agree(name, lambda: family(config), theirs, ours)
  gradients(name, model, mine, theirs_loss, ours_loss)
  blocks = [mine.encoder.stack.blocks[1], mine.decoder.stack.blocks[0]]
  assert [block.feed_forward.dispatch.slots for block in blocks] == [3, 3]


# Sizes of BART-like models, different for encoder and decoder.
SIZES = {
  'd_model': 24,
  'encoder_layers': 2,
  'decoder_layers': 3,
  'encoder_attention_heads': 3,
  'decoder_attention_heads': 4,
  'encoder_ffn_dim': 40,
  'decoder_ffn_dim': 32,
  'pad_token_id': PAD,
}


def test_bart(agree):
  def make():
    config = transformers.BartConfig(vocab_size=50, max_position_embeddings=16, **SIZES)
    model = transformers.BartForConditionalGeneration(config)
    # A buffer, which is not perturbed with the parameters.
    model.final_logits_bias.normal_()
    return model

  agree('BART', make, theirs, ours)


@pytest.mark.parametrize('shared', [True, False])
def test_marian(agree, shared):
  def make():
    config = transformers.MarianConfig(
      vocab_size=50,
      decoder_vocab_size=None if shared else 60,
      share_encoder_decoder_embeddings=shared,
      max_position_embeddings=16,
      activation_function='swish',
      scale_embedding=True,
      decoder_start_token_id=PAD,
      **SIZES,
    )
    model = transformers.MarianMTModel(config)
    model.final_logits_bias.normal_()
    return model

  agree('Marian' if shared else 'Marian, two vocabularies', make, theirs, ours)


@pytest.mark.parametrize('tied', [False, True])
def test_fsmt(agree, tied):
  config = transformers.FSMTConfig(
    langs=['en', 'de'],
    src_vocab_size=50,
    tgt_vocab_size=50 if tied else 60,
    tie_word_embeddings=tied,
    max_position_embeddings=16,
    **SIZES,
  )

  def make():
    model = transformers.FSMTForConditionalGeneration(config)
    # Sinusoidal tables are not trained.
    for side in (model.model.encoder, model.model.decoder):
      side.embed_positions.weight.requires_grad_(False)
    return model

  agree('FSMT, tied' if tied else 'FSMT', make, theirs, ours)
