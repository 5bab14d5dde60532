"""Encoders of tokens against transformers.

One model of each family has a large epsilon: the usual value would hide errors of its position in the norms.
"""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from t2x.layers import Tokens

torch = pytest.importorskip('torch', reason="the extra 'references' is not installed")
transformers = pytest.importorskip('transformers', reason="the extra 'references' is not installed")

RNG = np.random.default_rng(0)
IDS = RNG.integers(3, 50, (3, 11))
TYPES = RNG.integers(0, 2, IDS.shape)
POSITIONS = RNG.integers(0, 16, IDS.shape)
# Padding at the end, in the middle, and none.
VALID = np.arange(11) < np.array([[4], [11], [11]])
VALID[1, 3:7] = False
FOLLOWS = np.array([1, 0, 1])
TOKENS = Tokens(positions=jnp.asarray(POSITIONS), segments=jnp.asarray(VALID, jnp.int32))
ROUNDING = r'(key|k_lin)\.bias$'


def tensors(**arrays):
  return {name: torch.tensor(array) for name, array in arrays.items()}


def call(model, **more):
  """Returns the outputs of transformers."""
  known = tensors(
    input_ids=IDS, attention_mask=VALID.astype(int), token_type_ids=TYPES, position_ids=POSITIONS
  )
  return model(**known, **more)


def hidden(model):
  """Returns the hidden vectors of t2x."""
  return model.hidden(jnp.asarray(IDS), tokens=TOKENS, types=jnp.asarray(TYPES)).x


def on_tokens(function):
  """Returns compiled `function(model)`: its first output at valid tokens, the other outputs unchanged."""

  compiled = jax.jit(function)

  def call(model):
    first, *rest = compiled(model)
    return (np.asarray(first)[VALID], *map(np.asarray, rest))

  return call


@on_tokens
def our_pretraining(model):
  x = hidden(model)
  return model.logits(x), model.head.classify(x)


@on_tokens
def our_logits(model):
  return (model(jnp.asarray(IDS), tokens=TOKENS, types=jnp.asarray(TYPES)).x,)


@on_tokens
def our_pooled(model):
  x = hidden(model)
  return x, model.head(x, model.embedding)


def their_bert(model):
  out = call(model)
  return out.prediction_logits[torch.tensor(VALID)], out.seq_relationship_logits


def their_albert(model):
  out = call(model)
  return out.prediction_logits[torch.tensor(VALID)], out.sop_logits


def their_logits(model):
  return (call(model).logits[torch.tensor(VALID)],)


def their_pooled(model):
  out = call(model)
  return out.last_hidden_state[torch.tensor(VALID)], out.pooler_output


def their_loss(model):
  labels = torch.tensor(np.where(VALID, IDS, -100))
  return call(model, labels=labels, next_sentence_label=torch.tensor(FOLLOWS)).loss


def our_loss(model):
  x = hidden(model)
  loss = optax.softmax_cross_entropy_with_integer_labels
  tokens = loss(model.logits(x), jnp.asarray(IDS)).mean(where=jnp.asarray(VALID))
  return tokens + loss(model.head.classify(x), jnp.asarray(FOLLOWS)).mean()


BERT = {
  'hidden_size': 24,
  'num_hidden_layers': 3,
  'num_attention_heads': 4,
  'intermediate_size': 40,
  'vocab_size': 50,
  'max_position_embeddings': 16,
}


def test_bert(agree, gradients):
  config = transformers.BertConfig(**BERT)

  def make():
    return transformers.BertForPreTraining(config)

  model, mine = agree('BERT', make, their_bert, our_pretraining)
  gradients('BERT', model, mine, their_loss, our_loss, vanishing=ROUNDING)


def test_bert_for_masked_tokens(agree):
  config = transformers.BertConfig(**BERT, hidden_act='gelu_new', layer_norm_eps=1e-3)

  def make():
    return transformers.BertForMaskedLM(config)

  agree('BERT, masked LM alone', make, their_logits, our_logits)


def test_bert_with_classes(agree):
  config = transformers.BertConfig(**BERT, num_labels=3)

  def rows(model):
    return (call(model).logits,)

  @jax.jit
  def our_rows(model):
    return (model.head.classify(hidden(model)),)

  def of_rows():
    return transformers.BertForSequenceClassification(config)

  def of_tokens():
    return transformers.BertForTokenClassification(config)

  agree('BERT, classes of rows', of_rows, rows, our_rows)
  agree('BERT, classes of tokens', of_tokens, their_logits, our_logits)


def test_bert_without_heads(agree):
  config = transformers.BertConfig(**BERT)
  agree('BERT, pooler alone', lambda: transformers.BertModel(config), their_pooled, our_pooled)


ALBERT = BERT | {'embedding_size': 12, 'num_hidden_layers': 4}


def test_albert(agree):
  config = transformers.AlbertConfig(**ALBERT)

  def make():
    return transformers.AlbertForPreTraining(config)

  agree('ALBERT', make, their_albert, our_pretraining)


def test_albert_for_masked_tokens_in_two_groups(agree):
  config = transformers.AlbertConfig(**ALBERT, num_hidden_groups=2, layer_norm_eps=1e-3)

  def make():
    return transformers.AlbertForMaskedLM(config)

  agree('ALBERT, 2 groups, masked LM alone', make, their_logits, our_logits)


def test_albert_without_heads(agree):
  config = transformers.AlbertConfig(**ALBERT)
  agree('ALBERT, pooler alone', lambda: transformers.AlbertModel(config), their_pooled, our_pooled)


DISTILBERT = {
  'dim': 24,
  'n_layers': 3,
  'n_heads': 4,
  'hidden_dim': 40,
  'vocab_size': 50,
  'max_position_embeddings': 16,
}
KNOWN = {'input_ids': IDS, 'attention_mask': VALID.astype(int), 'position_ids': POSITIONS}


def hidden_without_types(model):
  return model.hidden(jnp.asarray(IDS), tokens=TOKENS).x


def test_distilbert(agree, gradients):
  def make():
    return transformers.DistilBertForMaskedLM(transformers.DistilBertConfig(**DISTILBERT))

  def logits(model):
    return (model(**tensors(**KNOWN)).logits[torch.tensor(VALID)],)

  def their_loss(model):
    return model(**tensors(**KNOWN, labels=np.where(VALID, IDS, -100))).loss

  def our_loss(model):
    loss = optax.softmax_cross_entropy_with_integer_labels
    logits = model.logits(hidden_without_types(model))
    return loss(logits, jnp.asarray(IDS)).mean(where=jnp.asarray(VALID))

  ours = on_tokens(lambda model: (model.logits(hidden_without_types(model)),))
  model, mine = agree('DistilBERT', make, logits, ours)
  gradients('DistilBERT', model, mine, their_loss, our_loss, vanishing=ROUNDING)


def test_distilbert_with_classes(agree, gradients):
  classes = np.array([2, 0, 1])

  def make():
    config = transformers.DistilBertConfig(**DISTILBERT, activation='relu', num_labels=3)
    return transformers.DistilBertForSequenceClassification(config)

  def rows(model):
    return (model(**tensors(**KNOWN)).logits,)

  def their_loss(model):
    return model(**tensors(**KNOWN, labels=classes)).loss

  def our_rows(model):
    return (model.head.classify(hidden_without_types(model)),)

  def our_loss(model):
    loss = optax.softmax_cross_entropy_with_integer_labels
    return loss(our_rows(model)[0], jnp.asarray(classes)).mean()

  model, mine = agree('DistilBERT, classes of rows', make, rows, jax.jit(our_rows))
  gradients('DistilBERT', model, mine, their_loss, our_loss, vanishing=ROUNDING)


ROBERTA = BERT | {'pad_token_id': 2, 'max_position_embeddings': 16 + 3}
# Padding at the end: transformers counts the tokens that are not padding.
LENGTHS = np.array([[4], [11], [7]])


def test_roberta_whose_positions_start_after_the_padding_id(agree):
  config = transformers.RobertaConfig(**ROBERTA, type_vocab_size=1, layer_norm_eps=1e-3)
  valid = np.arange(11) < LENGTHS
  ids = np.where(valid, IDS, 2)
  tokens = Tokens.row(11, segments=jnp.asarray(valid, jnp.int32))
  compiled = jax.jit(lambda model: model(jnp.asarray(ids), tokens=tokens).x)

  def theirs(model):
    # Without positions, which are derived from the ids.
    return model(**tensors(input_ids=ids, attention_mask=valid.astype(int))).logits[valid]

  def ours(model):
    return np.asarray(compiled(model))[valid]

  agree('RoBERTa', lambda: transformers.RobertaForMaskedLM(config), theirs, ours)


def test_roberta_with_classes_and_without_heads(agree):
  config = transformers.RobertaConfig(**ROBERTA, num_labels=3)
  known = tensors(input_ids=IDS, attention_mask=VALID.astype(int), position_ids=POSITIONS + 3)
  ours = jax.jit(lambda model: model.head.classify(model.hidden(jnp.asarray(IDS), tokens=TOKENS).x))
  pooled = jax.jit(lambda model: model(jnp.asarray(IDS), tokens=TOKENS).x)

  def rows():
    return transformers.RobertaForSequenceClassification(config)

  agree('RoBERTa, classes of rows', rows, lambda model: model(**known).logits, ours)
  agree(
    'RoBERTa, pooler alone',
    lambda: transformers.RobertaModel(config),
    lambda model: model(**known).pooler_output,
    pooled,
  )


DEBERTA = BERT | {
  'norm_rel_ebd': 'layer_norm',
  'pos_att_type': ['p2c', 'c2p'],
  'position_biased_input': False,
  'relative_attention': True,
  'share_att_key': True,
}


def their_deberta(model):
  known = tensors(input_ids=IDS, attention_mask=VALID.astype(int), token_type_ids=TYPES)
  return (model(**known)[0][torch.tensor(VALID)],)


@on_tokens
def our_deberta(model):
  tokens = Tokens.row(IDS.shape[1], segments=jnp.asarray(VALID, jnp.int32))
  types = jnp.asarray(TYPES) if model.spec.num_types else None
  return (model(jnp.asarray(IDS), tokens=tokens, types=types).x,)


def test_deberta_v2_with_buckets_of_distances(agree, gradients):
  config = transformers.DebertaV2Config(
    **DEBERTA, position_buckets=6, max_relative_positions=9, type_vocab_size=2
  )

  def make():
    return transformers.DebertaV2ForMaskedLM(config)

  def their_loss(model):
    known = tensors(input_ids=IDS, attention_mask=VALID.astype(int), token_type_ids=TYPES)
    return model(**known, labels=torch.tensor(np.where(VALID, IDS, -100))).loss

  def our_loss(model):
    tokens = Tokens.row(IDS.shape[1], segments=jnp.asarray(VALID, jnp.int32))
    logits = model(jnp.asarray(IDS), tokens=tokens, types=jnp.asarray(TYPES)).x
    loss = optax.softmax_cross_entropy_with_integer_labels
    return loss(logits, jnp.asarray(IDS)).mean(where=jnp.asarray(VALID))

  model, mine = agree('DeBERTa-v2', make, their_deberta, our_deberta)
  # A key bias has a gradient here: relative positions share the projections.
  gradients('DeBERTa-v2', model, mine, their_loss, our_loss)


def test_deberta_v3_with_its_own_head(agree):
  config = transformers.DebertaV2Config(**DEBERTA, legacy=False, layer_norm_eps=1e-3)
  agree('DeBERTa-v3', lambda: transformers.DebertaV2ForMaskedLM(config), their_deberta, our_deberta)


XLM = {
  'emb_dim': 24,
  'n_layers': 3,
  'n_heads': 4,
  'n_langs': 2,
  'vocab_size': 50,
  'max_position_embeddings': 16,
}


def their_xlm(model):
  known = tensors(
    input_ids=IDS, attention_mask=VALID.astype(int), langs=TYPES, position_ids=POSITIONS
  )
  return (model(**known).logits[torch.tensor(VALID)],)


def test_xlm_with_languages_and_positions_that_start_anew(agree):
  config = transformers.XLMConfig(**XLM)
  agree('XLM', lambda: transformers.XLMWithLMHeadModel(config), their_xlm, our_logits)


def test_xlm_of_one_language_read_from_left_to_right(agree):
  config = transformers.XLMConfig(
    **XLM | {'n_langs': 1}, causal=True, gelu_activation=False, layer_norm_eps=1e-3
  )
  # transformers lets later tokens attend to padding, so there is none on the left.
  valid = np.arange(11) < np.array([[11], [4], [7]])

  def theirs(model):
    return model(**tensors(input_ids=IDS, attention_mask=valid.astype(int))).logits[valid]

  tokens = Tokens.row(valid.shape[1], segments=jnp.asarray(valid, jnp.int32))
  compiled = jax.jit(lambda model: model(jnp.asarray(IDS), tokens=tokens).x)

  def ours(model):
    return np.asarray(compiled(model))[valid]

  agree('XLM, causal', lambda: transformers.XLMWithLMHeadModel(config), theirs, ours)
