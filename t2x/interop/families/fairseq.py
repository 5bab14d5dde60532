"""What the encoder-decoders of fairseq's kind share: BART, Marian, FSMT. All are post-norm."""

from collections.abc import Iterator, Mapping
from typing import Any

from t2x.foreign import Bool, Field, Fields, Only
from t2x.interop.family import (
  Layers,
  Size,
  activation,
  activation_field,
  activation_name,
  fields_of_attention,
  rate,
  write,
)
from t2x.interop.layouts import LINEAR_FROM_HEADS
from t2x.interop.rules import Rule, dense, norm

__all__ = ['DECLARED', 'RULES', 'fields', 'gin']

GIN = """
Experiment.model = @EncoderDecoder
EncoderDecoder:
  d_model = {d_model}
  embedding = @TokenEmbedding
  encoder = @Encoder
  decoder = @Decoder
TokenEmbedding.scaled = {scale_embedding}
Encoder:
  stack = @Stack
  input_dropout = {dropout}
  final_norm = None
Decoder:
  stack = @decoder/Stack
  input_dropout = {dropout}
  final_norm = None
Stack:
  num_layers = {encoder_layers}
  blocks = [@Block]
decoder/Stack.num_layers = {decoder_layers}
Block:
  mixer = @MultiHeadAttention
  feed_forward = @MLP
  wiring = @PostNorm
decoder/Block.cross = @MultiHeadAttention
PostNorm:
  norm = @LayerNorm
  dropout_rate = {dropout}
LayerNorm.epsilon = 1e-5
MultiHeadAttention:
  num_heads = {encoder_attention_heads}
  dropout_rate = {attention_dropout}
decoder/MultiHeadAttention.num_heads = {decoder_attention_heads}
MLP:
  hidden_dim = {encoder_ffn_dim}
  activation = {activation}
  dropout_rate = {activation_dropout}
decoder/MLP.hidden_dim = {decoder_ffn_dim}
"""

DECLARED: Mapping[str, Field] = {
  'activation_dropout': rate(0.0),
  'activation_function': activation_field('gelu'),
  'attention_dropout': rate(0.0),
  'd_model': Size(1024),
  'decoder_attention_heads': Size(16),
  'decoder_ffn_dim': Size(4096),
  'decoder_layerdrop': Only(0.0),
  'decoder_layers': Layers(12),
  'dropout': rate(0.1),
  'encoder_attention_heads': Size(16),
  'encoder_ffn_dim': Size(4096),
  'encoder_layerdrop': Only(0.0),
  'encoder_layers': Layers(12),
  'scale_embedding': Bool(False),
  'tie_word_embeddings': Only(True),
}


def _attention(theirs: str, ours: str) -> Iterator[Rule]:
  for part in 'qkv':
    yield from dense(f'{theirs}.{part}_proj', f'{ours}.{part}')
  yield from dense(f'{theirs}.out_proj', f'{ours}.out', layout=LINEAR_FROM_HEADS)


def _side(side: str) -> Iterator[Rule]:
  theirs, ours = f'model.{side}.layers.{{}}', f'{side}.stack.{{}}'
  yield from _attention(f'{theirs}.self_attn', f'{ours}.mixer')
  yield from norm(f'{theirs}.self_attn_layer_norm', f'{ours}.mixer_wiring.norm')
  yield from _attention(f'{theirs}.encoder_attn', f'{ours}.cross')
  yield from norm(f'{theirs}.encoder_attn_layer_norm', f'{ours}.cross_wiring.norm')
  yield from dense(f'{theirs}.fc1', f'{ours}.feed_forward.up')
  yield from dense(f'{theirs}.fc2', f'{ours}.feed_forward.down')
  yield from norm(f'{theirs}.final_layer_norm', f'{ours}.feed_forward_wiring.norm')


# All but embeddings, positions and head.
RULES = (*_side('encoder'), *_side('decoder'))


def gin(fields: Fields) -> str:
  """All of the model but vocabulary, positions and head."""
  return write(GIN, fields, activation=activation(fields, 'activation_function'))


def fields(model: Any) -> dict[str, Any]:
  """What `gin` reads, of a model."""
  (encoder,), (decoder,) = model.encoder.stack.blocks, model.decoder.stack.blocks
  d_model = model.embedding.table.shape[-1]
  return {
    'activation_dropout': encoder.feed_forward.dropout_rate,
    'activation_function': activation_name(encoder.feed_forward.activation),
    'attention_dropout': encoder.mixer.dropout_rate,
    'd_model': d_model,
    'decoder_attention_heads': fields_of_attention(decoder.mixer)[0],
    'decoder_ffn_dim': decoder.feed_forward.up.kernel.shape[-1],
    'decoder_layers': model.decoder.stack.num_layers,
    'dropout': encoder.mixer_wiring.dropout_rate,
    'encoder_attention_heads': fields_of_attention(encoder.mixer)[0],
    'encoder_ffn_dim': encoder.feed_forward.up.kernel.shape[-1],
    'encoder_layers': model.encoder.stack.num_layers,
    'is_encoder_decoder': True,
    'scale_embedding': model.embedding.scale != 1.0,
  }
