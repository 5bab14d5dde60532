"""XLM. Languages are token types; without languages in the input XLM adds no vector, t2x that of language 0."""

from typing import Any

from t2x.base.external_files import Bool, Fields, Int, Only
from t2x.interop.family import Family, Layers, PartField, only, positive, rates, sizes
from t2x.interop.rules import Rule, block, norm
from t2x.interop.template import ENCODER, fill

BODY = fill(
  ENCODER,
  hidden_act='gelu_activation',
  hidden_dropout='dropout',
  hidden_size='emb_dim',
  num_attention_heads='n_heads',
  num_hidden_layers='n_layers',
  type_vocab_size='num_types',
)
HEAD = """
LanguageModel.head = @TiedHead
TiedHead.use_bias = """


def derive(fields: Fields) -> dict[str, Any]:
  """Returns the number of languages, and the width of the feed-forward layers."""
  languages = fields['n_langs'] if fields['use_lang_emb'] else 1
  return {
    'intermediate_size': 4 * fields['emb_dim'],
    'num_types': languages if languages > 1 else 0,
  }


def restore(values: dict[str, Any]) -> dict[str, Any]:
  """Adds the number of languages."""
  types = values['num_types']
  return {**values, 'n_langs': types or 1, 'use_lang_emb': types > 0}


XLM = Family(
  model_type='xlm',
  architectures=('XLMWithLMHeadModel', 'XLMModel'),
  template='',
  choices={
    'causal': {True: BODY.replace('Encoder', 'Decoder'), False: BODY},
    'architecture': {'XLMWithLMHeadModel': f'{HEAD}True\n', 'XLMModel': f'{HEAD}False\n'},
  },
  derive=derive,
  restore=restore,
  declared={
    **rates(attention_dropout=0.1, dropout=0.1),
    **sizes(emb_dim=2048, max_position_embeddings=512, n_heads=16, vocab_size=30145),
    **only(True, 'is_encoder', 'share_inout_emb', 'tie_word_embeddings'),
    'asm': Only(False),
    'causal': Bool(False),
    'gelu_activation': PartField(True, {True: 'gelu_exact', False: 'relu'}),
    'layer_norm_eps': positive(1e-12, 1.0),
    'n_langs': Int(1, 1, 10**5),
    'n_layers': Layers(12),
    'use_lang_emb': Bool(True),
  },
  aliases={'n_words': 'vocab_size'},
  # Token and language ids, metadata of the vocabulary, and the initial value of the position table.
  no_effect=(
    *('bos_index', 'eos_index', 'mask_index', 'pad_index', 'unk_index'),
    *('id2lang', 'lang2id', 'lang_id', 'max_vocab', 'min_count', 'same_enc_dec'),
    *('end_n_top', 'sinusoidal_embeddings', 'start_n_top'),
  ),
  rules=(
    Rule('transformer.embeddings.weight', ('embedding.table',)),
    Rule('transformer.lang_embeddings.weight', ('embedding.types',)),
    Rule('transformer.position_embeddings.weight', ('body.encoding.table',)),
    *norm('transformer.layer_norm_emb', 'body.input_norm'),
    *block(
      'transformer',
      norms=('layer_norm1.{}', 'layer_norm2.{}'),
      mixer=tuple(f'attentions.{{}}.{name}_lin' for name in ('q', 'k', 'v', 'out')),
      feed_forward=('ffns.{}.lin1', 'ffns.{}.lin2'),
    ),
    Rule('pred_layer.proj.bias', ('head.bias',)),
  ),
  prefix='transformer.',
  bare='XLMModel',
  ignored=(r'transformer\.position_ids', r'pred_layer\.proj\.weight'),
)
