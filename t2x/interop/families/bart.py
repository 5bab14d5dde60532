"""BART: `BartForConditionalGeneration`, `BartModel`."""

from t2x.interop.families import fairseq
from t2x.interop.family import Family, only, sizes
from t2x.interop.layouts import ROW
from t2x.interop.rules import Rule, norm

POSITIONS = """
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
  template=fairseq.TEMPLATE + POSITIONS,
  choices={
    'architecture': {
      'BartForConditionalGeneration': f'{HEAD}True\n',
      'BartModel': f'{HEAD}False\n',
    }
  },
  declared={
    **fairseq.DECLARED,
    **sizes(max_position_embeddings=1024, vocab_size=50265),
    # Old versions of transformers used this model type for other architectures too.
    **only(False, 'add_final_layer_norm', 'do_blenderbot_90_layernorm', 'normalize_before'),
    **only(False, 'static_position_embeddings'),
    **only(True, 'normalize_embedding'),
  },
  aliases=fairseq.ALIASES,
  no_effect=('add_bias_logits', 'extra_pos_embeddings'),
  rules=(
    Rule('model.shared.weight', ('embedding.table',)),
    Rule('model.encoder.embed_positions.weight', ('encoder.encoding.table',)),
    Rule('model.decoder.embed_positions.weight', ('decoder.encoding.table',)),
    *norm('model.encoder.layernorm_embedding', 'encoder.input_norm'),
    *norm('model.decoder.layernorm_embedding', 'decoder.input_norm'),
    *fairseq.RULES,
    Rule('final_logits_bias', ('head.bias',), ROW),
  ),
  prefix='model.',
  ignored=(r'model\.(encoder|decoder)\.embed_tokens\.weight', r'lm_head\.weight'),
)
