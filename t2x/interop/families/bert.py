"""BERT: `BertForPreTraining`, `BertForMaskedLM`, `BertForSequenceClassification`,
`BertForTokenClassification`, `BertModel` with its pooler."""

import dataclasses
from collections.abc import Iterator
from typing import Any

from t2x.base.external_files import Fields, Only
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
from t2x.interop.rules import Rule, block, dense, norm
from t2x.interop.template import ENCODER, fill

# Masked language modelling and next sentence prediction.
SENTENCE_PAIRS = """
LanguageModel.head = @SequenceClassifier
SequenceClassifier:
  classifier = @PooledClassifier
  language_head = @MaskedLMHead
PooledClassifier.num_classes = 2
MaskedLMHead.activation = {hidden_act}
"""

HEADS = {
  'BertForPreTraining': SENTENCE_PAIRS,
  'BertForMaskedLM': """
LanguageModel.head = @MaskedLMHead
MaskedLMHead.activation = {hidden_act}
""",
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


def masked_lm(prefix: str, transform: str) -> Iterator[Rule]:
  """The masked language model head, with or without a sentence pair head."""
  for head in ('head', 'head.language_head'):
    yield from dense(f'{transform}.dense', f'{head}.transform')
    yield from norm(f'{transform}.LayerNorm', f'{head}.norm')
    yield Rule(f'{prefix}.bias', (f'{head}.bias',))


def classifier(prefix: str, requires: str = '', excludes: str = '') -> Iterator[Rule]:
  """The output layer of a sequence classifier."""
  for rule in dense(prefix, 'head.classifier.out'):
    yield dataclasses.replace(rule, requires=requires, excludes=excludes)


def derive(fields: Fields) -> dict[str, Any]:
  """Returns the number of classes, and the dropout rate of the classifier."""
  rate = fields['classifier_dropout']
  return num_classes(fields) | {
    'classifier_dropout': fields['hidden_dropout_prob'] if rate is None else rate
  }


BERT = Family(
  model_type='bert',
  architectures=tuple(HEADS),
  template=fill(
    ENCODER,
    attention_dropout='attention_probs_dropout_prob',
    hidden_dropout='hidden_dropout_prob',
  ),
  choices={'architecture': HEADS},
  derive=derive,
  declared={
    **CLASSES,
    **rates(attention_probs_dropout_prob=0.1, classifier_dropout=None, hidden_dropout_prob=0.1),
    **sizes(hidden_size=768, intermediate_size=3072, max_position_embeddings=512),
    **sizes(num_attention_heads=12, vocab_size=30522),
    'hidden_act': activation('gelu'),
    'is_decoder': Only(False),
    'layer_norm_eps': positive(1e-12, 1.0),
    'num_hidden_layers': Layers(12),
    'position_embedding_type': Only('absolute'),
    'tie_word_embeddings': Only(True),
    'type_vocab_size': Size(2, low=0),
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
    *block(
      'bert.encoder.layer.{}',
      norms=('attention.output.LayerNorm', 'output.LayerNorm'),
      mixer=(
        *(f'attention.self.{name}' for name in ('query', 'key', 'value')),
        'attention.output.dense',
      ),
      feed_forward=('intermediate.dense', 'output.dense'),
    ),
    *dense('bert.pooler.dense', 'head.projection'),
    *dense('bert.pooler.dense', 'head.classifier.transform'),
    *classifier('cls.seq_relationship', requires='head.language_head.bias'),
    *classifier('classifier', excludes='head.language_head.bias'),
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
