"""Mixers against the PyTorch code of their authors or of other projects."""

import functools

import jax.numpy as jnp
import numpy as np
import pytest
from applying import applied
from flax import nnx

from t2x.layers import Causal, FavorPlus, Full, LinearAttention, Linformer, ReluFeatures
from t2x.layers.feature_maps import orthogonal_normal

torch = pytest.importorskip('torch', reason="the extra 'parity' is not installed")

WIDTH, HEADS, LENGTH = 24, 3, 10
X = np.random.default_rng(0).normal(size=(2, LENGTH, WIDTH)).astype(np.float32)


def test_linformer_equals_the_package_linformer():
  linformer = pytest.importorskip('linformer', reason="the extra 'parity' is not installed")
  torch.manual_seed(0)
  theirs = linformer.LinformerSelfAttention(WIDTH, seq_len=12, k=5, heads=HEADS)
  ours = Linformer(
    WIDTH,
    num_heads=HEADS,
    max_length=12,
    projected_length=5,
    use_bias=False,
    rngs=nnx.Rngs(0),
  )

  def copied(tensor, shape=None):
    return jnp.asarray(tensor.detach().numpy().reshape(shape or tensor.shape))

  split = (WIDTH, HEADS, WIDTH // HEADS)
  ours.q.kernel[...] = copied(theirs.to_q.weight.T, split)
  ours.k.kernel[...] = copied(theirs.to_k.weight.T, split)
  ours.v.kernel[...] = copied(theirs.to_v.weight.T, split)
  ours.k_length[...], ours.v_length[...] = copied(theirs.proj_k), copied(theirs.proj_v)
  ours.out.kernel[...] = copied(theirs.to_out.weight.T, (HEADS, WIDTH // HEADS, WIDTH))
  ours.out.bias[...] = copied(theirs.to_out.bias)
  # 12 tokens use all rows of E and F, 10 tokens a slice.
  for x in (X, np.concatenate([X, X[:, :2]], axis=1)):
    expected = theirs(torch.tensor(x)).detach().numpy()
    y, _ = applied(ours, jnp.asarray(x))
    np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize('pattern', [Causal(), Full()], ids=str)
def test_linear_attention_equals_the_package_performer_pytorch(pattern):
  package = pytest.importorskip(
    'performer_pytorch.performer_pytorch', reason="the extra 'parity' is not installed"
  )
  ours = LinearAttention(WIDTH, num_heads=HEADS, chunk=4, rngs=nnx.Rngs(0))
  q, k, v = (torch.tensor(np.array(a.swapaxes(1, 2))) for a in ours.project(jnp.asarray(3 * X)))
  q, k = (torch.nn.functional.elu(a) + 1 for a in (q, k))
  if pattern == Causal():
    y = package.causal_linear_attention_noncuda(q, k, v, chunk_size=3, eps=0.0)
  else:
    y = package.linear_attention(q, k, v)
  expected = ours.out(jnp.asarray(y.numpy().swapaxes(1, 2)))
  y, _ = applied(ours, jnp.asarray(3 * X), pattern=pattern)
  np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize('features', [FavorPlus, ReluFeatures])
@pytest.mark.parametrize('pattern', [Causal(), Full()], ids=str)
def test_random_features_equal_the_package_performer_pytorch(pattern, features, monkeypatch):
  package = pytest.importorskip(
    'performer_pytorch.performer_pytorch', reason="the extra 'parity' is not installed"
  )
  # The package adds 1e-4 to the features, after dividing those of the keys by the largest of the row.
  exact = functools.partial(package.softmax_kernel, eps=0.0)
  monkeypatch.setattr(package, 'softmax_kernel', exact)
  theirs = package.FastAttention(
    WIDTH // HEADS,
    nb_features=20,
    causal=pattern == Causal(),
    generalized_attention=features is ReluFeatures,
  )
  theirs.projection_matrix.copy_(torch.tensor(orthogonal_normal(20, WIDTH // HEADS, 0)))
  theirs.causal_linear_fn = functools.partial(package.causal_linear_attention_noncuda, eps=0.0)
  ours = LinearAttention(
    WIDTH,
    num_heads=HEADS,
    features=functools.partial(features, num_features=20),
    chunk=4,
    rngs=nnx.Rngs(0),
  )
  q, k, v = (torch.tensor(np.array(a.swapaxes(1, 2))) for a in ours.project(jnp.asarray(X)))
  expected = ours.out(jnp.asarray(theirs(q, k, v).numpy().swapaxes(1, 2)))
  y, _ = applied(ours, jnp.asarray(X), pattern=pattern)
  np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-5)
