"""A tiny config.json of every family, and folders that hold it with tensors of zeros."""

import functools
import json

import jax
import numpy as np
from flax import nnx

from t2x.config import GinText
from t2x.experiments import read_config
from t2x.interop import FAMILIES, HFModel
from t2x.interop.rules import Table
from t2x.interop.safetensors import write_tensors
from t2x.layers.arrays import named_leaves

BERT = {
  'hidden_size': 8,
  'num_hidden_layers': 2,
  'num_attention_heads': 2,
  'intermediate_size': 12,
  'vocab_size': 20,
  'max_position_embeddings': 6,
}
TOWER = {
  'hidden_size': 8,
  'intermediate_size': 12,
  'num_hidden_layers': 1,
  'num_attention_heads': 2,
}
TOWERS = {
  'text_config': TOWER | {'vocab_size': 20, 'max_position_embeddings': 6},
  'vision_config': TOWER | {'image_size': 4, 'patch_size': 2},
}
SIDES = {
  'd_model': 8,
  'encoder_layers': 1,
  'decoder_layers': 2,
  'encoder_attention_heads': 2,
  'decoder_attention_heads': 4,
  'encoder_ffn_dim': 12,
  'decoder_ffn_dim': 10,
}
GPT = {'n_embd': 8, 'n_head': 2, 'n_layer': 2, 'n_positions': 6, 'vocab_size': 20}
LLAMA = {
  'hidden_size': 8,
  'num_hidden_layers': 2,
  'num_attention_heads': 2,
  'num_key_value_heads': 1,
  'intermediate_size': 12,
  'vocab_size': 20,
}
GEMMA = LLAMA | {'head_dim': 4, 'sliding_window': 4}
CONFIGS = {
  'albert': BERT | {'embedding_size': 4},
  'bart': SIDES | {'vocab_size': 20, 'max_position_embeddings': 6},
  'bert': BERT | {'architectures': ['BertForSequenceClassification'], 'num_labels': 3},
  'clip': TOWERS | {'projection_dim': 6},
  'siglip': TOWERS,
  'deberta-v2': BERT
  | {
    'norm_rel_ebd': 'layer_norm',
    'pos_att_type': ['p2c', 'c2p'],
    'position_biased_input': False,
    'relative_attention': True,
    'share_att_key': True,
  },
  'dinov2': {
    'hidden_size': 8,
    'num_hidden_layers': 1,
    'num_attention_heads': 2,
    'mlp_ratio': 2,
    'image_size': [8, 4],
    'patch_size': 2,
  },
  'dinov3_vit': {
    'hidden_size': 8,
    'num_hidden_layers': 1,
    'num_attention_heads': 2,
    'intermediate_size': 12,
    'num_register_tokens': 2,
    'patch_size': 2,
  },
  'distilbert': {
    'dim': 8,
    'n_layers': 2,
    'n_heads': 2,
    'hidden_dim': 12,
    'vocab_size': 20,
    'max_position_embeddings': 6,
  },
  'whisper': SIDES | {'vocab_size': 20, 'num_mel_bins': 5, 'max_target_positions': 6},
  'fsmt': SIDES | {'src_vocab_size': 20, 'tgt_vocab_size': 10},
  'gpt2': GPT,
  'gpt_neo': {
    'hidden_size': 8,
    'num_layers': 3,
    'num_heads': 2,
    'vocab_size': 20,
    'max_position_embeddings': 6,
    'attention_types': [[['local', 'local', 'global'], 1]],
  },
  'gpt_neox': {
    'hidden_size': 8,
    'num_hidden_layers': 2,
    'num_attention_heads': 2,
    'intermediate_size': 12,
    'vocab_size': 20,
    'rotary_pct': 0.5,
  },
  'llama': {
    'hidden_size': 8,
    'num_hidden_layers': 1,
    'num_attention_heads': 2,
    'intermediate_size': 12,
    'vocab_size': 20,
  },
  'cohere': {
    'hidden_size': 8,
    'num_hidden_layers': 2,
    'num_attention_heads': 2,
    'intermediate_size': 12,
    'vocab_size': 20,
    'use_qk_norm': True,
  },
  'mixtral': {
    'hidden_size': 8,
    'num_hidden_layers': 1,
    'num_attention_heads': 2,
    'num_key_value_heads': 1,
    'intermediate_size': 12,
    'num_local_experts': 3,
    'vocab_size': 20,
  },
  'qwen3_moe': {
    'hidden_size': 8,
    'num_hidden_layers': 1,
    'num_attention_heads': 2,
    'num_key_value_heads': 1,
    'moe_intermediate_size': 12,
    'num_experts': 4,
    'num_experts_per_tok': 2,
    'vocab_size': 20,
  },
  'mamba2': {
    'hidden_size': 8,
    'num_hidden_layers': 1,
    'num_heads': 4,
    'head_dim': 4,
    'n_groups': 2,
    'state_size': 3,
    'vocab_size': 20,
  },
  'modernbert': {name: value for name, value in LLAMA.items() if name != 'num_key_value_heads'},
  'mistral': LLAMA,
  'qwen2': LLAMA | {'use_sliding_window': True, 'sliding_window': 4, 'max_window_layers': 1},
  'qwen3': LLAMA | {'head_dim': 4},
  'gemma2': GEMMA,
  'gemma3_text': GEMMA | {'sliding_window_pattern': 2},
  'olmo2': LLAMA,
  'phi': LLAMA | {'hidden_size': 16},
  'phi3': LLAMA,
  'smollm3': LLAMA | {'no_rope_layers': [1, 0]},
  'convnext': {
    'num_stages': 2,
    'hidden_sizes': [4, 8],
    'depths': [1, 1],
    'num_labels': 3,
  },
  'resnet': {
    'embedding_size': 4,
    'hidden_sizes': [4, 8],
    'depths': [1, 2],
    'layer_type': 'basic',
    'num_labels': 3,
  },
  'swin': {
    'embed_dim': 4,
    'depths': [2, 2],
    'num_heads': [1, 2],
    'image_size': 16,
    'patch_size': 2,
    'window_size': 4,
    'num_labels': 3,
  },
  'marian': SIDES | {'vocab_size': 20, 'share_encoder_decoder_embeddings': False},
  'openai-gpt': GPT,
  'opt': {
    'hidden_size': 8,
    'num_hidden_layers': 2,
    'num_attention_heads': 2,
    'ffn_dim': 12,
    'vocab_size': 20,
    'max_position_embeddings': 6,
  },
  'roberta': BERT | {'max_position_embeddings': 8},
  'switch_transformers': {
    'd_model': 8,
    'd_kv': 2,
    'd_ff': 12,
    'num_heads': 2,
    'num_layers': 2,
    'num_sparse_encoder_layers': 1,
    'num_decoder_layers': 1,
    'num_sparse_decoder_layers': 1,
    'num_experts': 3,
    'expert_capacity': 2,
    'vocab_size': 20,
  },
  't5': {'d_model': 8, 'd_kv': 2, 'd_ff': 12, 'num_layers': 1, 'num_heads': 2, 'vocab_size': 20},
  'vit': {
    'hidden_size': 8,
    'num_hidden_layers': 1,
    'num_attention_heads': 2,
    'intermediate_size': 12,
    'image_size': [8, 4],
    'patch_size': 2,
    'num_labels': 3,
  },
  'deit': {
    'hidden_size': 8,
    'num_hidden_layers': 1,
    'num_attention_heads': 2,
    'intermediate_size': 12,
    'image_size': [8, 4],
    'patch_size': 2,
    'num_labels': 3,
  },
  'xlm': {
    'emb_dim': 8,
    'n_layers': 1,
    'n_heads': 2,
    'n_langs': 3,
    'vocab_size': 20,
    'max_position_embeddings': 6,
  },
}


def llama_shapes(d=16, hidden=24, layers=1, vocab=500):
  """The tensors of a Llama."""
  shapes = {'model.embed_tokens.weight': (vocab, d), 'model.norm.weight': (d,)}
  shapes['lm_head.weight'] = (vocab, d)
  for layer in range(layers):
    at = f'model.layers.{layer}'
    shapes |= {f'{at}.self_attn.{part}_proj.weight': (d, d) for part in 'qkvo'}
    shapes |= {f'{at}.mlp.{part}_proj.weight': (hidden, d) for part in ('gate', 'up')}
    shapes[f'{at}.mlp.down_proj.weight'] = (d, hidden)
    for norm in ('input', 'post_attention'):
      shapes[f'{at}.{norm}_layernorm.weight'] = (d,)
  return shapes


@functools.cache
def build(gin):
  """Returns the builder of the model in a gin text."""
  return read_config([GinText(gin, 'config.json')]).build().model


@functools.cache
def shapes(gin):
  """Returns the shapes of the model in a gin text."""
  return jax.eval_shape(lambda: build(gin)(rngs=nnx.Rngs(0)))


def write_folder(path, model_type):
  """Writes the folder of the family's tiny model, with tensors of zeros; returns its config."""
  family = FAMILIES[model_type]
  config = {'model_type': model_type} | CONFIGS[model_type]
  leaves = named_leaves(shapes(family.gin(family.read(config, 'config.json'))))
  table = Table(family.rules, {name: tuple(leaf.shape) for name, leaf in leaves})
  specs = {name: (table.tensor_shape(name), np.float32) for name in table.tensors}
  write_tensors(path, specs, lambda name: np.zeros(*specs[name]))
  (path / 'config.json').write_text(json.dumps(config))
  return config


def imported(path):
  """Imports a model folder like `convert import`, without reading the tensors."""
  source = HFModel(path)
  model = source.shapes(read_config([GinText(source.gin, str(source.config))]).build().model)
  return source.arrays(model)
