"""Global tokens in front of a text, against loops in NumPy in float64."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from t2x.base.errors import UserError
from t2x.layers import (
  MLP,
  Blockwise,
  Call,
  Causal,
  Dense,
  Full,
  Global,
  GlobalTokenBias,
  LearnedPositions,
  Marked,
  MultiHeadAttention,
  RowLayout,
  Sinusoidal,
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
  GlobalTokens,
  LanguageModel,
  LMHead,
  Stack,
)

part = functools.partial
N, WINDOW, WIDTH, HEADS, VOCAB, BUCKETS, FARTHEST = 3, 4, 12, 2, 17, 8, 9
PATTERNS = [Window(WINDOW) | Global(N), Window(WINDOW) | Marked('global')]
BIAS = part(
  GlobalTokenBias, num_heads=HEADS, num_buckets=BUCKETS, max_distance=FARTHEST, init=normal(1.0)
)


def build(
  pattern=PATTERNS[0], kernel=Dense(), encoding=BIAS, body=Encoder, n=N, head=LMHead, layers=1
):
  attention = part(
    MultiHeadAttention, num_heads=HEADS, kernel=kernel, kernel_init=normal(0.5), use_bias=False
  )
  block = part(Block, mixer=attention, feed_forward=part(MLP, hidden_dim=8), pattern=pattern)
  text = part(TokenEmbedding, vocab_size=VOCAB, init=normal(1.0))
  return LanguageModel(
    d_model=WIDTH,
    embedding=part(GlobalTokens, n=n, embedding=text, init=normal(1.0)),
    body=part(body, stack=part(Stack, num_layers=layers, blocks=[block]), encoding=encoding),
    head=head,
    rngs=nnx.Rngs(0),
  )


def rows(lengths, width, seed=0):
  ids = np.random.default_rng(seed).integers(0, VOCAB, (len(lengths), width))
  segments = (np.arange(width) < np.array(lengths)[:, None]).astype(np.int32)
  return jnp.asarray(ids), Tokens.row(width, segments=jnp.asarray(segments), right_padded=True)


def bucket(distance):
  """The bucket of T5 for a distance, in both directions."""
  half, exact = BUCKETS // 2, BUCKETS // 4
  size = abs(distance)
  if size < exact:
    inside = size
  else:
    size = min(size, FARTHEST)
    inside = exact + int(math.log(size / exact) / math.log(FARTHEST / exact) * (half - exact))
  return min(inside, half - 1) + half * (distance > 0)


def attention_by_loop(mixer, encoding, x, present):
  """Softmax attention of one row of global tokens and text, pair by pair."""
  kernel = {
    name: np.asarray(getattr(mixer, name).kernel[...], np.float64)[0] for name in ('q', 'k', 'v')
  }
  out = np.asarray(mixer.out.kernel[...], np.float64)[0]
  out_bias = np.asarray(mixer.out.bias[...], np.float64)[0]
  by_distance = np.asarray(encoding.table[...], np.float64)
  by_kind = np.asarray(encoding.global_table[...], np.float64)
  q, k, v = (np.einsum('ld,dhf->lhf', x, kernel[name]) for name in ('q', 'k', 'v'))
  y = np.tile(out_bias, (len(x), 1))
  for i in np.flatnonzero(present):
    for h in range(HEADS):
      scores, values = [], []
      for j in np.flatnonzero(present):
        if i < N and j < N:
          bias = by_kind[2, h]
        elif i < N:
          bias = by_kind[1, h]
        elif j < N:
          bias = by_kind[0, h]
        elif abs(i - j) < WINDOW:
          bias = by_distance[bucket(j - i), h]
        else:
          continue
        scores.append(q[i, h] @ k[j, h] / math.sqrt(q.shape[-1]) + bias)
        values.append(v[j, h])
      weights = np.exp(np.array(scores) - max(scores))
      y[i] += np.einsum('f,fd->d', weights / weights.sum() @ np.array(values), out[h])
  return y


@pytest.mark.parametrize(
  ('pattern', 'kernel'),
  [
    (PATTERNS[0], Dense()),
    (PATTERNS[1], Blockwise(4, 4)),
    pytest.param(PATTERNS[0], Blockwise(4, 4), marks=pytest.mark.nightly),
    pytest.param(PATTERNS[1], Dense(), marks=pytest.mark.nightly),
  ],
  ids=str,
)
def test_attention_equals_a_loop(pattern, kernel, compared):
  model = build(pattern, kernel)
  ids, tokens = rows([13, 5], 13)
  x, extended = model.embedding(ids, tokens)
  stacked = model.body.stack.blocks[0].sublayers['mixer']
  mixer = jax.tree.map(lambda leaf: leaf[0], stacked)
  y = mixer(x, Call(extended, pattern, encoding=model.body.encoding)).x
  present = np.asarray(extended.segments) != 0
  for b in range(2):
    vectors = np.asarray(x[b], np.float64)
    expected = attention_by_loop(stacked, model.body.encoding, vectors, present[b])
    outputs = np.asarray(y[b])[present[b]]
    compared('ETC', 'NumPy, float64', outputs, expected[present[b]])


def test_heads_get_the_vectors_of_the_text():
  model = build()
  ids, tokens = rows([13, 5], 13)
  out = model.hidden(ids, tokens=tokens)
  assert out.x.shape == (2, 13, WIDTH) and out.tokens is tokens
  assert model(ids, tokens=tokens).x.shape == (2, 13, VOCAB)
  extended = model.embedding(ids, tokens)[1]
  assert extended.num_extra == N and extended.positions.shape == (1, N + 13)
  np.testing.assert_array_equal(extended.segments[1], [1] * (N + 5) + [0] * 8)
  np.testing.assert_array_equal(extended.marks['global'][0], [True] * N + [False] * 13)


def test_padding_changes_nothing():
  model = build(layers=2)
  ids, tokens = rows([5], 13)
  padded = model.hidden(ids, tokens=tokens).x[:, :5]
  np.testing.assert_allclose(padded, model.hidden(ids[:, :5]).x, atol=1e-5)


def test_distant_tokens_reach_each_other_through_global_tokens():
  """In one layer a token sees its window; in two, all tokens."""
  ids, _ = rows([40], 40)
  for layers, expected in ((1, WINDOW), (2, 40)):
    model = build(layers=layers)
    changed = model.hidden(ids.at[0, 0].set((ids[0, 0] + 1) % VOCAB)).x - model.hidden(ids).x
    assert (np.abs(changed[0]).max(axis=-1) > 1e-6).sum() == expected


def test_a_row_of_padding_stays_padding():
  model = build()
  ids, tokens = rows([6, 0], 6)
  assert not np.asarray(model.embedding(ids, tokens)[1].segments)[1].any()
  assert np.isfinite(model.hidden(ids, tokens=tokens).x).all()


def test_marks_of_the_task_are_kept():
  model = build(PATTERNS[1] | Marked('starts'))
  ids, tokens = rows([6], 6)
  mark = jnp.arange(6)[None] % 3 == 0
  tokens = Tokens.row(6, marks={'starts': mark})
  extended = model.embedding(ids, tokens)[1]
  np.testing.assert_array_equal(extended.marks['starts'][0], [False] * N + mark[0].tolist())
  assert np.isfinite(model.hidden(ids, tokens=tokens).x).all()


def test_the_number_of_positions_excludes_global_tokens():
  assert build(encoding=part(LearnedPositions, max_length=20)).spec.max_length == 20 - N


def test_packed_rows_are_refused():
  ids, _ = rows([8], 8)
  segments = jnp.asarray([[1, 1, 1, 2, 2, 2, 2, 0]])
  packed = Tokens(jnp.arange(8)[None], segments, layout=RowLayout.PACKED)
  for tokens in (packed, Tokens.row(8, segments=segments), Tokens.row(8, encoded=segments)):
    with pytest.raises(UserError, match='GlobalTokens needs rows of one document'):
      build().hidden(ids, tokens=tokens)


def test_a_mark_of_the_same_name_is_refused():
  ids, _ = rows([8], 8)
  with pytest.raises(UserError, match="the task sets the mark 'global'"):
    build().hidden(ids, tokens=Tokens.row(8, marks={'global': jnp.ones((1, 8), bool)}))


@pytest.mark.parametrize(
  ('body', 'pattern'),
  [
    (Decoder, Full()),
    (Decoder, PATTERNS[0]),
    (Decoder, PATTERNS[1]),
    (Encoder, Window(WINDOW)),
    (Encoder, Causal()),
  ],
)
def test_bodies_without_global_attention_are_refused(body, pattern):
  with pytest.raises(UserError, match='no layer lets the 3 tokens of GlobalTokens see'):
    build(pattern, body=body)


def test_full_attention_is_allowed():
  build(Full())


def test_generation_is_refused():
  with pytest.raises(UserError, match='cannot generate text'):
    build().init_cache(1, 8)


def test_the_bias_without_global_tokens_is_refused():
  encoding = BIAS(WIDTH, rngs=nnx.Rngs(0))
  with pytest.raises(UserError, match='GlobalTokenBias needs global tokens'):
    encoding.scores(None, None, Tokens.row(4), Tokens.row(4), scale=1.0)


def test_two_long_tokens_have_the_bias_of_t5():
  encoding = BIAS(WIDTH, rngs=nnx.Rngs(0))
  plain = T5Bias(
    WIDTH,
    num_heads=HEADS,
    bidirectional=True,
    num_buckets=BUCKETS,
    max_distance=FARTHEST,
    rngs=nnx.Rngs(0),
  )
  plain.table = encoding.table
  row = Tokens.row(9, marks={'global': jnp.arange(9)[None] < 2})
  bias = encoding.scores(None, None, row, row, scale=1.0)
  expected = plain.scores(None, None, row, row, scale=1.0)
  np.testing.assert_array_equal(bias[:, :, 2:, 2:], expected[:, :, 2:, 2:])


def test_time_and_memory_grow_linearly_with_the_length():
  """Blockwise attention with both bounds of cost: the tiles that it computes, and the memory of the gradient."""
  memory, tiles = [], []
  pattern = Window(64) | Global(8)
  for length in (1024, 4096):
    model = build(pattern, Blockwise(64, 64), n=8, encoding=part(BIAS))

    def loss(model, ids):
      return (model.hidden(ids).x ** 2).sum()

    ids = jax.ShapeDtypeStruct((1, length), jnp.int32)
    compiled = jax.jit(jax.grad(loss)).lower(model, ids).compile()
    memory.append(compiled.memory_analysis().temp_size_in_bytes)
    tiles.append(int((pattern.schedule(length + 8, length + 8, 64, 64) != 0).sum()))
  assert memory[1] / memory[0] < 4.5 and tiles[1] / tiles[0] < 4.2


@pytest.mark.parametrize('encoding', [BIAS, Sinusoidal], ids=['bias', 'sinusoids'])
def test_gradients_of_all_parameters_are_finite_and_reach_global_tokens(encoding):
  model = build(encoding=encoding)
  ids, tokens = rows([13, 5], 13)
  gradient = jax.grad(lambda m: (m(ids, tokens=tokens).x ** 2).sum())(model)
  assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(gradient))
  assert np.abs(gradient.embedding.vectors[...]).max() > 0
