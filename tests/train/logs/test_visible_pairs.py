"""FLOPs of attention under patterns: the pairs of query and key that they show, by hand."""

import functools

import pytest
from counted_models import (
  CAUSAL,
  LAYER,
  MLP_32,
  SCORES,
  SHAW,
  TABLE,
  TEXT,
  attention,
  language_model,
)

from t2x.layers import (
  TUPE,
  XLA,
  AdditiveScores,
  Auto,
  BilinearScores,
  Blocks,
  Blockwise,
  Causal,
  CoPE,
  Dense,
  FactorizedRandomScores,
  Full,
  Global,
  RelativeSinusoids,
  Strided,
  Synthesizer,
  TalkingHeads,
  Window,
)
from t2x.models import (
  Block,
  Encoder,
)
from t2x.tasks import (
  MaskedLM,
)
from t2x.train.logs.flops import flops_per_token


def flops(task=CAUSAL, **settings):
  return flops_per_token(task, language_model(**settings)).full


def visible(task=CAUSAL, **settings):
  return flops_per_token(task, language_model(**settings)).visible


def in_window(size):
  """Pairs of a causal window in a row of 32 tokens: query i sees min(i + 1, size) keys."""
  return sum(min(i + 1, size) for i in range(32))


@pytest.mark.parametrize(
  ('pattern', 'pairs'),
  [
    (Causal(), 32 * 33 / 2),
    (Causal() & Window(8), in_window(8)),
    (Causal() & Window(32), 32 * 33 / 2),
    (Causal() & Strided(4), sum(i // 4 + 1 for i in range(32))),
    # Four blocks of 8 tokens, each of which sees its own block up to the token.
    (Causal() & Blocks(8), 4 * 8 * 9 / 2),
    # The first two keys, and the window of the other tokens.
    (Causal() & (Global(2) | Window(3)), 1 + 2 + 3 + 4 + 28 * 5),
  ],
  ids=str,
)
@pytest.mark.parametrize('kernel', [Dense(), XLA(), Blockwise(8, 8), Auto()], ids=str)
def test_attention_counts_the_pairs_that_its_pattern_shows_with_every_kernel(
  pattern, pairs, kernel
):
  found = flops_per_token(CAUSAL, language_model(mixer=attention(kernel=kernel), pattern=pattern))
  products = 3 * (LAYER + 2 * 16 * pairs / 32) + TABLE
  assert found.visible == pytest.approx(6 * products, rel=1e-12)
  assert found.full == 6 * (3 * (LAYER + SCORES) + TABLE)


def test_a_bidirectional_window_counts_its_two_sides_and_full_attention_all_pairs():
  task = MaskedLM(**TEXT, length=32)
  whole = flops_per_token(task, language_model(body=Encoder, pattern=Full()))
  assert whole.full == whole.visible
  window = flops_per_token(task, language_model(body=Encoder, pattern=Window(4)))
  # Seven keys, fewer near the ends.
  pairs = 32 * 7 - 2 * (3 + 2 + 1)
  assert whole.full - window.visible == pytest.approx(6 * 3 * 2 * 16 * (32 - pairs / 32))


def test_layers_with_a_window_between_full_ones_count_their_own_pairs():
  blocks = [
    functools.partial(Block, mixer=attention(), feed_forward=MLP_32, pattern=pattern)
    for pattern in (Window(8), Full())
  ]
  found = visible(num_layers=4, blocks=blocks)
  pairs = 2 * in_window(8) + 2 * 32 * 33 / 2
  assert found == pytest.approx(6 * (4 * LAYER + TABLE + 2 * 16 * pairs / 32), rel=1e-12)


# Multiply-adds for each pair, in 2 heads of 8 features, and for each token beside the four projections.
PAIRWISE = {
  'talking heads': (attention(scores=TalkingHeads), 2 * 16 + 2 * 2 * 2, 0),
  'additive': (attention(scores=AdditiveScores), 2 * 16, 0),
  'bilinear': (attention(scores=BilinearScores), 2 * 16, 16 * 8),
  'grouped': (attention(num_kv_heads=1), 2 * 16, -2 * 16 * 8),
  # The factors of the table for 32 keys, rank 3.
  'random': (
    functools.partial(
      Synthesizer,
      num_heads=2,
      scores=functools.partial(FactorizedRandomScores, max_length=64, rank=3),
    ),
    16 + 2 * 3,
    -2 * 16 * 16,
  ),
}


@pytest.mark.parametrize('name', PAIRWISE)
def test_scores_computed_before_the_kernel_count_the_pairs_of_its_pattern(name):
  mixer, per_pair, per_token = PAIRWISE[name]
  layer = LAYER + per_token
  for pattern, pairs in ((Causal(), 32 * 33 / 2), (Causal() & Window(8), in_window(8))):
    products = 3 * (layer + per_pair * pairs / 32) + TABLE
    assert visible(mixer=mixer, pattern=pattern) == pytest.approx(6 * products, rel=1e-12)
  assert flops(mixer=mixer) == 6 * (3 * (layer + per_pair * 32) + TABLE)


# Multiply-adds for each pair and token that an encoding adds.
ENCODINGS = {
  'cope': (functools.partial(CoPE, head_dim=8, max_positions=5), 16, 2 * 8 * 5),
  'sinusoids': (RelativeSinusoids, 16, 0),
  # A distance of the probabilities to each of 11 vectors, and the vectors to values.
  'shaw': (functools.partial(SHAW, values=True), 2 * 11, 2 * 2 * 8 * 11),
  # Two projections of the position vectors of 16 features, in each layer.
  'tupe': (functools.partial(TUPE, num_heads=2, max_length=64), 16, 2 * 16 * 16),
}


@pytest.mark.parametrize('name', ENCODINGS)
def test_encodings_count_the_pairs_of_the_pattern(name):
  encoding, per_pair, per_token = ENCODINGS[name]
  for pattern, pairs in ((Causal(), 32 * 33 / 2), (Causal() & Window(8), in_window(8))):
    products = 3 * (LAYER + per_token + (2 * 16 + per_pair) * pairs / 32) + TABLE
    found = visible(encoding=encoding, pattern=pattern)
    assert found == pytest.approx(6 * products, rel=1e-12)
