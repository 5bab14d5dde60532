"""Marian: `MarianMTModel`, `MarianModel`."""

from typing import Any

from t2x.base.external_files import Bool, Fields
from t2x.interop.families import fairseq
from t2x.interop.families.bart import HEAD
from t2x.interop.family import Family, only, sizes
from t2x.interop.layouts import ROW
from t2x.interop.rules import Rule

POSITIONS = """
TokenEmbedding.vocab_size = {vocab_size}
Encoder.encoding = @Sinusoidal
Decoder.encoding = @Sinusoidal
"""
TWO_VOCABULARIES = """
EncoderDecoder.target_embedding = @target/TokenEmbedding
target/TokenEmbedding.vocab_size = {decoder_vocab_size}
"""


def derive(fields: Fields) -> dict[str, Any]:
  """Returns the size of the target vocabulary."""
  size = fields['decoder_vocab_size'] or fields['vocab_size']
  if fields['share_encoder_decoder_embeddings'] and size != fields['vocab_size']:
    raise fields.refused('decoder_vocab_size', size, f'{fields["vocab_size"]} or None')
  return {'decoder_vocab_size': size}


MARIAN = Family(
  model_type='marian',
  architectures=('MarianMTModel', 'MarianModel'),
  template=fairseq.TEMPLATE + POSITIONS,
  choices={
    'architecture': {'MarianMTModel': f'{HEAD}True\n', 'MarianModel': f'{HEAD}False\n'},
    'share_encoder_decoder_embeddings': {False: TWO_VOCABULARIES, True: ''},
  },
  derive=derive,
  declared={
    **fairseq.DECLARED,
    **only(False, 'add_final_layer_norm', 'normalize_before', 'normalize_embedding'),
    **only(True, 'static_position_embeddings'),
    **sizes(decoder_vocab_size=None, vocab_size=58101),
    'share_encoder_decoder_embeddings': Bool(True),
  },
  aliases=fairseq.ALIASES,
  no_effect=('add_bias_logits', 'extra_pos_embeddings', 'max_position_embeddings'),
  rules=(
    Rule('model.shared.weight', (fairseq.SOURCE,), excludes=fairseq.TARGET),
    *fairseq.TWO_TABLES,
    *fairseq.RULES,
    Rule('final_logits_bias', ('head.bias',), ROW),
  ),
  prefix='model.',
  # Copies of tied tables, and sinusoidal tables in old files.
  ignored=(
    r'model\.(encoder|decoder)\.embed_(tokens|positions)\.weight',
    r'lm_head\.weight',
  ),
)
