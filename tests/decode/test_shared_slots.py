"""Beam search whose beams share the slots of a row finds what beam search with a row of slots per beam finds."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from t2x.decode import AverageLength, Beam, DiverseBeam, Sampling, generate
from t2x.layers import (
  MLP,
  TUPE,
  ALiBi,
  Blockwise,
  Causal,
  CosineScores,
  Dense,
  DenseScores,
  DotProductScores,
  Global,
  LearnedPositions,
  LightweightConvolution,
  LinearAttention,
  MultiHeadAttention,
  NoPositions,
  Plus,
  Prefix,
  RandomScores,
  RoPE,
  ShawPositions,
  Sinusoidal,
  SwitchFeedForward,
  Synthesizer,
  T5Bias,
  TokenEmbedding,
  Window,
  normal,
  zeros,
)
from t2x.layers.attention.cache import MAX_COPIES, KeyValueCache, SharedKeyValueCache
from t2x.layers.attention.kernels import XLA
from t2x.models import Block, Decoder, Encoder, EncoderDecoder, LanguageModel, LMHead, Stack
from t2x.models.cache import BodyCache
from t2x.testing.subject import perturbed

EOS, PAD, VOCAB, ROOM = 1, 0, 13, 9
LENGTHS = np.array([4, 1, 6])
part = functools.partial
ATTENTION = part(MultiHeadAttention, num_heads=4)
SYNTHESIZER = part(Synthesizer, num_heads=4)
BLOCK = part(Block, mixer=ATTENTION, feed_forward=part(MLP, hidden_dim=16))


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class SeparateRows(BodyCache):
  """A cache whose beams have a row of slots each."""

  def share(self, copies, num_slots):
    return None


class WithSeparateRows(LanguageModel):
  def init_cache(self, *args, **kwargs):
    return SeparateRows(**vars(super().init_cache(*args, **kwargs)))


class TranslatorWithSeparateRows(EncoderDecoder):
  def init_cache(self, *args, **kwargs):
    return SeparateRows(**vars(super().init_cache(*args, **kwargs)))


def language_models(*blocks, **body):
  """The same model with shared slots and with a row of slots per beam."""
  stack = part(Stack, num_layers=2 * len(blocks), blocks=list(blocks))
  return [
    perturbed(
      kind(
        d_model=16,
        embedding=part(TokenEmbedding, vocab_size=VOCAB, init=normal(1.0)),
        body=part(Decoder, **{'stack': stack, 'encoding': RoPE} | body),
        head=LMHead,
        rngs=nnx.Rngs(2),
      )
    )
    for kind in (LanguageModel, WithSeparateRows)
  ]


def searched(model, width, prompts=None, **settings):
  if prompts is None:
    prompts = np.random.default_rng(0).integers(2, VOCAB, (len(LENGTHS), LENGTHS.max()))
  return generate(
    model,
    prompts,
    LENGTHS,
    max_new_tokens=ROOM,
    eos_id=EOS,
    pad_id=PAD,
    num_return=width,
    **{'strategy': Beam(width, AverageLength())} | settings,
  )


def assert_equal(found, expected):
  np.testing.assert_array_equal(found.tokens, expected.tokens)
  np.testing.assert_array_equal(found.lengths, expected.lengths)
  np.testing.assert_allclose(found.scores, expected.scores, rtol=1e-5)
  np.testing.assert_allclose(found.log_probs, expected.log_probs, rtol=1e-4, atol=1e-5)


def mixing(build, **settings):
  return part(BLOCK, mixer=part(build, **settings))


GROUPED = mixing(ATTENTION, num_kv_heads=2)
ALIBI, LEARNED = part(ALiBi, num_heads=4), part(LearnedPositions, max_length=16)
T5 = part(T5Bias, num_heads=4, bidirectional=False, num_buckets=8, max_distance=16)
SHAW = part(ShawPositions, head_dim=4, max_distance=3, values=True)
CAPPED = part(DotProductScores, soft_cap=2.0, sink=zeros())
TILES = Blockwise(q_block=2, k_block=5)
CASES = {
  'grouped heads, rotary positions, windows': ([GROUPED, part(GROUPED, pattern=Window(3))], {}),
  'attention, linear attention and convolution in turn': (
    [
      GROUPED,
      mixing(LinearAttention, num_heads=4, chunk=5),
      mixing(LightweightConvolution, num_heads=4, kernel_size=3),
    ],
    {},
  ),
}
RARE = {
  'tiles, bias of T5, prefix': (
    [mixing(ATTENTION, kernel=TILES)],
    {'encoding': T5, 'pattern': Causal() | Prefix()},
  ),
  'Shaw, with values': ([BLOCK], {'encoding': SHAW}),
  'a linear bias': ([BLOCK], {'encoding': ALIBI}),
  'a linear bias in tiles': ([mixing(ATTENTION, kernel=TILES)], {'encoding': ALIBI}),
  'learned positions': ([BLOCK], {'encoding': LEARNED}),
  'sinusoids': ([BLOCK], {'encoding': Sinusoidal}),
  'TUPE': ([BLOCK], {'encoding': part(TUPE, num_heads=4, max_length=16)}),
  'no positions': ([BLOCK], {'encoding': NoPositions}),
  'XLA': ([mixing(ATTENTION, kernel=XLA())], {}),
  'dense, window or global': (
    [mixing(ATTENTION, kernel=Dense())],
    {'pattern': Causal() & (Window(2) | Global(2))},
  ),
  'soft cap and sinks': ([mixing(ATTENTION, scores=CAPPED)], {}),
  'soft cap and sinks in tiles': ([mixing(ATTENTION, scores=CAPPED, kernel=TILES)], {}),
  'cosine scores': ([mixing(ATTENTION, scores=CosineScores)], {}),
  'dense synthesizer': (
    [mixing(SYNTHESIZER, scores=part(DenseScores, max_length=16), mix=Plus)],
    {},
  ),
  'random synthesizer': (
    [mixing(SYNTHESIZER, scores=part(RandomScores, max_length=16))],
    {'encoding': Sinusoidal},
  ),
  'experts that drop tokens': (
    [part(GROUPED, feed_forward=part(SwitchFeedForward, hidden_dim=8, num_experts=4))],
    {},
  ),
  'multi-query attention': ([mixing(ATTENTION, num_kv_heads=1)], {}),
}


@pytest.mark.parametrize('name', CASES)
def test_shared_slots_find_the_same_hypotheses(name):
  blocks, body = CASES[name]
  assert_equal(*(searched(model, 4) for model in language_models(*blocks, **body)))


@pytest.mark.nightly
@pytest.mark.parametrize('width', [2, 8])
@pytest.mark.parametrize('name', [*CASES, *RARE])
def test_shared_slots_find_the_same_hypotheses_for_all_widths(name, width):
  blocks, body = (CASES | RARE)[name]
  assert_equal(*(searched(model, width) for model in language_models(*blocks, **body)))


@pytest.mark.nightly
def test_shared_slots_find_the_same_translations():
  rng = np.random.default_rng(3)
  source = rng.integers(2, VOCAB, (3, 7))
  results = []
  for kind in (EncoderDecoder, TranslatorWithSeparateRows):
    model = kind(
      d_model=16,
      embedding=part(TokenEmbedding, vocab_size=VOCAB, init=normal(1.0)),
      encoder=part(Encoder, stack=part(Stack, num_layers=1, blocks=[BLOCK]), encoding=RoPE),
      decoder=part(
        Decoder,
        stack=part(Stack, num_layers=2, blocks=[part(BLOCK, cross=ATTENTION)]),
        encoding=RoPE,
      ),
      head=LMHead,
      rngs=nnx.Rngs(5),
    )
    results.append(searched(perturbed(model), 4, source=jnp.asarray(source)))
  assert_equal(*results)


def unstacked(model, copies):
  _, cache = jax.eval_shape(lambda: model.unstacked(model.init_cache(2, 6 + ROOM)))
  return cache, jax.eval_shape(lambda cache: cache.share(copies, 6 + copies * ROOM), cache)


def num_bytes(cache):
  return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(cache.layers))


def test_shared_slots_store_a_prompt_once():
  model, _ = language_models(GROUPED)
  cache, shared = unstacked(model, 4)
  repeated = jax.eval_shape(lambda cache: cache.repeat(4), cache)
  assert num_bytes(shared) * (6 + ROOM) * 4 == num_bytes(repeated) * (6 + 4 * ROOM)


def test_more_beams_than_bits_have_a_row_of_slots_each():
  model, _ = language_models(GROUPED)
  assert isinstance(unstacked(model, MAX_COPIES)[1].layers[0]['mixer'], SharedKeyValueCache)
  assert unstacked(model, MAX_COPIES + 1)[1] is None


@pytest.mark.nightly
def test_32_beams_use_all_bits():
  assert_equal(*(searched(model, MAX_COPIES) for model in language_models(BLOCK)))


def test_a_cache_that_cannot_share_gives_every_layer_rows_of_slots():
  @jax.tree_util.register_dataclass
  @dataclasses.dataclass(frozen=True)
  class Own(KeyValueCache):
    def share(self, copies, num_slots):
      return None

  class OwnCache(MultiHeadAttention):
    def init_cache(self, *args, **kwargs):
      return Own(**vars(super().init_cache(*args, **kwargs)))

  model, _ = language_models(BLOCK, mixing(OwnCache, num_heads=4))
  assert unstacked(model, 4)[1] is None


def test_sequences_that_are_not_reordered_share_no_slots(monkeypatch):
  def share(cache, copies, num_slots):
    raise AssertionError

  monkeypatch.setattr(BodyCache, 'share', share)
  model, _ = language_models(BLOCK)
  settings = {'max_new_tokens': 4, 'eos_id': None, 'pad_id': PAD, 'num_return': 3}
  generated = generate(
    model, np.full((2, 6), 4), np.full(2, 6), strategy=Sampling(), key=jax.random.key(0), **settings
  )
  assert generated.lengths.tolist() == [[4] * 3] * 2


def test_groups_of_beams_with_shared_slots_equal_groups_with_separate_slots():
  strategy = DiverseBeam(4, AverageLength(), num_groups=2, strength=2.0)
  shared, separate = language_models(GROUPED)
  assert_equal(searched(shared, 4, strategy=strategy), searched(separate, 4, strategy=strategy))
