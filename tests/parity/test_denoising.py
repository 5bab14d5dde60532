"""Denoising: corruptions against fairseq's, and loss and gradients of a batch against transformers."""

import argparse
import collections
import contextlib
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny_tasks
from scipy import stats

from t2x.data import Bytes, InfillSpans, PermuteSentences, RotateText, TextFiles
from t2x.tasks import Denoising
from tests.parity import archives

torch = pytest.importorskip('torch', reason="the extra 'references' is not installed")
transformers = pytest.importorskip('transformers', reason="the extra 'references' is not installed")

BYTES = Bytes().train([])
MASK, EOS = BYTES.mask_id, BYTES.eos_id
# All tokens differ. Of 95 tokens 28.5 are hidden: fairseq rounds 0.3 * 100, in float32, up to 31.
TEXT = np.arange(60, 155, dtype=np.int32)
DRAWS = 600


class Vocabulary(list):
  """The part of fairseq's Dictionary that the data set reads."""

  eos, bos = (lambda self: EOS), (lambda self: 0)


@pytest.fixture(scope='module')
def fairseq():
  """`fairseq(ids, words=None, **arguments)`: texts corrupted by fairseq, without special tokens at the ends."""
  data = types.ModuleType('fairseq.data')
  data.__path__ = [str(archives.unpacked('fairseq', '0.12.2') / 'fairseq' / 'data')]
  data.FairseqDataset = object
  # The random numbers of NumPy continue.
  data.data_utils = types.SimpleNamespace(numpy_seed=lambda *seed: contextlib.nullcontext())
  name = 'fairseq.data.denoising_dataset'
  dataset = archives.module('fairseq', '0.12.2', name, {'fairseq.data': data}).DenoisingDataset

  def corrupt(ids, words=None, **arguments):
    torch.manual_seed(0)
    np.random.seed(0)
    defaults = dict.fromkeys(('mask', 'mask_random', 'insert', 'rotate', 'permute_sentences'), 0.0)
    settings = {
      'bpe': None,
      'replace_length': 1,
      'mask_length': 'span-poisson',
      'poisson_lambda': 3.0,
    }
    args = argparse.Namespace(**defaults | settings | arguments)
    # It changes its texts in place.
    texts = [torch.tensor([0, *ids.tolist(), EOS]) for _ in range(DRAWS)]
    vocabulary = Vocabulary(range(BYTES.vocab_size))
    one = dataset(texts, None, vocabulary, MASK, words, False, 0, args)
    return [one[i]['source'][1:-1].numpy() for i in range(DRAWS)]

  return corrupt


def ours(noise, ids):
  return [noise(ids, BYTES, np.random.default_rng(seed)) for seed in range(DRAWS)]


def inserted(source):
  """The number of masks between two tokens that are neighbours in the text."""
  places = np.flatnonzero(source != MASK)
  tokens = source[places]
  return sum((np.diff(places) - 1)[np.diff(tokens) == 1])


MEASURES = {
  'tokens': len,
  'masks': lambda source: np.count_nonzero(source == MASK),
  'inserted': inserted,
}


@pytest.mark.parametrize('words', [False, True])
def test_infilled_texts_have_the_distribution_of_fairseq(fairseq, words, monkeypatch):
  """Numbers of tokens, masks, and masks that replace nothing; with whole words, a third of which has two tokens."""
  starts = np.ones(BYTES.vocab_size, bool)
  starts[61:160:3] = not words
  monkeypatch.setattr(type(BYTES), 'word_starts', lambda self, ids: starts[ids])
  theirs = fairseq(TEXT, torch.tensor(starts * 1) if words else None, mask=0.3)
  mine = ours(InfillSpans(rate=0.3, whole_word=words), TEXT)
  for name, measure in MEASURES.items():
    one, other = ([int(measure(source)) for source in sources] for sources in (mine, theirs))
    assert stats.ks_2samp(one, other).pvalue > 1e-3, name
    assert stats.ttest_ind(one, other).pvalue > 1e-3, name
  lengths = [
    np.diff(source[source != MASK]) for source in (np.concatenate(mine), np.concatenate(theirs))
  ]
  share = [np.bincount(one[one > 0], minlength=10)[:10] for one in lengths]
  assert stats.chi2_contingency(np.array(share)[:, 1:]).pvalue > 1e-3


@pytest.mark.parametrize('rate', [1.0, 0.5])
def test_sentences_have_the_orders_of_fairseq(fairseq, rate):
  ids = np.array([60, 61, EOS, EOS, 62, EOS, 63, 64], np.int32)
  theirs, mine = (
    collections.Counter(tuple(source.tolist()) for source in sources)
    for sources in (fairseq(ids, permute_sentences=rate), ours(PermuteSentences(rate=rate), ids))
  )
  assert mine.keys() == theirs.keys()
  table = [[counts[order] for order in mine] for counts in (mine, theirs)]
  assert stats.chi2_contingency(table).pvalue > 1e-3


def test_texts_begin_with_the_tokens_of_fairseq(fairseq):
  """fairseq leaves a text as it is twice as often as it rotates it to any other token; the paper draws all with equal
  probability, as here."""
  ids = TEXT[:5]
  theirs = collections.Counter(int(source[0]) for source in fairseq(ids, rotate=1.0))
  mine = collections.Counter(int(source[0]) for source in ours(RotateText(), ids))
  assert mine.keys() == theirs.keys() == set(ids.tolist())
  for counts, first in ((mine, 1 / 5), (theirs, 2 / 6)):
    expected = [DRAWS * first] + [DRAWS * (1 - first) / 4] * 4
    assert stats.chisquare([counts[int(i)] for i in ids], expected).pvalue > 1e-3


@pytest.fixture
def task(tmp_path):
  tiny_tasks.write_data(tmp_path)
  path = str(tmp_path / 'text.txt')
  task = Denoising(source=TextFiles(train=path, validation=path), tokenizer=Bytes(), length=24)
  return task.bound(task.fit_tokenizer())


def test_loss_and_gradients_equal_bart_of_transformers(
  task, compared, perturbed, imported, gradients, table
):
  """Of a batch of our corruptions whose sides have padding."""
  drawn = task.batches(task.rows('train'), batch_size=4, seed=0)[0]
  batch = {name: array.astype(np.int64) for name, array in drawn.items()}
  masks = {side: batch[f'{side}_segments'] for side in ('source', 'target')}
  assert (batch['source'] == MASK).any() and not masks['source'].all()
  sizes = {
    f'{side}_{name}': size
    for side in ('encoder', 'decoder')
    for name, size in (('layers', 2), ('attention_heads', 2), ('ffn_dim', 24))
  }
  config = transformers.BartConfig(
    vocab_size=264, d_model=16, max_position_embeddings=24, pad_token_id=0, dropout=0.0, **sizes
  )
  model = transformers.BartForConditionalGeneration(config)
  # t2x trains this bias, in transformers it is a buffer.
  bias = model.final_logits_bias
  del model.final_logits_bias
  model.final_logits_bias = torch.nn.Parameter(bias)
  perturbed(model, 0.1)
  shifted = np.concatenate([np.full((4, 1), BYTES.start_id), batch['target'][:, :-1]], axis=1)

  def theirs(model):
    return model(
      input_ids=torch.tensor(batch['source']),
      attention_mask=torch.tensor(masks['source']),
      decoder_input_ids=torch.tensor(shifted),
      labels=torch.tensor(np.where(masks['target'] == 1, batch['target'], -100)),
      use_cache=False,
    ).loss

  def mine(model):
    total, weight = task.sums(model, jax.tree.map(jnp.asarray, drawn), None).metrics['loss']
    return total / weight

  own = imported(model)
  task.check_model(own)
  compared(
    'BART denoising',
    'transformers',
    jax.jit(mine)(own),
    theirs(model).item(),
  )
  gradients('BART denoising', model, own, theirs, mine, vanishing=r'k_proj\.bias', tolerance=1e-5)
