"""Whisper, `WhisperForConditionalGeneration`: mel frames to text (https://arxiv.org/abs/2212.04356)."""

from t2x.domains.speech.model_folders import speech_fields, speech_gin
from t2x.domains.speech.transcription import Transcription
from t2x.interop.families.fairseq import ALIASES, DECLARED, RULES, TEMPLATE
from t2x.interop.family import Family, Layers, rates, sizes
from t2x.interop.layouts import TAPS
from t2x.interop.rules import Rule, norm
from t2x.interop.task_files import TaskFiles

# Pre-norm layers, and a norm after the last one.
PRE_NORM = TEMPLATE.replace('PostNorm', 'PreNorm').replace(
  'final_norm = None', 'final_norm = @LayerNorm'
)
AUDIO = """
EncoderDecoder:
  source_embedding = @AudioStem
  head = @TiedHead
AudioStem:
  num_features = {num_mel_bins}
  activation = {activation_function}
TokenEmbedding.vocab_size = {vocab_size}
TiedHead.use_bias = False
MultiHeadAttention.use_bias = ('q', 'v')
Encoder.encoding = @Sinusoidal
Sinusoidal.exponent_shift = 1
Decoder.encoding = @LearnedPositions
LearnedPositions.max_length = {max_target_positions}
"""
# Augmentation in training, token ids and settings of alignment do not change logits; `max_source_positions` limits the
# number of frames in transformers only.
NO_EFFECT = """
apply_spec_augment classifier_proj_size forced_decoder_ids mask_feature_length mask_feature_min_masks
mask_feature_prob mask_time_length mask_time_min_masks mask_time_prob max_source_positions median_filter_width
use_weighted_layer_sum
"""


def _convolution(number: int, name: str) -> tuple[Rule, Rule]:
  tensor = f'model.encoder.conv{number}'
  return (
    Rule(f'{tensor}.weight', (f'source_embedding.{name}.kernel',), TAPS),
    Rule(f'{tensor}.bias', (f'source_embedding.{name}.bias',)),
  )


WHISPER = Family(
  model_type='whisper',
  architectures=('WhisperForConditionalGeneration', 'WhisperModel'),
  template=PRE_NORM + AUDIO,
  declared={
    **DECLARED,
    **sizes(d_model=384, decoder_attention_heads=6, decoder_ffn_dim=1536),
    **sizes(encoder_attention_heads=6, encoder_ffn_dim=1536),
    **sizes(max_target_positions=448, num_mel_bins=80, vocab_size=51865),
    **rates(activation_dropout=0.0, attention_dropout=0.0, dropout=0.0),
    'decoder_layers': Layers(4),
    'encoder_layers': Layers(4),
  },
  aliases=ALIASES,
  no_effect=NO_EFFECT.split(),
  rules=(
    *_convolution(1, 'first'),
    *_convolution(2, 'second'),
    Rule('model.decoder.embed_tokens.weight', ('embedding.table',)),
    Rule('model.decoder.embed_positions.weight', ('decoder.encoding.table',)),
    *RULES,
    *norm('model.encoder.layer_norm', 'encoder.final_norm'),
    *norm('model.decoder.layer_norm', 'decoder.final_norm'),
  ),
  prefix='model.',
  # A copy of the tied table, and sinusoids.
  ignored=(r'proj_out\.weight', r'model\.encoder\.embed_positions\.weight'),
)

FAMILIES = (WHISPER,)
TASK_FILES = (TaskFiles('audio', Transcription, speech_gin, speech_fields),)
