"""GPT-1: `OpenAIGPTLMHeadModel`, `OpenAIGPTModel`. Post-norm, no norm after the last layer."""

from t2x.interop.family import Family, Layers, activation, positive, rates, sizes, tied
from t2x.interop.layouts import CONV1D
from t2x.interop.rules import Rule, block, dense
from t2x.interop.template import DECODER, LAYERS, LEARNED_POSITIONS, fill

GPT1 = Family(
  model_type='openai-gpt',
  architectures=('OpenAIGPTLMHeadModel', 'OpenAIGPTModel'),
  template=fill(
    DECODER.replace('final_norm = @LayerNorm', 'final_norm = None')
    + LEARNED_POSITIONS
    + LAYERS.replace('PreNorm', 'PostNorm'),
    attention_dropout='attn_pdrop',
    embedding_dropout='embd_pdrop',
    hidden_act='afn',
    hidden_dropout='resid_pdrop',
    hidden_size='n_embd',
    layer_norm_eps='layer_norm_epsilon',
    max_position_embeddings='n_positions',
    num_attention_heads='n_head',
    num_hidden_layers='n_layer',
  ),
  derive=lambda fields: {'intermediate_size': 4 * fields['n_embd']},
  declared={
    **rates(attn_pdrop=0.1, embd_pdrop=0.1, resid_pdrop=0.1),
    **sizes(n_embd=768, n_head=12, n_positions=512, vocab_size=40478),
    # GPT-1 uses the name 'gelu' for the tanh approximation.
    'afn': activation('gelu', {'gelu': 'gelu', 'relu': 'relu', 'silu': 'silu', 'swish': 'silu'}),
    'layer_norm_epsilon': positive(1e-5, 1.0),
    'n_layer': Layers(12),
    'tie_word_embeddings': tied(True),
  },
  no_effect=('n_ctx', 'n_special', 'predict_special_tokens'),
  rules=(
    Rule('transformer.tokens_embed.weight', ('embedding.table',)),
    Rule('transformer.positions_embed.weight', ('body.encoding.table',)),
    *block(
      'transformer.h.{}',
      norms=('ln_1', 'ln_2'),
      mixer=('attn.c_attn', 'attn.c_proj'),
      feed_forward=('mlp.c_fc', 'mlp.c_proj'),
      layout=CONV1D,
    ),
    *dense('lm_head', 'head.out'),
  ),
  prefix='transformer.',
  # Old files contain causal masks and positions.
  ignored=(
    r'lm_head\.weight',
    r'transformer\.h\.\d+\.attn\.bias',
    r'transformer\.position_ids',
  ),
)
