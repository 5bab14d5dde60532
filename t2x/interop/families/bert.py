"""BERT: `BertForPreTraining`, `BertForMaskedLM`, `BertForSequenceClassification`,
`BertForTokenClassification`, `BertModel` with its pooler."""

import dataclasses
from typing import Any

from t2x.foreign import Fields, Only
from t2x.interop.family import (
  CLASSES,
  Family,
  Layers,
  Size,
  activation,
  activation_field,
  activation_name,
  fields_of_attention,
  num_classes,
  positive,
  rate,
  write,
)
from t2x.interop.layouts import LINEAR_FROM_HEADS
from t2x.interop.rules import Rule, dense, norm
from t2x.models import MaskedLMHead, SequenceClassifier

__all__ = ['BERT', 'SENTENCE_PAIRS']

GIN = """
Experiment.model = @LanguageModel
LanguageModel:
  d_model = {hidden_size}
  embedding = @TokenEmbedding
  body = @Encoder
TokenEmbedding:
  vocab_size = {vocab_size}
  num_types = {type_vocab_size}
LearnedPositions.max_length = {max_position_embeddings}
Encoder:
  stack = @Stack
  encoding = @LearnedPositions
  input_norm = @LayerNorm
  input_dropout = {hidden_dropout_prob}
  final_norm = None
Stack:
  num_layers = {num_hidden_layers}
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

# Tokens, and whether the second sentence follows the first: two heads at once.
SENTENCE_PAIRS = """
LanguageModel.head = @SequenceClassifier
SequenceClassifier:
  classifier = @PooledClassifier
  language_head = @MaskedLMHead
PooledClassifier.num_classes = 2
MaskedLMHead.activation = {activation}
"""

HEADS = {
  'BertForPreTraining': SENTENCE_PAIRS,
  'BertForMaskedLM': """
LanguageModel.head = @MaskedLMHead
MaskedLMHead.activation = {activation}
""",
  'BertForSequenceClassification': """
LanguageModel.head = @SequenceClassifier
SequenceClassifier.classifier = @PooledClassifier
PooledClassifier:
  num_classes = {num_classes}
  dropout_rate = {last_dropout}
""",
  'BertForTokenClassification': """
LanguageModel.head = @TokenClassifier
TokenClassifier.num_classes = {num_classes}
Encoder.final_dropout = {last_dropout}
""",
  'BertModel': """
LanguageModel.head = @Pooler
""",
}

BODY = 'body.stack.{}'
LAYER = 'bert.encoder.layer.{}'
PREDICTIONS = 'cls.predictions'


def masked_lm(ours: str) -> tuple[Rule, ...]:
  """The head over the vocabulary, wherever it is."""
  return (
    *dense(f'{PREDICTIONS}.transform.dense', f'{ours}.transform'),
    *norm(f'{PREDICTIONS}.transform.LayerNorm', f'{ours}.norm'),
    Rule(f'{PREDICTIONS}.bias', (f'{ours}.bias',)),
  )


def classifier(theirs: str, beside: str = '', without: str = '') -> tuple[Rule, ...]:
  """Classes of a row: of sentence pairs in a model that has both heads, else those learnt last."""
  return tuple(
    dataclasses.replace(rule, beside=beside, without=without)
    for rule in dense(theirs, 'head.classifier.out')
  )


RULES = (
  Rule('bert.embeddings.word_embeddings.weight', ('embedding.table',)),
  Rule('bert.embeddings.token_type_embeddings.weight', ('embedding.types',)),
  Rule('bert.embeddings.position_embeddings.weight', ('body.encoding.table',)),
  *norm('bert.embeddings.LayerNorm', 'body.input_norm'),
  *dense(f'{LAYER}.attention.self.query', f'{BODY}.mixer.q'),
  *dense(f'{LAYER}.attention.self.key', f'{BODY}.mixer.k'),
  *dense(f'{LAYER}.attention.self.value', f'{BODY}.mixer.v'),
  *dense(f'{LAYER}.attention.output.dense', f'{BODY}.mixer.out', layout=LINEAR_FROM_HEADS),
  *norm(f'{LAYER}.attention.output.LayerNorm', f'{BODY}.mixer_wiring.norm'),
  *dense(f'{LAYER}.intermediate.dense', f'{BODY}.feed_forward.up'),
  *dense(f'{LAYER}.output.dense', f'{BODY}.feed_forward.down'),
  *norm(f'{LAYER}.output.LayerNorm', f'{BODY}.feed_forward_wiring.norm'),
  *dense('bert.pooler.dense', 'head.projection'),
  *dense('bert.pooler.dense', 'head.classifier.transform'),
  *classifier('cls.seq_relationship', beside='head.language_head.bias'),
  *classifier('classifier', without='head.language_head.bias'),
  *dense('classifier', 'head.out'),
  *masked_lm('head'),
  *masked_lm('head.language_head'),
)


def gin(fields: Fields) -> str:
  """The model of a config.json."""
  last = fields['classifier_dropout']
  return write(
    GIN + HEADS[fields['architecture']],
    fields,
    activation=activation(fields, 'hidden_act'),
    num_classes=num_classes(fields),
    last_dropout=fields['hidden_dropout_prob'] if last is None else last,
  )


def fields(model: Any) -> tuple[str, dict[str, Any]]:
  """The config.json of a model."""
  architectures = {
    'SequenceClassifier': 'BertForSequenceClassification',
    'TokenClassifier': 'BertForTokenClassification',
    'MaskedLMHead': 'BertForMaskedLM',
    'Pooler': 'BertModel',
  }
  architecture = architectures[type(model.head).__name__]
  head = model.head
  classes = {'num_labels': head.num_classes} if 'Classification' in architecture else {}
  if isinstance(head, SequenceClassifier) and isinstance(head.language_head, MaskedLMHead):
    architecture, classes = 'BertForPreTraining', {}
  (block,) = model.body.stack.blocks
  return architecture, classes | {
    'attention_probs_dropout_prob': block.mixer.dropout_rate,
    'hidden_act': activation_name(block.feed_forward.activation),
    'hidden_dropout_prob': block.mixer_wiring.dropout_rate,
    'hidden_size': model.embedding.table.shape[-1],
    'intermediate_size': block.feed_forward.up.kernel.shape[-1],
    'layer_norm_eps': model.body.input_norm.epsilon,
    'max_position_embeddings': model.spec.max_length,
    'num_attention_heads': fields_of_attention(block.mixer)[0],
    'num_hidden_layers': model.body.stack.num_layers,
    'type_vocab_size': model.embedding.types.shape[0],
    'vocab_size': model.spec.vocab_size,
  }


BERT = Family(
  model_type='bert',
  architectures=tuple(HEADS),
  gin=gin,
  fields=fields,
  rules=RULES,
  declared={
    **CLASSES,
    'add_cross_attention': Only(False),
    'attention_probs_dropout_prob': rate(0.1),
    'classifier_dropout': rate(None),
    'hidden_act': activation_field('gelu'),
    'hidden_dropout_prob': rate(0.1),
    'hidden_size': Size(768),
    'intermediate_size': Size(3072),
    'is_decoder': Only(False),
    'layer_norm_eps': positive(1e-12, 1.0),
    'max_position_embeddings': Size(512),
    'num_attention_heads': Size(12),
    'num_hidden_layers': Layers(12),
    'position_embedding_type': Only('absolute'),
    'tie_word_embeddings': Only(True),
    'type_vocab_size': Size(2, low=0),
    'vocab_size': Size(30522),
  },
  prefix='bert.',
  bare='BertModel',
  renamed={
    r'\.gamma$': '.weight',
    r'\.beta$': '.bias',
    r'^cls\.predictions\.decoder\.bias$': 'cls.predictions.bias',
  },
  ignored=(r'bert\.embeddings\.position_ids', r'cls\.predictions\.decoder\.weight'),
)
