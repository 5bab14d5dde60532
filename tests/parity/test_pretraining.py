"""Pre-training objectives against transformers: loss and gradients on batches of our own transforms."""

import pydoc_data.topics

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t2x.data import TSV, Bytes, FullRows, NGrams, Swapped, TextFiles
from t2x.tasks import MaskedLM, MaskedPairs, MaskedTranslations, NextSentence

torch = pytest.importorskip('torch', reason="the extra 'references' is not installed")
transformers = pytest.importorskip('transformers', reason="the extra 'references' is not installed")

LENGTH = 64
SIZES = {
  'hidden_size': 24,
  'num_hidden_layers': 2,
  'num_attention_heads': 4,
  'intermediate_size': 40,
  'vocab_size': Bytes().vocab_size,
  'max_position_embeddings': LENGTH,
}
# A bias of keys adds the same to the scores of all keys.
KEY_BIAS = r'(key|k_lin)\.bias$'


@pytest.fixture
def manual(tmp_path, monkeypatch):
  """The first lines of four topics of Python's manual, each a document."""
  monkeypatch.setenv('T2X_CACHE', str(tmp_path / 'cache'))
  topics = ('assert', 'bltin-null-object', 'break', 'typesseq-mutable')
  texts = [pydoc_data.topics.topics[name].replace('\n\n', '\n')[:700] for name in topics]
  (tmp_path / 'manual.txt').write_text('\0'.join(texts))
  return TextFiles(train=str(tmp_path / 'manual.txt'), separator='\0')


@pytest.fixture
def trains_alike(imported, perturbed, gradients, compared):
  """`trains_alike(system, make, task, arguments)`: equal loss and gradients of a batch of the task.

  `make()` returns the transformers model, and `arguments(batch)` those that its class names differently: all others are
  the ids, the mask of padding and the labels of the chosen tokens.
  """

  def check(system, make, task, arguments):
    task = task.bound(Bytes().train([]))
    batch = task.batches(task.rows('train'), batch_size=8, seed=3)[0]
    labels = np.full(batch['tokens'].shape, -100)
    chosen = batch['weights'] > 0
    labels[np.nonzero(chosen)[0], batch['masked_positions'][chosen]] = batch['labels'][chosen]
    given = {'input_ids': batch['tokens'], 'labels': labels, **arguments(batch)}
    if not task.one_segment:
      given['attention_mask'] = (batch['segments'] != 0).astype(int)
      assert not given['attention_mask'].all()

    def theirs(model):
      return model(**{name: torch.tensor(array) for name, array in given.items()}).loss

    arrays = jax.tree.map(jnp.asarray, dict(batch))
    divisors = task.weights(arrays)

    def ours(model):
      terms = task.sums(model, arrays, None).terms
      return sum(terms[name] / divisors[name] for name in terms)

    torch.manual_seed(0)
    model = perturbed(make(), 0.1)
    mine = imported(model)
    wanted = theirs(model).detach().numpy()
    compared(system, 'transformers', jax.jit(ours)(mine), wanted, atol=1e-5 * float(wanted))
    gradients(system, model, mine, theirs, ours, vanishing=KEY_BIAS, tolerance=1e-5)
    return batch

  return check


def test_bert_has_the_loss_and_gradients_of_bert_for_pretraining(manual, trains_alike):
  task = MaskedPairs(
    source=manual, tokenizer=Bytes(), length=LENGTH, auxiliaries={'next': NextSentence()}
  )

  def arguments(batch):
    # Class 0: "sequence B is a continuation of sequence A".
    follows = np.where(batch['next'], 0, 1)
    return {'token_type_ids': batch['types'], 'next_sentence_label': follows}

  config = transformers.BertConfig(**SIZES)
  batch = trains_alike('BERT', lambda: transformers.BertForPreTraining(config), task, arguments)
  assert {0, 1} == set(batch['types'].flat) == set(batch['next'])


def test_albert_has_the_loss_and_gradients_of_albert_for_pretraining(manual, trains_alike):
  task = MaskedPairs(
    source=manual,
    tokenizer=Bytes(),
    length=LENGTH,
    choose=NGrams(),
    negatives=Swapped(),
    auxiliaries={'order': NextSentence()},
  )

  def arguments(batch):
    # Class 0: "original order", class 1: "switched order".
    switched = np.where(batch['next'], 0, 1)
    return {'token_type_ids': batch['types'], 'sentence_order_label': switched}

  config = transformers.AlbertConfig(**SIZES, embedding_size=12, classifier_dropout_prob=0.0)
  batch = trains_alike('ALBERT', lambda: transformers.AlbertForPreTraining(config), task, arguments)
  assert {0, 1} == set(batch['types'].flat) == set(batch['next'])


def test_roberta_has_the_loss_and_gradients_of_roberta_for_masked_tokens(manual, trains_alike):
  task = MaskedLM(source=manual, tokenizer=Bytes(), length=LENGTH, packing=FullRows)
  # Positions start at the padding id plus one.
  config = transformers.RobertaConfig(
    **SIZES | {'max_position_embeddings': LENGTH + 1, 'type_vocab_size': 1}, pad_token_id=0
  )
  trains_alike('RoBERTa', lambda: transformers.RobertaForMaskedLM(config), task, lambda batch: {})


@pytest.mark.parametrize('languages', [{'source': 0, 'target': 2}, {'target': 2}], ids=len)
def test_xlm_has_the_loss_and_gradients_of_xlm_with_languages(tmp_path, trains_alike, languages):
  """Of a text and its translation, and of a text."""
  pairs = [f'the house number {n}{" is small" * (n % 3)}\tdas Haus Nummer {n}' for n in range(9)]
  (tmp_path / 'pairs.tsv').write_text('\n'.join(pairs))
  source = TSV(train=str(tmp_path / 'pairs.tsv'))
  task = MaskedTranslations(source=source, tokenizer=Bytes(), length=LENGTH, languages=languages)

  def arguments(batch):
    # Positions restart where the language changes, as in the data of XLM.
    position_ids = np.zeros_like(batch['tokens'])
    for row, languages in enumerate(batch['types']):
      for i in range(1, LENGTH):
        same = languages[i] == languages[i - 1] or not batch['segments'][row, i]
        position_ids[row, i] = position_ids[row, i - 1] + 1 if same else 0
    return {'langs': batch['types'], 'position_ids': position_ids}

  config = transformers.XLMConfig(
    emb_dim=24,
    n_layers=2,
    n_heads=4,
    n_langs=3,
    vocab_size=Bytes().vocab_size,
    max_position_embeddings=LENGTH,
    dropout=0.0,
    attention_dropout=0.0,
  )
  batch = trains_alike('XLM', lambda: transformers.XLMWithLMHeadModel(config), task, arguments)
  assert set(batch['types'][batch['segments'] != 0]) == set(languages.values())
