"""GPT-NeoX and Pythia: `GPTNeoXForCausalLM`, `GPTNeoXModel`."""

from t2x.base.external_files import Bool
from t2x.interop.family import Family, Layers, activation, only, positive, rates, sizes, tied
from t2x.interop.layouts import GROUPED
from t2x.interop.rope import SCALINGS, Rope
from t2x.interop.rules import Rule, block, dense, norm
from t2x.interop.template import ATTENTION_BIAS, DECODER, LAYERS, PARALLEL_LAYERS, fill

ROPE = Rope('rotary_emb_base', 'rotary_pct', 0.25)
GPT_NEOX = Family(
  model_type='gpt_neox',
  architectures=('GPTNeoXForCausalLM', 'GPTNeoXModel'),
  template=fill(DECODER, embedding_dropout='hidden_dropout') + ROPE.template + ATTENTION_BIAS,
  choices={
    'use_parallel_residual': {True: PARALLEL_LAYERS, False: LAYERS},
    'rope_type': SCALINGS,
  },
  derive=ROPE.derive,
  restore=ROPE.restore,
  declared={
    **ROPE.declared,
    **rates(attention_dropout=0.0),
    **only(0.0, 'attention_probs_dropout_prob', 'hidden_dropout', 'hidden_dropout_prob'),
    **sizes(hidden_size=6144, intermediate_size=24576, num_attention_heads=64, vocab_size=50432),
    **{name: Bool(True) for name in ('attention_bias', 'use_parallel_residual')},
    'hidden_act': activation('gelu'),
    'layer_norm_eps': positive(1e-5, 1.0),
    'num_hidden_layers': Layers(44),
    'tie_word_embeddings': tied(False),
  },
  no_effect=('max_position_embeddings',),
  rules=(
    Rule('gpt_neox.embed_in.weight', ('embedding.table',)),
    *block(
      'gpt_neox.layers.{}',
      norms=('input_layernorm', 'post_attention_layernorm'),
      mixer=('attention.query_key_value', 'attention.dense'),
      feed_forward=('mlp.dense_h_to_4h', 'mlp.dense_4h_to_h'),
      qkv=GROUPED,
    ),
    *norm('gpt_neox.final_layer_norm', 'body.final_norm'),
    *dense('lm_head', 'head.out'),
  ),
  prefix='gpt_neox.',
  renamed={r'^embed_out\.': 'lm_head.'},
  ignored=(r'lm_head\.weight|.*\.attention\.(bias|masked_bias|rotary_emb\.inv_freq)',),
)
