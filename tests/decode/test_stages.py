"""Decoders of stages that keep the tokens: cached decoding is equal to one full forward pass."""

import functools

import jax
import numpy as np
import pytest
from flax import nnx

from t2x.decode import AverageLength, Beam, generate
from t2x.layers import (
  MLP,
  Dropless,
  GatedMLP,
  MixtureOfExperts,
  MultiHeadAttention,
  RoPE,
  SwitchFeedForward,
  T5Bias,
  TokenEmbedding,
  Tokens,
  Window,
  normal,
)
from t2x.models import (
  Block,
  Decoder,
  Encoder,
  EncoderDecoder,
  LanguageModel,
  LMHead,
  Stack,
  Stages,
)

EOS, PAD, BOS, VOCAB, WIDTH = 1, 0, 3, 12, 16
part = functools.partial

ATTENTION = part(MultiHeadAttention, num_heads=4, kernel_init=normal(1.0))
MLP_LAYER = part(MLP, hidden_dim=16, kernel_init=normal(1.0))
# A capacity of all tokens: none is dropped, whatever the length of a call.
EXPERTS = part(SwitchFeedForward, num_experts=2, hidden_dim=8, capacity_factor=2.0)
DROPLESS = part(
  MixtureOfExperts, num_experts=3, expert=part(GatedMLP, hidden_dim=8), dispatch=Dropless()
)
EMBEDDING = part(TokenEmbedding, vocab_size=VOCAB, init=normal(1.0))
HEAD = part(LMHead, init=normal(1.0))
BIAS = part(T5Bias, num_heads=4, bidirectional=False, num_buckets=8, max_distance=16)
PROMPTS, LENGTHS = np.array([[4, 5, 6, 7], [8, 9, 0, 0]]), np.array([4, 2])


def stack(num_layers, feed_forward, **settings):
  block = part(Block, mixer=ATTENTION, feed_forward=feed_forward, **settings)
  return part(Stack, num_layers=num_layers, blocks=[block])


def dense_then_experts(experts):
  """One dense layer, then two with experts, each kind with a pattern and an encoding of its own."""
  layers = part(
    Stages,
    stages=[stack(1, MLP_LAYER), stack(2, experts)],
    merge=None,
    pattern=[Window(3), Window(6)],
    encoding=[None, BIAS],
  )
  body = part(Decoder, stack=layers, encoding=RoPE)
  return LanguageModel(d_model=WIDTH, embedding=EMBEDDING, body=body, head=HEAD, rngs=nnx.Rngs(2))


def translator():
  """Only the second stage of the decoder reads the source."""
  encoder = part(Encoder, stack=stack(1, MLP_LAYER), encoding=RoPE)
  layers = part(
    Stages, stages=[stack(1, MLP_LAYER), stack(2, MLP_LAYER, cross=ATTENTION)], merge=None
  )
  decoder = part(Decoder, stack=layers, encoding=RoPE)
  return EncoderDecoder(
    d_model=WIDTH,
    embedding=EMBEDDING,
    encoder=encoder,
    decoder=decoder,
    head=HEAD,
    rngs=nnx.Rngs(5),
  )


def assert_hypotheses_have_the_log_probabilities_of(forward, generated):
  """Every hypothesis, scored by the forward pass over the complete row."""
  tokens, lengths = np.asarray(generated.tokens), np.asarray(generated.lengths)
  for b, copies in enumerate(tokens):
    ids = np.stack(
      [np.concatenate([PROMPTS[b, : LENGTHS[b]], row, np.zeros(4, int)])[:10] for row in copies]
    )
    log_probs = np.asarray(jax.nn.log_softmax(forward(b, ids)))
    for r, row in enumerate(copies):
      n, start = lengths[b, r], LENGTHS[b] - 1
      expected = log_probs[r, start + np.arange(n), row[:n]]
      np.testing.assert_allclose(generated.log_probs[b, r, :n], expected, rtol=1e-4, atol=1e-5)


def search(model, strategy, num_return, **source):
  settings = {'max_new_tokens': 6, 'eos_id': EOS, 'pad_id': PAD, 'num_return': num_return}
  return generate(model, PROMPTS, LENGTHS, strategy=strategy, **settings, **source)


@pytest.mark.parametrize(
  ('copies', 'experts'), [(2, DROPLESS), pytest.param(5, EXPERTS, marks=pytest.mark.nightly)]
)
def test_beams_of_first_dense_layers_then_experts_equal_the_forward_pass(copies, experts):
  """Two beams share the slots of their row, five have slots of their own."""
  model = dense_then_experts(experts)
  forward = jax.jit(lambda ids: model(ids).x)
  generated = search(model, Beam(copies, AverageLength()), copies)
  assert len({tuple(row) for rows in np.asarray(generated.tokens) for row in rows}) > copies
  assert_hypotheses_have_the_log_probabilities_of(lambda _, ids: forward(ids), generated)


def test_a_decoder_whose_second_stage_reads_the_source_generates():
  model = translator()
  source, tokens = np.array([[4, 7, 5], [9, 6, 4]]), Tokens.row(3)
  generated = search(
    model, Beam(2, AverageLength()), 2, source=jax.numpy.asarray(source), source_tokens=tokens
  )

  @jax.jit
  def forward(source, ids):
    return model(source, ids, source_tokens=tokens).x

  assert_hypotheses_have_the_log_probabilities_of(
    lambda b, ids: forward(source[[b, b]], ids), generated
  )
