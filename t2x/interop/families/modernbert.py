"""ModernBERT (https://arxiv.org/abs/2412.13663): a pre-norm encoder with gated layers, rotary positions and windows.

The first layer has no norm before its attention, because the embeddings end with one.
"""

from collections.abc import Iterator
from typing import Any

from t2x.base.external_files import Bool, Choice, Fields, Int, Only
from t2x.interop.families.dense import KINDS, LAYER_TYPES, LOCAL, layer_kinds, restore_kinds
from t2x.interop.family import (
  CLASSES,
  Family,
  Layers,
  activation,
  num_classes,
  positive,
  rates,
  sizes,
)
from t2x.interop.rope import SCALINGS, Rope
from t2x.interop.rules import Rule, block, dense, norm
from t2x.interop.template import ATTENTION_BIAS, LAYERS, GinReference, fill
from t2x.models.pooling import mean_over_tokens

ROPE = Rope('global_rope_theta', base_default=160000.0, part='Block', local='local_rope_theta')
POOLS = {'cls': GinReference('first_token'), 'mean': GinReference('mean_tokens')}
FIRST = GinReference('first/Block')
TEMPLATE = (
  """
Experiment.model = @LanguageModel
LanguageModel:
  d_model = {hidden_size}
  embedding = @TokenEmbedding
  body = @Encoder
TokenEmbedding.vocab_size = {vocab_size}
Encoder:
  stack = @Stack
  input_norm = @LayerNorm
  input_dropout = {embedding_dropout}
  final_norm = @LayerNorm
LayerNorm.use_bias = {norm_bias}
GatedMLP:
  use_bias = {mlp_bias}
  dropout_rate = {mlp_dropout}
first/Block.wiring = {'mixer': @NoNorm, 'feed_forward': @PreNorm}
"""
  + fill(
    LAYERS.replace('MLP', 'GatedMLP').replace('[@Block]', '{blocks}'),
    attention_dropout=0.0,
    hidden_act='hidden_activation',
    hidden_dropout=0.0,
    layer_norm_eps='norm_eps',
  )
  + ATTENTION_BIAS
  + ROPE.template
)
HEADS = {
  'ModernBertForMaskedLM': """
LanguageModel.head = @MaskedLMHead
MaskedLMHead:
  activation = {classifier_activation}
  transform_bias = {classifier_bias}
  use_bias = {decoder_bias}
""",
  'ModernBertForSequenceClassification': """
LanguageModel.head = @SequenceClassifier
SequenceClassifier:
  pool = {pool}
  classifier = @PooledClassifier
PooledClassifier:
  num_classes = {num_labels}
  activation = {classifier_activation}
  transform_bias = {classifier_bias}
  norm = @LayerNorm
  dropout_rate = {classifier_dropout}
""",
  'ModernBertModel': """
LanguageModel.head = @TiedHead
TiedHead.use_bias = False
""",
}


def _derive(fields: Fields) -> dict[str, Any]:
  """Returns the blocks, the size of the window, the values of the rotary positions, and the number of classes."""
  interval = fields['global_attn_every_n_layers']
  kinds = layer_kinds(fields, lambda _, layer: layer % interval != 0)
  if kinds[0] != 'full_attention':
    raise fields.refused('layer_types', kinds, 'a list of names, full_attention first')
  blocks = [FIRST, *(KINDS[kind] for kind in kinds[1:])]
  return (
    num_classes(fields)
    | ROPE.derive(fields)
    | {
      'blocks': blocks,
      'has_local': 'sliding_attention' in kinds,
      'pool': POOLS[fields['classifier_pooling']],
      # transformers counts the tokens on both sides.
      'sliding_window': fields['local_attention'] // 2 + 1,
    }
  )


def _restore(values: dict[str, Any]) -> dict[str, Any]:
  """Adds the kinds of layers, the size of the window and the pooling."""
  values = restore_kinds(ROPE.restore(values))
  return {
    **values,
    'classifier_pooling': 'mean' if values.get('pool') is mean_over_tokens else 'cls',
    'local_attention': 2 * ((values['sliding_window'] or 65) - 1),
  }


def _rules() -> Iterator[Rule]:
  """The tensors of all parameters."""
  yield Rule('model.embeddings.tok_embeddings.weight', ('embedding.table',))
  yield from norm('model.embeddings.norm', 'body.input_norm')
  layer, module = 'model.layers.{}', 'body.stack.{}'
  yield from block(
    layer, norms=('attn_norm', 'mlp_norm'), mixer=('attn.Wqkv', 'attn.Wo'), feed_forward=()
  )
  parts = (f'{module}.feed_forward.{name}' for name in ('gate', 'up'))
  yield from dense(f'{layer}.mlp.Wi', *parts)
  yield from dense(f'{layer}.mlp.Wo', f'{module}.feed_forward.down')
  yield from norm('model.final_norm', 'body.final_norm')
  for head in ('head', 'head.classifier'):
    yield from dense('head.dense', f'{head}.transform')
    yield from norm('head.norm', f'{head}.norm')
  yield Rule('decoder.bias', ('head.bias',))
  yield from dense('classifier', 'head.classifier.out')


MODERNBERT = Family(
  model_type='modernbert',
  architectures=tuple(HEADS),
  template=TEMPLATE,
  choices={
    'has_local': {True: LOCAL + ROPE.local_template, False: ''},
    'rope_type': SCALINGS,
    'architecture': HEADS,
  },
  derive=_derive,
  restore=_restore,
  declared={
    **CLASSES,
    **ROPE.declared,
    **LAYER_TYPES,
    **rates(classifier_dropout=0.0, embedding_dropout=0.0, mlp_dropout=0.0),
    **sizes(hidden_size=768, intermediate_size=1152, num_attention_heads=12, vocab_size=50368),
    **dict.fromkeys(('attention_bias', 'classifier_bias', 'mlp_bias', 'norm_bias'), Bool(False)),
    # Dropout of the attention's output besides that of its probabilities, which t2x has for all sublayers only.
    'attention_dropout': Only(0.0),
    'classifier_activation': activation('gelu'),
    'classifier_pooling': Choice('cls', POOLS),
    'decoder_bias': Bool(True),
    'global_attn_every_n_layers': Int(3, 1),
    'hidden_activation': activation('gelu'),
    'local_attention': Int(128, 1),
    'norm_eps': positive(1e-5, 1.0),
    'num_hidden_layers': Layers(22),
    'position_embedding_type': Only('absolute'),
    'rope_scaling': Only(None),
    'sparse_pred_ignore_index': Int(-100, -(2**31)),
    'tie_word_embeddings': Only(True),
  },
  # Execution, initial values, and the computation of a loss; the first releases also have an unused epsilon.
  no_effect=(
    'compile_autoregressive',
    'deterministic_flash_attn',
    'gradient_checkpointing',
    'initializer_cutoff_factor',
    'layer_norm_eps',
    'max_position_embeddings',
    'reference_compile',
    'repad_logits_with_grad',
    'sparse_prediction',
  ),
  rules=tuple(_rules()),
  prefix='model.',
  bare='ModernBertModel',
  ignored=(r'decoder\.weight',),
)
