"""Diverse beam search against plain Python loops over steps, groups and beams."""

import numpy as np
import pytest
from history_model import history_model, log_probs_after

from t2x.base.errors import UserError
from t2x.decode import (
  GNMT,
  AtCurrentLength,
  AverageLength,
  Beam,
  DiverseBeam,
  Greedy,
  RepetitionPenalty,
  WhenCertain,
  WhenFull,
  generate,
)

EOS, PAD, VOCAB = 1, 0, 6
PROMPTS = [[2], [2, 0, 2], [0, 0], [0, 2, 2, 2]]
OFFSETS = np.array([0, 5, 17, 40])
LIMIT = 7


def run(model, strategy, num_return, **settings):
  """Generates from a batch of prompts with sources, as an encoder-decoder has them."""
  ids = np.full((len(PROMPTS), 4), PAD, np.int32)
  for row, prompt in zip(ids, PROMPTS, strict=True):
    row[: len(prompt)] = prompt
  return generate(
    model,
    ids,
    np.array([len(prompt) for prompt in PROMPTS]),
    max_new_tokens=LIMIT,
    strategy=strategy,
    eos_id=EOS,
    pad_id=PAD,
    num_return=num_return,
    **{'offset': OFFSETS} | settings,
  )


def divisor(penalty, length):
  return ((5 + length) / 6) ** penalty.alpha if isinstance(penalty, GNMT) else length**penalty.power


def bound(strategy, total, length):
  """Returns the score below which the worst hypothesis of a full pool must be to continue."""
  if strategy.stopping == WhenFull():
    return -np.inf
  longer = range(length + 1, LIMIT + 1)
  lengths = [length] if strategy.stopping == AtCurrentLength() else longer
  return max(total / divisor(strategy.length_penalty, n) for n in lengths)


def by_hand(model, prompt, offset, strategy, repetition=1.0):
  """Returns scores and tokens of the hypotheses of all groups in descending order."""
  width = strategy.width // strategy.num_groups
  beams = [[(0.0, [])] for _ in range(strategy.num_groups)]
  pools = [[] for _ in range(strategy.num_groups)]
  for step in range(LIMIT):
    times = np.zeros(VOCAB)
    for g in range(strategy.num_groups):
      extensions = []
      for total, tokens in beams[g]:
        history = [*prompt, *tokens]
        repeated = np.where(np.isin(np.arange(VOCAB), history), repetition, 1.0)
        log_probs = log_probs_after(model, history, offset) * repeated - strategy.strength * times
        extensions += [(total + log_probs[t], [*tokens, t]) for t in range(VOCAB)]
      extensions = sorted(extensions, key=lambda e: -e[0])[: 2 * width]
      for _, tokens in extensions[: strategy.counted * width]:
        times[tokens[-1]] += 1
      ended = [e[1][-1] == EOS or step + 1 == LIMIT for e in extensions]
      pools[g] += [
        (total / divisor(strategy.length_penalty, step + 1), tokens)
        for (total, tokens), end in list(zip(extensions, ended, strict=True))[:width]
        if end
      ]
      pools[g] = sorted(pools[g], key=lambda e: -e[0])[:width]
      beams[g] = [e for e, end in zip(extensions, ended, strict=True) if not end][:width]
      full = len(pools[g]) == width
      if (
        full
        and beams[g]
        and (width == 1 or pools[g][-1][0] >= bound(strategy, beams[g][0][0], step + 1))
      ):
        beams[g] = []
  return sorted((hypothesis for pool in pools for hypothesis in pool), key=lambda h: -h[0])


def written(generated, b):
  return [
    tokens[:n].tolist()
    for tokens, n in zip(
      np.asarray(generated.tokens[b]), generated.lengths[b].tolist(), strict=True
    )
    if n
  ]


@pytest.mark.parametrize(
  'strategy',
  [
    DiverseBeam(6, num_groups=3, strength=0.7),
    DiverseBeam(6, AverageLength(1.5), AtCurrentLength(), num_groups=2, strength=0.4, counted=2),
    DiverseBeam(4, GNMT(-1.0), WhenFull(), num_groups=2, strength=3.0),
    DiverseBeam(3, AverageLength(), WhenCertain(), num_groups=3, strength=1.0),
  ],
  ids=str,
)
def test_hypotheses_equal_those_of_loops_over_groups(strategy):
  for seed in range(3):
    model = history_model(vocab=VOCAB, seed=seed, scale=1.2)
    generated = run(model, strategy, strategy.width)
    for b, (prompt, offset) in enumerate(zip(PROMPTS, OFFSETS, strict=True)):
      expected = by_hand(model, prompt, offset, strategy)
      assert written(generated, b) == [tokens for _, tokens in expected]
      scores = np.asarray(generated.scores[b, : len(expected)])
      np.testing.assert_allclose(scores, [score for score, _ in expected], rtol=1e-4, atol=1e-5)
      assert np.isneginf(np.asarray(generated.scores[b, len(expected) :])).all()
      for r, (_, tokens) in enumerate(expected):
        histories = [[*prompt, *tokens[:n]] for n in range(len(tokens))]
        raw = [
          log_probs_after(model, history, offset)[token]
          for history, token in zip(histories, tokens, strict=True)
        ]
        np.testing.assert_allclose(generated.sum_log_probs[b, r], sum(raw), rtol=1e-4, atol=1e-5)


def test_processors_precede_the_penalty_in_every_group():
  strategy = DiverseBeam(4, AverageLength(), num_groups=2, processors=[RepetitionPenalty(1.5)])
  model = history_model(vocab=VOCAB, seed=2)
  generated = run(model, strategy, 4)
  for b, (prompt, offset) in enumerate(zip(PROMPTS, OFFSETS, strict=True)):
    expected = by_hand(model, prompt, offset, strategy, repetition=1.5)
    assert written(generated, b) == [tokens for _, tokens in expected]


def test_one_group_equals_beam_search():
  settings = {'processors': [RepetitionPenalty(1.5)], 'eos_ids': (1, 4)}
  model = history_model(vocab=VOCAB, seed=4, scale=1.0)
  diverse = DiverseBeam(3, AverageLength(), AtCurrentLength(), num_groups=1, **settings)
  ours = run(model, diverse, 3)
  plain = run(model, Beam(3, AverageLength(), AtCurrentLength(), **settings), 3)
  for name in ('tokens', 'lengths', 'log_probs', 'sum_log_probs', 'scores'):
    np.testing.assert_array_equal(getattr(ours, name), getattr(plain, name))


def test_without_strength_every_group_returns_the_hypotheses_of_a_beam_search():
  model = history_model(vocab=VOCAB, seed=5)
  groups = run(model, DiverseBeam(6, num_groups=3, strength=0.0), 6)
  plain = run(model, Beam(2), 2)
  np.testing.assert_array_equal(groups.tokens, np.repeat(plain.tokens, 3, axis=1))
  np.testing.assert_allclose(groups.scores, np.repeat(plain.scores, 3, axis=1), rtol=1e-6)


def test_the_first_of_groups_of_width_one_is_greedy():
  model = history_model(vocab=VOCAB, seed=6)
  greedy = run(model, Greedy(), 1)
  groups = run(model, DiverseBeam(3, num_groups=3, strength=2.0), 3)
  for b in range(len(PROMPTS)):
    assert written(greedy, b)[0] in written(groups, b)


def test_a_greater_strength_gives_more_different_first_tokens():
  model = history_model(vocab=VOCAB, seed=7)
  distinct = []
  for strength in (0.0, 0.5, 20.0):
    tokens = run(model, DiverseBeam(6, num_groups=6, strength=strength), 6).tokens
    distinct.append(sum(len(set(row)) for row in np.asarray(tokens)[:, :, 0].tolist()))
  assert distinct[0] == len(PROMPTS) < distinct[1] < distinct[2] == 6 * len(PROMPTS)


@pytest.mark.parametrize(
  ('settings', 'message'),
  [
    ({'width': 4, 'num_groups': 3}, r'num_groups = 3 must divide DiverseBeam.width = 4'),
    ({'num_groups': 0}, r'num_groups = 0 must divide'),
    ({'strength': -0.1}, r'strength = -0.1 must be at least 0'),
    ({'strength': float('nan')}, r'strength = nan must be at least 0'),
    ({'counted': 3}, r'counted = 3 must be 1 or 2'),
  ],
)
def test_settings_without_meaning_are_refused(settings, message):
  with pytest.raises(UserError, match=message):
    DiverseBeam(**settings)
