"""RoBERTa: BERT without next sentence prediction, whose positions start at the padding id plus one."""

from typing import Any

from t2x.base.errors import UserError
from t2x.base.external_files import Fields, Int, Only
from t2x.interop.families.encoders import (
  BERT_DECLARED,
  BERT_ENCODER,
  bert_block,
  embeddings,
)
from t2x.interop.family import CLASSES, Family, Layers, num_classes, rates, sizes
from t2x.interop.rules import Rule, dense, norm

POSITIONS = """LearnedPositions:
  max_length = {max_length}
  offset = {offset}
"""
# The head has this activation in all models.
HEADS = {
  'RobertaForMaskedLM': """
LanguageModel.head = @MaskedLMHead
MaskedLMHead.activation = @gelu_exact
""",
  'RobertaForSequenceClassification': """
LanguageModel.head = @SequenceClassifier
SequenceClassifier.classifier = @PooledClassifier
PooledClassifier:
  num_classes = {num_labels}
  dropout_rate = {classifier_dropout}
  input_dropout = {classifier_dropout}
""",
  'RobertaModel': """
LanguageModel.head = @Pooler
""",
}


def _derive(fields: Fields) -> dict[str, Any]:
  """Returns the positions, the number of classes and the dropout rate of the classifier."""
  offset, rows = fields['pad_token_id'] + 1, fields['max_position_embeddings']
  if rows <= offset:
    raise UserError(
      f'{fields.where}: max_position_embeddings = {rows} has no position after pad_token_id = {offset - 1}'
    )
  rate = fields['classifier_dropout']
  return num_classes(fields) | {
    'offset': offset,
    'max_length': rows - offset,
    'classifier_dropout': fields['hidden_dropout_prob'] if rate is None else rate,
  }


def _restore(values: dict[str, Any]) -> dict[str, Any]:
  """Adds the padding id and the number of rows of the position table."""
  offset = values['offset']
  rows = values['max_length'] + offset
  return {**values, 'pad_token_id': offset - 1, 'max_position_embeddings': rows}


ROBERTA = Family(
  model_type='roberta',
  architectures=tuple(HEADS),
  template=BERT_ENCODER.replace(
    'LearnedPositions.max_length = {max_position_embeddings}\n', POSITIONS
  ),
  choices={'architecture': HEADS},
  derive=_derive,
  restore=_restore,
  declared={
    **CLASSES,
    **BERT_DECLARED,
    **rates(classifier_dropout=None),
    **sizes(hidden_size=768, intermediate_size=3072, num_attention_heads=12, vocab_size=50265),
    'is_decoder': Only(False),
    'num_hidden_layers': Layers(12),
    'pad_token_id': Int(1, 0, 10**6),
    'position_embedding_type': Only('absolute'),
  },
  rules=(
    *embeddings('roberta.embeddings'),
    *bert_block('roberta.encoder.layer.{}', 'attention.self.{}'),
    *dense('roberta.pooler.dense', 'head.projection'),
    *dense('classifier.dense', 'head.classifier.transform'),
    *dense('classifier.out_proj', 'head.classifier.out'),
    *dense('lm_head.dense', 'head.transform'),
    *norm('lm_head.layer_norm', 'head.norm'),
    Rule('lm_head.bias', ('head.bias',)),
  ),
  prefix='roberta.',
  bare='RobertaModel',
  renamed={r'\.gamma$': '.weight', r'\.beta$': '.bias'},
  ignored=(r'roberta\.embeddings\.position_ids', r'lm_head\.decoder\.(weight|bias)'),
)
