"""Token embeddings, tied logits, and image patches."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from halved import Halved

from t2x.base.errors import UserError
from t2x.base.step import in_step
from t2x.layers import FactorisedEmbedding, PatchEmbedding, TokenEmbedding, Tokens, ones
from t2x.layers.embeddings.token_embeddings import float32_logits
from t2x.models import LMHead

IDS = jnp.asarray([[0, 3, 10], [4, 4, 1]])
# An untied head does not read it.
UNUSED = TokenEmbedding(4, vocab_size=11, rngs=nnx.Rngs(0))


def normal(seed, *shape):
  return jax.random.normal(jax.random.key(seed), shape)


def test_embedding_looks_up_scales_and_adds_types():
  embedding = TokenEmbedding(16, vocab_size=11, num_types=2, scaled=True, rngs=nnx.Rngs(0))
  table, types = np.asarray(embedding.table[...]), np.asarray(embedding.types[...])
  kinds = jnp.asarray([[0, 1, 1], [1, 0, 0]])
  vectors, _ = embedding(IDS, types=kinds)
  np.testing.assert_allclose(vectors, 4.0 * table[IDS] + types[kinds], rtol=1e-6)
  np.testing.assert_array_equal(embedding(IDS)[0], embedding(IDS, types=jnp.zeros_like(IDS))[0])


def test_types_without_a_table_are_an_error():
  embedding = TokenEmbedding(16, vocab_size=11, rngs=nnx.Rngs(0))
  with pytest.raises(UserError, match='num_types'):
    embedding(IDS, types=IDS)


def test_tied_logits_are_products_with_the_table(compared):
  embedding = TokenEmbedding(16, vocab_size=11, scaled=True, rngs=nnx.Rngs(0))
  x = jax.random.normal(jax.random.key(1), (2, 3, 16))
  expected = np.asarray(x, np.float64) @ np.asarray(embedding.table[...], np.float64).T
  compared('tied embedding', 'NumPy, float64', embedding.attend(x), expected, rtol=1e-7, atol=1e-6)
  np.testing.assert_allclose(embedding.attend(x[0, 0]), embedding.attend(x)[0, 0], atol=1e-6)


def tied():
  embedding = TokenEmbedding(256, vocab_size=11, rngs=nnx.Rngs(0))
  return embedding.attend, embedding.table[...].T, 0.0


def untied(use_bias=False):
  head = LMHead(256, 11, use_bias=use_bias, rngs=nnx.Rngs(0))
  bias = jnp.linspace(0.1, 0.3, 11)
  if use_bias:
    head.out.bias[...] = bias
  return lambda x: head(x, UNUSED), head.out.kernel[...], bias[None, None] if use_bias else 0.0


@pytest.mark.parametrize('make', [tied, untied, lambda: untied(True)], ids=['tied', 'own', 'bias'])
def test_bfloat16_logits_are_accumulated_in_float32(make):
  attend, matrix, bias = make()
  x = jax.random.normal(jax.random.key(1), (2, 3, 256), jnp.bfloat16)
  logits = attend(x)
  rounded = matrix.astype(jnp.bfloat16).astype(jnp.float32)
  assert logits.dtype == jnp.float32
  expected = x.astype(jnp.float32) @ rounded + bias
  np.testing.assert_allclose(logits, expected, rtol=1e-5, atol=1e-6)


def test_an_untied_head_has_the_gradients_of_its_product():
  head = LMHead(16, 11, use_bias=True, rngs=nnx.Rngs(0))
  x = jax.random.normal(jax.random.key(1), (2, 3, 16))
  weights = jax.random.normal(jax.random.key(2), (2, 3, 11))
  own = jax.grad(lambda head, x: (head(x, UNUSED) * weights).sum(), (0, 1))(head, x)
  np.testing.assert_allclose(head(x, UNUSED), x @ head.out.kernel[...], atol=1e-6)
  by_kernel = jnp.einsum('bld,blv->dv', x, weights)
  np.testing.assert_allclose(own[0].out.kernel[...], by_kernel, atol=1e-5)
  np.testing.assert_allclose(own[0].out.bias[...], weights.sum((0, 1)), atol=1e-5)
  np.testing.assert_allclose(own[1], weights @ head.out.kernel[...].T, atol=1e-5)


@pytest.mark.parametrize('dtype', [jnp.float32, jnp.bfloat16])
def test_gradients_of_tied_logits_match_a_product(dtype):
  embedding = TokenEmbedding(16, vocab_size=11, rngs=nnx.Rngs(0))
  x = jax.random.normal(jax.random.key(1), (2, 3, 16), dtype)
  weights = jax.random.normal(jax.random.key(2), (2, 3, 11))

  def loss(embedding, x):
    return (embedding.attend(x) * weights).sum()

  def plain(table, x):
    return (jnp.einsum('bld,vd->blv', x.astype(jnp.float32), table) * weights).sum()

  by_module, by_x = jax.grad(loss, (0, 1))(embedding, x)
  expected = jax.grad(plain, (0, 1))(embedding.table[...], x)
  tolerance = 1e-5 if dtype == jnp.float32 else 3e-2
  assert by_x.dtype == dtype
  np.testing.assert_allclose(by_module.table[...], expected[0], atol=tolerance)
  np.testing.assert_allclose(
    by_x.astype(jnp.float32), expected[1].astype(jnp.float32), atol=tolerance
  )


@pytest.mark.parametrize('rest', [(), (33,), (3, 11)])
@pytest.mark.parametrize('axis', [0, 1])
@pytest.mark.parametrize('layout', [None, Halved('length')], ids=['one device', 'split length'])
def test_logits_and_their_gradients_equal_float64(rest, axis, layout):
  x, weights = normal(0, *rest, 12), normal(1, *rest, 40)
  table = normal(2, 12, 40) if axis == 0 else normal(2, 40, 12)
  with in_step(layout=layout):
    logits, pullback = jax.vjp(lambda x, table: float32_logits(x, table, axis), x, table)
    dx, dtable = pullback(weights)
  rows, changes = (np.asarray(a, np.float64).reshape(-1, a.shape[-1]) for a in (x, weights))
  matrix = np.asarray(table, np.float64) if axis == 0 else np.asarray(table, np.float64).T
  by_kernel = rows.T @ changes
  np.testing.assert_allclose(logits, (rows @ matrix).reshape(weights.shape), atol=1e-5)
  np.testing.assert_allclose(dx, (changes @ matrix.T).reshape(x.shape), atol=1e-5)
  np.testing.assert_allclose(dtable, by_kernel if axis == 0 else by_kernel.T, atol=1e-5)


def test_factorised_embedding_goes_through_the_narrow_space_both_ways(compared):
  embedding = FactorisedEmbedding(
    16, vocab_size=11, factor_dim=3, num_types=2, use_bias=True, rngs=nnx.Rngs(0)
  )
  table, types, kernel = (
    np.asarray(leaf[...], np.float64)
    for leaf in (embedding.table, embedding.types, embedding.projection.kernel)
  )
  embedding.projection.bias[...] = jnp.arange(16.0)
  expected = (table[IDS] + types[IDS % 2]) @ kernel + np.arange(16.0)
  system = 'factorised embedding', 'NumPy, float64'
  compared(*system, embedding(IDS, types=IDS % 2)[0], expected, rtol=1e-5, atol=1e-6)
  x = jax.random.normal(jax.random.key(1), (2, 3, 16))
  expected = np.asarray(x, np.float64) @ kernel.T @ table.T
  compared(*system, embedding.attend(x), expected, rtol=1e-7)
  assert table.size + kernel.size < 11 * 16


def test_patch_embedding_is_a_strided_convolution():
  embedding = PatchEmbedding(8, patch_size=4, class_token=False, rngs=nnx.Rngs(0))
  embedding.projection.bias[...] = jnp.arange(8.0)
  images = jax.random.normal(jax.random.key(1), (2, 8, 12, 3))
  vectors, tokens = embedding(images)
  convolved = jax.lax.conv_general_dilated(
    images,
    embedding.projection.kernel[...],
    (4, 4),
    'VALID',
    dimension_numbers=('NHWC', 'HWIO', 'NHWC'),
  )
  assert (tokens.grid, tokens.num_extra) == ((2, 3), 0)
  np.testing.assert_allclose(
    vectors, convolved.reshape(2, 6, 8) + np.arange(8.0)[None, None], atol=1e-5
  )


def test_class_token_is_first():
  embedding = PatchEmbedding(8, patch_size=4, channels=1, rngs=nnx.Rngs(0))
  embedding.class_token[...] = jnp.arange(8.0)
  vectors, tokens = embedding(jnp.ones((2, 8, 8, 1)))
  assert vectors.shape == (2, 5, 8) and tokens.num_extra == 1
  np.testing.assert_array_equal(vectors[:, 0], np.tile(np.arange(8.0), (2, 1)))


@pytest.mark.parametrize('shape', [(1, 9, 8, 3), (1, 8, 9, 3)])
def test_image_that_does_not_divide_into_patches_is_an_error(shape):
  embedding = PatchEmbedding(8, patch_size=4, rngs=nnx.Rngs(0))
  with pytest.raises(UserError, match=f'{shape[1]} x {shape[2]} pixels.*patch_size'):
    embedding(jnp.ones(shape))


def test_wrong_number_of_channels_is_an_error():
  with pytest.raises(UserError, match='1 channels'):
    PatchEmbedding(8, patch_size=4, rngs=nnx.Rngs(0))(jnp.ones((1, 8, 8, 1)))


@pytest.mark.parametrize(
  ('embedding', 'inputs'),
  [
    (TokenEmbedding(8, vocab_size=11, rngs=nnx.Rngs(0)), jnp.ones((2, 5), jnp.int32)),
    (FactorisedEmbedding(8, vocab_size=11, factor_dim=2, rngs=nnx.Rngs(0)), jnp.ones((2, 5), int)),
    (PatchEmbedding(8, patch_size=4, channels=1, rngs=nnx.Rngs(0)), jnp.ones((2, 8, 8, 1))),
  ],
)
def test_an_embedding_keeps_segments_and_marks(embedding, inputs):
  segments = jnp.array([[1, 1, 1, 1, 0], [1, 1, 1, 1, 1]])
  marks = {'global': segments > 0}
  x, tokens = embedding(inputs, Tokens.row(5, segments=segments, marks=marks))
  assert x.shape == (2, 5, 8)
  np.testing.assert_array_equal(tokens.segments, segments)
  np.testing.assert_array_equal(tokens.marks['global'], marks['global'])
  _, plain = embedding(inputs)
  np.testing.assert_array_equal(plain.positions, np.arange(5)[None])


def test_metadata_of_another_number_of_patches_is_refused():
  embedding = PatchEmbedding(8, patch_size=4, rngs=nnx.Rngs(0))
  with pytest.raises(UserError, match=r'4 tokens for an image of 5 tokens \(2 x 2 patches\)'):
    embedding(jnp.ones((1, 8, 8, 3)), Tokens.row(4))


def test_parameters_name_their_axes():
  token = TokenEmbedding(8, vocab_size=11, num_types=2, init=ones(), rngs=nnx.Rngs(0))
  assert (token.table.axes, token.types.axes) == (('vocab', 'embed'), ('types', 'embed'))
  patch = PatchEmbedding(8, patch_size=4, rngs=nnx.Rngs(0))
  assert patch.projection.kernel.axes == ('patch', 'patch', 'channels', 'embed')
