"""What holds for every language model, whatever its parts."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from applying import applied

from t2x.base.errors import UserError
from t2x.layers import (
  XLA,
  ALiBi,
  Blockwise,
  Causal,
  Dense,
  Full,
  LayerNorm,
  LearnedPositions,
  MultiHeadAttention,
  NoPositions,
  Prefix,
  RoPE,
  Sinusoidal,
  T5Bias,
  Tokens,
  Window,
)
from t2x.models import Encoder, MaskedLMHead

ENCODINGS = {
  'none': NoPositions,
  'sinusoidal': Sinusoidal,
  'learned': functools.partial(LearnedPositions, max_length=16),
  'rope': RoPE,
  't5': functools.partial(T5Bias, num_heads=4, bidirectional=False),
  'alibi': functools.partial(ALiBi, num_heads=4),
}
KERNELS = {'dense': Dense(), 'xla': XLA(), 'blockwise': Blockwise(4, 4)}

# Three documents of 1, 4 and 4 tokens packed into a row of 12.
SEGMENTS = jnp.array([[1, 2, 2, 2, 2, 3, 3, 3, 3, 0, 0, 0]])
POSITIONS = jnp.array([[0, 0, 1, 2, 3, 0, 1, 2, 3, 0, 0, 0]])


def assert_packed_equals_unpacked(model, make):
  packed = make.ids((1, 12))
  out = jax.jit(model)(packed, tokens=Tokens(POSITIONS, SEGMENTS)).x
  separate = jax.jit(model)(packed[0, 1:9].reshape(2, 4)).x
  np.testing.assert_allclose(out[0, 1:9].reshape(separate.shape), separate, atol=5e-5)


@pytest.mark.parametrize('encoding', ENCODINGS)
@pytest.mark.parametrize('causal', [True, False])
def test_packed_equals_unpacked_for_every_encoding(make, encoding, causal):
  settings = {'encoding': ENCODINGS[encoding]}
  model = make.language_model(**settings) if causal else make.language_model(Encoder, **settings)
  assert_packed_equals_unpacked(make.built(model), make)


@pytest.mark.parametrize('kernel', KERNELS)
@pytest.mark.parametrize('pattern', [Full(), Window(2)])
def test_packed_equals_unpacked_for_every_kernel(make, kernel, pattern):
  layers = make.stack([make.block(kernel=KERNELS[kernel], pattern=pattern)])
  model = make.built(make.language_model(layers=layers, encoding=RoPE))
  assert_packed_equals_unpacked(model, make)


@pytest.mark.parametrize('kernel', KERNELS)
def test_a_causal_output_does_not_depend_on_the_future(make, kernel):
  layers = make.stack([make.block(kernel=KERNELS[kernel])])
  model = make.built(make.language_model(layers=layers, encoding=RoPE))
  x = jax.random.normal(jax.random.key(0), (1, 9, make.width))
  gradient = jax.jit(jax.grad(lambda x, i: model.body(x).x[0, i].sum()))
  for index in (0, 4, 8):
    seen = jnp.abs(gradient(x, index)[0]).sum(-1) > 0
    np.testing.assert_array_equal(seen, jnp.arange(9) <= index)


def test_an_encoder_without_positions_sees_a_set(make):
  model = make.built(make.language_model(Encoder))
  tokens, order = make.ids((1, 8)), jax.random.permutation(jax.random.key(3), 8)
  np.testing.assert_allclose(model(tokens[:, order]).x, model(tokens).x[:, order], atol=2e-5)


def test_a_prefix_model_sees_its_whole_prefix(make):
  model = make.built(make.language_model(pattern=Causal() | Prefix(), encoding=RoPE))
  tokens = make.ids((1, 6))
  prefix = Tokens.row(6, marks={'prefix': jnp.arange(6)[None] < 3})
  changed = tokens.at[0, 2].set((tokens[0, 2] + 1) % make.vocab)
  a, b = (model(t, tokens=prefix).x for t in (tokens, changed))
  assert jnp.abs(a[0, 0] - b[0, 0]).max() > 1e-3
  nothing = Tokens.row(6, marks={'prefix': jnp.zeros((1, 6), bool)})
  a, b = (model(t, tokens=nothing).x for t in (tokens, changed))
  np.testing.assert_array_equal(a[0, :2], b[0, :2])


def test_a_prefix_pattern_refuses_a_batch_without_a_prefix(make):
  model = make.built(make.language_model(pattern=Causal() | Prefix()))
  with pytest.raises(UserError, match=r"reads Tokens\.marks\['prefix'\]"):
    model(make.ids((1, 6)))


def test_cross_attention_without_a_source_is_refused(make):
  cross = functools.partial(MultiHeadAttention, num_heads=4)
  layers = make.stack([make.block(cross=cross)])
  model = make.built(make.language_model(layers=layers))
  with pytest.raises(UserError, match=r'Block\.cross attends to a source'):
    model(make.ids((1, 6)))


@pytest.mark.parametrize('encoding', ENCODINGS)
def test_cached_decoding_equals_the_full_forward(make, encoding):
  layers = make.stack([make.block(), make.block(pattern=Window(3))])
  model = make.built(make.language_model(layers=layers, encoding=ENCODINGS[encoding]))
  tokens, lengths = make.ids((2, 10)), jnp.array([4, 2])
  full = jax.jit(model)(tokens).x

  # Ragged prompts in one pass, then a token a step, each row at its own place.
  slots = jnp.broadcast_to(jnp.arange(4), (2, 4))
  segments = (slots < lengths[:, None]).astype(jnp.int32)
  cache = model.init_cache(2, 10)
  step = jax.jit(model.decode)
  logits, cache = step(tokens[:, :4], Tokens(slots, segments), cache, last=lengths - 1)
  np.testing.assert_allclose(logits[:, 0], full[jnp.arange(2), lengths - 1], atol=5e-5)
  for offset in range(6):
    positions = (lengths + offset)[:, None]
    new = jnp.take_along_axis(tokens, positions, axis=1)
    logits, cache = step(new, Tokens(positions, jnp.ones_like(positions)), cache)
    expected = jnp.take_along_axis(full, positions[..., None], axis=1)
    np.testing.assert_allclose(logits, expected, atol=5e-5)


def test_a_narrow_embedding_has_narrow_positions_norm_and_table_and_decodes(make):
  model = make.built(
    functools.partial(
      make.language_model(
        input_dim=4, encoding=ENCODINGS['learned'], input_norm=LayerNorm, final_norm=None
      ),
      embedding_dim=4,
      head=functools.partial(MaskedLMHead, embedding_dim=4),
    )
  )
  assert model.embedding.table.shape == (make.vocab, 4)
  assert model.body.encoding.table.shape == (16, 4)
  assert model.body.input_norm.scale.shape == (4,)
  assert model.body.projection.kernel.shape == (4, make.width)
  tokens = make.ids((2, 6))
  x = model.body.input_norm(model.embedding(tokens)[0] + model.body.encoding.table[:6][None])
  hidden, _ = applied(model.body.stack, model.body.projection(x), pattern=model.body.pattern)
  np.testing.assert_allclose(model(tokens).x, model.logits(hidden), atol=5e-5)
  logits, _ = model.decode(tokens, Tokens.row(6), model.init_cache(2, 6))
  np.testing.assert_allclose(logits, model.logits(hidden), atol=5e-5)


def test_dropout_needs_a_key(make):
  layers = make.stack([make.block(dropout_rate=0.5)])
  model = make.built(make.language_model(layers=layers, input_dropout=0.5))
  tokens = make.ids((1, 6))
  np.testing.assert_array_equal(model(tokens).x, model(tokens).x)
  a, b = (model(tokens, key=jax.random.key(seed)).x for seed in (0, 1))
  assert jnp.abs(a - b).max() > 1e-2
