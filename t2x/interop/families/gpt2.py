"""GPT-2: `GPT2LMHeadModel`, `GPT2Model`."""

from t2x.base.external_files import Only
from t2x.interop.family import Family, Layers, activation, positive, rates, sizes, tied
from t2x.interop.layouts import CONV1D
from t2x.interop.rules import Rule, block, dense, norm
from t2x.interop.template import DECODER, LAYERS, LEARNED_POSITIONS, fill

GPT2 = Family(
  model_type='gpt2',
  architectures=('GPT2LMHeadModel', 'GPT2Model'),
  template=fill(
    DECODER + LEARNED_POSITIONS + LAYERS,
    attention_dropout='attn_pdrop',
    embedding_dropout='embd_pdrop',
    hidden_act='activation_function',
    hidden_dropout='resid_pdrop',
    hidden_size='n_embd',
    intermediate_size='n_inner',
    layer_norm_eps='layer_norm_epsilon',
    max_position_embeddings='n_positions',
    num_attention_heads='n_head',
    num_hidden_layers='n_layer',
  ),
  derive=lambda fields: {'n_inner': fields['n_inner'] or 4 * fields['n_embd']},
  declared={
    **rates(attn_pdrop=0.1, embd_pdrop=0.1, resid_pdrop=0.1),
    **sizes(n_embd=768, n_head=12, n_inner=None, n_positions=1024, vocab_size=50257),
    'activation_function': activation('gelu_new'),
    'layer_norm_epsilon': positive(1e-5, 1.0),
    'n_layer': Layers(12),
    'scale_attn_by_inverse_layer_idx': Only(False),
    'scale_attn_weights': Only(True),
    'tie_word_embeddings': tied(True),
  },
  no_effect=('n_ctx',),
  rules=(
    Rule('transformer.wte.weight', ('embedding.table',)),
    Rule('transformer.wpe.weight', ('body.encoding.table',)),
    *block(
      'transformer.h.{}',
      norms=('ln_1', 'ln_2'),
      mixer=('attn.c_attn', 'attn.c_proj'),
      feed_forward=('mlp.c_fc', 'mlp.c_proj'),
      layout=CONV1D,
    ),
    *norm('transformer.ln_f', 'body.final_norm'),
    *dense('lm_head', 'head.out'),
  ),
  prefix='transformer.',
  # Old files contain causal masks.
  ignored=(r'lm_head\.weight', r'transformer\.h\.\d+\.attn\.(bias|masked_bias)'),
)
