"""Spans are hidden as T5 hides them; the oracle follows its published code step by step."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from t2x.base.errors import UserError
from t2x.data import Batches, CorruptSpans

EOS, FIRST = 1, 9999


def t5_lengths(inputs_length, density, mean):
  """`random_spans_helper`: tokens of text and of the target for so many of the inputs."""

  def encoded(tokens):
    noise = round(tokens * density)
    sentinels, eos = round(noise / mean), 1
    return tokens - noise + sentinels + eos, noise + sentinels + eos

  # It adds tokens while the inputs have room for them, beginning where they have in any case.
  counts = itertools.count(inputs_length - 1)
  tokens = next(count for count in counts if encoded(count + 1)[0] > inputs_length)
  inputs, targets = encoded(tokens)
  if density == 0.5 and targets > inputs:
    return tokens - 1, targets - 1
  return tokens, targets


def t5_mask(length, density, mean, rng):
  """`random_spans_noise_mask`."""
  original, length = length, max(length, 2)
  noise = min(max(int(np.round(length * density)), 1), length - 1)
  spans = max(int(np.round(noise / mean)), 1)

  def segmentation(items, segments):
    first = np.pad(rng.permutation(np.arange(items - 1) < segments - 1), (1, 0))
    return np.bincount(np.cumsum(first))

  hidden, kept = segmentation(noise, spans), segmentation(length - noise, spans)
  starts = np.cumsum(np.stack([kept, hidden], 1).reshape(-1))[:-1]
  number = np.cumsum(np.bincount(starts, minlength=length))
  return (number % 2 == 1)[:original]


def t5_sentinels(tokens, mask, first):
  """`noise_span_to_unique_sentinel`."""
  before = np.pad(mask[:-1], (1, 0))
  starts, rest = mask & ~before, mask & before
  sentinel = first + 1 - np.cumsum(starts)
  return np.where(starts, sentinel, tokens)[~rest]


def corruption(source_length=48, **settings):
  return CorruptSpans(source_length=source_length, eos_id=EOS, first_sentinel=FIRST, **settings)


def row(length, padded=None):
  tokens = np.zeros(padded or length, np.int32)
  tokens[:length] = 10 + np.arange(length)
  return {'tokens': tokens, 'segments': (tokens > 0).astype(np.int32)}


# What T5's own code gave: source, rate, mean span -> text, target.
PUBLISHED = {
  (512, 0.15, 3.0): (568, 114),
  (64, 0.15, 3.0): (70, 14),
  (512, 0.15, 1.0): (511, 155),
  (512, 0.15, 8.0): (588, 100),
  (128, 0.3, 3.0): (159, 65),
  # At one half it takes one token off, but where the target is no longer than the source.
  (512, 0.5, 3.0): (766, 512),
  (511, 0.5, 3.0): (765, 510),
  (509, 0.5, 3.0): (762, 509),
  (512, 0.5, 32.0): (990, 512),
}


@pytest.mark.parametrize('settings', PUBLISHED)
def test_published_lengths(settings):
  source, rate, mean_span = settings
  made = corruption(source, rate=rate, mean_span=mean_span)
  assert (made.text_length, made.target_length) == PUBLISHED[settings]
  assert t5_lengths(*settings) == PUBLISHED[settings]


# From 48 tokens on it counts the span that is always hidden.
@pytest.mark.parametrize('mean', [1.2, 3.0, 8.0])
@pytest.mark.parametrize('density', [0.1, 0.15, 0.3, 0.5])
def test_lengths_match_t5_for_all_sources(density, mean):
  for source in range(48, 256):
    made = corruption(source, rate=density, mean_span=mean)
    assert (made.text_length, made.target_length) == t5_lengths(source, density, mean), source


RATES = st.floats(0.02, 0.98) | st.just(0.5)


@given(st.integers(3, 90), RATES, st.floats(1, 9), st.integers(0, 99), st.data())
def test_source_and_target_reassemble_the_text(source_length, rate, mean, seed, data):
  corrupt = corruption(source_length, rate=rate, mean_span=mean)
  length = data.draw(st.integers(1, corrupt.text_length))
  given_row = row(length, corrupt.text_length)
  out = corrupt(given_row, np.random.default_rng(seed))
  sides = [out[side][out[f'{side}_segments'] != 0].tolist() for side in ('source', 'target')]
  assert len(out['source']) == source_length and len(out['target']) == corrupt.target_length
  assert all(ids[-1] == EOS for ids in sides)
  spans, sentinel = {}, None
  for token in sides[1][:-1]:
    if token > FIRST - 100:
      sentinel = token
      spans[sentinel] = []
    else:
      spans[sentinel].append(token)
  assert list(spans) == [FIRST - i for i in range(len(spans))]
  assert len(spans) <= corrupt.num_spans
  whole = [t for token in sides[0][:-1] for t in spans.get(token, [token])]
  assert whole == given_row['tokens'][:length].tolist()


def test_a_full_row_has_no_padding_and_the_stated_rates():
  corrupt = corruption(512)
  out = corrupt(row(568), np.random.default_rng(0))
  assert out['source_segments'].all() and out['target_segments'].all()
  mask = corrupt.mask(568, np.random.default_rng(0))
  assert mask.sum() == 85 == round(0.15 * 568)
  assert (np.diff(mask.astype(int)) == 1).sum() == corrupt.num_spans == 28
  assert not mask[0] and mask[-1]


@pytest.mark.parametrize('length', [1, 2, 3, 7, 40, 70])
def test_marks_match_t5(length):
  corrupt = corruption(64)
  for seed in range(20):
    mask = corrupt.mask(length, np.random.default_rng(seed))
    out = corrupt(row(length, 70), np.random.default_rng(seed))
    for side, hidden in (('source', mask), ('target', ~mask)):
      expected = [*t5_sentinels(row(length)['tokens'], hidden, FIRST), EOS]
      np.testing.assert_array_equal(out[side][out[f'{side}_segments'] != 0], expected)


@pytest.mark.parametrize('length', [2, 24, 70])
def test_masks_are_spread_as_those_of_t5(length):
  rng, draws = np.random.default_rng(0), 4000
  ours = np.stack([corruption(64).mask(length, rng) for _ in range(draws)])
  theirs = np.stack([t5_mask(length, 0.15, 3.0, rng) for _ in range(draws)])
  np.testing.assert_array_equal(ours.sum(1), theirs.sum(1))
  # Five standard errors of the difference of two means of draws.
  np.testing.assert_allclose(ours.mean(0), theirs.mean(0), atol=5 * np.sqrt(0.5 / draws))
  pairs = [(m[:, 1:] & m[:, :-1]).mean(0) for m in (ours, theirs)]
  np.testing.assert_allclose(*pairs, atol=5 * np.sqrt(0.5 / draws))


def test_gaps_are_a_function_of_seed_epoch_and_row():
  rows = [row(70)]
  made = [Batches(rows, corruption(64), batch_size=1, seed=0) for _ in range(2)]
  sources = [made[0][step]['source'] for step in range(8)]
  np.testing.assert_array_equal(sources, [made[1][step]['source'] for step in range(8)])
  assert len({source.tobytes() for source in sources}) > 4
  assert made[0].fingerprint == made[1].fingerprint


@pytest.mark.parametrize(
  'settings', [{'source_length': 2}, {'rate': 0.0}, {'rate': 1.0}, {'mean_span': 0.5}]
)
def test_rates_that_hide_nothing_are_refused(settings):
  with pytest.raises(UserError, match='rate'):
    corruption(**settings)
