"""Masks hide what they say, at the rates they say, and anew in each epoch."""

import collections

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from t2x.base.errors import UserError
from t2x.data import (
  Batches,
  Bytes,
  MaskTokens,
  NGrams,
  SentencePiece,
  SingleTokens,
  WholeWords,
  WordPiece,
)

BYTES = Bytes().train([])


def row(text, length):
  tokens = np.zeros(length, np.int32)
  ids = [BYTES.bos_id, *BYTES.encode(text), BYTES.eos_id][:length]
  tokens[: len(ids)] = ids
  return {'tokens': tokens, 'segments': (np.arange(length) < len(ids)).astype(np.int32)}


@given(
  st.text(alphabet='abc \n', max_size=60),
  st.integers(0, 99),
  st.sampled_from([SingleTokens(), WholeWords(), NGrams(max_length=3)]),
  st.floats(0.05, 1),
)
def test_masks_mark_the_hidden_tokens(text, seed, choose, rate):
  given_row = row(text, 48)
  places = int(np.ceil(rate * 48))
  mask = MaskTokens(tokenizer=BYTES, max_predictions=places, rate=rate, choose=choose)
  masked = mask(given_row, np.random.default_rng(seed))
  used = masked['weights'] > 0
  chosen, labels = masked['masked_positions'][used], masked['labels'][used]
  assert masked['masked_positions'].shape == masked['labels'].shape == (places,)
  assert masked['weights'].dtype == np.float32
  assert (np.diff(chosen) > 0).all()
  np.testing.assert_array_equal(given_row['tokens'][chosen], labels)
  assert not BYTES.special[labels].any()
  restored = masked['tokens'].copy()
  restored[chosen] = labels
  np.testing.assert_array_equal(restored, given_row['tokens'])
  assert not masked['masked_positions'][~used].any() and not masked['labels'][~used].any()


def test_rates_match_the_settings():
  mask = MaskTokens(tokenizer=BYTES, max_predictions=12)
  rows = [row('the quick brown fox ' * 10, 77) for _ in range(2000)]
  rng = np.random.default_rng(0)
  masked = [mask(r, rng) for r in rows]
  used = np.stack([m['weights'] for m in masked]) > 0
  assert used.sum() / (2000 * 76) == pytest.approx(0.15, abs=1e-3)
  labels = np.concatenate([m['labels'][m['weights'] > 0] for m in masked])
  seen = np.concatenate([m['tokens'][m['masked_positions'][m['weights'] > 0]] for m in masked])
  assert np.mean(seen == BYTES.mask_id) == pytest.approx(0.8, abs=0.01)
  # A random token is the right one by chance in 1 of 256 draws.
  assert np.mean(seen == labels) == pytest.approx(0.1 + 0.1 / 256, abs=0.01)


def test_every_place_is_chosen_equally_often():
  mask = MaskTokens(tokenizer=BYTES, max_predictions=6)
  counts = np.zeros(40)
  for seed in range(3000):
    masked = mask(row('x' * 60, 40), np.random.default_rng(seed))
    counts[masked['masked_positions'][masked['weights'] > 0]] += 1
  assert counts[0] == 0
  assert counts[1:].min() > 0.7 * counts[1:].mean()
  assert counts[1:].max() < 1.3 * counts[1:].mean()


def test_masks_differ_between_epochs():
  mask = MaskTokens(tokenizer=BYTES, max_predictions=8)
  batches = Batches([row('some words of text', 48)], mask, batch_size=1, seed=0)
  masks = {tuple(batches[step]['masked_positions'][0]) for step in range(10)}
  assert len(masks) > 5


@pytest.mark.parametrize('choose', [WholeWords(), NGrams()], ids=repr)
def test_whole_words_are_hidden_together(choose):
  mask = MaskTokens(
    tokenizer=BYTES, max_predictions=24, rate=0.4, mask_rate=1.0, random_rate=0.0, choose=choose
  )
  given_row = row('one three seven eleven fifteen twenty', 60)
  word = np.cumsum(BYTES.word_starts(given_row['tokens']))
  total = 0
  for seed in range(50):
    masked = mask(given_row, np.random.default_rng(seed))
    hidden = masked['tokens'] == BYTES.mask_id
    total += hidden.sum()
    for number in np.unique(word[hidden]):
      assert hidden[word == number].all()
  assert 0.25 < total / 50 / 37 <= 0.4


TEXT = 'unbelievable sentences are tokenized into pieces; segmentation of uncommon vocabulary is unavoidable '


@pytest.mark.parametrize('kind', [SentencePiece, WordPiece])
@pytest.mark.parametrize('choose', [WholeWords(), NGrams()], ids=repr)
def test_all_pieces_of_a_word_are_chosen_together_at_the_rate(kind, choose):
  tokenizer = kind(290 if kind is SentencePiece else 60).train([TEXT * 20])
  ids = np.array(tokenizer.encode(TEXT * 12))
  pieces = tokenizer.pieces(ids)
  # The published rule of each kind of tokenizer, from its printed pieces.
  starts = [
    p.startswith('\u2581') if kind is SentencePiece else not p.startswith('##') for p in pieces
  ]
  word = np.cumsum(starts)
  lengths = np.bincount(word)[word]
  assert lengths.max() >= 4
  given_row = {'tokens': ids.astype(np.int32), 'segments': np.ones(len(ids), np.int32)}
  mask = MaskTokens(tokenizer=tokenizer, max_predictions=len(ids), rate=0.15, choose=choose)
  counts = np.zeros(len(ids))
  for seed in range(200):
    masked = mask(given_row, np.random.default_rng(seed))
    chosen = np.zeros(len(ids), bool)
    chosen[masked['masked_positions'][masked['weights'] > 0]] = True
    assert (np.bincount(word, chosen) % np.bincount(word)[: word.max() + 1].clip(1) == 0).all()
    counts += chosen
  rates = counts / 200
  # Words that do not fit into what is left are skipped.
  assert 0.135 < rates.mean() <= 0.151
  short, long = (rates[lengths <= 4].mean(), rates[lengths > 4].mean())
  assert long > 0.75 * short


def test_ngrams_have_lengths_in_proportion_to_1_over_n_and_do_not_cross_gaps():
  # 3,000 words of one or two tokens with a gap after each 100; few are chosen, so that few n-grams touch.
  numbers = np.arange(3000) + np.arange(3000) // 100
  words = np.repeat(numbers, 1 + np.arange(3000) % 2)
  found = collections.Counter()
  for seed in range(60):
    chosen = NGrams()(words, 90, np.random.default_rng(seed))
    assert (np.diff(chosen) > 0).all()
    assert len(chosen) in (89, 90)
    runs = np.split(hit := np.unique(words[chosen]), np.flatnonzero(np.diff(hit) > 1) + 1)
    found.update(map(len, runs))
  shares = np.array([found[n] for n in (1, 2, 3)]) / found.total()
  np.testing.assert_allclose(shares, np.array([6, 3, 2]) / 11, atol=0.03)
  # Two words on either side of a gap are chosen together only as two draws of one word: 2/3 of all draws, 1/6
  # of the pairs.
  draws = [
    NGrams(max_length=2)(np.array([1, 2, 4, 5]), 2, np.random.default_rng(i)) for i in range(3000)
  ]
  assert np.mean([drawn.tolist() == [1, 2] for drawn in draws]) == pytest.approx(1 / 9, abs=0.025)
  # Without room for longer ones, and between gaps, n-grams are shortened.
  assert NGrams()(np.array([1, 3, 5]), 3, np.random.default_rng(0)).tolist() == [0, 1, 2]


def test_rates_out_of_range_are_errors():
  with pytest.raises(UserError, match=r'mask_rate = 0.95'):
    MaskTokens(tokenizer=BYTES, max_predictions=8, mask_rate=0.95)
