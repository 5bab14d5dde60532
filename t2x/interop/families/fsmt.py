"""FSMT, the original Transformer as fairseq trained it for WMT19: `FSMTForConditionalGeneration`,
`FSMTModel`."""

from typing import Any

from t2x.base.errors import UserError
from t2x.base.external_files import Bool, Fields, Int, Many, Text
from t2x.interop.families import fairseq
from t2x.interop.family import Family, activation, sizes
from t2x.interop.rules import Rule, dense

POSITIONS = """
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


def derive(fields: Fields) -> dict[str, Any]:
  """Returns the position offset: positions start at the padding id plus one."""
  source, target = fields['src_vocab_size'], fields['tgt_vocab_size']
  if fields['tie_word_embeddings'] and source != target:
    raise UserError(
      f'{fields.where}: tie_word_embeddings = True requires vocabularies of equal size, not {source} '
      f'(src_vocab_size) and {target} (tgt_vocab_size) tokens'
    )
  return {'offset': fields['pad_token_id'] + 1}


def restore(values: dict[str, Any]) -> dict[str, Any]:
  """Adds the padding id and placeholder names of the languages."""
  more = {'langs': ['source', 'target'], 'pad_token_id': values['offset'] - 1}
  return {'tgt_vocab_size': values['src_vocab_size'], **values, **more}


FSMT = Family(
  model_type='fsmt',
  architectures=('FSMTForConditionalGeneration', 'FSMTModel'),
  template=fairseq.TEMPLATE + POSITIONS,
  choices={'tie_word_embeddings': {False: TWO_VOCABULARIES, True: TIED}},
  derive=derive,
  restore=restore,
  declared={
    **fairseq.DECLARED,
    **sizes(src_vocab_size=42024, tgt_vocab_size=42024),
    'activation_function': activation('relu'),
    'langs': Many(None, Text('')),
    'pad_token_id': Int(1, 0, 10**6),
    'scale_embedding': Bool(True),
    'tie_word_embeddings': Bool(False),
  },
  aliases=fairseq.ALIASES,
  no_effect=('decoder', 'max_position_embeddings'),
  rules=(
    Rule('model.decoder.embed_tokens.weight', (fairseq.SOURCE,), excludes=fairseq.TARGET),
    *fairseq.TWO_TABLES,
    *fairseq.RULES,
    *dense('model.decoder.output_projection', 'head.out'),
  ),
  prefix='model.',
  # Sinusoidal tables are constants.
  ignored=(
    r'model\.(encoder|decoder)\.embed_positions\.weight',
    r'model\.encoder\.embed_tokens\.weight',
  ),
)
