"""Cross-attention: attention that is built for a source, its pattern, its encoding and its cache."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from applying import applied
from flax import nnx

from t2x import config as config_lib
from t2x.base.errors import UserError
from t2x.layers import (
  MLP,
  AddressPositions,
  Causal,
  DoublyStochastic,
  FromSource,
  Full,
  GatedContext,
  MultiHeadAttention,
  Parallel,
  RMSNorm,
  RoPE,
  Sequential,
  SourceSequence,
  T5Bias,
  Tokens,
  TokenShift,
  Window,
)
from tests.layers.attention.test_multi_head import (
  BATCH,
  LENGTH,
  SOURCE,
  WIDTH,
  X,
  attend,
  build,
  oracle,
)


def cross_attention(width, *, rngs, **settings):
  sublayer = functools.partial(MultiHeadAttention, **settings)
  return FromSource(width, sublayer=sublayer, rngs=rngs)


def test_cross_attention_reads_the_context_and_skips_its_padding():
  attention = build(cross_attention)
  segments = jnp.asarray([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]])
  y, _ = attend(attention, X, source=SourceSequence(SOURCE, Tokens.row(5, segments=segments)))
  mask = np.asarray(segments, bool)[:, None, :]
  np.testing.assert_allclose(y, oracle(attention, X, SOURCE, mask, 0.5), atol=1e-5)


def test_the_cache_of_a_source_equals_no_cache():
  attention = build(cross_attention, num_kv_heads=2, qk_norm=RMSNorm)
  source = SourceSequence(
    SOURCE, Tokens.row(5, segments=jnp.asarray([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]]))
  )
  cache = attention.init_cache(BATCH, 9, source=source)
  expected, nothing = attend(attention, X, source=source)
  y, same = attend(attention, X, cache=cache, source=SourceSequence(None, source.tokens))
  np.testing.assert_allclose(y, expected, atol=1e-6)
  assert nothing is None
  jax.tree.map(np.testing.assert_array_equal, same, cache)


@pytest.mark.parametrize('pattern', [Full(), Causal(), Window(3)], ids=str)
def test_the_pattern_of_a_source_relates_queries_to_its_tokens(pattern):
  attention = build(cross_attention)
  source = SourceSequence(SOURCE, Tokens.row(5), pattern=pattern)
  mask = pattern.mask(LENGTH, 5)
  rows = mask.any(axis=-1)
  y, _ = attend(attention, X, pattern=Full(), source=source)
  expected = oracle(attention, X, SOURCE, mask | ~rows[:, None], 0.5)
  np.testing.assert_allclose(y[:, rows], expected[:, rows], atol=1e-5)


ENCODINGS_OF_PAIRS = {
  'rotation': functools.partial(RoPE, WIDTH),
  'bias': functools.partial(T5Bias, WIDTH, num_heads=4, bidirectional=True),
  'addresses': functools.partial(AddressPositions, WIDTH),
}


@pytest.mark.parametrize('name', ENCODINGS_OF_PAIRS)
def test_the_encoding_of_a_source_is_that_of_self_attention_if_it_is_the_own_sequence(name):
  encoding = ENCODINGS_OF_PAIRS[name](rngs=nnx.Rngs(0))
  expected, _ = attend(build(), X, pattern=Full(), encoding=encoding)
  cross, source = build(cross_attention), SourceSequence(X, Tokens.row(LENGTH), encoding)
  y, _ = attend(cross, X, source=source, encoding=encoding)
  np.testing.assert_allclose(y, expected, atol=1e-5)
  # Queries that share a row of a cached source, as those of beams do.
  cache = cross.init_cache(BATCH, 9, source=source)
  copies = jnp.repeat(X, 3, axis=0)
  y, _ = attend(cross, copies, cache=cache, source=source.without_vectors(), encoding=encoding)
  np.testing.assert_allclose(y, jnp.repeat(expected, 3, axis=0), atol=1e-5)


def test_an_encoding_of_the_own_tokens_does_not_relate_them_to_a_source():
  attention, source = build(cross_attention), SourceSequence(SOURCE, Tokens.row(5))
  expected, _ = attend(attention, X, source=source)
  for name in ENCODINGS_OF_PAIRS:
    encoding = ENCODINGS_OF_PAIRS[name](rngs=nnx.Rngs(0))
    y, _ = attend(attention, X, source=source, encoding=encoding)
    np.testing.assert_array_equal(y, expected)


def test_copies_of_a_row_share_the_keys_of_its_source():
  attention = build(cross_attention, num_kv_heads=2)
  source = SourceSequence(
    SOURCE, Tokens.row(5, segments=jnp.asarray([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]]))
  )
  cache = attention.init_cache(BATCH, 9, source=source)
  copies = jnp.repeat(X, 3, axis=0) + 0.1 * jnp.arange(6.0)[:, None, None]
  assert cache.repeat(3) is cache and cache.take(jnp.arange(6)) is cache
  segments = jnp.repeat(source.tokens.segments, 3, axis=0)
  repeated = SourceSequence(jnp.repeat(SOURCE, 3, axis=0), Tokens.row(5, segments=segments))
  y, _ = attend(attention, copies, cache=cache, source=SourceSequence(None, source.tokens))
  expected, _ = attend(attention, copies, source=repeated)
  np.testing.assert_allclose(y, expected, atol=1e-6)


def test_self_attention_and_a_source_are_refused_and_cross_attention_without_one():
  with pytest.raises(UserError, match='attends to its own tokens and received a source'):
    applied(build(), X, source=SourceSequence(X, Tokens.row(LENGTH)))
  with pytest.raises(UserError, match='attends to a source, but this model has no source'):
    applied(build(cross_attention), X)
  with pytest.raises(UserError, match='attends to a source, but this model has no source'):
    build(cross_attention).init_cache(BATCH, 9)
  with pytest.raises(UserError, match='MLP does not attend to a source'):
    FromSource(WIDTH, sublayer=functools.partial(MLP, hidden_dim=4), rngs=nnx.Rngs(0))


def test_whether_attention_reads_the_source_is_no_setting_of_configs(tmp_path):
  file = tmp_path / 'own.gin'
  file.write_text('MultiHeadAttention:\n  num_heads = 2\n  reads_source = True\n')
  with pytest.raises(UserError) as raised:
    config_lib.load([file], registry_modules=['t2x.layers'], root='@MultiHeadAttention')
  assert str(raised.value) == (
    f'{file}:3: MultiHeadAttention.reads_source is set by the part that contains MultiHeadAttention: remove this '
    'binding'
  )


COMPOSITES = {
  'gate': functools.partial(
    GatedContext, attention=functools.partial(MultiHeadAttention, num_heads=2)
  ),
  'penalty': functools.partial(
    DoublyStochastic, sublayer=functools.partial(MultiHeadAttention, num_heads=2)
  ),
  'shift': functools.partial(
    TokenShift, sublayer=functools.partial(MultiHeadAttention, num_heads=2)
  ),
  'parallel': functools.partial(
    Parallel, parts={'a': functools.partial(MultiHeadAttention, num_heads=2)}
  ),
  'sequence': functools.partial(
    Sequential, parts={'a': functools.partial(MultiHeadAttention, num_heads=2)}
  ),
}


@pytest.mark.parametrize('composite', COMPOSITES.values(), ids=COMPOSITES)
def test_parts_around_attention_pass_on_that_it_reads_the_source(composite):
  built = FromSource(8, sublayer=composite, rngs=nnx.Rngs(0))
  assert 'source' in built.reads


def test_a_part_that_does_not_pass_it_on_is_refused_with_the_keyword_to_take():
  class Own(nnx.Module):
    def __init__(self, d_model, *, rngs):
      self.attention = MultiHeadAttention(d_model, num_heads=2, rngs=rngs)
      self.reads = self.attention.reads

  class Renamed(MultiHeadAttention):
    def __init__(self, d_model, **settings):
      super().__init__(d_model, num_heads=2, **settings)

  with pytest.raises(UserError, match=r'^Own does not attend to a source: .*keyword reads_source'):
    FromSource(8, sublayer=Own, rngs=nnx.Rngs(0))
  assert 'source' in FromSource(8, sublayer=Renamed, rngs=nnx.Rngs(0)).reads
