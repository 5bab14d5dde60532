"""Decoder-only language models against transformers."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from t2x.layers import Tokens

torch = pytest.importorskip('torch', reason="the extra 'references' is not installed")
transformers = pytest.importorskip('transformers', reason="the extra 'references' is not installed")

IDS = np.random.default_rng(0).integers(1, 50, (3, 11))
# Padded on the right, so that positions in transformers are equal to token positions.
VALID = np.arange(11) < np.array([11, 7, 4])[:, None]


def theirs(model):
  """Returns the logits of valid tokens."""
  out = model(
    input_ids=torch.tensor(IDS), attention_mask=torch.tensor(VALID).long(), use_cache=False
  )
  return out.logits[torch.tensor(VALID)]


def ours(model):
  """Returns the logits of valid tokens."""
  tokens = Tokens.row(VALID.shape[1], segments=jnp.asarray(VALID, jnp.int32))
  return np.asarray(jax.jit(lambda m: m(jnp.asarray(IDS), tokens=tokens).x)(model))[VALID]


def theirs_loss(model):
  """Returns the mean cross-entropy of the next token, if any."""
  labels = torch.tensor(np.where(VALID, IDS, -100))
  mask = torch.tensor(VALID).long()
  out = model(input_ids=torch.tensor(IDS), attention_mask=mask, labels=labels, use_cache=False)
  return out.loss


def ours_loss(model):
  """Returns the same loss of the t2x model."""
  tokens = Tokens.row(VALID.shape[1], segments=jnp.asarray(VALID, jnp.int32))
  logits = model(jnp.asarray(IDS), tokens=tokens).x[:, :-1]
  losses = optax.softmax_cross_entropy_with_integer_labels(logits, jnp.asarray(IDS[:, 1:]))
  return losses.mean(where=jnp.asarray(VALID[:, 1:]))


def test_gpt2(agree, gradients):
  config = transformers.GPT2Config(
    n_embd=24, n_layer=3, n_head=4, n_positions=16, vocab_size=50, bos_token_id=0, eos_token_id=0
  )
  model, mine = agree('GPT-2', lambda: transformers.GPT2LMHeadModel(config), theirs, ours)
  gradients('GPT-2', model, mine, theirs_loss, ours_loss)


def test_gpt1(agree):
  config = transformers.OpenAIGPTConfig(
    n_embd=24, n_layer=3, n_head=4, n_positions=16, vocab_size=50
  )
  agree('GPT-1', lambda: transformers.OpenAIGPTLMHeadModel(config), theirs, ours)


def test_gpt_neo(agree):
  config = transformers.GPTNeoConfig(
    hidden_size=24,
    num_layers=6,
    attention_types=[[['global', 'local', 'local'], 1], [['global'], 1], [['local'], 2]],
    num_heads=4,
    intermediate_size=40,
    window_size=4,
    max_position_embeddings=16,
    vocab_size=50,
    bos_token_id=0,
    eos_token_id=0,
  )
  agree('GPT-Neo', lambda: transformers.GPTNeoForCausalLM(config), theirs, ours)


# Of the four frequencies one is high, one low, and two are in between.
LLAMA_3_1 = {
  'rope_type': 'llama3',
  'rope_theta': 10.0,
  'factor': 8.0,
  'low_freq_factor': 1.0,
  'high_freq_factor': 4.0,
  'original_max_position_embeddings': 30,
}
LLAMAS = {
  'Llama': {'tie_word_embeddings': False},
  'Llama, tied': {'tie_word_embeddings': True, 'attention_bias': True},
  'Llama 3.1': {'tie_word_embeddings': False, 'rope_parameters': LLAMA_3_1},
}


@pytest.mark.parametrize('name', LLAMAS)
def test_llama(agree, name):
  config = transformers.LlamaConfig(
    **{'rope_theta': 500000.0} | LLAMAS[name],
    hidden_size=24,
    intermediate_size=40,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=8,
    vocab_size=50,
  )
  agree(name, lambda: transformers.LlamaForCausalLM(config), theirs, ours)


def test_mixtral(agree, gradients):
  config = transformers.MixtralConfig(
    hidden_size=24,
    intermediate_size=40,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    num_local_experts=4,
    vocab_size=50,
    router_aux_loss_coef=0.02,
    experts_implementation='eager',
  )
  model, mine = agree('Mixtral', lambda: transformers.MixtralForCausalLM(config), theirs, ours)
  gradients('Mixtral', model, mine, theirs_loss, ours_loss)


@pytest.mark.parametrize('normalised', [True, False])
def test_qwen3_moe(agree, gradients, normalised):
  config = transformers.Qwen3MoeConfig(
    hidden_size=24,
    moe_intermediate_size=16,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=8,
    num_experts=8,
    num_experts_per_tok=3,
    norm_topk_prob=normalised,
    vocab_size=50,
    experts_implementation='eager',
  )
  make = lambda: transformers.Qwen3MoeForCausalLM(config)  # noqa: E731
  model, mine = agree('Qwen3-MoE', make, theirs, ours)
  if normalised:
    gradients('Qwen3-MoE', model, mine, theirs_loss, ours_loss)


OPT = {
  'hidden_size': 24,
  'ffn_dim': 40,
  'num_hidden_layers': 3,
  'num_attention_heads': 4,
  'vocab_size': 50,
  'max_position_embeddings': 16,
  # Not in IDS: the embedding of this id has no gradient in transformers.
  'pad_token_id': 0,
}


def test_opt(agree, gradients):
  config = transformers.OPTConfig(**OPT)
  model, mine = agree('OPT', lambda: transformers.OPTForCausalLM(config), theirs, ours)
  gradients('OPT', model, mine, theirs_loss, ours_loss, vanishing=r'k_proj\.bias$')


def test_opt_with_a_head_of_its_own(agree):
  config = transformers.OPTConfig(**OPT, tie_word_embeddings=False, activation_function='gelu')
  agree('OPT, untied', lambda: transformers.OPTForCausalLM(config), theirs, ours)


NEOX = {
  'hidden_size': 32,
  'intermediate_size': 40,
  'num_hidden_layers': 3,
  'num_attention_heads': 4,
  'vocab_size': 50,
}
NEOXES = {
  'GPT-NeoX': {},
  'GPT-NeoX, one after the other, tied': {
    'use_parallel_residual': False,
    'tie_word_embeddings': True,
    'attention_bias': False,
    'layer_norm_eps': 1e-3,
  },
  'GPT-NeoX, positions interpolated': {
    'rope_parameters': {
      'rope_type': 'linear',
      'factor': 3.0,
      'rope_theta': 50.0,
      'partial_rotary_factor': 0.5,
    }
  },
}


@pytest.mark.parametrize('name', NEOXES)
def test_gpt_neox(agree, gradients, name):
  config = transformers.GPTNeoXConfig(**NEOX, **NEOXES[name])
  model, mine = agree(name, lambda: transformers.GPTNeoXForCausalLM(config), theirs, ours)
  if name == 'GPT-NeoX':
    gradients(name, model, mine, theirs_loss, ours_loss)


COHERES = {
  'Cohere': {'num_key_value_heads': 2, 'use_qk_norm': True, 'logit_scale': 0.3},
  'Cohere, no norms': {'attention_bias': True, 'layer_norm_eps': 1e-3},
}


@pytest.mark.parametrize('name', COHERES)
def test_cohere(agree, gradients, name):
  """Command R+ has norms of queries and keys with a scale per head."""
  config = transformers.CohereConfig(
    **COHERES[name],
    hidden_size=24,
    intermediate_size=40,
    num_hidden_layers=2,
    num_attention_heads=4,
    vocab_size=50,
    # Not in IDS: the embedding of this id has no gradient in transformers.
    pad_token_id=0,
  )
  model, mine = agree(name, lambda: transformers.CohereForCausalLM(config), theirs, ours)
  if name == 'Cohere':
    gradients(name, model, mine, theirs_loss, ours_loss)


DENSE_SIZES = {
  'hidden_size': 24,
  'intermediate_size': 40,
  'num_hidden_layers': 2,
  'num_attention_heads': 4,
  'num_key_value_heads': 2,
  'vocab_size': 50,
  # Not in IDS: the embedding of this id has no gradient in transformers.
  'pad_token_id': 0,
}
# Of two kinds of layers; a window of 4 is shorter than the rows.
KINDS = {'num_hidden_layers': 4, 'sliding_window': 4}
LINEAR = {'rope_type': 'linear', 'factor': 2.0, 'rope_theta': 50.0}
GEMMA = KINDS | {
  'head_dim': 8,
  'query_pre_attn_scalar': 20,
  'hidden_activation': 'gelu_pytorch_tanh',
}
# A soft cap of the size of the scores.
CAPPED = {'attn_logit_softcapping': 2.0, 'final_logit_softcapping': 3.0}
# name -> class, fields.
DENSE = {
  'Qwen2': ('Qwen2', {}),
  'Qwen2, windows, tied': (
    'Qwen2',
    KINDS | {'use_sliding_window': True, 'max_window_layers': 3, 'tie_word_embeddings': True},
  ),
  'Qwen3': ('Qwen3', {'head_dim': 8}),
  'Qwen3, biases, scaled positions': (
    'Qwen3',
    {'head_dim': 8, 'attention_bias': True, 'rope_parameters': LINEAR},
  ),
  'Gemma 2': ('Gemma2', GEMMA | CAPPED),
  'Gemma 2, no caps': (
    'Gemma2',
    GEMMA
    | {'attn_logit_softcapping': None, 'final_logit_softcapping': None, 'attention_bias': True},
  ),
  'Gemma 3': (
    'Gemma3',
    GEMMA
    | {'num_hidden_layers': 7}
    | {
      'rope_parameters': {
        'full_attention': LINEAR,
        'sliding_attention': {'rope_theta': 10.0, 'rope_type': 'default'},
      }
    },
  ),
  'OLMo 2': ('Olmo2', {'rms_norm_eps': 1e-3}),
  'Mistral': ('Mistral', {'head_dim': 8, 'sliding_window': 4}),
  'Mistral, no window': ('Mistral', {'sliding_window': None, 'rms_norm_eps': 1e-3}),
  'Phi': ('Phi', {'hidden_size': 32}),
  'Phi-3': ('Phi3', {'sliding_window': 4}),
  'Phi-3, partial rotation': (
    'Phi3',
    {
      'hidden_size': 32,
      'rope_parameters': {'rope_type': 'default', 'rope_theta': 50.0, 'partial_rotary_factor': 0.5},
    },
  ),
  'SmolLM3': ('SmolLM3', {'num_hidden_layers': 4, 'no_rope_layers': [1, 1, 0, 1]}),
  'SmolLM2': (
    'Llama',
    {
      'tie_word_embeddings': True,
      'rope_parameters': {'rope_type': 'default', 'rope_theta': 100000.0},
    },
  ),
}
# Gradients are compared for one model of each family.
NO_GRADIENT = ('SmolLM2',)


@pytest.mark.parametrize('name', DENSE)
def test_a_dense_model_equals_that_of_transformers(agree, gradients, name):
  kind, fields = DENSE[name]
  config = getattr(transformers, 'Gemma3TextConfig' if kind == 'Gemma3' else f'{kind}Config')
  build = getattr(transformers, f'{kind}ForCausalLM')
  values = config(**DENSE_SIZES | fields)
  model, mine = agree(name, lambda: build(values), theirs, ours)
  if ',' not in name and name not in NO_GRADIENT:
    gradients(name, model, mine, theirs_loss, ours_loss)


MAMBAS = {
  'Mamba-2': {'n_groups': 2, 'tie_word_embeddings': True},
  'Mamba-2, biases': {'n_groups': 4, 'use_bias': True, 'use_conv_bias': False, 'conv_kernel': 3},
}


@pytest.mark.parametrize('name', MAMBAS)
def test_mamba2(agree, gradients, name):
  """Chunks of four tokens are shorter than the rows."""
  config = transformers.Mamba2Config(
    **MAMBAS[name],
    hidden_size=16,
    num_hidden_layers=2,
    num_heads=4,
    head_dim=8,
    state_size=6,
    chunk_size=4,
    vocab_size=50,
    pad_token_id=0,
  )
  model, mine = agree(name, lambda: transformers.Mamba2ForCausalLM(config), theirs, ours)
  if name == 'Mamba-2':
    gradients(name, model, mine, theirs_loss, ours_loss)
