"""Post-norm encoder-decoders of fairseq: BART, Marian, and FSMT, the original Transformer trained for WMT19."""

from collections.abc import Iterator, Mapping
from typing import Any

from t2x.base.errors import UserError
from t2x.base.external_files import Bool, Field, Fields, Int, Many, Text
from t2x.interop.family import Family, Layers, activation, only, rates, sizes
from t2x.interop.layouts import ROW
from t2x.interop.rules import Rule, attention, block, dense, norm
from t2x.interop.template import LAYERS, fill

# The model without vocabulary, positions and head.
TEMPLATE = """
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
decoder/Stack.num_layers = {decoder_layers}
decoder/Block.cross = @MultiHeadAttention
decoder/MultiHeadAttention.num_heads = {decoder_attention_heads}
decoder/MLP.hidden_dim = {decoder_ffn_dim}
MLP.dropout_rate = {activation_dropout}
""" + fill(
  LAYERS.replace('PreNorm', 'PostNorm'),
  hidden_act='activation_function',
  hidden_dropout='dropout',
  intermediate_size='encoder_ffn_dim',
  layer_norm_eps=1e-5,
  num_attention_heads='encoder_attention_heads',
  num_hidden_layers='encoder_layers',
)

DECLARED: Mapping[str, Field] = {
  **rates(activation_dropout=0.0, attention_dropout=0.0, dropout=0.1),
  **sizes(d_model=1024, decoder_attention_heads=16, decoder_ffn_dim=4096),
  **sizes(encoder_attention_heads=16, encoder_ffn_dim=4096),
  **only(0.0, 'decoder_layerdrop', 'encoder_layerdrop'),
  **only(True, 'is_encoder_decoder', 'tie_word_embeddings'),
  'activation_function': activation('gelu'),
  'decoder_layers': Layers(12),
  'encoder_layers': Layers(12),
  'scale_embedding': Bool(False),
}
ALIASES = {'num_hidden_layers': 'encoder_layers'}


def _side(side: str) -> Iterator[Rule]:
  prefix, module = f'model.{side}.layers.{{}}', f'{side}.stack.{{}}'
  names = tuple(f'{name}_proj' for name in ('q', 'k', 'v', 'out'))
  yield from block(
    prefix,
    module,
    norms=('self_attn_layer_norm', 'final_layer_norm'),
    mixer=[f'self_attn.{name}' for name in names],
    feed_forward=('fc1', 'fc2'),
  )
  yield from attention(f'{prefix}.encoder_attn', f'{module}.cross', names)
  yield from norm(f'{prefix}.encoder_attn_layer_norm', f'{module}.cross_wiring.norm')


# The parameters without embeddings, positions and head.
RULES = (*_side('encoder'), *_side('decoder'))
# Embedding tables; models with a shared vocabulary have only the source table.
SOURCE, TARGET = 'embedding.table', 'target_embedding.table'
TWO_TABLES = (
  Rule('model.encoder.embed_tokens.weight', (SOURCE,), requires=TARGET),
  Rule('model.decoder.embed_tokens.weight', (TARGET,)),
)

BART_POSITIONS = """
TokenEmbedding.vocab_size = {vocab_size}
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
HEAD = """
EncoderDecoder.head = @TiedHead
TiedHead.use_bias = """

BART = Family(
  model_type='bart',
  architectures=('BartForConditionalGeneration', 'BartModel'),
  template=TEMPLATE + BART_POSITIONS,
  choices={
    'architecture': {
      'BartForConditionalGeneration': f'{HEAD}True\n',
      'BartModel': f'{HEAD}False\n',
    }
  },
  declared={
    **DECLARED,
    **sizes(max_position_embeddings=1024, vocab_size=50265),
    # Old versions of transformers used this model type for other architectures too.
    **only(False, 'add_final_layer_norm', 'do_blenderbot_90_layernorm', 'normalize_before'),
    **only(False, 'static_position_embeddings'),
    **only(True, 'normalize_embedding'),
  },
  aliases=ALIASES,
  no_effect=('add_bias_logits', 'extra_pos_embeddings'),
  rules=(
    Rule('model.shared.weight', ('embedding.table',)),
    Rule('model.encoder.embed_positions.weight', ('encoder.encoding.table',)),
    Rule('model.decoder.embed_positions.weight', ('decoder.encoding.table',)),
    *norm('model.encoder.layernorm_embedding', 'encoder.input_norm'),
    *norm('model.decoder.layernorm_embedding', 'decoder.input_norm'),
    *RULES,
    Rule('final_logits_bias', ('head.bias',), ROW),
  ),
  prefix='model.',
  ignored=(r'model\.(encoder|decoder)\.embed_tokens\.weight', r'lm_head\.weight'),
)

MARIAN_POSITIONS = """
TokenEmbedding.vocab_size = {vocab_size}
Encoder.encoding = @Sinusoidal
Decoder.encoding = @Sinusoidal
"""
MARIAN_VOCABULARIES = """
EncoderDecoder.target_embedding = @target/TokenEmbedding
target/TokenEmbedding.vocab_size = {decoder_vocab_size}
"""


def _marian_derive(fields: Fields) -> dict[str, Any]:
  """Returns the size of the target vocabulary."""
  size = fields['decoder_vocab_size'] or fields['vocab_size']
  if fields['share_encoder_decoder_embeddings'] and size != fields['vocab_size']:
    raise fields.refused('decoder_vocab_size', size, f'{fields["vocab_size"]} or None')
  return {'decoder_vocab_size': size}


MARIAN = Family(
  model_type='marian',
  architectures=('MarianMTModel', 'MarianModel'),
  template=TEMPLATE + MARIAN_POSITIONS,
  choices={
    'architecture': {'MarianMTModel': f'{HEAD}True\n', 'MarianModel': f'{HEAD}False\n'},
    'share_encoder_decoder_embeddings': {False: MARIAN_VOCABULARIES, True: ''},
  },
  derive=_marian_derive,
  declared={
    **DECLARED,
    **only(False, 'add_final_layer_norm', 'normalize_before', 'normalize_embedding'),
    **only(True, 'static_position_embeddings'),
    **sizes(decoder_vocab_size=None, vocab_size=58101),
    'share_encoder_decoder_embeddings': Bool(True),
  },
  aliases=ALIASES,
  no_effect=('add_bias_logits', 'extra_pos_embeddings', 'max_position_embeddings'),
  rules=(
    Rule('model.shared.weight', (SOURCE,), excludes=TARGET),
    *TWO_TABLES,
    *RULES,
    Rule('final_logits_bias', ('head.bias',), ROW),
  ),
  prefix='model.',
  # Copies of tied tables, and sinusoidal tables in old files.
  ignored=(
    r'model\.(encoder|decoder)\.embed_(tokens|positions)\.weight',
    r'lm_head\.weight',
  ),
)

FSMT_POSITIONS = """
TokenEmbedding.vocab_size = {src_vocab_size}
Encoder.encoding = @Sinusoidal
Decoder.encoding = @Sinusoidal
Sinusoidal:
  exponent_shift = 1
  offset = {offset}
"""
FSMT_TIED = """
EncoderDecoder.head = @TiedHead
"""
FSMT_VOCABULARIES = """
EncoderDecoder:
  target_embedding = @target/TokenEmbedding
  head = @LMHead
target/TokenEmbedding.vocab_size = {tgt_vocab_size}
"""


def _fsmt_derive(fields: Fields) -> dict[str, Any]:
  """Returns the position offset: positions start at the padding id plus one."""
  source, target = fields['src_vocab_size'], fields['tgt_vocab_size']
  if fields['tie_word_embeddings'] and source != target:
    raise UserError(
      f'{fields.where}: tie_word_embeddings = True requires vocabularies of equal size, not {source} '
      f'(src_vocab_size) and {target} (tgt_vocab_size) tokens'
    )
  return {'offset': fields['pad_token_id'] + 1}


def _fsmt_restore(values: dict[str, Any]) -> dict[str, Any]:
  """Adds the padding id and placeholder names of the languages."""
  more = {'langs': ['source', 'target'], 'pad_token_id': values['offset'] - 1}
  return {'tgt_vocab_size': values['src_vocab_size'], **values, **more}


FSMT = Family(
  model_type='fsmt',
  architectures=('FSMTForConditionalGeneration', 'FSMTModel'),
  template=TEMPLATE + FSMT_POSITIONS,
  choices={'tie_word_embeddings': {False: FSMT_VOCABULARIES, True: FSMT_TIED}},
  derive=_fsmt_derive,
  restore=_fsmt_restore,
  declared={
    **DECLARED,
    **sizes(src_vocab_size=42024, tgt_vocab_size=42024),
    'activation_function': activation('relu'),
    'langs': Many(None, Text('')),
    'pad_token_id': Int(1, 0, 10**6),
    'scale_embedding': Bool(True),
    'tie_word_embeddings': Bool(False),
  },
  aliases=ALIASES,
  no_effect=('decoder', 'max_position_embeddings'),
  rules=(
    Rule('model.decoder.embed_tokens.weight', (SOURCE,), excludes=TARGET),
    *TWO_TABLES,
    *RULES,
    *dense('model.decoder.output_projection', 'head.out'),
  ),
  prefix='model.',
  # Sinusoidal tables are constants.
  ignored=(
    r'model\.(encoder|decoder)\.embed_positions\.weight',
    r'model\.encoder\.embed_tokens\.weight',
  ),
)
