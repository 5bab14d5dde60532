"""Corruptions of texts: rates, distributions, and what stays of a text."""

import collections
import math

import numpy as np
import pytest

from t2x.base.errors import UserError
from t2x.data import (
  Bytes,
  CorruptText,
  DeleteTokens,
  InfillSpans,
  PermuteSentences,
  ReplaceByMasks,
  ReplaceTokens,
  RotateText,
  ShuffleTokens,
)

BYTES = Bytes().train([])
MASK, EOS = BYTES.mask_id, BYTES.eos_id
# Tokens that are all different, so that each is known by its id.
TEXT = np.arange(100, 200, dtype=np.int32)


def drawn(noise, times, ids=TEXT):
  return [noise(ids, BYTES, np.random.default_rng(seed)) for seed in range(times)]


def test_lengths_of_spans_are_poisson_and_add_up_to_the_rate():
  infill = InfillSpans()
  spans = [infill.lengths(1000, np.random.default_rng(seed)) for seed in range(200)]
  assert {one.sum() for one in spans} == {300}
  # The last one is shortened.
  lengths = np.concatenate([one[:-1] for one in spans])
  count = len(lengths)
  assert abs(lengths.mean() - 3) < 5 * np.sqrt(3 / count) + 3 / 100
  for n in range(8):
    p = math.exp(-3) * 3**n / math.factorial(n)
    assert abs((lengths == n).mean() - p) < 5 * np.sqrt(p / count) + 0.002
  assert infill.lengths(3, np.random.default_rng(0)).sum() == 1


def test_infilled_spans_are_one_mask_each_and_those_of_length_zero_remove_nothing():
  masks, inserted = [], 0
  for seed, source in enumerate(drawn(InfillSpans(), 300)):
    lengths = InfillSpans().lengths(len(TEXT), np.random.default_rng(seed))
    tokens = source[source != MASK]
    assert (np.diff(tokens) > 0).all()
    # Spans that overlap, or start near the end, remove fewer tokens and share a mask.
    assert len(tokens) >= len(TEXT) - 30
    masks.append(np.count_nonzero(source == MASK))
    assert np.count_nonzero(lengths == 0) < masks[-1] <= len(lengths)
    # A mask between neighbours of the text was inserted.
    inserted += sum(
      1 for a, b, c in zip(source, source[1:], source[2:], strict=False) if b == MASK and c == a + 1
    )
  assert 0.7 * 300 < inserted / (10 * math.exp(-3)) < 1.2 * 300


def test_a_span_of_one_word_hides_all_of_its_tokens():
  text = np.array(BYTES.encode('one three five seven nine'), np.int32)
  words = ['one', 'three', 'five', 'seven', 'nine']
  infill = InfillSpans(rate=0.2, mean_span=1.0, whole_word=True)
  seen = set()
  for source in drawn(infill, 100, text):
    pieces = BYTES.decode(source[source != MASK].tolist()).split()
    assert collections.Counter(pieces) <= collections.Counter(words)
    seen.add(len(pieces))
  assert seen == {4}


@pytest.mark.parametrize(('noise', 'removed'), [(ReplaceByMasks(), False), (DeleteTokens(), True)])
def test_single_tokens_are_chosen_at_the_rate_with_equal_probability(noise, removed):
  counts = collections.Counter()
  for source in drawn(noise, 2000):
    chosen = set(TEXT) - set(source)
    assert len(chosen) == 15
    counts.update(chosen)
    tokens = source if removed else source[source != MASK]
    np.testing.assert_array_equal(tokens, [i for i in TEXT if i not in chosen])
    assert len(source) == 100 - 15 * removed
  assert max(abs(counts[i] - 300) for i in TEXT) < 5 * np.sqrt(2000 * 0.15 * 0.85)


def test_sentences_are_shuffled_as_units_in_all_orders():
  text = np.array([*BYTES.encode('a1. b2?! c3'), EOS, *BYTES.encode('d')], np.int32)
  sentences = ['a1.', ' b2?', '! c3', 'd']
  orders = collections.Counter()
  for source in drawn(PermuteSentences(), 2400, text):
    parts = BYTES.decode([ord('|') + 5 if i == EOS else i for i in source.tolist()])
    order = sorted(range(4), key=lambda i: parts.index(sentences[i]))
    assert parts == ''.join(sentences[i] + '|' * (i == 2) for i in order)
    orders[tuple(order)] += 1
  assert len(orders) == 24
  assert max(abs(n - 100) for n in orders.values()) < 5 * np.sqrt(100)


def test_only_the_chosen_sentences_move():
  text = np.array(BYTES.encode('0.1.2.3.4.5.6.7.8.9.'), np.int32)
  moved = [
    sum(a != b for a, b in zip(BYTES.decode(source.tolist())[::2], '0123456789', strict=True))
    for source in drawn(PermuteSentences(rate=0.25), 500, text)
  ]
  # Three sentences, rounded up, of which each stays with probability 1/3.
  assert max(moved) == 3 and abs(np.mean(moved) - 2) < 0.2


def test_texts_are_rotated_to_begin_with_any_token():
  first = collections.Counter()
  for source in drawn(RotateText(), 3000, TEXT[:10]):
    np.testing.assert_array_equal(np.roll(source, source[0] - 100), TEXT[:10])
    first[int(source[0])] += 1
  assert max(abs(first[i] - 300) for i in range(100, 110)) < 5 * np.sqrt(300)
  same = sum(source[0] == 100 for source in drawn(RotateText(rate=0.5), 1000, TEXT[:10]))
  assert abs(same - 550) < 5 * np.sqrt(1000 * 0.55 * 0.45)


def test_corruptions_combine_in_order_and_the_target_is_the_text():
  row = {'tokens': np.append(TEXT[:20], [0, 0]), 'segments': np.append(np.ones(20), [0, 0])}
  corrupt = CorruptText(tokenizer=BYTES, noise=(DeleteTokens(), ReplaceByMasks()), length=23)
  result = corrupt(row, np.random.default_rng(0))
  np.testing.assert_array_equal(result['target'], [*TEXT[:20], EOS, 0, 0])
  np.testing.assert_array_equal(result['target_segments'], [1] * 21 + [0] * 2)
  # 15 % of 20 tokens are deleted, then 15 % of 17, rounded up, are masked.
  source = result['source']
  assert np.count_nonzero(source == MASK) == 3
  np.testing.assert_array_equal(source[17:], [EOS, 0, 0, 0, 0, 0])
  np.testing.assert_array_equal(result['source_segments'], [1] * 18 + [0] * 5)
  assert all(array.dtype == np.int32 for array in result.values())
  other = CorruptText(tokenizer=BYTES, noise=(ReplaceByMasks(), DeleteTokens()), length=23)
  assert np.count_nonzero(other(row, np.random.default_rng(0))['source'] == MASK) <= 3


def test_an_empty_text_is_only_its_end():
  row = {'tokens': np.zeros(4, np.int32), 'segments': np.zeros(4, np.int32)}
  noise = (PermuteSentences(), InfillSpans(), DeleteTokens(), ReplaceByMasks(), RotateText())
  result = CorruptText(tokenizer=BYTES, noise=noise, length=5)(row, np.random.default_rng(0))
  np.testing.assert_array_equal(result['source'], [EOS, 0, 0, 0, 0])


def test_sentence_ends_that_no_token_has_are_an_error():
  with pytest.raises(UserError, match=r'contains one of PermuteSentences\.ends'):
    PermuteSentences(ends=('<end>',))(TEXT, BYTES, np.random.default_rng(0))


def test_replaced_tokens_are_others_and_not_special():
  special = BYTES.special
  counts = collections.Counter()
  for source in drawn(ReplaceTokens(), 1000):
    changed = source != TEXT
    assert changed.sum() == 15
    assert not special[source].any()
    counts.update(source[changed].tolist())
  assert len(counts) == np.count_nonzero(~special)
  share = 15000 / len(counts)
  assert max(abs(n - share) for n in counts.values()) < 6 * np.sqrt(share)


def test_shuffled_tokens_are_those_of_the_text_at_any_of_their_places():
  for noise, moving in ((ShuffleTokens(), 100), (ShuffleTokens(rate=0.2), 20)):
    moved = []
    for source in drawn(noise, 300):
      np.testing.assert_array_equal(np.sort(source), TEXT)
      moved.append(np.count_nonzero(source != TEXT))
    assert max(moved) <= moving
    # Of a random permutation one element stays on average.
    assert abs(np.mean(moved) - (moving - 1)) < 0.4
