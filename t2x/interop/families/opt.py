"""Pre-norm OPT, which includes every release except opt-350m: `OPTForCausalLM`, `OPTModel`."""

from t2x.base.external_files import Only
from t2x.interop.family import Family, Layers, activation, only, rates, sizes, tied
from t2x.interop.rules import Rule, block, dense, norm
from t2x.interop.template import DECODER, LAYERS, LEARNED_POSITIONS, fill

OPT = Family(
  model_type='opt',
  architectures=('OPTForCausalLM', 'OPTModel'),
  template=fill(
    f'{DECODER}{LEARNED_POSITIONS}LearnedPositions.offset = 2\n{LAYERS}',
    embedding_dropout=0.0,
    hidden_act='activation_function',
    hidden_dropout='dropout',
    intermediate_size='ffn_dim',
    layer_norm_eps=1e-5,
  ),
  declared={
    **rates(attention_dropout=0.0, dropout=0.1),
    **sizes(ffn_dim=3072, hidden_size=768, max_position_embeddings=2048),
    **sizes(num_attention_heads=12, vocab_size=50272),
    **only(True, 'do_layer_norm_before', 'enable_bias', 'layer_norm_elementwise_affine'),
    **only(0.0, 'activation_dropout', 'layerdrop'),
    '_remove_final_layer_norm': Only(False),
    'activation_function': activation('relu'),
    'num_hidden_layers': Layers(12),
    'tie_word_embeddings': tied(True),
  },
  aliases={'word_embed_proj_dim': 'hidden_size'},
  rules=(
    Rule('model.decoder.embed_tokens.weight', ('embedding.table',)),
    Rule('model.decoder.embed_positions.weight', ('body.encoding.table',)),
    *block(
      'model.decoder.layers.{}',
      norms=('self_attn_layer_norm', 'final_layer_norm'),
      mixer=[f'self_attn.{name}_proj' for name in ('q', 'k', 'v', 'out')],
      feed_forward=('fc1', 'fc2'),
    ),
    *norm('model.decoder.final_layer_norm', 'body.final_norm'),
    *dense('lm_head', 'head.out'),
  ),
  prefix='model.',
  ignored=(r'lm_head\.weight',),
)
