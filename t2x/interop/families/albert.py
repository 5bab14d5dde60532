"""ALBERT: `AlbertForPreTraining`, `AlbertForMaskedLM`, `AlbertModel` with its pooler.

Token vectors, positions and their norm are narrower than the layers, which share parameters in groups.
"""

from typing import Any

from t2x.errors import UserError
from t2x.foreign import Fields, Only
from t2x.interop.families.bert import SENTENCE_PAIRS
from t2x.interop.family import (
  Family,
  Layers,
  Size,
  activation,
  activation_field,
  activation_name,
  fields_of_attention,
  positive,
  rate,
  write,
)
from t2x.interop.layouts import LINEAR_FROM_HEADS
from t2x.interop.rules import Rule, dense, norm

__all__ = ['ALBERT']

GIN = """
Experiment.model = @LanguageModel
LanguageModel:
  d_model = {hidden_size}
  embedding_dim = {embedding_size}
  embedding = @TokenEmbedding
  body = @Encoder
TokenEmbedding:
  vocab_size = {vocab_size}
  num_types = {type_vocab_size}
LearnedPositions.max_length = {max_position_embeddings}
Encoder:
  input_dim = {embedding_size}
  stack = @Stack
  encoding = @LearnedPositions
  input_norm = @LayerNorm
  input_dropout = {hidden_dropout_prob}
  final_norm = None
Stack:
  num_layers = {num_hidden_layers}
  num_groups = {num_hidden_groups}
  blocks = [@Block]
Block:
  mixer = @MultiHeadAttention
  feed_forward = @MLP
  wiring = @PostNorm
PostNorm:
  norm = @LayerNorm
  dropout_rate = {hidden_dropout_prob}
LayerNorm.epsilon = {layer_norm_eps}
MultiHeadAttention:
  num_heads = {num_attention_heads}
  dropout_rate = {attention_probs_dropout_prob}
MLP:
  hidden_dim = {intermediate_size}
  activation = {activation}
"""

NARROW = """
MaskedLMHead.embedding_dim = {embedding_size}
"""

HEADS = {
  'AlbertForPreTraining': f"""{SENTENCE_PAIRS}{NARROW}
PooledClassifier.dropout_rate = {{classifier_dropout_prob}}
""",
  'AlbertForMaskedLM': f"""{NARROW}
LanguageModel.head = @MaskedLMHead
MaskedLMHead.activation = {{activation}}
""",
  'AlbertModel': """
LanguageModel.head = @Pooler
""",
}

BODY = 'body.stack.{}'
LAYER = 'albert.encoder.albert_layer_groups.{}.albert_layers.0'


def masked_lm(ours: str) -> tuple[Rule, ...]:
  """The head over the vocabulary, wherever it is."""
  return (
    *dense('predictions.dense', f'{ours}.transform'),
    *norm('predictions.LayerNorm', f'{ours}.norm'),
    Rule('predictions.bias', (f'{ours}.bias',)),
  )


RULES = (
  Rule('albert.embeddings.word_embeddings.weight', ('embedding.table',)),
  Rule('albert.embeddings.token_type_embeddings.weight', ('embedding.types',)),
  Rule('albert.embeddings.position_embeddings.weight', ('body.encoding.table',)),
  *norm('albert.embeddings.LayerNorm', 'body.input_norm'),
  *dense('albert.encoder.embedding_hidden_mapping_in', 'body.projection'),
  *dense(f'{LAYER}.attention.query', f'{BODY}.mixer.q'),
  *dense(f'{LAYER}.attention.key', f'{BODY}.mixer.k'),
  *dense(f'{LAYER}.attention.value', f'{BODY}.mixer.v'),
  *dense(f'{LAYER}.attention.dense', f'{BODY}.mixer.out', layout=LINEAR_FROM_HEADS),
  *norm(f'{LAYER}.attention.LayerNorm', f'{BODY}.mixer_wiring.norm'),
  *dense(f'{LAYER}.ffn', f'{BODY}.feed_forward.up'),
  *dense(f'{LAYER}.ffn_output', f'{BODY}.feed_forward.down'),
  *norm(f'{LAYER}.full_layer_layer_norm', f'{BODY}.feed_forward_wiring.norm'),
  *dense('albert.pooler', 'head.projection'),
  *dense('albert.pooler', 'head.classifier.transform'),
  *dense('sop_classifier.classifier', 'head.classifier.out'),
  *masked_lm('head'),
  *masked_lm('head.language_head'),
)


def gin(fields: Fields) -> str:
  """The model of a config.json."""
  layers, groups = fields['num_hidden_layers'], fields['num_hidden_groups']
  if layers % groups:
    raise UserError(
      f'{fields.where}: num_hidden_groups = {groups} is not supported with num_hidden_layers = '
      f'{layers}, only divisors of it'
    )
  text = GIN + HEADS[fields['architecture']]
  return write(text, fields, activation=activation(fields, 'hidden_act'))


def fields(model: Any) -> tuple[str, dict[str, Any]]:
  """The config.json of a model."""
  architectures = {
    'SequenceClassifier': 'AlbertForPreTraining',
    'MaskedLMHead': 'AlbertForMaskedLM',
    'Pooler': 'AlbertModel',
  }
  (block,) = model.body.stack.blocks
  return architectures[type(model.head).__name__], {
    'attention_probs_dropout_prob': block.mixer.dropout_rate,
    'embedding_size': model.embedding.table.shape[-1],
    'hidden_act': activation_name(block.feed_forward.activation),
    'hidden_dropout_prob': block.mixer_wiring.dropout_rate,
    'hidden_size': model.body.projection.kernel.shape[-1],
    'intermediate_size': block.feed_forward.up.kernel.shape[-1],
    'layer_norm_eps': model.body.input_norm.epsilon,
    'max_position_embeddings': model.spec.max_length,
    'num_attention_heads': fields_of_attention(block.mixer)[0],
    'num_hidden_groups': model.body.stack.num_groups,
    'num_hidden_layers': model.body.stack.num_layers,
    'type_vocab_size': model.embedding.types.shape[0],
    'vocab_size': model.spec.vocab_size,
  }


ALBERT = Family(
  model_type='albert',
  architectures=tuple(HEADS),
  gin=gin,
  fields=fields,
  rules=RULES,
  declared={
    'attention_probs_dropout_prob': rate(0.0),
    'classifier_dropout_prob': rate(0.1),
    'embedding_size': Size(128),
    'hidden_act': activation_field('gelu_new'),
    'hidden_dropout_prob': rate(0.0),
    'hidden_size': Size(4096),
    'inner_group_num': Only(1),
    'intermediate_size': Size(16384),
    'layer_norm_eps': positive(1e-12, 1.0),
    'max_position_embeddings': Size(512),
    'num_attention_heads': Size(64),
    'num_hidden_groups': Layers(1),
    'num_hidden_layers': Layers(12),
    'position_embedding_type': Only('absolute'),
    'tie_word_embeddings': Only(True),
    'type_vocab_size': Size(2, low=0),
    'vocab_size': Size(30000),
  },
  prefix='albert.',
  bare='AlbertModel',
  renamed={r'^predictions\.decoder\.bias$': 'predictions.bias'},
  ignored=(r'albert\.embeddings\.position_ids', r'predictions\.decoder\.weight'),
)
