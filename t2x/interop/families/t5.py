"""T5, tied, and T5 v1.1, gated and untied: `T5ForConditionalGeneration`, `T5Model`."""

from collections.abc import Iterator
from typing import Any

from t2x.errors import UserError
from t2x.foreign import Bool, Choice, Fields, Int
from t2x.interop.family import (
  ACTIVATIONS,
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
from t2x.interop.layouts import LINEAR, LINEAR_FROM_HEADS
from t2x.interop.rules import Rule, dense, norm
from t2x.layers import GatedMLP
from t2x.models import LMHead

__all__ = ['T5']

GIN = """
Experiment.model = @EncoderDecoder
EncoderDecoder:
  d_model = {d_model}
  embedding = @TokenEmbedding
  encoder = @Encoder
  decoder = @Decoder
  head = {head}
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
decoder/Stack.num_layers = {decoder_layers}
Block:
  mixer = @MultiHeadAttention
  feed_forward = {feed_forward}
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
FEED_FORWARD = """
MLP:
  hidden_dim = {d_ff}
  activation = {activation}
  use_bias = False
  dropout_rate = {dropout_rate}
"""
# Whether it is gated, and by which activation.
FEED_FORWARDS = {name: (False, name) for name in ACTIVATIONS} | {
  f'gated-{name}': (True, name) for name in ACTIVATIONS
}
# 'gated-gelu' came before there was a name for the approximation that it means.
FEED_FORWARDS['gated-gelu'] = True, 'gelu_new'
# Tied models scale what goes into the head.
SCALED = 'TiedHead.scaled = True\n'


def _attention(theirs: str, ours: str) -> Iterator[Rule]:
  for part in 'qkv':
    yield from dense(f'{theirs}.{part}', f'{ours}.{part}')
  yield from dense(f'{theirs}.o', f'{ours}.out', layout=LINEAR_FROM_HEADS)


def _side(side: str, last: int) -> Iterator[Rule]:
  """The encoder or the decoder; `last` is the number of the feed-forward sublayer."""
  theirs, ours = f'{side}.block.{{}}.layer', f'{side}.stack.{{}}'
  bias = f'{side}.block.0.layer.0.SelfAttention.relative_attention_bias.weight'
  yield Rule(bias, (f'{side}.encoding.table',))
  yield from norm(f'{theirs}.0.layer_norm', f'{ours}.mixer_wiring.norm')
  yield from _attention(f'{theirs}.0.SelfAttention', f'{ours}.mixer')
  yield from norm(f'{theirs}.{last}.layer_norm', f'{ours}.feed_forward_wiring.norm')
  dense_relu_dense = f'{theirs}.{last}.DenseReluDense'
  gate, up = (f'{ours}.feed_forward.{part}.kernel' for part in ('gate', 'up'))
  yield Rule(f'{dense_relu_dense}.wi.weight', (up,), LINEAR, without=gate)
  yield Rule(f'{dense_relu_dense}.wi_0.weight', (gate,), LINEAR)
  yield Rule(f'{dense_relu_dense}.wi_1.weight', (up,), LINEAR, beside=gate)
  yield from dense(f'{dense_relu_dense}.wo', f'{ours}.feed_forward.down')
  yield from norm(f'{side}.final_layer_norm', f'{side}.final_norm')


RULES = (
  Rule('shared.weight', ('embedding.table',)),
  *_side('encoder', 1),
  *_side('decoder', 2),
  *norm('decoder.block.{}.layer.1.layer_norm', 'decoder.stack.{}.cross_wiring.norm'),
  *_attention('decoder.block.{}.layer.1.EncDecAttention', 'decoder.stack.{}.cross'),
  *dense('lm_head', 'head.out'),
)


def gin(fields: Fields) -> str:
  """The model of a config.json."""
  gated, function = FEED_FORWARDS[fields['feed_forward_proj']]
  tied = _is_tied(fields)
  text = GIN + (FEED_FORWARD.replace('MLP', 'GatedMLP') if gated else FEED_FORWARD)
  return write(
    text + SCALED if tied else text,
    fields,
    head=Part('TiedHead' if tied or fields['architecture'] == 'T5Model' else 'LMHead'),
    decoder_layers=fields['num_decoder_layers'] or fields['num_layers'],
    feed_forward=Part('GatedMLP' if gated else 'MLP'),
    activation=Part(ACTIVATIONS[function]),
  )


def _is_tied(fields: Fields) -> bool:
  """Whether the head is the embedding's table, scaled.

  Newer files say `tie_word_embeddings` of all, and by `scale_decoder_outputs` what it said before.
  """
  tied = fields['tie_word_embeddings']
  scaled = fields['scale_decoder_outputs']
  scaled = tied if scaled is None else scaled
  if scaled and not tied:
    raise UserError(
      f'{fields.where}: an output that is scaled (scale_decoder_outputs) and not tied '
      '(tie_word_embeddings) is not supported'
    )
  return scaled


def fields(model: Any) -> tuple[str, dict[str, Any]]:
  """The config.json of a model."""
  (block,) = model.encoder.stack.blocks
  heads, _, head_dim = fields_of_attention(block.mixer)
  function = activation_name(block.feed_forward.activation)
  gated = isinstance(block.feed_forward, GatedMLP)
  if gated:
    function = {'gelu_new': 'gated-gelu', 'relu': 'gated-relu', 'silu': 'gated-silu'}[function]
  return 'T5ForConditionalGeneration', {
    'd_ff': block.feed_forward.up.kernel.shape[-1],
    'd_kv': head_dim,
    'd_model': model.embedding.table.shape[-1],
    'dropout_rate': block.mixer_wiring.dropout_rate,
    'feed_forward_proj': function,
    'is_encoder_decoder': True,
    'layer_norm_epsilon': model.encoder.final_norm.epsilon,
    'num_decoder_layers': model.decoder.stack.num_layers,
    'num_heads': heads,
    'num_layers': model.encoder.stack.num_layers,
    'relative_attention_max_distance': model.encoder.encoding.max_distance,
    'relative_attention_num_buckets': model.encoder.encoding.num_buckets,
    'tie_word_embeddings': not isinstance(model.head, LMHead),
    'vocab_size': model.spec.vocab_size,
  }


T5 = Family(
  model_type='t5',
  architectures=('T5ForConditionalGeneration', 'T5Model'),
  gin=gin,
  fields=fields,
  rules=RULES,
  declared={
    'd_ff': Size(2048),
    'd_kv': Size(64),
    'd_model': Size(512),
    'dropout_rate': rate(0.1),
    'feed_forward_proj': Choice('relu', FEED_FORWARDS),
    'layer_norm_epsilon': positive(1e-6, 1.0),
    'num_decoder_layers': Layers(None),
    'num_heads': Size(8),
    'num_layers': Layers(6),
    'relative_attention_max_distance': Int(128, 1),
    'relative_attention_num_buckets': Size(32),
    'scale_decoder_outputs': Bool(None),
    'tie_word_embeddings': Bool(True),
    'vocab_size': Size(32128),
  },
  ignored=(
    r'(encoder|decoder)\.embed_tokens\.weight',
    # Held by files of the first release, read by none.
    r'decoder\.block\.0\.layer\.1\.EncDecAttention\.relative_attention_bias\.weight',
  ),
)
