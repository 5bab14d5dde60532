"""Masks hide what they say, at the rates they say, and anew in each epoch."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from t2x.base.errors import UserError
from t2x.data import Batches, Bytes, MaskTokens

BYTES = Bytes().train([])


def row(text, length):
  tokens = np.zeros(length, np.int32)
  ids = [BYTES.bos_id, *BYTES.encode(text), BYTES.eos_id][:length]
  tokens[: len(ids)] = ids
  return {'tokens': tokens, 'segments': (np.arange(length) < len(ids)).astype(np.int32)}


@given(
  st.text(alphabet='abc \n', max_size=60), st.integers(0, 99), st.booleans(), st.floats(0.05, 1)
)
def test_masks_mark_the_hidden_tokens(text, seed, whole_word, rate):
  given_row = row(text, 48)
  places = int(np.ceil(rate * 48))
  mask = MaskTokens(tokenizer=BYTES, max_predictions=places, rate=rate, whole_word=whole_word)
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


def test_whole_words_are_hidden_together():
  mask = MaskTokens(
    tokenizer=BYTES, max_predictions=24, rate=0.4, mask_rate=1.0, random_rate=0.0, whole_word=True
  )
  given_row = row('one three seven eleven fifteen twenty', 60)
  starts = BYTES.word_starts(given_row['tokens'])
  word = np.cumsum(starts)
  total = 0
  for seed in range(50):
    masked = mask(given_row, np.random.default_rng(seed))
    hidden = masked['tokens'] == BYTES.mask_id
    total += hidden.sum()
    for number in np.unique(word[hidden]):
      assert hidden[word == number].all()
  assert 0.25 < total / 50 / 37 <= 0.4


def test_rates_out_of_range_are_errors():
  with pytest.raises(UserError, match=r'mask_rate = 0.95'):
    MaskTokens(tokenizer=BYTES, max_predictions=8, mask_rate=0.95)
