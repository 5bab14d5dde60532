"""FLOPs of training: those of the formulas by hand, the same for every kernel, scan and remat policy."""

import functools

import jax
import jax.numpy as jnp
import pytest
from counted_models import (
  CAUSAL,
  FEED_FORWARD,
  LAYER,
  LEARNED,
  SCORES,
  SHAW,
  TABLE,
  TEXT,
  attention,
  encoder_decoder,
  language_model,
  vision_model,
)

from t2x.data import Bytes, FullRows
from t2x.layers import (
  XLA,
  AttentionFree,
  Auto,
  Blockwise,
  ConvBias,
  Dense,
  DenseScores,
  Dropless,
  DynamicConvolution,
  FactorisedEmbedding,
  FactorizedDenseScores,
  FactorizedRandomScores,
  FavorPlus,
  FeedForward,
  FlowAttention,
  FullBias,
  GatedDeltaNet,
  GatedMLP,
  LightweightConvolution,
  Linear,
  LinearAttention,
  MixtureOfExperts,
  Plus,
  PlusAlpha,
  RandomScores,
  Result,
  SwitchFeedForward,
  Synthesizer,
  TokenEmbedding,
  lecun_normal,
)
from t2x.layers.parameters import param
from t2x.models import (
  Block,
  Classifier,
  Encoder,
  LMHead,
  MixtureOfSoftmaxes,
  SequenceClassifier,
  TiedHead,
)
from t2x.samples import BabelDates
from t2x.tasks import (
  CausalLM,
  ImageClassification,
  MaskedLM,
  SequenceClassification,
  Translation,
)
from t2x.train.logs.flops import flops_per_token


def flops(task=CAUSAL, **settings):
  return flops_per_token(task, language_model(**settings)).full


@pytest.mark.parametrize('head', [TiedHead, LMHead, functools.partial(LMHead, chunk=7)])
def test_a_decoder_costs_6n_plus_12ldt(head):
  # Positions and types are looked up; the vocabulary is multiplied once, tied or not.
  assert flops(head=head) == 6 * (3 * LAYER + TABLE) + 12 * 3 * 16 * 32


@pytest.mark.parametrize(
  'settings',
  [
    {'mixer': attention(kernel=Dense())},
    {'mixer': attention(kernel=XLA())},
    {'mixer': attention(kernel=Blockwise(8, 8))},
    {'mixer': attention(kernel=Auto())},
    {'remat': 'full'},
    {'unroll': 3},
    {'num_groups': 1},
  ],
)
def test_kernels_remat_unrolling_and_sharing_change_nothing(settings):
  assert flops(**settings) == flops()


def test_a_masked_language_model_meets_the_vocabulary_at_its_predictions_only():
  task = MaskedLM(**TEXT, length=32)
  assert task.max_predictions == 5
  expected = 6 * (3 * (LAYER + SCORES) + TABLE * 5 / 32)
  assert flops(task, body=Encoder) == pytest.approx(expected)


def test_a_classifier_does_not_pay_for_its_table():
  task = SequenceClassification(**TEXT, labels=['a', 'b', 'c'], length=32)
  head = functools.partial(
    SequenceClassifier, classifier=functools.partial(Classifier, num_classes=3)
  )
  expected = 6 * (3 * (LAYER + SCORES) + 16 * 3 / 32)
  assert flops(task, body=Encoder, head=head) == pytest.approx(expected)


def test_a_tied_factorised_embedding_costs_both_of_its_products_twice():
  embedding = functools.partial(FactorisedEmbedding, vocab_size=261, factor_dim=4)
  # Up to d_model once, down from it and through the table once.
  assert flops(embedding=embedding) == 6 * (3 * (LAYER + SCORES) + 2 * 4 * 16 + 261 * 4)


def test_a_mixture_asks_the_table_once_per_softmax():
  one, four = (
    flops(head=functools.partial(MixtureOfSoftmaxes, num_softmaxes=count)) for count in (1, 4)
  )
  # Each: the table, a projection to the hidden vector that asks it, a prior.
  assert four - one == 6 * 3 * (TABLE + 16 * 16 + 16)


def pair(encoding=LEARNED, **settings):
  model = encoder_decoder(encoding, **settings)
  task = Translation(source=BabelDates(), tokenizer=Bytes(), source_length=24, target_length=8)
  return flops_per_token(task, model).full


def test_each_side_of_an_encoder_decoder_costs_its_own_tokens():
  # Keys and values of cross-attention are made of the source's tokens.
  source = 3 * (LAYER + 2 * 16 * 24 + 2 * 16 * 16)
  target = 3 * (LAYER + 2 * 16 * 16 + 2 * 16 * (8 + 24)) + TABLE
  assert pair() == pytest.approx(6 * (24 * source + 8 * target) / 32)


def test_the_source_table_beside_one_of_the_target_is_only_looked_up():
  same, small = (functools.partial(TokenEmbedding, vocab_size=size) for size in (261, 100))
  assert pair(target_embedding=same) == pair() == pair(target_embedding=same, head=LMHead)
  assert pair() - pair(target_embedding=small) == pytest.approx(6 * (261 - 100) * 16 * 8 / 32)


def synthesizer(scores, **settings):
  return functools.partial(Synthesizer, num_heads=2, scores=scores, **settings)


def sums(num_features, num_values):
  """Products of 2 heads with a chunk of 8 tokens, with the state, and into the state."""
  return 2 * (8 * (num_features + num_values) + 2 * num_features * num_values)


def sums_of_a_scan(length):
  """Sums of two elements in an associative scan: of neighbours, of those in a scan, and between them."""
  return 0 if length < 2 else length // 2 + sums_of_a_scan(length // 2) + (length - 1) // 2


linear = functools.partial(LinearAttention, num_heads=2, chunk=8)
performer = functools.partial(linear, features=functools.partial(FavorPlus, num_features=24))
flow = functools.partial(FlowAttention, num_heads=2, chunk=8)
random = functools.partial(RandomScores, max_length=64)
dense = functools.partial(DenseScores, max_length=64)
# Multiply-adds for a token: 2 heads of 8 features, 32 tokens.
MIXERS = {
  'random': (synthesizer(random), 2 * 16 * 16 + 16 * 32),
  'random_plus': (synthesizer(random, mix=Plus), 4 * 16 * 16 + 2 * 16 * 32),
  'random_plus_alpha': (synthesizer(random, mix=PlusAlpha), 4 * 16 * 16 + 2 * 16 * 32),
  # One matrix [8, 64] meets the queries of both heads.
  'dense': (synthesizer(dense), 3 * 16 * 16 + 2 * 8 * 64 + 16 * 32),
  'dense_plus': (synthesizer(dense, mix=Plus), 4 * 16 * 16 + 2 * 8 * 64 + 2 * 16 * 32),
  'factorized_dense': (
    synthesizer(functools.partial(FactorizedDenseScores, factors=(4, 16))),
    3 * 16 * 16 + 2 * 8 * (4 + 16) + 16 * 32,
  ),
  # A row of rank 3 meets the rows of 32 tokens, in both heads.
  'factorized_random': (
    synthesizer(functools.partial(FactorizedRandomScores, max_length=64, rank=3)),
    2 * 16 * 16 + 2 * 3 * 32 + 16 * 32,
  ),
  'lightweight': (
    functools.partial(LightweightConvolution, num_heads=4, kernel_size=5),
    2 * 16 * 16 + 5 * 16 + 16 * 16,
  ),
  'dynamic': (
    functools.partial(DynamicConvolution, num_heads=4, kernel_size=5),
    2 * 16 * 16 + 16 * 4 * 5 + 5 * 16 + 16 * 16,
  ),
  'linear': (linear, 4 * 16 * 16 + sums(8, 8 + 1)),
  # The queries and the keys meet 24 directions.
  'performer': (performer, 4 * 16 * 16 + 2 * 16 * 24 + sums(24, 8 + 1)),
  # Sums of keys, queries and ones; of keys and queries; of the competition; of keys times values.
  'flow': (flow, 4 * 16 * 16 + sums(1, 17) + sums(1, 16) + sums(1, 1) + sums(8, 8)),
  # A sum of two sums over tokens weights the values and the weights of both. The sums outside of the window get a
  # factor, and the values at the distances 0 to 5 a weight for each feature.
  'aft': (
    functools.partial(AttentionFree, bias=functools.partial(ConvBias, window=6), num_heads=2),
    4 * 16 * 16 + 4 * 16 * sums_of_a_scan(32) / 32 + (2 + 6) * 16,
  ),
  # In a chunk: k k', q k', the inverse of the triangular system (two products of half the size for each pair of blocks)
  # times v and k, the sum of values; of the state: two reads, one write.
  'gated delta': (
    functools.partial(GatedDeltaNet, num_heads=2, chunk=8),
    5 * 16 * 16
    + 4 * 3 * 16
    + 2 * 16 * 2
    + (1 + 1 + 2 + 1) * 8 * 16
    + 2 * 2 * (4 + 2 * 2**3 + 4**3) / 8
    + 3 * 8 * 16,
  ),
  # The router and the chosen expert, whatever the number of slots.
  'switch': (
    functools.partial(SwitchFeedForward, num_experts=4, hidden_dim=32),
    16 * 4 + FEED_FORWARD,
  ),
  # The router, and three matrices of each of two chosen experts.
  'experts': (
    functools.partial(
      MixtureOfExperts, num_experts=4, expert=functools.partial(GatedMLP, hidden_dim=32)
    ),
    16 * 4 + 2 * 3 * 16 * 32,
  ),
  'experts without a capacity': (
    functools.partial(
      MixtureOfExperts,
      num_experts=4,
      expert=functools.partial(GatedMLP, hidden_dim=32),
      dispatch=Dropless(),
    ),
    16 * 4 + 2 * 3 * 16 * 32,
  ),
}


@pytest.mark.parametrize('name', MIXERS)
@pytest.mark.parametrize('num_groups', [None, 1])
def test_other_mixers_cost_what_they_multiply(name, num_groups):
  mixer, products = MIXERS[name]
  assert flops(mixer=mixer, num_groups=num_groups) == 6 * (3 * (products + FEED_FORWARD) + TABLE)


@pytest.mark.parametrize('mixer', [linear, performer, flow], ids=['linear', 'performer', 'flow'])
def test_linear_mixers_cost_the_same_per_token_at_any_length(mixer):
  short, long = (CausalLM(**TEXT, length=length) for length in (32, 64))
  assert flops(short, mixer=mixer) == flops(long, mixer=mixer)
  assert flops(short) < flops(long)


class Grouped(FeedForward):
  """Half of the tokens in each of two experts, as a part of a user."""

  def __init__(self, d_model, *, rngs):
    shape = 2, d_model, d_model
    self.kernel = param(lecun_normal(), shape, ('experts', 'embed', 'mlp'), rngs, matrix=shape[1:])

  def __call__(self, x, call, cache=None):
    rows = x.reshape(-1, x.shape[-1])
    half = jnp.full(2, len(rows) // 2, jnp.int32)
    return Result(jax.lax.ragged_dot(rows, self.kernel[...], half).reshape(x.shape))


class Dense(FeedForward):
  """All tokens in one expert."""

  def __init__(self, d_model, *, rngs):
    self.map = Linear((d_model,), (d_model,), ('embed', 'mlp'), init=lecun_normal(), rngs=rngs)

  def __call__(self, x, call, cache=None):
    return Result(self.map(x))


def test_a_grouped_product_counts_one_matrix_per_token_as_a_dense_one():
  grouped, dense = (
    flops(blocks=[functools.partial(Block, mixer=attention(), feed_forward=part)])
    for part in (Grouped, Dense)
  )
  assert grouped == dense == 6 * (3 * (4 * 16 * 16 + SCORES + 16 * 16) + TABLE)


def test_full_position_biases_multiply_all_pairs():
  # Numerators and denominators of 16 features are sums over all tokens of the row.
  mixer = functools.partial(AttentionFree, bias=functools.partial(FullBias, max_length=64))
  # Within the chunk of 32 queries each pair has a weight of its own for each feature.
  products = 4 * 16 * 16 + 2 * 16 * 32 + 16 * 32 + FEED_FORWARD
  task = CausalLM(**TEXT, length=32, packing=FullRows)
  assert flops(task, mixer=mixer) == 6 * (3 * products + TABLE)


def test_relative_keys_meet_the_queries_of_every_head_and_layer():
  # Distances -5 .. 5, 8 features, 2 heads, 3 layers; cross-attention and tables have no such keys.
  products = 6 * 3 * 2 * 11 * 8
  assert flops(encoding=SHAW) - flops() == pair(SHAW) - pair() == products


def test_images_are_counted_in_patches_and_class_tokens():
  model = vision_model()
  task = ImageClassification(source=TEXT['source'], image_shape=(8, 8, 1), num_classes=10)
  products = 17 * 3 * (LAYER + 2 * 16 * 17) + 16 * 4 * 16 + 16 * 10
  assert flops_per_token(task, model).full == pytest.approx(6 * products / 17)
