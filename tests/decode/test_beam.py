"""Beam search against exhaustive search."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from history_model import (
  HistoryModel,
  all_sequences,
  greedy_by_hand,
  history_model,
  log_probs_after,
  row_of,
)

from t2x.base.errors import UserError
from t2x.decode import (
  GNMT,
  AtCurrentLength,
  AverageLength,
  Beam,
  Greedy,
  RepetitionPenalty,
  SuppressTokens,
  WhenCertain,
  WhenFull,
  generate,
)

EOS, PAD = 1, 0
PENALTIES = [GNMT(0.0), GNMT(), GNMT(2.0), GNMT(-1.0), AverageLength(), AverageLength(1.7)]
PROMPTS = [[2], [2, 0, 2], [0, 0], [0, 2, 2, 2]]


def run(model, prompts, strategy, limit, **kwargs):
  ids = np.full((len(prompts), 4), PAD, np.int32)
  for row, prompt in zip(ids, prompts, strict=True):
    row[: len(prompt)] = prompt
  lengths = np.array([len(p) for p in prompts])
  return generate(
    model,
    ids,
    lengths,
    max_new_tokens=limit,
    strategy=strategy,
    eos_id=EOS,
    pad_id=PAD,
    **kwargs,
  )


def divisor(penalty, length):
  if isinstance(penalty, GNMT):
    return ((5 + length) / 6) ** penalty.alpha
  return length**penalty.power


@pytest.mark.parametrize('penalty', [GNMT(), GNMT(-1.0), AverageLength(1.7)], ids=str)
def test_a_beam_wide_enough_finds_the_best_sequences(penalty):
  # 31 sequences end within 3 tokens or have 4 tokens: 40 beams cover all of them.
  model = history_model(vocab=3, seed=7, scale=1.0)
  generated = run(model, PROMPTS, Beam(40, penalty), 4, num_return=5)
  for b, prompt in enumerate(PROMPTS):
    ranked = sorted(
      ((total / divisor(penalty, len(s)), s) for s, total in all_sequences(model, prompt, 4, EOS)),
      reverse=True,
    )
    for r, (score, tokens) in enumerate(ranked[:5]):
      assert generated.tokens[b, r, : generated.lengths[b, r]].tolist() == tokens
      np.testing.assert_allclose(generated.scores[b, r], score, rtol=1e-4)


class Tireless(Beam):
  """A beam search that always continues to the limit."""

  def _done(self, beams, pool, request):
    return pool.scores[:, 0] > 1


@pytest.mark.parametrize('penalty', [GNMT(), AverageLength()], ids=str)
def test_stopping_early_loses_nothing(penalty):
  for seed in range(3):
    model = history_model(vocab=4, seed=seed, scale=1.5)
    stopped = run(model, PROMPTS, Beam(3, penalty), 8, num_return=3)
    searched = run(model, PROMPTS, Tireless(3, penalty), 8, num_return=3)
    np.testing.assert_array_equal(stopped.tokens, searched.tokens)
    np.testing.assert_array_equal(stopped.scores, searched.scores)


def test_stopping_sooner_is_faster_and_not_better():
  steps, best = [], []
  for stopping in (WhenFull(), AtCurrentLength(), WhenCertain()):
    passes = []
    model = history_model(vocab=5, seed=3, seen=passes.append)
    generated = run(model, PROMPTS, Beam(3, AverageLength(), stopping), 20, num_return=3)
    jax.effects_barrier()
    steps.append(len(passes))
    best.append(np.asarray(generated.scores))
  assert steps[0] < steps[1] < steps[2]
  assert (best[0] <= best[1]).all() and (best[1] <= best[2]).all()
  assert (best[0] < best[2]).any()


@pytest.mark.parametrize('penalty', [GNMT(), AverageLength()], ids=str)
def test_width_one_is_greedy(penalty):
  for seed in range(3):
    model = history_model(vocab=5, seed=seed, scale=0.5)
    beam = run(model, PROMPTS, Beam(1, penalty), 9)
    greedy = run(model, PROMPTS, Greedy(), 9)
    np.testing.assert_array_equal(beam.tokens, greedy.tokens)
    np.testing.assert_array_equal(beam.lengths, greedy.lengths)
    np.testing.assert_allclose(beam.log_probs, greedy.log_probs, rtol=1e-5, atol=1e-6)
    assert (
      beam.tokens[0, 0, : beam.lengths[0, 0]].tolist()
      == greedy_by_hand(model, PROMPTS[0], 9, EOS)[0]
    )


def test_wider_beams_find_more_probable_sequences_than_greedy():
  better = 0
  for seed in range(4):
    model = history_model(vocab=5, seed=seed, scale=1.0)
    beam = run(model, PROMPTS, Beam(8, GNMT(0.0)), 9)
    greedy = run(model, PROMPTS, Greedy(), 9)
    assert (beam.scores >= greedy.scores - 1e-5).all()
    better += int((beam.scores > greedy.scores + 1e-3).sum())
  assert better > 4


def test_several_hypotheses_are_sorted_and_differ():
  generated = run(history_model(vocab=4), PROMPTS, Beam(3), 8, num_return=3)
  scores = np.asarray(generated.scores)
  assert (np.diff(scores, axis=1) <= 0).all()
  for row in np.asarray(generated.tokens):
    assert len({tuple(t) for t in row.tolist()}) == 3
  by_hand = generated.sum_log_probs / ((5 + generated.lengths) / 6) ** 0.6
  np.testing.assert_allclose(scores, by_hand, rtol=1e-5)


def test_missing_hypotheses_are_empty_places():
  generated = run(history_model(vocab=3), PROMPTS, Beam(5), 1, num_return=5)
  assert generated.lengths.tolist() == [[1, 1, 1, 0, 0]] * 4
  assert np.isneginf(np.asarray(generated.scores)[:, 3:]).all()
  assert (np.asarray(generated.tokens)[:, 3:] == PAD).all()
  assert (np.asarray(generated.sum_log_probs)[:, 3:] == 0).all()


def test_a_larger_penalty_prefers_longer_hypotheses():
  model = history_model(vocab=5, seed=2, scale=1.0)
  lengths = [
    int(run(model, PROMPTS, Beam(8, GNMT(alpha)), 9).lengths.sum()) for alpha in (0.0, 3.0)
  ]
  assert lengths[0] < lengths[1]


def test_the_bound_holds_for_every_continuation():
  for penalty in PENALTIES:
    for length in range(1, 8):
      reachable = [-3.0 / divisor(penalty, n) for n in range(length + 1, 9)]
      bound = penalty.best_score(jnp.float32(-3.0), jnp.int32(length), jnp.int32(8))
      np.testing.assert_allclose(bound, max(reachable), rtol=1e-5)


def test_a_width_below_one_is_an_error():
  with pytest.raises(UserError, match=r'Beam.width = 0 must be at least 1'):
    Beam(width=0)


def test_scores_are_processed_and_log_probabilities_are_not():
  model = history_model(vocab=5, seed=3)
  forbidden = int(np.argmax(log_probs_after(model, PROMPTS[0])))
  penalty = AverageLength()
  strategy = Beam(3, penalty, processors=[SuppressTokens([forbidden]), RepetitionPenalty(2.0)])
  generated = run(model, PROMPTS[:1], strategy, 3, num_return=3)
  for r in range(3):
    length = int(generated.lengths[0, r])
    tokens = generated.tokens[0, r, :length].tolist()
    assert forbidden not in tokens
    raw, score, history = [], 0.0, list(PROMPTS[0])
    for token in tokens:
      log_probs = log_probs_after(model, history)
      raw.append(log_probs[token])
      score += log_probs[token] * (2.0 if token in history else 1.0)
      history.append(token)
    np.testing.assert_allclose(generated.log_probs[0, r, :length], raw, rtol=1e-4)
    np.testing.assert_allclose(generated.sum_log_probs[0, r], sum(raw), rtol=1e-4)
    np.testing.assert_allclose(generated.scores[0, r], score / length, rtol=1e-4)


def test_several_end_tokens_do_not_displace_the_unfinished_beams():
  """Three end tokens and token 4 are likelier than token 5, whose continuation is the best hypothesis."""
  first, uniform = np.log([0.01, 0.2, 0.21, 0.22, 0.19, 0.17]), np.log(np.full(6, 1 / 6))
  certain = np.log([1e-4, 1 - 5e-4, 1e-4, 1e-4, 1e-4, 1e-4])
  table = history_model(vocab=6).table
  for history, logits in (([0], first), ([0, 4], uniform), ([0, 5], certain)):
    table = table.at[row_of(history)].set(jnp.asarray(logits, jnp.float32))
  strategy = Beam(2, AverageLength(), WhenCertain(), eos_ids=(1, 2, 3))
  generated = run(HistoryModel(table), [[0]], strategy, 3)
  assert generated.tokens[0, 0].tolist() == [5, 1, PAD]
  expected = (math.log(0.17) + math.log(1 - 5e-4)) / 2
  assert float(generated.scores[0, 0]) == pytest.approx(expected, rel=1e-4)
