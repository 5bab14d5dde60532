"""Processors and filters against transformers' classes, on random logits and histories."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t2x.decode import (
  ForceFirst,
  ForceLast,
  GeneratedOnly,
  MinLength,
  MinNewTokens,
  NoRepeatNGram,
  RepetitionPenalty,
  Request,
  Sampling,
  SuppressTokens,
)

torch = pytest.importorskip('torch', reason="the extra 'references' is not installed")
theirs = pytest.importorskip('transformers.generation.logits_process')

BATCH, COPIES, WIDTH, ROOM, VOCAB = 5, 3, 6, 7, 11
EOS, PAD = 1, 0

# t2x processors, and a builder of transformers processors from the padding of each row.
CASES = {
  'repetition': (
    [RepetitionPenalty(1.3)],
    lambda padding: [theirs.RepetitionPenaltyLogitsProcessor(1.3, padding)],
  ),
  'repetition wanted': (
    [RepetitionPenalty(0.6)],
    lambda padding: [theirs.RepetitionPenaltyLogitsProcessor(0.6, padding)],
  ),
  'repetition without prompt': (
    [GeneratedOnly(RepetitionPenalty(1.3))],
    lambda padding: [theirs.RepetitionPenaltyLogitsProcessor(1.3, WIDTH)],
  ),
  'bigrams': ([NoRepeatNGram(2)], lambda padding: [theirs.NoRepeatNGramLogitsProcessor(2)]),
  'trigrams': ([NoRepeatNGram(3)], lambda padding: [theirs.NoRepeatNGramLogitsProcessor(3)]),
  'longer than all': ([NoRepeatNGram(99)], lambda padding: []),
  'new tokens': (
    [MinNewTokens(4)],
    lambda padding: [theirs.MinNewTokensLengthLogitsProcessor(WIDTH, 4, EOS)],
  ),
  'last': (
    [ForceLast()],
    lambda padding: [theirs.ForcedEOSTokenLogitsProcessor(WIDTH + ROOM, EOS)],
  ),
  'suppressed': (
    [SuppressTokens([2, 7])],
    lambda padding: [theirs.SuppressTokensLogitsProcessor([2, 7])],
  ),
  'all': (
    [RepetitionPenalty(1.2), NoRepeatNGram(2), MinNewTokens(3), ForceLast(), SuppressTokens([5])],
    lambda padding: [
      theirs.RepetitionPenaltyLogitsProcessor(1.2, padding),
      theirs.NoRepeatNGramLogitsProcessor(2),
      theirs.MinNewTokensLengthLogitsProcessor(WIDTH, 3, EOS),
      theirs.ForcedEOSTokenLogitsProcessor(WIDTH + ROOM, EOS),
      theirs.SuppressTokensLogitsProcessor([5]),
    ],
  ),
}
# transformers differs for padded prompts, or prompts of more than one token.
UNPADDED = {
  'unigrams': ([NoRepeatNGram(1)], lambda width: [theirs.NoRepeatNGramLogitsProcessor(1)]),
  'length': ([MinLength(9)], lambda width: [theirs.MinLengthLogitsProcessor(9, EOS)]),
  'first': ([ForceFirst([4])], lambda width: [theirs.ForcedBOSTokenLogitsProcessor(4)]),
}
FILTERS = {
  'no filter': ({}, list),
  'temperature': ({'temperature': 0.7}, lambda: [theirs.TemperatureLogitsWarper(0.7)]),
  'top-k': ({'top_k': 4}, lambda: [theirs.TopKLogitsWarper(4)]),
  'top-p': ({'top_p': 0.8}, lambda: [theirs.TopPLogitsWarper(0.8)]),
  'all filters': (
    {'temperature': 1.6, 'top_k': 6, 'top_p': 0.7},
    lambda: [
      theirs.TemperatureLogitsWarper(1.6),
      theirs.TopKLogitsWarper(6),
      theirs.TopPLogitsWarper(0.7),
    ],
  ),
}


def filtered(strategy, prompts, lengths, written, logits, step):
  """Returns the probabilities after the processors and filters of a strategy."""
  limits = jnp.full(len(prompts), ROOM)
  request = Request(prompts, lengths, limits, None, written.shape[1], ROOM, (EOS,), PAD)
  return jax.nn.softmax(strategy.filter(strategy.process(logits, written, step, request)))


filtered = jax.jit(filtered, static_argnums=0)


def assert_same_distributions(strategy, build, width, padded):
  """Compares all steps of histories in which a few tokens recur."""
  rng = np.random.default_rng(0)
  for seed in range(5):
    lengths = rng.integers(1, width + 1, BATCH) if padded else np.full(BATCH, width)
    prompts = rng.integers(2, 6, (BATCH, width))
    prompts = np.where(np.arange(width) < width - lengths[:, None], PAD, prompts)
    for step in range(ROOM):
      written = rng.integers(2, 6, (BATCH, COPIES, ROOM))
      logits = rng.normal(size=(BATCH, COPIES, VOCAB)).astype(np.float32) * 2
      arrays = map(jnp.asarray, (prompts, lengths, written, logits))
      ours = np.asarray(filtered(strategy, *arrays, jnp.int32(step)))

      rows = np.repeat(prompts, COPIES, axis=0)
      ids = np.concatenate([rows, written.reshape(-1, ROOM)[:, :step]], axis=1)
      padding = torch.tensor(np.repeat(width - lengths, COPIES))
      scores = torch.tensor(logits.reshape(-1, VOCAB))
      processors = theirs.LogitsProcessorList(build(padding if padded else width))
      expected = processors(torch.tensor(ids), scores).softmax(-1).numpy().reshape(ours.shape)
      np.testing.assert_array_equal(ours > 0, expected > 0, err_msg=f'{seed} {step}')
      np.testing.assert_allclose(ours, expected, atol=1e-6)


@pytest.mark.parametrize('case', CASES)
def test_processors_give_their_distribution(case):
  ours, build = CASES[case]
  assert_same_distributions(Sampling(processors=ours), build, WIDTH, padded=True)


@pytest.mark.parametrize('case', UNPADDED)
def test_processors_give_their_distribution_behind_prompts_of_one_length(case):
  ours, build = UNPADDED[case]
  width = 1 if case == 'first' else WIDTH
  assert_same_distributions(Sampling(processors=ours), build, width, padded=False)


@pytest.mark.parametrize('name', FILTERS)
def test_filters_give_their_distribution(name):
  settings, build = FILTERS[name]
  assert_same_distributions(Sampling(**settings), lambda padding: build(), WIDTH, padded=True)


def test_filters_behind_processors_give_their_distribution():
  (processors, before), (settings, build) = CASES['all'], FILTERS['all filters']
  assert_same_distributions(
    Sampling(processors=processors, **settings),
    lambda padding: [*before(padding), *build()],
    WIDTH,
    padded=True,
  )
