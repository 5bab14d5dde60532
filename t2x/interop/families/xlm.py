"""XLM: `XLMWithLMHeadModel`, `XLMModel`.

Languages are our token types. Without any, theirs adds no vector and ours that of language 0.
"""

from typing import Any

from t2x.foreign import Bool, Fields, Int, Only
from t2x.interop.family import (
  Family,
  Layers,
  Part,
  Size,
  activation_name,
  fields_of_attention,
  positive,
  rate,
  write,
)
from t2x.interop.layouts import LINEAR_FROM_HEADS
from t2x.interop.rules import Rule, dense, norm
from t2x.layers import Causal

__all__ = ['XLM']

GIN = """
Experiment.model = @LanguageModel
LanguageModel:
  d_model = {emb_dim}
  embedding = @TokenEmbedding
  body = {body}
  head = @TiedHead
TiedHead.use_bias = {has_head}
TokenEmbedding:
  vocab_size = {num_tokens}
  num_types = {num_types}
LearnedPositions.max_length = {max_position_embeddings}
Encoder:
  stack = @Stack
  encoding = @LearnedPositions
  input_norm = @LayerNorm
  input_dropout = {dropout}
  final_norm = None
Stack:
  num_layers = {n_layers}
  blocks = [@Block]
Block:
  mixer = @MultiHeadAttention
  feed_forward = @MLP
  wiring = @PostNorm
PostNorm:
  norm = @LayerNorm
  dropout_rate = {dropout}
LayerNorm.epsilon = {layer_norm_eps}
MultiHeadAttention:
  num_heads = {n_heads}
  dropout_rate = {attention_dropout}
MLP:
  hidden_dim = {hidden_dim}
  activation = {activation}
"""

BODY = 'body.stack.{}'
RULES = (
  Rule('transformer.embeddings.weight', ('embedding.table',)),
  Rule('transformer.lang_embeddings.weight', ('embedding.types',)),
  Rule('transformer.position_embeddings.weight', ('body.encoding.table',)),
  *norm('transformer.layer_norm_emb', 'body.input_norm'),
  *dense('transformer.attentions.{}.q_lin', f'{BODY}.mixer.q'),
  *dense('transformer.attentions.{}.k_lin', f'{BODY}.mixer.k'),
  *dense('transformer.attentions.{}.v_lin', f'{BODY}.mixer.v'),
  *dense('transformer.attentions.{}.out_lin', f'{BODY}.mixer.out', layout=LINEAR_FROM_HEADS),
  *norm('transformer.layer_norm1.{}', f'{BODY}.mixer_wiring.norm'),
  *dense('transformer.ffns.{}.lin1', f'{BODY}.feed_forward.up'),
  *dense('transformer.ffns.{}.lin2', f'{BODY}.feed_forward.down'),
  *norm('transformer.layer_norm2.{}', f'{BODY}.feed_forward_wiring.norm'),
  Rule('pred_layer.proj.bias', ('head.bias',)),
)


def gin(fields: Fields) -> str:
  """The model of a config.json."""
  languages = fields['n_langs'] if fields['use_lang_emb'] else 1
  causal = fields['causal']
  return write(
    GIN.replace('Encoder', 'Decoder') if causal else GIN,
    fields,
    body=Part('Decoder' if causal else 'Encoder'),
    has_head=fields['architecture'] != 'XLMModel',
    # Its older name.
    num_tokens=fields['n_words'] or fields['vocab_size'],
    num_types=languages if languages > 1 else 0,
    hidden_dim=4 * fields['emb_dim'],
    activation=Part('gelu_exact' if fields['gelu_activation'] else 'relu'),
  )


def fields(model: Any) -> tuple[str, dict[str, Any]]:
  """The config.json of a model."""
  (block,) = model.body.stack.blocks
  types = model.embedding.types
  return 'XLMModel' if model.head.bias is None else 'XLMWithLMHeadModel', {
    'attention_dropout': block.mixer.dropout_rate,
    'causal': model.body.pattern == Causal(),
    'dropout': block.mixer_wiring.dropout_rate,
    'emb_dim': model.embedding.table.shape[-1],
    'gelu_activation': activation_name(block.feed_forward.activation) == 'gelu',
    'layer_norm_eps': model.body.input_norm.epsilon,
    'max_position_embeddings': model.spec.max_length,
    'n_heads': fields_of_attention(block.mixer)[0],
    'n_langs': 1 if types is None else types.shape[0],
    'n_layers': model.body.stack.num_layers,
    'use_lang_emb': types is not None,
    'vocab_size': model.spec.vocab_size,
  }


XLM = Family(
  model_type='xlm',
  architectures=('XLMWithLMHeadModel', 'XLMModel'),
  gin=gin,
  fields=fields,
  rules=RULES,
  declared={
    'asm': Only(False),
    'attention_dropout': rate(0.1),
    'causal': Bool(False),
    'dropout': rate(0.1),
    'emb_dim': Size(2048),
    'gelu_activation': Bool(True),
    'is_encoder': Only(True),
    'layer_norm_eps': positive(1e-12, 1.0),
    'max_position_embeddings': Size(512),
    'n_heads': Size(16),
    'n_langs': Int(1, 1, 10**5),
    'n_layers': Layers(12),
    'n_words': Size(None),
    'tie_word_embeddings': Only(True),
    'use_lang_emb': Bool(True),
    'vocab_size': Size(30145),
  },
  prefix='transformer.',
  bare='XLMModel',
  ignored=(r'transformer\.position_ids', r'pred_layer\.proj\.weight'),
)
