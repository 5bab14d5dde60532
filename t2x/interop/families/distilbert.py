"""DistilBERT (https://arxiv.org/abs/1910.01108): BERT without token types and without a pooler.

t2x has dropout after the attention, as BERT; DistilBERT has none there. This changes training only.
"""

from t2x.base.external_files import Only
from t2x.interop.family import CLASSES, Family, Layers, activation, num_classes, rates, sizes
from t2x.interop.rules import Rule, block, dense, norm
from t2x.interop.template import ENCODER, fill

HEADS = {
  'DistilBertForMaskedLM': """
LanguageModel.head = @MaskedLMHead
MaskedLMHead.activation = {activation}
""",
  'DistilBertForSequenceClassification': """
LanguageModel.head = @SequenceClassifier
SequenceClassifier.classifier = @PooledClassifier
PooledClassifier:
  num_classes = {num_labels}
  activation = @relu
  dropout_rate = {seq_classif_dropout}
""",
  'DistilBertModel': """
LanguageModel.head = @TiedHead
TiedHead.use_bias = False
""",
}

DISTILBERT = Family(
  model_type='distilbert',
  architectures=tuple(HEADS),
  template=fill(
    ENCODER,
    hidden_act='activation',
    hidden_dropout='dropout',
    hidden_size='dim',
    intermediate_size='hidden_dim',
    layer_norm_eps=1e-12,
    num_attention_heads='n_heads',
    num_hidden_layers='n_layers',
    type_vocab_size=0,
  ),
  choices={'architecture': HEADS},
  derive=num_classes,
  declared={
    **CLASSES,
    **rates(attention_dropout=0.1, dropout=0.1, seq_classif_dropout=0.2),
    **sizes(dim=768, hidden_dim=3072, max_position_embeddings=512, n_heads=12, vocab_size=30522),
    'activation': activation('gelu'),
    'n_layers': Layers(6),
    'tie_word_embeddings': Only(True),
  },
  # The initial value of the position table, a head that is not imported, and an old name of `tie_word_embeddings`.
  no_effect=('qa_dropout', 'sinusoidal_pos_embds', 'tie_weights_'),
  rules=(
    Rule('distilbert.embeddings.word_embeddings.weight', ('embedding.table',)),
    Rule('distilbert.embeddings.position_embeddings.weight', ('body.encoding.table',)),
    *norm('distilbert.embeddings.LayerNorm', 'body.input_norm'),
    *block(
      'distilbert.transformer.layer.{}',
      norms=('sa_layer_norm', 'output_layer_norm'),
      mixer=tuple(f'attention.{name}_lin' for name in ('q', 'k', 'v', 'out')),
      feed_forward=('ffn.lin1', 'ffn.lin2'),
    ),
    *dense('vocab_transform', 'head.transform'),
    *norm('vocab_layer_norm', 'head.norm'),
    Rule('vocab_projector.bias', ('head.bias',)),
    *dense('pre_classifier', 'head.classifier.transform'),
    *dense('classifier', 'head.classifier.out'),
  ),
  prefix='distilbert.',
  bare='DistilBertModel',
  ignored=(r'distilbert\.embeddings\.position_ids', r'vocab_projector\.weight'),
)
