"""T5, tied, and T5 v1.1, gated and untied: `T5ForConditionalGeneration`, `T5Model`."""

from collections.abc import Iterator
from typing import Any

from t2x.base.errors import UserError
from t2x.base.external_files import Bool, Choice, Fields, Int, Only
from t2x.interop.family import ACTIVATIONS, Family, Layers, positive, rates, sizes
from t2x.interop.layouts import LINEAR
from t2x.interop.rules import Rule, attention, block, dense, norm

TEMPLATE = """
Experiment.model = @EncoderDecoder
EncoderDecoder:
  d_model = {d_model}
  embedding = @TokenEmbedding
  encoder = @Encoder
  decoder = @Decoder
TokenEmbedding.vocab_size = {vocab_size}
Encoder:
  stack = @Stack
  encoding = @T5Bias
  input_dropout = {dropout_rate}
  final_norm = @RMSNorm
  final_dropout = {dropout_rate}
Decoder:
  stack = @decoder/Stack
  encoding = @decoder/T5Bias
  input_dropout = {dropout_rate}
  final_norm = @RMSNorm
  final_dropout = {dropout_rate}
T5Bias:
  num_heads = {num_heads}
  num_buckets = {relative_attention_num_buckets}
  max_distance = {relative_attention_max_distance}
  bidirectional = True
decoder/T5Bias.bidirectional = False
Stack:
  num_layers = {num_layers}
  blocks = [@Block]
decoder/Stack.num_layers = {num_decoder_layers}
Block:
  mixer = @MultiHeadAttention
  wiring = @PreNorm
decoder/Block.cross = @MultiHeadAttention
PreNorm:
  norm = @RMSNorm
  dropout_rate = {dropout_rate}
RMSNorm.epsilon = {layer_norm_epsilon}
MultiHeadAttention:
  num_heads = {num_heads}
  head_dim = {d_kv}
  use_bias = False
  out_bias = False
  scale = 1.0
  dropout_rate = {dropout_rate}
"""
# Tied models scale the input of the head. The bare model has no head; a tied head adds no parameters.
HEADS = {
  'scaled': """
EncoderDecoder.head = @TiedHead
TiedHead.scaled = True
""",
  'untied': """
EncoderDecoder.head = @LMHead
""",
  'none': """
EncoderDecoder.head = @TiedHead
""",
}
# For historical reasons, 'gated-gelu' means the tanh approximation.
APPROXIMATE = 'gated-gelu'


def _feed_forward(kind: str, function: str) -> str:
  return f"""
Block.feed_forward = @{kind}
{kind}:
  hidden_dim = {{d_ff}}
  activation = @{function}
  use_bias = False
  dropout_rate = {{dropout_rate}}
"""


FEED_FORWARDS = {
  **{name: _feed_forward('MLP', function) for name, function in ACTIVATIONS.items()},
  **{
    f'gated-{name}': _feed_forward('GatedMLP', function) for name, function in ACTIVATIONS.items()
  },
  APPROXIMATE: _feed_forward('GatedMLP', 'gelu'),
}


def derive(fields: Fields) -> dict[str, Any]:
  """Returns the number of decoder layers, and the head.

  In old files `tie_word_embeddings` also implies that the input of the head is scaled; new files set
  `scale_decoder_outputs`.
  """
  kind, _, function = fields['feed_forward_proj'].rpartition('-')
  function = 'gelu_new' if fields['feed_forward_proj'] == APPROXIMATE else function
  for name, value in {'dense_act_fn': function, 'is_gated_act': kind == 'gated'}.items():
    if fields[name] not in (None, value):
      raise fields.refused(name, fields[name], f'{value!r} with this feed_forward_proj')
  tied = fields['tie_word_embeddings']
  scaled = fields['scale_decoder_outputs']
  scaled = tied if scaled is None else scaled
  if scaled and not tied:
    raise UserError(
      f'{fields.where}: scale_decoder_outputs = True is not supported with '
      'tie_word_embeddings = False'
    )
  unscaled = 'none' if fields['architecture'] == 'T5Model' else 'untied'
  return {
    'head': 'scaled' if scaled else unscaled,
    'num_decoder_layers': fields['num_decoder_layers'] or fields['num_layers'],
  }


def restore(values: dict[str, Any]) -> dict[str, Any]:
  """Adds `tie_word_embeddings` with the meaning of old files."""
  return {**values, 'tie_word_embeddings': values['head'] != 'untied'}


def side_rules(side: str, last: int, feed_forward: tuple[str, ...]) -> Iterator[Rule]:
  """The rules of the encoder or decoder, except for cross-attention.

  Args:
    side: 'encoder' or 'decoder'.
    last: number of the feed-forward sublayer.
    feed_forward: names of the projections of that sublayer, those of the input first.
  """
  prefix, module = f'{side}.block.{{}}.layer', f'{side}.stack.{{}}'
  bias = f'{side}.block.0.layer.0.SelfAttention.relative_attention_bias.weight'
  yield Rule(bias, (f'{side}.encoding.table',))
  yield from block(
    prefix,
    module,
    norms=('0.layer_norm', f'{last}.layer_norm'),
    mixer=[f'0.SelfAttention.{name}' for name in 'qkvo'],
    feed_forward=tuple(f'{last}.{name}' for name in feed_forward),
  )
  yield from norm(f'{side}.final_layer_norm', f'{side}.final_norm')


def _side(side: str, last: int) -> Iterator[Rule]:
  yield from side_rules(side, last, ('DenseReluDense.wo',))
  wi = f'{side}.block.{{}}.layer.{last}.DenseReluDense.wi'
  gate, up = (f'{side}.stack.{{}}.feed_forward.{part}.kernel' for part in ('gate', 'up'))
  yield Rule(f'{wi}.weight', (up,), LINEAR, excludes=gate)
  yield Rule(f'{wi}_0.weight', (gate,), LINEAR)
  yield Rule(f'{wi}_1.weight', (up,), LINEAR, requires=gate)


T5 = Family(
  model_type='t5',
  architectures=('T5ForConditionalGeneration', 'T5Model'),
  template=TEMPLATE,
  choices={'feed_forward_proj': FEED_FORWARDS, 'head': HEADS},
  derive=derive,
  restore=restore,
  declared={
    **rates(dropout_rate=0.1),
    **sizes(d_ff=2048, d_kv=64, d_model=512, num_heads=8, vocab_size=32128),
    **sizes(relative_attention_num_buckets=32),
    'dense_act_fn': Choice(None, ACTIVATIONS),
    'feed_forward_proj': Choice('relu', FEED_FORWARDS),
    'is_encoder_decoder': Only(True),
    'is_gated_act': Bool(None),
    'layer_norm_epsilon': positive(1e-6, 1.0),
    'num_decoder_layers': Layers(None),
    'num_layers': Layers(6),
    'relative_attention_max_distance': Int(128, 1),
    'scale_decoder_outputs': Bool(None),
    'tie_word_embeddings': Bool(True),
  },
  no_effect=('n_positions',),
  rules=(
    Rule('shared.weight', ('embedding.table',)),
    *_side('encoder', 1),
    *_side('decoder', 2),
    *norm('decoder.block.{}.layer.1.layer_norm', 'decoder.stack.{}.cross_wiring.norm'),
    *attention('decoder.block.{}.layer.1.EncDecAttention', 'decoder.stack.{}.cross', 'qkvo'),
    *dense('lm_head', 'head.out'),
  ),
  ignored=(
    r'(encoder|decoder)\.embed_tokens\.weight',
    # An unused parameter in files of the first release.
    r'decoder\.block\.0\.layer\.1\.EncDecAttention\.relative_attention_bias\.weight',
  ),
)
