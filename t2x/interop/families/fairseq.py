"""Shared definitions of fairseq's post-norm encoder-decoders: BART, Marian, FSMT."""

from collections.abc import Iterator, Mapping

from t2x.base.external_files import Bool, Field
from t2x.interop.family import Layers, activation, only, rates, sizes
from t2x.interop.rules import Rule, attention, block, norm
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
