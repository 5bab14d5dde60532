"""Real models: cached decoding token by token is equal to one full forward pass."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from t2x.base.errors import UserError
from t2x.decode import AverageLength, Beam, DiverseBeam, Greedy, generate
from t2x.layers import (
  MLP,
  Causal,
  LearnedPositions,
  MultiHeadAttention,
  Prefix,
  RoPE,
  T5Bias,
  TokenEmbedding,
  Tokens,
  Window,
  normal,
)
from t2x.models import Block, Decoder, Encoder, EncoderDecoder, LanguageModel, LMHead, Stack
from t2x.train.params import Blueprint

EOS, PAD, BOS, VOCAB = 1, 0, 3, 12
LENGTH = 12
part = functools.partial

ATTENTION = part(MultiHeadAttention, num_heads=4, num_kv_heads=2, kernel_init=normal(1.0))
FEED_FORWARD = part(MLP, hidden_dim=16, kernel_init=normal(1.0))
EMBEDDING = part(TokenEmbedding, vocab_size=VOCAB, init=normal(1.0))
# A tied head would repeat the last token indefinitely.
HEAD = part(LMHead, init=normal(1.0))
BLOCK = part(Block, mixer=ATTENTION, feed_forward=FEED_FORWARD)
LOCAL = part(BLOCK, pattern=Window(3))
ENCODINGS = {
  'learned': part(LearnedPositions, max_length=LENGTH, init=normal(1.0)),
  'rope': RoPE,
  't5': part(T5Bias, num_heads=4, bidirectional=False, num_buckets=8, max_distance=16),
}


def language_model(encoding, **settings):
  stack = part(Stack, num_layers=2, blocks=[BLOCK, LOCAL])
  body = part(Decoder, stack=stack, encoding=ENCODINGS[encoding], **settings)
  return LanguageModel(d_model=16, embedding=EMBEDDING, body=body, head=HEAD, rngs=nnx.Rngs(2))


def encoder_decoder():
  encoder = part(Encoder, stack=part(Stack, num_layers=1, blocks=[BLOCK]), encoding=RoPE)
  stack = part(Stack, num_layers=2, blocks=[part(BLOCK, cross=ATTENTION)])
  decoder = part(Decoder, stack=stack, encoding=ENCODINGS['learned'])
  return EncoderDecoder(
    d_model=16, embedding=EMBEDDING, encoder=encoder, decoder=decoder, head=HEAD, rngs=nnx.Rngs(5)
  )


def rows(lengths, width, seed=0):
  """Random ids without special tokens, padded on the right, and their lengths."""
  ids = np.random.default_rng(seed).integers(4, VOCAB, (len(lengths), width), np.int32)
  return np.where(np.arange(width) < np.array(lengths)[:, None], ids, PAD), np.array(lengths)


def segments(lengths, width):
  return jnp.asarray(np.arange(width) < np.asarray(lengths)[:, None], jnp.int32)


def sequences(generated):
  tokens, lengths = np.asarray(generated.tokens), np.asarray(generated.lengths)
  return [
    [t[:n].tolist() for t, n in zip(*row, strict=True)] for row in zip(tokens, lengths, strict=True)
  ]


def log_probs_at_once(forward, prompts, lengths, written):
  """Returns log-probabilities [batch, length, vocab] of complete rows, without a cache."""
  ids = np.zeros((len(prompts), LENGTH), np.int32)
  for row, prompt, n, tokens in zip(ids, prompts, lengths, written, strict=True):
    whole = [*prompt[:n], *tokens][:LENGTH]
    row[: len(whole)] = whole
  return np.asarray(jax.nn.log_softmax(forward(jnp.asarray(ids))))


def assert_greedy_equals_argmax(forward, prompts, lengths, generated):
  written = [row[0] for row in sequences(generated)]
  log_probs = log_probs_at_once(forward, prompts, lengths, written)
  for b, tokens in enumerate(written):
    # Teacher forcing: each token must be the most probable given the previous tokens.
    after = log_probs[b, lengths[b] - 1 : lengths[b] - 1 + len(tokens)]
    assert after.argmax(-1).tolist() == tokens
    np.testing.assert_allclose(
      generated.log_probs[b, 0, : len(tokens)], after.max(-1), rtol=1e-4, atol=1e-5
    )


@pytest.mark.parametrize('encoding', ['learned', 't5'])
def test_greedy_language_model_equals_argmax_without_cache(encoding):
  model = language_model(encoding)
  prompts, lengths = rows([4, 1, 6, 3], 6)
  generated = generate(
    model, prompts, lengths, max_new_tokens=7, strategy=Greedy(), eos_id=EOS, pad_id=PAD
  )
  assert len({tuple(row[0]) for row in sequences(generated)}) == 4
  forward = jax.jit(lambda ids: model(ids).x)
  assert_greedy_equals_argmax(forward, prompts, lengths, generated)


def test_the_prompt_is_the_prefix_of_a_prefix_language_model():
  model = language_model('rope', pattern=Causal() | Prefix())
  prompts, lengths = rows([4, 1, 6, 3], 6)
  generated = generate(
    model, prompts, lengths, max_new_tokens=6, strategy=Greedy(), eos_id=EOS, pad_id=PAD
  )
  prefix = jnp.asarray(np.arange(LENGTH) < lengths[:, None])
  marked = Tokens.row(LENGTH, marks={'prefix': prefix})
  forward = jax.jit(lambda ids: model(ids, tokens=marked).x)
  assert_greedy_equals_argmax(forward, prompts, lengths, generated)
  nothing = Tokens.row(LENGTH, marks={'prefix': jnp.zeros_like(prefix)})
  causal = log_probs_at_once(lambda ids: model(ids, tokens=nothing).x, prompts, lengths, [[]] * 4)
  seen = log_probs_at_once(forward, prompts, lengths, [[]] * 4)
  assert np.abs(causal - seen)[2, 0].max() > 0.01  # The prefix is not seen in vain.


@pytest.fixture(scope='module')
def translator():
  """An encoder-decoder, ragged sources, and the forward pass over them without a cache."""
  model = encoder_decoder()
  source, source_lengths = rows([5, 2, 7], 8, seed=1)
  source_tokens = Tokens.row(8, segments=segments(source_lengths, 8))
  given = {'source': jnp.asarray(source), 'source_tokens': source_tokens}

  @jax.jit
  def forward(ids):
    return model(given['source'], ids, source_tokens=source_tokens).x

  return model, given, forward


def translate(translator, **kwargs):
  model, given, _ = translator
  settings = {'max_new_tokens': LENGTH - 1, 'eos_id': EOS, 'pad_id': PAD} | given | kwargs
  return generate(model, np.full((3, 1), BOS), np.ones(3, int), **settings)


def test_greedy_encoder_decoder_equals_argmax_without_cache(translator):
  generated = translate(translator)
  assert len({tuple(row[0]) for row in sequences(generated)}) == 3
  assert_greedy_equals_argmax(translator[2], np.full((3, 1), BOS), [1, 1, 1], generated)


BEAMS = [Beam(3, AverageLength()), DiverseBeam(4, AverageLength(), num_groups=2, strength=2.0)]


@pytest.mark.parametrize('strategy', BEAMS, ids=str)
def test_every_hypothesis_has_the_log_probability_of_a_full_forward(translator, strategy):
  generated = translate(translator, strategy=strategy, num_return=3)
  for r in range(3):
    written = [row[r] for row in sequences(generated)]
    log_probs = log_probs_at_once(translator[2], np.full((3, 1), BOS), [1, 1, 1], written)
    for b, tokens in enumerate(written):
      by_hand = log_probs[b, np.arange(len(tokens)), tokens]
      np.testing.assert_allclose(
        generated.log_probs[b, r, : len(tokens)], by_hand, rtol=1e-4, atol=1e-5
      )


def test_cached_decoding_equals_full_forward_whatever_the_pieces():
  model = language_model('rope')
  ids, _ = rows([LENGTH] * 2, LENGTH, seed=2)
  ids = jnp.asarray(ids)
  whole = jax.jit(lambda ids: model(ids).x)(ids)
  decode = jax.jit(lambda *args: model.decode(*args))
  cache, pieces = model.init_cache(2, 16), []
  for start, stop in ((0, 5), (5, 6), (6, 7), (7, LENGTH)):
    positions = jnp.broadcast_to(jnp.arange(start, stop), (2, stop - start))
    tokens = Tokens(positions=positions, segments=jnp.ones_like(positions))
    logits, cache = decode(ids[:, start:stop], tokens, cache)
    pieces.append(logits)
  np.testing.assert_allclose(jnp.concatenate(pieces, axis=1), whole, rtol=1e-4, atol=1e-4)


def test_more_tokens_than_learned_positions_is_an_error(translator):
  with pytest.raises(UserError, match=f'require {LENGTH + 1} positions, the model has {LENGTH}'):
    translate(translator, max_new_tokens=LENGTH + 1)
  prompts, lengths = rows([6], 6)
  with pytest.raises(UserError, match='shorten the prompt or decrease max_new_tokens'):
    generate(language_model('learned'), prompts, lengths, max_new_tokens=8, eos_id=EOS, pad_id=PAD)
  prompts, lengths = rows([3, 8], 8)
  limits = {'max_new_tokens': 8, 'max_length': 14}
  message = r'a prompt of 8 tokens and 6 new tokens require 13 positions, .*: decrease max_length'
  with pytest.raises(UserError, match=message):
    generate(language_model('learned'), prompts, lengths, **limits, eos_id=EOS, pad_id=PAD)


@pytest.mark.parametrize('dtype', ['float32', 'bfloat16'])
def test_keys_are_cached_in_the_dtype_in_which_the_model_computes(dtype):
  dtypes = set()

  class Attention(MultiHeadAttention):
    def init_cache(self, batch, num_slots, dtype, source=None):
      dtypes.add(jnp.dtype(dtype))
      return super().init_cache(batch, num_slots, dtype, source)

  block = part(BLOCK, mixer=part(Attention, num_heads=4))
  body = part(Decoder, stack=part(Stack, num_layers=1, blocks=[block]), encoding=RoPE)
  settings = {'d_model': 16, 'embedding': EMBEDDING, 'body': body, 'rngs': nnx.Rngs(0)}
  blueprint = Blueprint(LanguageModel(**settings))
  model = blueprint.model(blueprint.params(LanguageModel(**settings)), dtype)
  limits = {'max_new_tokens': 4, 'eos_id': EOS, 'pad_id': PAD}
  generate(model, np.array([[BOS]]), np.ones(1, int), **limits)
  assert dtypes == {jnp.dtype(dtype)}
