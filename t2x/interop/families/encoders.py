"""Post-norm encoders: BERT, ALBERT, DeBERTa-v2 (and -v3)."""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

from t2x.base.errors import UserError
from t2x.base.external_files import Bool, Field, Fields, Int, Only
from t2x.interop.family import (
  CLASSES,
  Family,
  Layers,
  Size,
  activation,
  num_classes,
  positive,
  rates,
  sizes,
)
from t2x.interop.rules import Rule, block, dense, norm, only_if
from t2x.interop.template import ENCODER, fill

# The encoder with the names of BERT's fields, and fields that ALBERT and DeBERTa also have.
BERT_ENCODER = fill(
  ENCODER,
  attention_dropout='attention_probs_dropout_prob',
  hidden_dropout='hidden_dropout_prob',
)
BERT_DECLARED: Mapping[str, Field] = {
  **rates(attention_probs_dropout_prob=0.1, hidden_dropout_prob=0.1),
  **sizes(max_position_embeddings=512),
  'hidden_act': activation('gelu'),
  'layer_norm_eps': positive(1e-12, 1.0),
  'tie_word_embeddings': Only(True),
  'type_vocab_size': Size(2, low=0),
}
MASKED_LM = """
LanguageModel.head = @MaskedLMHead
MaskedLMHead.activation = {hidden_act}
"""

# Masked language modelling and next sentence prediction.
SENTENCE_PAIRS = """
LanguageModel.head = @SequenceClassifier
SequenceClassifier:
  classifier = @PooledClassifier
  language_head = @MaskedLMHead
PooledClassifier.num_classes = 2
MaskedLMHead.activation = {hidden_act}
"""

BERT_HEADS = {
  'BertForPreTraining': SENTENCE_PAIRS,
  'BertForMaskedLM': MASKED_LM,
  'BertForSequenceClassification': """
LanguageModel.head = @SequenceClassifier
SequenceClassifier.classifier = @PooledClassifier
PooledClassifier:
  num_classes = {num_labels}
  dropout_rate = {classifier_dropout}
""",
  'BertForTokenClassification': """
LanguageModel.head = @TokenClassifier
TokenClassifier.num_classes = {num_labels}
Encoder.final_dropout = {classifier_dropout}
""",
  'BertModel': """
LanguageModel.head = @Pooler
""",
}


def embeddings(prefix: str) -> Iterator[Rule]:
  """Embedding tables of tokens, token types and positions, and their norm."""
  yield Rule(f'{prefix}.word_embeddings.weight', ('embedding.table',))
  yield Rule(f'{prefix}.token_type_embeddings.weight', ('embedding.types',))
  yield Rule(f'{prefix}.position_embeddings.weight', ('body.encoding.table',))
  yield from norm(f'{prefix}.LayerNorm', 'body.input_norm')


def bert_block(prefix: str, projection: str) -> Iterator[Rule]:
  """A block of BERT; `projection` is the name of a projection of the attention, with a place for its part."""
  yield from block(
    prefix,
    norms=('attention.output.LayerNorm', 'output.LayerNorm'),
    mixer=(
      *(projection.format(part) for part in ('query', 'key', 'value')),
      'attention.output.dense',
    ),
    feed_forward=('intermediate.dense', 'output.dense'),
  )


def masked_lm(prefix: str, transform: str) -> Iterator[Rule]:
  """The masked language model head, with or without a sentence pair head."""
  for head in ('head', 'head.language_head'):
    yield from dense(f'{transform}.dense', f'{head}.transform')
    yield from norm(f'{transform}.LayerNorm', f'{head}.norm')
    yield Rule(f'{prefix}.bias', (f'{head}.bias',))


def _bert_derive(fields: Fields) -> dict[str, Any]:
  """Returns the number of classes, and the dropout rate of the classifier."""
  rate = fields['classifier_dropout']
  return num_classes(fields) | {
    'classifier_dropout': fields['hidden_dropout_prob'] if rate is None else rate
  }


BERT = Family(
  model_type='bert',
  architectures=tuple(BERT_HEADS),
  template=BERT_ENCODER,
  choices={'architecture': BERT_HEADS},
  derive=_bert_derive,
  declared={
    **CLASSES,
    **BERT_DECLARED,
    **rates(classifier_dropout=None),
    **sizes(hidden_size=768, intermediate_size=3072, num_attention_heads=12, vocab_size=30522),
    'is_decoder': Only(False),
    'num_hidden_layers': Layers(12),
    'position_embedding_type': Only('absolute'),
    # Models without types are DistilBERT's: BERT looks up type 0.
    'type_vocab_size': Size(2),
  },
  # Metadata of the first release about its pooler.
  no_effect=(
    'directionality',
    'pooler_fc_size',
    'pooler_num_attention_heads',
    'pooler_num_fc_layers',
    'pooler_size_per_head',
    'pooler_type',
  ),
  rules=(
    *embeddings('bert.embeddings'),
    *bert_block('bert.encoder.layer.{}', 'attention.self.{}'),
    *dense('bert.pooler.dense', 'head.projection'),
    *dense('bert.pooler.dense', 'head.classifier.transform'),
    *only_if(
      dense('cls.seq_relationship', 'head.classifier.out'), requires='head.language_head.bias'
    ),
    *only_if(dense('classifier', 'head.classifier.out'), excludes='head.language_head.bias'),
    *dense('classifier', 'head.out'),
    *masked_lm('cls.predictions', 'cls.predictions.transform'),
  ),
  prefix='bert.',
  bare='BertModel',
  renamed={
    r'\.gamma$': '.weight',
    r'\.beta$': '.bias',
    r'^cls\.predictions\.decoder\.bias$': 'cls.predictions.bias',
  },
  ignored=(r'bert\.embeddings\.position_ids', r'cls\.predictions\.decoder\.weight'),
)

# ALBERT: embeddings are narrower than the layers, and groups of layers share parameters.
ALBERT_NARROW = """
LanguageModel.embedding_dim = {embedding_size}
Encoder.input_dim = {embedding_size}
Stack.num_groups = {num_hidden_groups}
"""
ALBERT_NARROW_HEAD = """
MaskedLMHead.embedding_dim = {embedding_size}
"""
ALBERT_HEADS = {
  'AlbertForPreTraining': f"""{SENTENCE_PAIRS}{ALBERT_NARROW_HEAD}
PooledClassifier.dropout_rate = {{classifier_dropout_prob}}
""",
  'AlbertForMaskedLM': ALBERT_NARROW_HEAD + MASKED_LM,
  'AlbertModel': """
LanguageModel.head = @Pooler
""",
}


def _albert_derive(fields: Fields) -> dict[str, Any]:
  """Checks that the groups divide the layers; adds no values."""
  layers, groups = fields['num_hidden_layers'], fields['num_hidden_groups']
  if layers % groups:
    raise UserError(
      f'{fields.where}: num_hidden_groups = {groups} must divide num_hidden_layers = {layers}'
    )
  return {}


ALBERT = Family(
  model_type='albert',
  architectures=tuple(ALBERT_HEADS),
  template=ALBERT_NARROW + BERT_ENCODER,
  choices={'architecture': ALBERT_HEADS},
  derive=_albert_derive,
  declared={
    **BERT_DECLARED,
    **rates(attention_probs_dropout_prob=0.0, classifier_dropout_prob=0.1, hidden_dropout_prob=0.0),
    **sizes(embedding_size=128, hidden_size=4096, intermediate_size=16384),
    **sizes(num_attention_heads=64, vocab_size=30000),
    'hidden_act': activation('gelu_new'),
    'inner_group_num': Only(1),
    'layers_to_keep': Only([]),
    'num_hidden_groups': Layers(1),
    'num_hidden_layers': Layers(12),
    'position_embedding_type': Only('absolute'),
  },
  # Metadata of the first release about modules that the model lacks.
  no_effect=('down_scale_factor', 'gap_size', 'net_structure_type', 'num_memory_blocks'),
  rules=(
    *embeddings('albert.embeddings'),
    *dense('albert.encoder.embedding_hidden_mapping_in', 'body.projection'),
    *block(
      'albert.encoder.albert_layer_groups.{}.albert_layers.0',
      norms=('attention.LayerNorm', 'full_layer_layer_norm'),
      mixer=tuple(f'attention.{name}' for name in ('query', 'key', 'value', 'dense')),
      feed_forward=('ffn', 'ffn_output'),
    ),
    *dense('albert.pooler', 'head.projection'),
    *dense('albert.pooler', 'head.classifier.transform'),
    *dense('sop_classifier.classifier', 'head.classifier.out'),
    *masked_lm('predictions', 'predictions'),
  ),
  prefix='albert.',
  bare='AlbertModel',
  renamed={r'^predictions\.decoder\.bias$': 'predictions.bias'},
  ignored=(r'albert\.embeddings\.position_ids', r'predictions\.decoder\.weight'),
)

# DeBERTa-v2: models with relative positions of both kinds and without convolution or absolute positions, such as all
# sizes of DeBERTa-v3.
DEBERTA_POSITIONS = """Disentangled:
  max_distance = {max_distance}
  num_buckets = {num_buckets}
  norm = @LayerNorm
"""
DEBERTA_HEADS = {
  'DebertaV2ForMaskedLM': MASKED_LM,
  'DebertaV2Model': """
LanguageModel.head = @TiedHead
TiedHead.use_bias = False
""",
}


@dataclasses.dataclass(frozen=True)
class Needs(Field):
  """A field with one supported value, which differs from its default in transformers."""

  value: Any

  @property
  def wanted(self):
    return repr(self.value)

  def accepts(self, value):
    return value == self.value


class Terms(Needs):
  """Names of the terms of relative positions in any order, also joined by '|'."""

  def accepts(self, value):
    names = value.split('|') if isinstance(value, str) else value
    return isinstance(names, list) and len(names) == 2 and all(t in names for t in self.value)


DEBERTA_NEEDED = {
  'norm_rel_ebd': Needs('none', 'layer_norm'),
  'pos_att_type': Terms('', ['p2c', 'c2p']),
  'position_biased_input': Needs(True, False),
  'relative_attention': Needs(False, True),
  'share_att_key': Needs(False, True),
}


def _deberta_derive(fields: Fields) -> dict[str, Any]:
  """Returns the sizes of the relative positions; refuses narrower embeddings."""
  size = fields['embedding_size']
  if size not in (None, fields['hidden_size']):
    raise fields.refused('embedding_size', size, f'hidden_size = {fields["hidden_size"]}')
  distance, buckets = fields['max_relative_positions'], fields['position_buckets']
  return {
    'max_distance': distance if distance > 0 else fields['max_position_embeddings'],
    'num_buckets': buckets if buckets > 0 else None,
  }


def _deberta_restore(values: dict[str, Any]) -> dict[str, Any]:
  """Adds the sizes of the relative positions and the fields with one supported value."""
  distance, buckets = values['max_distance'], values['num_buckets']
  return {
    **values,
    **{name: field.value for name, field in DEBERTA_NEEDED.items()},
    'max_position_embeddings': distance,
    'max_relative_positions': distance,
    'position_buckets': buckets or -1,
  }


DEBERTA_V2 = Family(
  model_type='deberta-v2',
  architectures=tuple(DEBERTA_HEADS),
  template=BERT_ENCODER.replace('@LearnedPositions', '@Disentangled').replace(
    'LearnedPositions.max_length = {max_position_embeddings}\n', DEBERTA_POSITIONS
  ),
  choices={'architecture': DEBERTA_HEADS},
  derive=_deberta_derive,
  restore=_deberta_restore,
  declared={
    **BERT_DECLARED,
    **DEBERTA_NEEDED,
    **sizes(embedding_size=None, hidden_size=1536, intermediate_size=6144),
    **sizes(num_attention_heads=24, vocab_size=128100),
    'conv_kernel_size': Only(0),
    'layer_norm_eps': positive(1e-7, 1.0),
    'legacy': Bool(True),
    'max_relative_positions': Int(-1, -1),
    'num_hidden_layers': Layers(24),
    'position_buckets': Int(-1, -1),
    'type_vocab_size': Size(0, low=0),
  },
  # Fields of the pooler and of the convolution, which the models lack.
  no_effect=(
    'conv_act',
    'conv_groups',
    'pooler_dropout',
    'pooler_hidden_act',
    'pooler_hidden_size',
  ),
  rules=(
    Rule('deberta.embeddings.word_embeddings.weight', ('embedding.table',)),
    Rule('deberta.embeddings.token_type_embeddings.weight', ('embedding.types',)),
    *norm('deberta.embeddings.LayerNorm', 'body.input_norm'),
    Rule('deberta.encoder.rel_embeddings.weight', ('body.encoding.table',)),
    *norm('deberta.encoder.LayerNorm', 'body.encoding.norm'),
    *bert_block('deberta.encoder.layer.{}', 'attention.self.{}_proj'),
    *masked_lm('cls.predictions', 'cls.predictions.transform'),
  ),
  prefix='deberta.',
  bare='DebertaV2Model',
  # The head of the released models (`legacy` = False); the legacy head computes the same.
  renamed={
    r'^lm_predictions\.lm_head\.(dense|LayerNorm)': r'cls.predictions.transform.\1',
    r'^lm_predictions\.lm_head\.bias$': 'cls.predictions.bias',
    r'^cls\.predictions\.decoder\.bias$': 'cls.predictions.bias',
  },
  ignored=(
    r'deberta\.embeddings\.position_ids',
    r'cls\.predictions\.decoder\.weight',
    r'mask_predictions\..*',
  ),
)
