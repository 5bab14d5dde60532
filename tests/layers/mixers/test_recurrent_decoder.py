"""The recurrent decoder in a model, with a cache and in beam search. tests/parity compares it with joeynmt,
contracts are in tests/contracts."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from applying import applied, moved
from flax import nnx

from t2x.base.errors import UserError
from t2x.decode import Beam, Greedy, generate
from t2x.layers import (
  MLP,
  Call,
  Causal,
  DoublyStochastic,
  ElmanCell,
  FinalStates,
  FinalVectors,
  Full,
  GatedContext,
  LastVector,
  MeanVectors,
  MultiHeadAttention,
  Plain,
  RandomScores,
  Recurrent,
  RecurrentDecoder,
  RoPE,
  SourceAttention,
  SourceSequence,
  StackedCells,
  StateBeforeDecoder,
  TokenEmbedding,
  Tokens,
  normal,
)
from t2x.models import Block, Decoder, Encoder, EncoderDecoder, LMHead, Stack, SublayerBlock

part = functools.partial
VOCAB, WIDTH, PAD, EOS, ROOM = 11, 16, 0, 1, 4
SOURCE = np.random.default_rng(3).integers(2, VOCAB, (3, 7))
SEGMENTS = (np.arange(7) < np.asarray([[7], [4], [5]])).astype(np.int32)
X = jax.random.normal(jax.random.key(0), (2, 5, WIDTH))


@pytest.fixture(scope='module')
def model():
  layer = part(SublayerBlock, sublayers={'mixer': RecurrentDecoder}, wiring=Plain)
  block = part(
    Block, mixer=part(MultiHeadAttention, num_heads=4), feed_forward=part(MLP, hidden_dim=16)
  )
  network = EncoderDecoder(
    d_model=WIDTH,
    embedding=part(TokenEmbedding, vocab_size=VOCAB, init=normal(1.0)),
    encoder=part(Encoder, stack=part(Stack, num_layers=1, blocks=[block]), encoding=RoPE),
    decoder=part(Decoder, stack=part(Stack, num_layers=2, blocks=[layer]), final_norm=None),
    head=LMHead,
    rngs=nnx.Rngs(0),
  )
  return moved(network)


def log_probabilities(model, ids):
  """Of each target token after the first of each row, from one forward pass."""
  source = Tokens.row(7, segments=jnp.asarray(SEGMENTS))
  logits = jax.jit(model)(jnp.asarray(SOURCE), jnp.asarray(ids), source_tokens=source).x
  logits = jax.nn.log_softmax(logits[:, :-1], axis=-1)
  return jnp.take_along_axis(logits, jnp.asarray(ids)[:, 1:, None], axis=2)[..., 0]


@pytest.mark.parametrize(
  'strategy', [pytest.param(Greedy(), marks=pytest.mark.nightly), Beam(3)], ids=str
)
def test_generated_tokens_have_the_probabilities_of_the_forward_pass(model, strategy):
  source_tokens = Tokens.row(7, segments=jnp.asarray(SEGMENTS))
  inputs = {'source': jnp.asarray(SOURCE), 'source_tokens': source_tokens}
  settings = {'max_new_tokens': ROOM, 'eos_id': EOS, 'pad_id': PAD, 'strategy': strategy}
  prompts = np.full((3, 1), 2)
  with jax.numpy_rank_promotion('allow'):  # Only layers and models broadcast explicitly.
    found = generate(model, prompts, np.ones(3, int), **settings, **inputs)
  ids = np.concatenate([prompts, found.tokens[:, 0]], axis=1)
  own = np.arange(ROOM)[None] < np.asarray(found.lengths)
  expected = np.where(own, log_probabilities(model, ids), 0)
  np.testing.assert_allclose(found.log_probs[:, 0], expected, atol=2e-5)


def test_decoding_token_by_token_equals_the_forward_pass(model):
  source, tokens = jnp.asarray(SOURCE), Tokens.row(7, segments=jnp.asarray(SEGMENTS))
  ids = jnp.asarray(np.random.default_rng(1).integers(2, VOCAB, (3, 5)))
  full = jax.jit(model)(source, ids, source_tokens=tokens).x
  decode = jax.jit(lambda model, *inputs: model.decode(*inputs))
  cache = model.init_cache(3, 5, source, tokens)
  for i in range(5):
    logits, cache = decode(model, ids[:, i : i + 1], Tokens(jnp.full((3, 1), i)), cache)
    np.testing.assert_allclose(logits[:, 0], full[:, i], atol=2e-5)


@pytest.mark.parametrize('kind', [RecurrentDecoder, StateBeforeDecoder])
def test_a_packed_document_sees_neither_state_nor_output_of_the_document_before(kind):
  """Documents of three and two tokens, each with a source of its own, against a row for each."""
  decoder = moved(kind(WIDTH, rngs=nnx.Rngs(0)))
  source = jax.random.normal(jax.random.key(1), X.shape)

  def output(x, source, segments):
    tokens = Tokens.row(x.shape[1], segments=jnp.asarray(segments))
    return applied(
      decoder, x, tokens=tokens, pattern=Causal(), source=SourceSequence(source, tokens)
    )[0]

  packed = output(X, source, [[1, 1, 1, 2, 2], [1, 1, 1, 2, 2]])
  for own in (slice(0, 3), slice(3, 5)):
    alone = output(X[:, own], source[:, own], [[1] * len(range(5)[own])] * 2)
    np.testing.assert_allclose(packed[:, own], alone, atol=1e-5)


def test_without_an_initial_part_the_state_starts_with_zeros():
  source = SourceSequence(X, Tokens.row(5))
  cache = RecurrentDecoder(WIDTH, initial=None, rngs=nnx.Rngs(0)).init_cache(2, 4, source=source)
  for leaf in jax.tree.leaves((cache.cell, cache.fed)):
    np.testing.assert_array_equal(leaf, 0)
  assert (
    jnp.abs(RecurrentDecoder(WIDTH, rngs=nnx.Rngs(0)).init_cache(2, 4, source=source).cell[0]).min()
    > 0
  )


def test_unsupported_calls_are_refused():
  decoder, row = RecurrentDecoder(WIDTH, rngs=nnx.Rngs(0)), Tokens.row(5)
  with pytest.raises(UserError, match='attends to a source, but this model has no source'):
    applied(decoder, X, pattern=Causal())
  with pytest.raises(UserError, match='does not support the pattern'):
    applied(decoder, X, pattern=Full(), source=SourceSequence(X, row))
  with pytest.raises(UserError, match='reads no positions of the source, but there is RoPE'):
    encoding = RoPE(WIDTH, rngs=nnx.Rngs(0))
    applied(decoder, X, pattern=Causal(), source=SourceSequence(X, row, encoding))
  with pytest.raises(UserError, match='SourceAttention cannot use RandomScores'):
    scores = part(RandomScores, max_length=8)
    SourceAttention(WIDTH, scores=scores, rngs=nnx.Rngs(0))


@pytest.mark.parametrize('kind', [RecurrentDecoder, StateBeforeDecoder])
def test_without_an_initial_part_the_source_is_read_through_attention_alone(kind):
  def outputs(x, initial):
    decoder = moved(kind(WIDTH, initial=initial, rngs=nnx.Rngs(0)))
    # Each token sees the source up to its own position.
    source = SourceSequence(x, Tokens.row(5), pattern=Causal())
    return applied(decoder, X, pattern=Causal(), source=source)[0][:, :2].sum()

  def gradient(initial):
    return jax.grad(outputs)(X, initial)

  np.testing.assert_array_equal(gradient(None)[:, 2:], 0)
  assert jnp.abs(gradient(None)[:, :2]).min() > 0
  assert jnp.abs(gradient(LastVector)[:, -1]).max() > 0


def test_the_final_vector_of_both_directions_is_that_of_the_last_and_the_first_token():
  own = jnp.asarray([[1, 1, 0, 2, 2], [0, 1, 1, 1, 0]])
  source = SourceSequence(X, Tokens.row(5, segments=own))
  initial = FinalVectors(WIDTH, use_bridge=False, rngs=nnx.Rngs(0))
  (found,) = initial(source, jnp.asarray([[1, 2], [1, 1]]), 1)
  half = WIDTH // 2
  for row, place, first, last in ((0, 0, 0, 1), (0, 1, 3, 4), (1, 0, 1, 3)):
    np.testing.assert_array_equal(found[row, place, :half], X[row, last, :half])
    np.testing.assert_array_equal(found[row, place, half:], X[row, first, half:])


def test_final_states_are_those_of_the_same_layer_of_the_encoder():
  own = jnp.asarray([[1, 1, 0, 2, 2], [0, 1, 1, 1, 0]])
  # Two layers of h and c, of which the encoder records the first layer first.
  states = jax.random.normal(jax.random.key(1), (2, 2, 5, 2, WIDTH))
  source = SourceSequence(X, Tokens.row(5, segments=own), recorded={'states': states})
  last = part(LastVector, use_bridge=False)
  found = FinalStates(WIDTH, ends=last, rngs=nnx.Rngs(0))(source, jnp.asarray([[2], [1]]), 4)
  order = [(1, 0), (1, 1), (0, 0), (0, 1)]
  for vector, (layer, place) in zip(found, order, strict=True):
    np.testing.assert_array_equal(vector[0, 0], states[0, layer, 4, place])
    np.testing.assert_array_equal(vector[1, 0], states[1, layer, 3, place])


def test_states_that_the_encoder_does_not_have_are_refused():
  decoder, row = RecurrentDecoder(WIDTH, initial=FinalStates, rngs=nnx.Rngs(0)), Tokens.row(5)
  with pytest.raises(UserError, match=r'SourceSequence.recorded has none'):
    applied(decoder, X, pattern=Causal(), source=SourceSequence(X, row))
  with pytest.raises(UserError, match='2 layers of 2 vectors, but the state of the decoder has 2'):
    states = jnp.zeros((2, 2, 5, 2, WIDTH))
    applied(
      decoder, X, pattern=Causal(), source=SourceSequence(X, row, recorded={'states': states})
    )

  def built(mixer, initial):
    layer = part(SublayerBlock, sublayers={'mixer': mixer}, wiring=Plain)
    own = part(RecurrentDecoder, initial=initial)
    above = part(SublayerBlock, sublayers={'mixer': own}, wiring=Plain)
    return EncoderDecoder(
      d_model=WIDTH,
      embedding=part(TokenEmbedding, vocab_size=VOCAB),
      encoder=part(Encoder, stack=part(Stack, num_layers=1, blocks=[layer])),
      decoder=part(Decoder, stack=part(Stack, num_layers=1, blocks=[above])),
      rngs=nnx.Rngs(0),
    )

  with pytest.raises(UserError, match='reads the states of the layers of the encoder'):
    built(part(MultiHeadAttention, num_heads=4), FinalStates)
  ids = jnp.ones((1, 3), jnp.int32)

  def recorded(initial, *record):
    model = built(Recurrent, initial)
    names = jax.eval_shape(lambda: model(ids, ids, record=frozenset(record)).recorded)
    return list(names)

  # States that only the decoder reads are not returned.
  assert recorded(FinalStates) == []
  for initial in (FinalStates, LastVector):
    assert recorded(initial, 'states') == ['encoder.blocks.0.mixer.states']


def test_projections_of_a_part_of_the_width_need_both():
  with pytest.raises(UserError, match='needs projections of queries and keys'):
    SourceAttention(WIDTH, head_dim=4, projections=('q',), rngs=nnx.Rngs(0))


def test_dropout_between_cells_has_a_mask_for_each_step_and_row():
  # The second cell has the output tanh(h) for the output h of the first, and the decoder that of the second.
  cell = part(StackedCells, num_layers=2, cell=ElmanCell, dropout_rate=0.25)
  decoder = moved(RecurrentDecoder(WIDTH, cell=cell, initial=None, rngs=nnx.Rngs(0)))
  lower, upper = decoder.cell.cells
  lower.state.kernel[...] = lower.state.kernel[...].at[:WIDTH].set(0)
  upper.state.kernel[...] = jnp.zeros_like(upper.state.kernel)
  upper.inputs.kernel[...] = jnp.eye(WIDTH)[:, None]
  upper.inputs.bias[...] = jnp.zeros_like(upper.inputs.bias)
  decoder.out.kernel[...] = jnp.stack([jnp.eye(WIDTH), jnp.zeros((WIDTH, WIDTH))])
  decoder.out.bias[...] = jnp.zeros(WIDTH)

  def output(key):
    return applied(decoder, X, pattern=Causal(), source=SourceSequence(X, Tokens.row(5)), key=key)[
      0
    ]

  h = jnp.arctanh(jnp.arctanh(output(None)))
  found = output(jax.random.key(0))
  kept = np.asarray(found != 0)
  np.testing.assert_allclose(found, jnp.tanh(jnp.tanh(h / 0.75)) * kept, atol=1e-5)
  masks = kept.reshape(-1, WIDTH)
  assert len(np.unique(masks, axis=0)) == len(masks)
  assert 0.6 < kept.mean() < 0.9


def test_steps_have_different_dropout_of_the_attention():
  attention = part(MultiHeadAttention, num_heads=1, dropout_rate=0.5)
  decoder = moved(RecurrentDecoder(WIDTH, attention=attention, initial=None, rngs=nnx.Rngs(0)))
  # Each step has the same cell state; only the context differs.
  decoder.cell.inputs.kernel[...] = jnp.zeros_like(decoder.cell.inputs.kernel)
  decoder.cell.inputs.bias[...] = jnp.zeros_like(decoder.cell.inputs.bias)
  decoder.cell.state.kernel[...] = jnp.zeros_like(decoder.cell.state.kernel)

  def output(key):
    return applied(decoder, X, pattern=Causal(), source=SourceSequence(X, Tokens.row(5)), key=key)[
      0
    ]

  np.testing.assert_allclose(output(None), output(None)[:, :1].repeat(5, axis=1), atol=1e-6)
  steps = np.asarray(output(jax.random.key(0)))[0].round(5)
  assert len(np.unique(steps, axis=0)) > 2


def test_dropout_of_a_single_cell_is_refused():
  with pytest.raises(UserError, match='dropout_rate has no effect on one cell'):
    StackedCells(WIDTH, num_layers=1, dropout_rate=0.5, rngs=nnx.Rngs(0))


def test_the_penalty_and_the_initial_state_read_the_tokens_of_the_source_only():
  decoder = DoublyStochastic(
    WIDTH,
    sublayer=part(StateBeforeDecoder, attention=GatedContext, initial=MeanVectors),
    weight=2.0,
    rngs=nnx.Rngs(0),
  )

  def results(x, length):
    row = Tokens.row(x.shape[1], segments=jnp.asarray([[1] * length + [0] * (x.shape[1] - length)]))
    call = Call(
      Tokens.row(5), Causal(), source=SourceSequence(x, row), record=frozenset({'probabilities'})
    )
    result = jax.jit(lambda part, x: part(x, call))(decoder, X)
    return result.x, result.aux.losses['doubly_stochastic'], result.recorded['probabilities']

  padded, short = results(X, 3), results(X[:, :3], 3)
  np.testing.assert_allclose(padded[0], short[0], atol=1e-6)
  np.testing.assert_allclose(padded[1], short[1], atol=1e-6)
  read = short[2][:, 0].sum(axis=1)
  np.testing.assert_allclose(short[1], 2 * np.mean((1 - read) ** 2, axis=1), atol=1e-6)


def test_captioning_parts_refuse_what_does_not_fit():
  with pytest.raises(UserError, match=r'DoublyStochastic.sublayer = @MLP has no attention'):
    DoublyStochastic(WIDTH, sublayer=part(MLP, hidden_dim=8), rngs=nnx.Rngs(0))
  with pytest.raises(UserError, match=r'GatedContext.gate_dim = 2: must be 1 or d_model = 16'):
    GatedContext(WIDTH, gate_dim=2, rngs=nnx.Rngs(0))
  with pytest.raises(UserError, match=r'MeanVectors.num_vectors = 1, but the state .* has 2'):
    one = part(MeanVectors, num_vectors=1)
    StateBeforeDecoder(WIDTH, initial=one, rngs=nnx.Rngs(0)).init_cache(
      2, 4, source=SourceSequence(X, Tokens.row(5))
    )
  with pytest.raises(UserError, match=r'SourceAttention.use_bias has no effect'):
    SourceAttention(WIDTH, projections=('k',), use_bias=True, rngs=nnx.Rngs(0))
