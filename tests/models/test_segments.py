"""Segment-level recurrence: the scan equals the pattern over whole rows; gradients; decoding; refusals.

tests/parity/test_positions.py compares it with XLNet of transformers.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from t2x.base.errors import UserError
from t2x.decode import Greedy, generate
from t2x.layers import (
  MLP,
  Blocks,
  Call,
  Causal,
  LearnedValueResidual,
  LightweightConvolution,
  Linformer,
  MultiHeadAttention,
  RoPE,
  SwitchFeedForward,
  TokenEmbedding,
  Tokens,
  XLPositions,
)
from t2x.models import Block, Decoder, LanguageModel, Segments, Stack

part = functools.partial
WIDTH, HEADS, LENGTH, ROW, BATCH = 16, 2, 4, 12, 2
X = jnp.asarray(np.random.default_rng(0).normal(size=(BATCH, ROW, WIDTH)), jnp.float32)
# Two documents, whose border is inside of a segment; padding.
PACKED = Tokens(
  jnp.asarray([[*range(6), *range(6)], [*range(10), 0, 0]]),
  jnp.asarray([[1] * 6 + [2] * 6, [1] * 10 + [0] * 2]),
)
ATTENTION = part(MultiHeadAttention, num_heads=HEADS)
XL = part(XLPositions, num_heads=HEADS)


def segments_of(
  d_model=WIDTH,
  *,
  memory,
  mixer=ATTENTION,
  encoding=XL,
  feed_forward=part(MLP, hidden_dim=24),
  rngs=None,
):
  block = part(Block, mixer=mixer, feed_forward=feed_forward, encoding=encoding)
  stack = part(Stack, num_layers=2, blocks=[block])
  return Segments(d_model, stack=stack, length=LENGTH, memory=memory, rngs=rngs or nnx.Rngs(0))


@jax.jit
def run(stack, x, tokens):
  return stack(x, Call(tokens, Causal())).x


def test_a_memory_of_the_whole_row_gives_the_output_of_the_plain_stack():
  """Packed documents and padding included."""
  segments = segments_of(memory=ROW)
  y, plain = run(segments, X, PACKED), run(segments.stack, X, PACKED)
  valid = np.asarray(PACKED.segments) > 0
  np.testing.assert_allclose(y[valid], plain[valid], atol=1e-5)


@pytest.mark.parametrize(
  'memory', [0, 6, *(pytest.param(n, marks=pytest.mark.nightly) for n in (3, 4))]
)
def test_segments_equal_the_stack_with_their_pattern(memory):
  segments = segments_of(memory=memory)
  call = Call(Tokens.row(ROW), Causal() & Blocks(LENGTH, memory))
  expected = jax.jit(lambda stack: stack(X, call).x)(segments.stack)
  np.testing.assert_allclose(run(segments, X, Tokens.row(ROW)), expected, atol=1e-5)
  assert segments.patterns(Causal()) == [call.pattern]


def test_no_gradient_flows_into_the_memory_but_into_projections_of_it():
  segments = segments_of(memory=LENGTH)

  def last_segment(segments, x):
    return jnp.square(segments(x, Call(Tokens.row(ROW), Causal())).x[:, -LENGTH:]).sum()

  step = jax.jit(jax.value_and_grad(last_segment, (0, 1)))
  value, (parts, x) = step(segments, X)
  assert jnp.abs(x[:, :-LENGTH]).max() == 0 and jnp.abs(x[:, -LENGTH:]).min() > 0
  changed, _ = step(segments, X.at[:, 0].multiply(-1.0))
  assert jnp.abs(changed - value) > 1e-4  # Two layers reach two segments back.
  # Keys and values of the memory are computed with the present parameters, through which gradients flow.
  without = jax.jit(jax.grad(last_segment))(segments_of(memory=0), X)
  for name in ('k', 'v'):
    ours, alone = (vars(p.stack.blocks[0].mixer)[name].kernel[...] for p in (parts, without))
    assert jnp.abs(ours - alone).max() > 1e-3


@pytest.mark.parametrize('encoding', [XL, pytest.param(RoPE, marks=pytest.mark.nightly)])
def test_decoding_equals_the_forward_pass(encoding):
  """Greedy decoding over two borders of segments, from prompts of different lengths."""
  model = LanguageModel(
    d_model=WIDTH,
    embedding=part(TokenEmbedding, vocab_size=13),
    body=part(Decoder, stack=part(segments_of, memory=3, encoding=encoding)),
    rngs=nnx.Rngs(1),
  )
  ids = np.random.default_rng(2).integers(1, 13, (2, 5))
  lengths = np.asarray([5, 2])
  settings = {'max_new_tokens': 6, 'strategy': Greedy(), 'eos_id': None, 'pad_id': 0}
  with jax.numpy_rank_promotion('allow'):  # Only layers and models broadcast explicitly.
    generated = generate(model, ids, lengths, **settings)
  logits = jax.jit(lambda ids: model(ids).x)
  for row, length in enumerate(lengths):
    text = [*ids[row, :length], *np.asarray(generated.tokens[row, 0])]
    padded = jnp.asarray(np.pad(text, (0, ROW - len(text))))[None]
    log_probs = jax.nn.log_softmax(logits(padded)[0])
    for step in range(6):
      expected = log_probs[length + step - 1]
      assert int(expected.argmax()) == text[length + step]
      np.testing.assert_allclose(generated.log_probs[row, 0, step], expected.max(), atol=1e-5)


def test_losses_of_experts_are_averaged_over_segments_and_metrics_summed():
  experts = part(SwitchFeedForward, hidden_dim=8, num_experts=2, capacity_factor=2.0)
  segments = segments_of(memory=0, feed_forward=experts)

  @jax.jit
  def aux_of(stack, x):
    return stack(x, Call(Tokens.row(x.shape[1]), Causal())).aux

  aux = aux_of(segments, X)
  parts = [aux_of(segments.stack, X[:, i : i + LENGTH]) for i in range(0, ROW, LENGTH)]
  assert aux.losses and aux.metrics
  for name, value in aux.losses.items():
    np.testing.assert_allclose(value, sum(p.losses[name] for p in parts) / 3, rtol=1e-5)
  for name, pair in aux.metrics.items():
    np.testing.assert_allclose(
      pair, [sum(p.metrics[name][i] for p in parts) for i in (0, 1)], rtol=1e-5
    )


def test_dropout_differs_between_segments():
  segments = segments_of(memory=0, mixer=part(ATTENTION, dropout_rate=0.5))
  x = jnp.tile(X[:, :LENGTH], (1, 3, 1))
  tokens = Tokens(jnp.tile(jnp.arange(LENGTH), 3)[None])
  y = segments(x, Call(tokens, Causal(), key=jax.random.key(0))).x
  assert jnp.abs(y[:, :LENGTH] - y[:, LENGTH : 2 * LENGTH]).max() > 1e-3


@pytest.mark.parametrize(
  ('settings', 'message'),
  [
    (
      {'mixer': part(LightweightConvolution, num_heads=2, kernel_size=3), 'encoding': None},
      'needs attention layers',
    ),
    (
      {'mixer': part(Linformer, num_heads=2, max_length=12, projected_length=4), 'encoding': None},
      'Linformer',
    ),
    ({'mixer': part(ATTENTION, values=LearnedValueResidual)}, 'values of a memory'),
  ],
)
def test_layers_without_memory_are_refused(settings, message):
  with pytest.raises(UserError, match=message):
    segments_of(memory=4, **settings)(X, Call(Tokens.row(ROW), Causal()))


def test_calls_that_do_not_fit_are_refused():
  segments = segments_of(memory=4)
  call = Call(Tokens.row(10), Causal())
  with pytest.raises(UserError, match='rows of 10 tokens cannot be cut into segments'):
    segments(X[:, :10], call)
  with pytest.raises(UserError, match='records nothing'):
    segments(X, dataclasses.replace(call, record=frozenset({'hidden'})))
