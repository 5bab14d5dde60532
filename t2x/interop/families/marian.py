"""Marian: `MarianMTModel`, `MarianModel`."""

from typing import Any

from t2x.foreign import Bool, Fields, Only
from t2x.interop.families import fairseq
from t2x.interop.family import Family, Size, write
from t2x.interop.layouts import ROW
from t2x.interop.rules import Rule

__all__ = ['MARIAN']

GIN = """
EncoderDecoder.head = @TiedHead
TiedHead.use_bias = {use_bias}
TokenEmbedding.vocab_size = {vocab_size}
Encoder.encoding = @Sinusoidal
Decoder.encoding = @Sinusoidal
"""
TWO_VOCABULARIES = """
EncoderDecoder.target_embedding = @target/TokenEmbedding
target/TokenEmbedding.vocab_size = {decoder_vocab_size}
"""

SOURCE, TARGET = 'embedding.table', 'target_embedding.table'
RULES = (
  Rule('model.shared.weight', (SOURCE,), without=TARGET),
  Rule('model.encoder.embed_tokens.weight', (SOURCE,), beside=TARGET),
  Rule('model.decoder.embed_tokens.weight', (TARGET,)),
  *fairseq.RULES,
  Rule('final_logits_bias', ('head.bias',), ROW),
)


def gin(fields: Fields) -> str:
  """The model of a config.json."""
  use_bias = fields['architecture'] != 'MarianModel'
  text = fairseq.gin(fields) + write(GIN, fields, use_bias=use_bias)
  size = fields['decoder_vocab_size'] or fields['vocab_size']
  if not fields['share_encoder_decoder_embeddings']:
    return text + write(TWO_VOCABULARIES, {'decoder_vocab_size': size})
  if size != fields['vocab_size']:
    raise fields.refused('decoder_vocab_size', size, f'{fields["vocab_size"]} or None')
  return text


def fields(model: Any) -> tuple[str, dict[str, Any]]:
  """The config.json of a model."""
  architecture = 'MarianModel' if model.head.bias is None else 'MarianMTModel'
  return architecture, fairseq.fields(model) | {
    'decoder_vocab_size': model.spec.vocab_size,
    'share_encoder_decoder_embeddings': model.target_embedding is None,
    'vocab_size': model.embedding.vocab_size,
  }


MARIAN = Family(
  model_type='marian',
  architectures=('MarianMTModel', 'MarianModel'),
  gin=gin,
  fields=fields,
  rules=RULES,
  declared={
    **fairseq.DECLARED,
    'decoder_vocab_size': Size(None),
    'normalize_before': Only(False),
    'normalize_embedding': Only(False),
    'share_encoder_decoder_embeddings': Bool(True),
    'vocab_size': Size(58101),
  },
  prefix='model.',
  # Copies of what is tied; sinusoids were saved once.
  ignored=(
    r'model\.(encoder|decoder)\.embed_(tokens|positions)\.weight',
    r'lm_head\.weight',
  ),
)
