"""Properties of complete sequences that processors guarantee, for every strategy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from history_model import history_model

from t2x.base.errors import UserError
from t2x.decode import (
  Beam,
  ForceFirst,
  ForceLast,
  GeneratedOnly,
  Greedy,
  MinLength,
  MinNewTokens,
  NoRepeatNGram,
  RepetitionPenalty,
  SuppressTokens,
  generate,
)
from t2x.decode.processors import History

EOS, PAD, ROOM = 1, 0, 9
PROMPTS = [[2, 3, 4], [3], [4, 4, 2, 3, 2], [2, 2]]
STRATEGIES = [Greedy, Beam]


def run(strategy, prompts=PROMPTS, model=None, **kwargs):
  """Returns the generated tokens of each prompt, up to the end."""
  ids = np.full((len(prompts), 5), PAD, np.int32)
  for row, prompt in zip(ids, prompts, strict=True):
    row[: len(prompt)] = prompt
  lengths = np.array([len(prompt) for prompt in prompts])
  kwargs = {'max_new_tokens': ROOM, 'eos_id': EOS, 'key': jax.random.key(3)} | kwargs
  model = model or history_model(vocab=7, seed=2, scale=1.0)
  generated = generate(model, ids, lengths, strategy=strategy, pad_id=PAD, **kwargs)
  tokens, ends = np.asarray(generated.tokens)[:, 0], np.asarray(generated.lengths)[:, 0]
  return [row[:n].tolist() for row, n in zip(tokens, ends, strict=True)]


def grams(tokens, size):
  return [tuple(tokens[i : i + size]) for i in range(len(tokens) - size + 1)]


@pytest.mark.parametrize('strategy', STRATEGIES)
def test_no_ngram_is_repeated(strategy):
  for bound in ((), [NoRepeatNGram(2)]):
    written = run(strategy(processors=bound), model=history_model(vocab=5), eos_id=None)
    pairs = [grams(p + t, 2) for p, t in zip(PROMPTS, written, strict=True)]
    assert all(len(set(some)) == len(some) for some in pairs) == bool(bound)


def test_ngrams_of_a_hidden_prompt_may_come_again():
  only_two, bigrams = SuppressTokens([0, 1, 3, 4, 5, 6]), NoRepeatNGram(2)
  for bound, token in ((bigrams, [0]), (GeneratedOnly(bigrams), [2])):
    assert run(Greedy(processors=[only_two, bound]), [[2, 2]], max_new_tokens=1) == [token]


@pytest.mark.parametrize('strategy', STRATEGIES)
def test_no_sequence_ends_too_early(strategy):
  model = history_model(vocab=4, seed=2, scale=1.0)

  def shortest(prompt_counts, bound):
    written = run(strategy(processors=bound), model=model)
    return min(
      len(t) - (t[-1] == EOS) + prompt_counts * len(p)
      for p, t in zip(PROMPTS, written, strict=True)
    )

  assert shortest(False, []) < 5 <= shortest(False, [MinNewTokens(5)])
  assert shortest(True, [MinLength(8)]) >= 8


@pytest.mark.parametrize('strategy', STRATEGIES)
def test_forced_tokens_are_first_and_last(strategy):
  tokens = run(
    strategy(processors=[MinNewTokens(7), ForceFirst([6, 5]), ForceLast()]), max_length=12
  )
  assert all(t[:2] == [6, 5] for t in tokens)
  limits = [min(ROOM, 12 - len(prompt)) for prompt in PROMPTS]
  assert all(t[-1] == EOS for t, limit in zip(tokens, limits, strict=True) if len(t) == limit)
  assert any(len(t) == limit for t, limit in zip(tokens, limits, strict=True))


@pytest.mark.parametrize('strategy', STRATEGIES)
def test_suppressed_tokens_are_never_generated(strategy):
  assert not {2, 4} & {i for t in run(strategy(processors=[SuppressTokens([2, 4])])) for i in t}


@pytest.mark.parametrize('processor', [SuppressTokens, ForceFirst])
def test_tokens_that_the_model_does_not_have_are_refused(processor):
  with pytest.raises(UserError, match=r'\.tokens contains 99999, but token ids must be from 0 to'):
    run(Greedy(processors=[processor([2, 99999])]))


def test_a_penalty_divides_positive_and_multiplies_negative_scores_of_the_history():
  tokens, mask = jnp.array([[[3, 0, 1, 2]]]), jnp.array([[False, True, True, False]])
  history = History(tokens, mask, 3, jnp.array(0), jnp.array([1]), (EOS,))
  scores = RepetitionPenalty(2.0)(jnp.array([[[3.0, -3.0, 3.0, -3.0]]]), history)
  np.testing.assert_array_equal(scores, [[[1.5, -6.0, 3.0, -3.0]]])


def test_a_penalty_makes_repetition_rarer():
  def different(penalty):
    tokens = run(Greedy(processors=[RepetitionPenalty(penalty)]), eos_id=None)
    return sum(len(set(p + t)) for p, t in zip(PROMPTS, tokens, strict=True))

  assert different(0.3) < different(1.0) < different(3.0)


def test_forcing_an_end_that_there_is_not_is_an_error():
  with pytest.raises(UserError, match='eos_id = None'):
    run(Greedy(processors=[ForceLast()]), eos_id=None)


@pytest.mark.parametrize(
  ('build', 'message'),
  [
    (lambda: RepetitionPenalty(0.0), 'RepetitionPenalty.penalty = 0.0'),
    (lambda: NoRepeatNGram(0), 'NoRepeatNGram.size = 0'),
    (lambda: ForceFirst([]), 'ForceFirst.tokens must not be empty'),
  ],
)
def test_settings_without_meaning_are_errors(build, message):
  with pytest.raises(UserError, match=message):
    build()
