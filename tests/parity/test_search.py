"""Greedy and beam search against transformers' `generate` with a table as model: over a thousand searches
with early and late ends, so that penalty, pool and stopping all have an effect."""

import itertools

import numpy as np
import pytest
from history_model import history_model
from torch_history import TorchHistory, torch

from t2x.decode import (
  AtCurrentLength,
  AverageLength,
  Beam,
  ForceLast,
  Greedy,
  MinNewTokens,
  NoRepeatNGram,
  RepetitionPenalty,
  SuppressTokens,
  WhenCertain,
  WhenFull,
  generate,
)

# transformers' beam search pads with the end token if the padding id is 0.
VOCAB, EOS, PAD, WIDTH, ROOM, BATCH = 19, 1, 18, 5, 9, 16
STOPPING = {'never': WhenCertain(), False: AtCurrentLength(), True: WhenFull()}
PROCESSORS = [
  ((), {}),
  ((RepetitionPenalty(1.5),), {'repetition_penalty': 1.5}),
  ((NoRepeatNGram(2),), {'no_repeat_ngram_size': 2}),
  ((MinNewTokens(4),), {'min_new_tokens': 4}),
  ((ForceLast(), SuppressTokens((2, 3))), {'forced_eos_token_id': EOS, 'suppress_tokens': [2, 3]}),
  (
    (RepetitionPenalty(0.8), NoRepeatNGram(3), MinNewTokens(2), ForceLast()),
    {
      'repetition_penalty': 0.8,
      'no_repeat_ngram_size': 3,
      'min_new_tokens': 2,
      'forced_eos_token_id': EOS,
    },
  ),
]


def prompts_of(seed):
  """Ragged prompts, padded on the right, and their lengths."""
  rng = np.random.default_rng(seed)
  lengths = rng.integers(1, WIDTH + 1, BATCH)
  ids = rng.integers(2, PAD, (BATCH, WIDTH))
  return np.where(np.arange(WIDTH) < lengths[:, None], ids, PAD).astype(np.int32), lengths


def left_padded(ids, lengths):
  rows = [np.roll(row, WIDTH - n) for row, n in zip(ids, lengths, strict=True)]
  known = np.arange(WIDTH) >= WIDTH - lengths[:, None]
  return torch.tensor(np.stack(rows)).long(), torch.tensor(known).long()


def both(seed, strategy, num_return=1, ends=EOS, **settings):
  """Generates with both libraries from the same table and prompts."""
  model = history_model(vocab=VOCAB, seed=seed, scale=1.2)
  # About one token in twelve is the end token. Padding is never generated: n-grams in transformers contain it.
  model = type(model)(model.table.at[:, np.array(ends)].add(0.5).at[:, PAD].add(-50.0))
  ids, lengths = prompts_of(seed)
  ours = generate(
    model,
    ids,
    lengths,
    max_new_tokens=ROOM,
    strategy=strategy,
    eos_id=EOS,
    pad_id=PAD,
    num_return=num_return,
  )
  tokens, known = left_padded(ids, lengths)
  theirs = TorchHistory(np.asarray(model.table)).generate(
    tokens,
    attention_mask=known,
    max_new_tokens=ROOM,
    do_sample=False,
    num_return_sequences=num_return,
    eos_token_id=ends,
    pad_token_id=PAD,
    use_cache=False,
    return_dict_in_generate=True,
    output_logits=True,
    output_scores=True,
    **settings,
  )
  return ours, theirs


def assert_same_tokens(ours, theirs):
  tokens = np.asarray(ours.tokens).reshape(-1, ROOM)
  expected = theirs.sequences[:, WIDTH:].numpy()
  longest = expected.shape[1]
  assert longest == np.asarray(ours.lengths).max()
  np.testing.assert_array_equal(tokens[:, :longest], expected)


@pytest.mark.parametrize(('processors', 'settings'), PROCESSORS)
def test_greedy_is_theirs(processors, settings):
  for seed in range(3):
    ours, theirs = both(seed, Greedy(processors=processors), **settings)
    assert_same_tokens(ours, theirs)
    log_probs = torch.stack(theirs.logits, dim=1).log_softmax(-1)
    chosen = theirs.sequences[:, WIDTH:, None]
    expected = log_probs.gather(-1, chosen)[..., 0].numpy()
    steps = np.arange(expected.shape[1]) < np.asarray(ours.lengths)
    given = np.asarray(ours.log_probs)[:, 0, : expected.shape[1]]
    np.testing.assert_allclose(given, np.where(steps, expected, 0.0), atol=1e-5)


@pytest.mark.parametrize(
  ('power', 'early_stopping'),
  [*itertools.product([0.6, 1.0, 2.0], STOPPING), (-1.0, 'never')],
)
def test_beam_search_is_theirs(power, early_stopping):
  strategy = Beam(4, AverageLength(power), STOPPING[early_stopping])
  settings = {'num_beams': 4, 'length_penalty': power, 'early_stopping': early_stopping}
  for seed in range(6):
    ours, theirs = both(seed, strategy, 4, **settings)
    assert_same_tokens(ours, theirs)
    scores = np.asarray(ours.scores).ravel()
    np.testing.assert_allclose(scores, theirs.sequences_scores.numpy(), atol=1e-4)


@pytest.mark.parametrize(('processors', 'settings'), PROCESSORS[1:])
def test_processors_follow_the_beams_as_theirs(processors, settings):
  strategy = Beam(4, AverageLength(1.0), AtCurrentLength(), processors=processors)
  for seed in range(4):
    ours, theirs = both(seed, strategy, 4, num_beams=4, **settings)
    assert_same_tokens(ours, theirs)
    scores = np.asarray(ours.scores).ravel()
    np.testing.assert_allclose(scores, theirs.sequences_scores.numpy(), atol=1e-4)


ENDS = [EOS, 4, 11]
SEVERAL_ENDS = [
  ((), {}),
  ((MinNewTokens(4),), {'min_new_tokens': 4}),
  ((ForceLast(),), {'forced_eos_token_id': ENDS}),
]


@pytest.mark.parametrize(('processors', 'settings'), SEVERAL_ENDS)
def test_greedy_ends_at_any_of_several_tokens_as_theirs(processors, settings):
  for seed in range(3):
    ours, theirs = both(seed, Greedy(processors=processors, eos_ids=ENDS), ends=ENDS, **settings)
    assert_same_tokens(ours, theirs)


# Forced end tokens all have the same score, so their order is arbitrary.
@pytest.mark.parametrize(('processors', 'settings'), SEVERAL_ENDS[:2])
def test_beam_search_ends_at_any_of_several_tokens_as_theirs(processors, settings):
  common = {'processors': processors, 'eos_ids': ENDS}
  strategy = Beam(4, AverageLength(1.0), AtCurrentLength(), **common)
  ended = set()
  for seed in range(6):
    ours, theirs = both(seed, strategy, 4, ends=ENDS, num_beams=4, **settings)
    assert_same_tokens(ours, theirs)
    scores = np.asarray(ours.scores).ravel()
    np.testing.assert_allclose(scores, theirs.sequences_scores.numpy(), atol=1e-4)
    last = np.asarray(ours.lengths)[..., None] - 1
    ended |= set(np.take_along_axis(np.asarray(ours.tokens), last, -1).ravel().tolist())
  assert ended >= set(ENDS)
