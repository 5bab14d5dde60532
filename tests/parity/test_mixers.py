"""Mixers against the PyTorch code of their authors or of other projects."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from applying import applied, empty
from flax import nnx
from torch_heads import joined, projected, torch

from t2x.layers import (
  AttentionFree,
  Causal,
  FavorPlus,
  Full,
  FullBias,
  GatedDeltaNet,
  LinearAttention,
  Linformer,
  LocalBias,
  NoBias,
  ReluFeatures,
  Tokens,
)
from t2x.layers.mixers.feature_maps import orthogonal_normal

WIDTH, HEADS, LENGTH = 24, 3, 10
TOLERANCE = {'rtol': 1e-5, 'atol': 1e-5}
X = np.random.default_rng(0).normal(size=(2, LENGTH, WIDTH)).astype(np.float32)


def test_linformer_equals_the_package_linformer(same_gradient):
  linformer = pytest.importorskip('linformer', reason="the extra 'references' is not installed")
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
    same_gradient('Linformer', 'linformer', x, theirs, lambda x: applied(ours, x)[0], **TOLERANCE)


@pytest.mark.parametrize('pattern', [Causal(), Full()], ids=str)
def test_linear_attention_equals_the_package_performer_pytorch(pattern, same_gradient):
  package = pytest.importorskip(
    'performer_pytorch.performer_pytorch', reason="the extra 'references' is not installed"
  )
  ours = LinearAttention(WIDTH, num_heads=HEADS, chunk=4, rngs=nnx.Rngs(0))

  def theirs(x):
    q, k, v = projected(ours, x)
    q, k = (torch.nn.functional.elu(a) + 1 for a in (q, k))
    if pattern == Causal():
      return joined(ours, package.causal_linear_attention_noncuda(q, k, v, chunk_size=3, eps=0.0))
    return joined(ours, package.linear_attention(q, k, v))

  system = 'linear attention', 'performer-pytorch'
  same_gradient(*system, 3 * X, theirs, lambda x: applied(ours, x, pattern=pattern)[0], **TOLERANCE)


@pytest.mark.parametrize('features', [FavorPlus, ReluFeatures])
@pytest.mark.parametrize('pattern', [Causal(), Full()], ids=str)
def test_random_features_equal_the_package_performer_pytorch(
  pattern, features, monkeypatch, same_gradient
):
  package = pytest.importorskip(
    'performer_pytorch.performer_pytorch', reason="the extra 'references' is not installed"
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
  same_gradient(
    'Performer',
    'performer-pytorch',
    X,
    lambda x: joined(ours, theirs(*projected(ours, x))),
    lambda x: applied(ours, x, pattern=pattern)[0],
    **TOLERANCE,
  )


def test_gated_delta_net_equals_qwen3_next_in_transformers(compared, same_gradient):
  qwen = pytest.importorskip(
    'transformers.models.qwen3_next.modeling_qwen3_next',
    reason="the extra 'references' is not installed",
  )
  dim = WIDTH // HEADS
  config = qwen.Qwen3NextConfig(
    hidden_size=WIDTH,
    linear_num_value_heads=HEADS,
    linear_num_key_heads=HEADS,
    linear_key_head_dim=dim,
    linear_value_head_dim=dim,
  )
  torch.manual_seed(0)
  theirs = qwen.Qwen3NextGatedDeltaNet(config, 0)
  run = jax.jit(applied, static_argnames='pattern')
  ours = GatedDeltaNet(WIDTH, num_heads=HEADS, chunk=4, rngs=nnx.Rngs(0))

  def split(weight, sizes):
    """The parts of a projection that is grouped by head."""
    weight = weight.detach().numpy().T.reshape(WIDTH, HEADS, -1)
    return [jnp.asarray(a) for a in np.split(weight, np.cumsum(sizes)[:-1], axis=-1)]

  with torch.no_grad():
    for parameter in theirs.parameters():
      parameter.add_(0.2 * torch.randn_like(parameter))
  parts = split(theirs.in_proj_qkvz.weight, [dim] * 4)
  for linear, kernel in zip((ours.q, ours.k, ours.v, ours.gate), parts, strict=True):
    linear.kernel[...] = kernel
  for linear, kernel in zip(
    (ours.beta, ours.alpha), split(theirs.in_proj_ba.weight, [1, 1]), strict=True
  ):
    linear.kernel[...] = kernel[..., 0]
  taps = theirs.conv1d.weight.detach().numpy()[:, 0].T
  ours.taps[...] = jnp.asarray(taps.reshape(-1, 3, HEADS, dim))
  ours.decay[...] = jnp.asarray(theirs.A_log.detach().numpy())
  ours.step[...] = jnp.asarray(theirs.dt_bias.detach().numpy())
  ours.norm.scale[...] = jnp.asarray(theirs.norm.weight.detach().numpy())
  out = theirs.out_proj.weight.detach().numpy().T
  ours.out.kernel[...] = jnp.asarray(out.reshape(HEADS, dim, WIDTH))
  system = 'gated delta rule', 'transformers Qwen3NextGatedDeltaNet'
  same_gradient(*system, X, theirs, lambda x: run(ours, x, pattern=Causal())[0], **TOLERANCE)
  # Their single-token form, with a cache.
  cache = qwen.DynamicCache(config=config)
  theirs(torch.tensor(X[:, :-1]), cache_params=cache)
  expected = theirs(torch.tensor(X[:, -1:]), cache_params=cache).detach().numpy()
  _, state = run(ours, jnp.asarray(X[:, :-1]), pattern=Causal(), state=empty(ours, 2, LENGTH))
  tokens = Tokens(jnp.full((2, 1), LENGTH - 1))
  y, _ = run(ours, jnp.asarray(X[:, -1:]), pattern=Causal(), tokens=tokens, state=state)
  compared(*system, y, expected, **TOLERANCE)


@pytest.mark.parametrize('name', ['AFTFull', 'AFTSimple', 'AFTLocal'])
def test_attention_free_equals_the_package_aft_pytorch(name, same_gradient):
  package = pytest.importorskip('aft_pytorch', reason="the extra 'references' is not installed")
  torch.manual_seed(0)
  settings = {'s': 4} if name == 'AFTLocal' else {}
  theirs = getattr(package, name)(max_seqlen=LENGTH, dim=WIDTH, hidden_dim=16, **settings)
  bias = {
    'AFTFull': functools.partial(FullBias, max_length=LENGTH),
    'AFTSimple': NoBias,
    'AFTLocal': functools.partial(LocalBias, max_length=LENGTH, window=4),
  }[name]
  ours = AttentionFree(WIDTH, bias=bias, head_dim=16, rngs=nnx.Rngs(0))
  for linear, other in (
    (ours.q, theirs.to_q),
    (ours.k, theirs.to_k),
    (ours.v, theirs.to_v),
    (ours.out, theirs.project),
  ):
    weight = other.weight.detach().numpy().T
    linear.kernel[...] = jnp.asarray(weight.reshape(linear.kernel.shape))
    linear.bias[...] = jnp.asarray(other.bias.detach().numpy().reshape(linear.bias.shape))
  if name != 'AFTSimple':
    table = theirs.wbias.detach().numpy()
    if name == 'AFTLocal':
      # The diagonals from -3 to 3, a column each.
      index = np.arange(LENGTH)[:, None] + np.arange(-3, 4)
      inside = (index >= 0) & (index < LENGTH)
      table = np.where(inside, table[np.arange(LENGTH)[:, None], index % LENGTH], 0)
    ours.bias.table[...] = jnp.asarray(table.reshape(ours.bias.table.shape))
  system = 'AFT', f'aft-pytorch {name}'
  same_gradient(*system, X, theirs, lambda x: applied(ours, x)[0], **TOLERANCE)
