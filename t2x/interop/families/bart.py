"""BART: `BartForConditionalGeneration`, `BartModel`."""

from typing import Any

from t2x.foreign import Fields, Only
from t2x.interop.families import fairseq
from t2x.interop.family import Family, Size, write
from t2x.interop.layouts import ROW
from t2x.interop.rules import Rule, norm

__all__ = ['BART']

GIN = """
TokenEmbedding.vocab_size = {vocab_size}
EncoderDecoder.head = @TiedHead
TiedHead.use_bias = {use_bias}
Encoder:
  encoding = @LearnedPositions
  input_norm = @LayerNorm
Decoder:
  encoding = @LearnedPositions
  input_norm = @LayerNorm
LearnedPositions:
  max_length = {max_position_embeddings}
  offset = 2
"""

RULES = (
  Rule('model.shared.weight', ('embedding.table',)),
  Rule('model.encoder.embed_positions.weight', ('encoder.encoding.table',)),
  Rule('model.decoder.embed_positions.weight', ('decoder.encoding.table',)),
  *norm('model.encoder.layernorm_embedding', 'encoder.input_norm'),
  *norm('model.decoder.layernorm_embedding', 'decoder.input_norm'),
  *fairseq.RULES,
  Rule('final_logits_bias', ('head.bias',), ROW),
)


def gin(fields: Fields) -> str:
  """The model of a config.json."""
  return fairseq.gin(fields) + write(GIN, fields, use_bias=fields['architecture'] != 'BartModel')


def fields(model: Any) -> tuple[str, dict[str, Any]]:
  """The config.json of a model."""
  architecture = 'BartModel' if model.head.bias is None else 'BartForConditionalGeneration'
  return architecture, fairseq.fields(model) | {
    'max_position_embeddings': model.encoder.encoding.max_length,
    'vocab_size': model.spec.vocab_size,
  }


BART = Family(
  model_type='bart',
  architectures=('BartForConditionalGeneration', 'BartModel'),
  gin=gin,
  fields=fields,
  rules=RULES,
  declared={
    **fairseq.DECLARED,
    'max_position_embeddings': Size(1024),
    'vocab_size': Size(50265),
    # The releases before the present one held models of other wiring under this name.
    'add_final_layer_norm': Only(False),
    'normalize_before': Only(False),
    'normalize_embedding': Only(True),
    'static_position_embeddings': Only(False),
  },
  prefix='model.',
  ignored=(r'model\.(encoder|decoder)\.embed_tokens\.weight', r'lm_head\.weight'),
)
