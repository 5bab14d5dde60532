"""Filters against NumPy, and frequencies of samples against their distribution."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from history_model import history_model, log_probs_after

from t2x.base.errors import UserError
from t2x.decode import Greedy, Processor, Sampling, SuppressTokens, generate
from t2x.decode.sampling import _keys, prompt_keys

SETTINGS = [
  Sampling(),
  Sampling(temperature=0.7),
  Sampling(top_k=3),
  Sampling(top_p=0.6),
  Sampling(temperature=1.8, top_k=5, top_p=0.8),
  Sampling(top_k=100, top_p=1.0),
]


def oracle(logits, sampling):
  """Returns the sampled distribution of one row, in NumPy float64."""
  probs = np.exp(np.asarray(logits, np.float64) / sampling.temperature)
  order = np.argsort(-probs, kind='stable')
  if sampling.top_k is not None:
    probs[order[sampling.top_k :]] = 0
  probs /= probs.sum()
  if sampling.top_p is not None:
    needed = 1 + int(np.searchsorted(np.cumsum(probs[order]), sampling.top_p - 1e-9))
    probs[order[needed:]] = 0
  return probs / probs.sum()


@pytest.mark.parametrize('sampling', SETTINGS, ids=str)
def test_filtered_distribution_is_numpys(sampling):
  logits = np.random.default_rng(0).normal(size=(20, 9)).astype(np.float32) * 2
  got = jax.nn.softmax(sampling.filter(jnp.asarray(logits)), axis=-1)
  expected = np.stack([oracle(row, sampling) for row in logits])
  np.testing.assert_array_equal(np.asarray(got) > 0, expected > 0)
  np.testing.assert_allclose(got, expected, atol=1e-6)


def test_a_tiny_nucleus_keeps_the_most_probable_token():
  logits = jnp.array([[0.0, 3.0, 1.0]])
  assert np.isfinite(Sampling(top_p=1e-6).filter(logits)).tolist() == [[False, True, False]]


def draw(model, sampling, key, num_return=500, rows=8, **kwargs):
  prompts = np.full((rows, 2), 3, np.int32)
  kwargs = {'max_new_tokens': 2, 'eos_id': None, 'pad_id': 0} | kwargs
  return generate(
    model,
    prompts,
    np.full(rows, 2),
    strategy=sampling,
    num_return=num_return,
    key=jax.random.key(key),
    **kwargs,
  )


@pytest.mark.parametrize('sampling', [Sampling(), Sampling(0.8, top_k=4, top_p=0.9)], ids=str)
def test_frequencies_follow_the_distribution(sampling):
  model = history_model(vocab=6, seed=4, scale=1.0)
  tokens = np.asarray(draw(model, sampling, key=11).tokens).reshape(-1, 2)
  first = oracle(log_probs_after(model, [3, 3]), sampling)
  second = [oracle(log_probs_after(model, [3, 3, token]), sampling) for token in range(6)]
  expected = first[:, None] * np.stack(second) * len(tokens)
  counts = np.zeros((6, 6))
  np.add.at(counts, (tokens[:, 0], tokens[:, 1]), 1)
  possible = expected > 0
  assert counts[~possible].sum() == 0
  chi_square = ((counts - expected)[possible] ** 2 / expected[possible]).sum()
  freedom = possible.sum() - 1
  # Mean `freedom`, variance 2 * freedom: four standard deviations above is beyond chance.
  assert chi_square < freedom + 4 * np.sqrt(2 * freedom)


def test_log_probabilities_are_of_the_unfiltered_model():
  model = history_model(vocab=6, seed=4)
  generated = draw(model, Sampling(0.5, top_k=2), key=0, num_return=3, rows=2)
  for b in range(2):
    for r in range(3):
      first, second = generated.tokens[b, r].tolist()
      by_hand = [
        log_probs_after(model, [3, 3])[first],
        log_probs_after(model, [3, 3, first])[second],
      ]
      np.testing.assert_allclose(generated.log_probs[b, r], by_hand, rtol=1e-4)


def test_same_key_same_sequences_and_another_key_others():
  model = history_model(vocab=6, scale=0.3)
  settings = {'num_return': 4, 'rows': 3, 'max_new_tokens': 6}
  once, again, other = (draw(model, Sampling(), key, **settings) for key in (5, 5, 6))
  np.testing.assert_array_equal(once.tokens, again.tokens)
  assert (np.asarray(once.tokens) != np.asarray(other.tokens)).any()
  # Rows and copies are sampled independently.
  assert len({tuple(t) for t in np.asarray(once.tokens).reshape(12, 6).tolist()}) == 12


def test_samples_of_a_row_do_not_depend_on_the_other_rows():
  model = history_model(vocab=6)
  many = draw(model, Sampling(), 5, num_return=4, rows=3, max_new_tokens=6)
  few = draw(model, Sampling(), 5, num_return=2, rows=1, max_new_tokens=6)
  np.testing.assert_array_equal(many.tokens[:1, :2], few.tokens)


@pytest.mark.parametrize(
  'bad',
  [
    {'temperature': 0.0},
    {'temperature': -1.0},
    {'temperature': 1e-300},
    {'temperature': 1e300},
    {'top_k': 0},
    {'top_p': 0.0},
    {'top_p': 1.1},
  ],
)
def test_settings_without_meaning_are_errors(bad):
  with pytest.raises(UserError, match='Sampling.' + next(iter(bad))):
    Sampling(**bad)


@dataclasses.dataclass(frozen=True)
class Halved(Processor):
  """Halves the scores of all tokens."""

  def __call__(self, scores, history):
    return scores / 2


@pytest.mark.parametrize('strategy', [Greedy, Sampling])
def test_log_probabilities_are_of_the_model_without_processors(strategy):
  """The two likeliest tokens after the prompt are forbidden."""
  model = history_model(vocab=6, seed=4)
  forbidden = np.argsort(log_probs_after(model, [3, 3]))[-2:].tolist()
  processors = [SuppressTokens(forbidden), Halved()]
  generated = draw(model, strategy(processors=processors), key=0, num_return=1, rows=2)
  for b in range(2):
    first, second = generated.tokens[b, 0].tolist()
    assert first not in forbidden
    by_hand = [
      log_probs_after(model, [3, 3])[first],
      log_probs_after(model, [3, 3, first])[second],
    ]
    np.testing.assert_allclose(generated.log_probs[b, 0], by_hand, rtol=1e-4)
    np.testing.assert_allclose(generated.sum_log_probs[b, 0], sum(by_hand), rtol=1e-4)


def test_the_key_of_a_prompt_depends_on_the_seed_and_its_number_only():
  def data(keys):
    return jax.random.key_data(keys).tolist()

  whole = data(prompt_keys(3, 6))
  assert data(prompt_keys((3, 2), 4)) == whole[2:]
  assert data(prompt_keys((3, [5, 1]), 2)) == [whole[5], whole[1]]
  others = data(prompt_keys(4, 6)) + data(prompt_keys((3, 6), 6))
  assert len({tuple(key) for key in whole + others}) == 18
  # A key for all prompts gives each that of its number.
  assert data(_keys(jax.random.key(3), 6, 2)) == data(_keys(prompt_keys(3, 6), 6, 2))
