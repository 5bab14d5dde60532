"""Pre-norm and post-norm around a sublayer."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from t2x.layers import LayerNorm, PostNorm, PreNorm, RMSNorm

X = jax.random.normal(jax.random.key(0), (3, 5, 8))


def double(h):
  return 2.0 * h + 1.0, 'rest'


def test_pre_norm_is_its_formula():
  wiring = PreNorm(8, norm=RMSNorm, rngs=nnx.Rngs(0))
  y, rest = wiring(X, double)
  np.testing.assert_allclose(y, X + 2.0 * RMSNorm(8, rngs=nnx.Rngs(0))(X) + 1.0, atol=1e-6)
  assert rest == 'rest'


def test_post_norm_is_its_formula():
  wiring = PostNorm(8, rngs=nnx.Rngs(0))
  y, rest = wiring(X, double)
  np.testing.assert_allclose(y, LayerNorm(8, rngs=nnx.Rngs(0))(3.0 * X + 1.0), atol=1e-6)
  assert rest == 'rest'


@pytest.mark.parametrize('wiring_class', [PreNorm, PostNorm])
def test_keep_scales_the_branch_of_each_example(wiring_class):
  wiring = wiring_class(8, rngs=nnx.Rngs(0))
  keep = jnp.asarray([0.0, 1.0, 2.0])[:, None, None]
  y, _ = wiring(X, double, None, keep)
  whole, _ = wiring(X, double)
  twice, _ = wiring(X, lambda h: (2.0 * double(h)[0], None))
  nothing, _ = wiring(X, lambda h: (jnp.zeros_like(h), None))
  np.testing.assert_allclose(y, jnp.stack([nothing[0], whole[1], twice[2]]), atol=1e-6)


@pytest.mark.parametrize('wiring_class', [PreNorm, PostNorm])
def test_dropout_is_on_the_branch_alone(wiring_class):
  wiring = wiring_class(8, dropout_rate=0.5, rngs=nnx.Rngs(0))
  np.testing.assert_array_equal(wiring(X, double)[0], wiring(X, double, None)[0])
  y, _ = PreNorm(8, dropout_rate=0.5, rngs=nnx.Rngs(0))(X, double, jax.random.key(1))
  branch = double(LayerNorm(8, rngs=nnx.Rngs(0))(X))[0]
  dropped = np.isclose(y, X)
  assert 0.3 < dropped.mean() < 0.7
  np.testing.assert_allclose(y, jnp.where(dropped, X, X + 2.0 * branch), atol=1e-5)


@pytest.mark.parametrize('wiring_class', [PreNorm, PostNorm])
def test_type_of_the_stream_is_kept(wiring_class):
  wiring = wiring_class(8, dropout_rate=0.1, rngs=nnx.Rngs(0))
  y, _ = wiring(X.astype(jnp.bfloat16), double, jax.random.key(0), jnp.ones((3, 1, 1)))
  assert y.dtype == jnp.bfloat16
