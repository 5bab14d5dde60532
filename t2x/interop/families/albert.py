"""ALBERT: `AlbertForPreTraining`, `AlbertForMaskedLM`, `AlbertModel` with its pooler.

Embeddings are narrower than the layers. Groups of layers share parameters.
"""

from typing import Any

from t2x.base.errors import UserError
from t2x.base.external_files import Fields, Only
from t2x.interop.families.bert import SENTENCE_PAIRS, embeddings, masked_lm
from t2x.interop.family import Family, Layers, Size, activation, positive, rates, sizes
from t2x.interop.rules import block, dense
from t2x.interop.template import ENCODER, fill

NARROW = """
LanguageModel.embedding_dim = {embedding_size}
Encoder.input_dim = {embedding_size}
Stack.num_groups = {num_hidden_groups}
"""
NARROW_HEAD = """
MaskedLMHead.embedding_dim = {embedding_size}
"""
HEADS = {
  'AlbertForPreTraining': f"""{SENTENCE_PAIRS}{NARROW_HEAD}
PooledClassifier.dropout_rate = {{classifier_dropout_prob}}
""",
  'AlbertForMaskedLM': f"""{NARROW_HEAD}
LanguageModel.head = @MaskedLMHead
MaskedLMHead.activation = {{hidden_act}}
""",
  'AlbertModel': """
LanguageModel.head = @Pooler
""",
}


def derive(fields: Fields) -> dict[str, Any]:
  """Checks that the groups divide the layers; adds no values."""
  layers, groups = fields['num_hidden_layers'], fields['num_hidden_groups']
  if layers % groups:
    raise UserError(
      f'{fields.where}: num_hidden_groups = {groups} must divide num_hidden_layers = {layers}'
    )
  return {}


ALBERT = Family(
  model_type='albert',
  architectures=tuple(HEADS),
  template=NARROW
  + fill(
    ENCODER,
    attention_dropout='attention_probs_dropout_prob',
    hidden_dropout='hidden_dropout_prob',
  ),
  choices={'architecture': HEADS},
  derive=derive,
  declared={
    **rates(attention_probs_dropout_prob=0.0, classifier_dropout_prob=0.1, hidden_dropout_prob=0.0),
    **sizes(embedding_size=128, hidden_size=4096, intermediate_size=16384),
    **sizes(max_position_embeddings=512, num_attention_heads=64, vocab_size=30000),
    'hidden_act': activation('gelu_new'),
    'inner_group_num': Only(1),
    'layer_norm_eps': positive(1e-12, 1.0),
    'layers_to_keep': Only([]),
    'num_hidden_groups': Layers(1),
    'num_hidden_layers': Layers(12),
    'position_embedding_type': Only('absolute'),
    'tie_word_embeddings': Only(True),
    'type_vocab_size': Size(2, low=0),
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
