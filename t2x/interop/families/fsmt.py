"""FSMT, the original Transformer as fairseq trained it for WMT19: `FSMTForConditionalGeneration`,
`FSMTModel`."""

from typing import Any

from t2x.errors import UserError
from t2x.foreign import Bool, Fields, Int
from t2x.interop.families import fairseq
from t2x.interop.family import Family, Size, activation_field, write
from t2x.interop.rules import Rule, dense

__all__ = ['FSMT']

GIN = """
TokenEmbedding.vocab_size = {src_vocab_size}
Encoder.encoding = @Sinusoidal
Decoder.encoding = @Sinusoidal
Sinusoidal:
  exponent_shift = 1
  offset = {offset}
"""
TIED = """
EncoderDecoder.head = @TiedHead
"""
TWO_VOCABULARIES = """
EncoderDecoder:
  target_embedding = @target/TokenEmbedding
  head = @LMHead
target/TokenEmbedding.vocab_size = {tgt_vocab_size}
"""

SOURCE, TARGET = 'embedding.table', 'target_embedding.table'
RULES = (
  Rule('model.decoder.embed_tokens.weight', (SOURCE,), without=TARGET),
  Rule('model.encoder.embed_tokens.weight', (SOURCE,), beside=TARGET),
  Rule('model.decoder.embed_tokens.weight', (TARGET,)),
  *fairseq.RULES,
  *dense('model.decoder.output_projection', 'head.out'),
)


def gin(fields: Fields) -> str:
  """The model of a config.json."""
  # Positions are counted from the padding's id on, plus one.
  text = fairseq.gin(fields) + write(GIN, fields, offset=fields['pad_token_id'] + 1)
  if not fields['tie_word_embeddings']:
    return text + write(TWO_VOCABULARIES, fields)
  if fields['src_vocab_size'] != fields['tgt_vocab_size']:
    raise UserError(
      f'{fields.where}: tie_word_embeddings of vocabularies of {fields["src_vocab_size"]} '
      f'(src_vocab_size) and {fields["tgt_vocab_size"]} (tgt_vocab_size) tokens'
    )
  return text + TIED


def fields(model: Any) -> tuple[str, dict[str, Any]]:
  """The config.json of a model."""
  return 'FSMTForConditionalGeneration', fairseq.fields(model) | {
    'langs': ['source', 'target'],
    'pad_token_id': model.encoder.encoding.offset - 1,
    'src_vocab_size': model.embedding.vocab_size,
    'tgt_vocab_size': model.spec.vocab_size,
    'tie_word_embeddings': model.target_embedding is None,
  }


FSMT = Family(
  model_type='fsmt',
  architectures=('FSMTForConditionalGeneration', 'FSMTModel'),
  gin=gin,
  fields=fields,
  rules=RULES,
  declared={
    **fairseq.DECLARED,
    'activation_function': activation_field('relu'),
    'pad_token_id': Int(1, 0, 10**6),
    'scale_embedding': Bool(True),
    'src_vocab_size': Size(42024),
    'tgt_vocab_size': Size(42024),
    'tie_word_embeddings': Bool(False),
  },
  prefix='model.',
  # Sinusoids, which are the same for all.
  ignored=(
    r'model\.(encoder|decoder)\.embed_positions\.weight',
    r'model\.encoder\.embed_tokens\.weight',
  ),
)
