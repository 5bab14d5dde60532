"""DeBERTa-v2 and -v3: `DebertaV2ForMaskedLM`, `DebertaV2Model`.

The models with relative positions of both kinds and without convolution or absolute positions, such as all sizes
of DeBERTa-v3.
"""

import dataclasses
from typing import Any

from t2x.base.external_files import Bool, Field, Fields, Int, Only
from t2x.interop.families.bert import masked_lm
from t2x.interop.family import Family, Layers, Size, activation, positive, rates, sizes
from t2x.interop.rules import Rule, block, norm
from t2x.interop.template import ENCODER, fill

POSITIONS = """Disentangled:
  max_distance = {max_distance}
  num_buckets = {num_buckets}
  norm = @LayerNorm
"""
HEADS = {
  'DebertaV2ForMaskedLM': """
LanguageModel.head = @MaskedLMHead
MaskedLMHead.activation = {hidden_act}
""",
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


NEEDED = {
  'norm_rel_ebd': Needs('none', 'layer_norm'),
  'pos_att_type': Terms('', ['p2c', 'c2p']),
  'position_biased_input': Needs(True, False),
  'relative_attention': Needs(False, True),
  'share_att_key': Needs(False, True),
}


def derive(fields: Fields) -> dict[str, Any]:
  """Returns the sizes of the relative positions; refuses narrower embeddings."""
  size = fields['embedding_size']
  if size not in (None, fields['hidden_size']):
    raise fields.refused('embedding_size', size, f'hidden_size = {fields["hidden_size"]}')
  distance, buckets = fields['max_relative_positions'], fields['position_buckets']
  return {
    'max_distance': distance if distance > 0 else fields['max_position_embeddings'],
    'num_buckets': buckets if buckets > 0 else None,
  }


def restore(values: dict[str, Any]) -> dict[str, Any]:
  """Adds the sizes of the relative positions and the fields with one supported value."""
  distance, buckets = values['max_distance'], values['num_buckets']
  return {
    **values,
    **{name: field.value for name, field in NEEDED.items()},
    'max_position_embeddings': distance,
    'max_relative_positions': distance,
    'position_buckets': buckets or -1,
  }


DEBERTA_V2 = Family(
  model_type='deberta-v2',
  architectures=tuple(HEADS),
  template=fill(
    ENCODER,
    attention_dropout='attention_probs_dropout_prob',
    hidden_dropout='hidden_dropout_prob',
  )
  .replace('@LearnedPositions', '@Disentangled')
  .replace('LearnedPositions.max_length = {max_position_embeddings}\n', POSITIONS),
  choices={'architecture': HEADS},
  derive=derive,
  restore=restore,
  declared={
    **NEEDED,
    **rates(attention_probs_dropout_prob=0.1, hidden_dropout_prob=0.1),
    **sizes(embedding_size=None, hidden_size=1536, intermediate_size=6144),
    **sizes(max_position_embeddings=512, num_attention_heads=24, vocab_size=128100),
    'conv_kernel_size': Only(0),
    'hidden_act': activation('gelu'),
    'layer_norm_eps': positive(1e-7, 1.0),
    'legacy': Bool(True),
    'max_relative_positions': Int(-1, -1),
    'num_hidden_layers': Layers(24),
    'position_buckets': Int(-1, -1),
    'tie_word_embeddings': Only(True),
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
    *block(
      'deberta.encoder.layer.{}',
      norms=('attention.output.LayerNorm', 'output.LayerNorm'),
      mixer=(
        *(f'attention.self.{name}_proj' for name in ('query', 'key', 'value')),
        'attention.output.dense',
      ),
      feed_forward=('intermediate.dense', 'output.dense'),
    ),
    *masked_lm('cls.predictions', 'cls.predictions.transform'),
  ),
  prefix='deberta.',
  bare='DebertaV2Model',
  # The head of the released models (`legacy` = False); the other one computes the same.
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
