"""Layers against the PyTorch code of fairseq and joeynmt, which pip cannot install beside today's torch."""

import functools
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from applying import applied
from flax import nnx

from t2x.layers import (
  AdditiveScores,
  BilinearScores,
  Causal,
  DynamicConvolution,
  FromSource,
  Full,
  LightweightConvolution,
  MultiHeadAttention,
  SourceSequence,
  Tokens,
)
from tests.parity import archives

torch = pytest.importorskip('torch', reason="the extra 'references' is not installed")
pytestmark = pytest.mark.nightly

WIDTH, HEADS, LENGTH, TAPS = 24, 3, 10, 5
TOLERANCE = {'rtol': 1e-5, 'atol': 1e-5}
rng = np.random.default_rng(0)
X = rng.normal(size=(2, LENGTH, WIDTH)).astype(np.float32)
WEIGHTS = rng.normal(size=X.shape).astype(np.float32)


def perturbed(part):
  noise = np.random.default_rng(1)
  return jax.tree.map(
    lambda leaf: leaf + jnp.asarray(0.3 * noise.normal(size=leaf.shape), leaf.dtype), part
  )


def tensor(array, requires_grad=False):
  return torch.tensor(np.array(array), requires_grad=requires_grad)


def fairseq(name):
  utils = types.ModuleType('fairseq.utils')
  utils.softmax = lambda x, dim, onnx_trace: torch.softmax(x, dim)
  return archives.module('fairseq', '0.12.2', f'fairseq.modules.{name}', {utils.__name__: utils})


@pytest.mark.parametrize(('pattern', 'before'), [(Causal(), TAPS - 1), (Full(), TAPS // 2)])
@pytest.mark.parametrize('kind', [LightweightConvolution, DynamicConvolution])
def test_convolutions_equal_fairseq(kind, pattern, before, compared):
  ours = perturbed(kind(WIDTH, num_heads=HEADS, kernel_size=TAPS, rngs=nnx.Rngs(0)))
  settings = {'kernel_size': TAPS, 'padding_l': before, 'num_heads': HEADS, 'weight_softmax': True}
  if kind is LightweightConvolution:
    theirs = fairseq('lightweight_convolution').LightweightConv1dTBC(WIDTH, **settings)
    taps, own = theirs.weight, ours.kernel[...][:, None]
    system = 'lightweight convolution', 'fairseq 0.12.2 LightweightConv1dTBC'
  else:
    theirs = fairseq('dynamic_convolution').DynamicConv1dTBC(WIDTH, **settings)
    taps, own = theirs.weight_linear.weight, ours.kernel.kernel[...].reshape(WIDTH, -1).T
    system = 'dynamic convolution', 'fairseq 0.12.2 DynamicConv1dTBC'
  with torch.no_grad():
    taps.copy_(tensor(own))
  gate, out = (tensor(part.kernel[...]) for part in (ours.gate, ours.out))
  gate_bias, out_bias = (tensor(part.bias[...]) for part in (ours.gate, ours.out))
  x = tensor(X, requires_grad=True)
  gated = torch.nn.functional.glu(x @ gate.reshape(WIDTH, -1) + gate_bias.reshape(-1))
  y = theirs(gated.transpose(0, 1).contiguous()).transpose(0, 1) @ out + out_bias
  (y * tensor(WEIGHTS)).sum().backward()

  def weighted(mixer, x):
    y, _ = applied(mixer, x, pattern=pattern)
    return (y * WEIGHTS).sum(), y

  (gradient, x_gradient), y_ours = jax.grad(weighted, (0, 1), has_aux=True)(ours, jnp.asarray(X))
  compared(*system, y_ours, y.detach().numpy(), **TOLERANCE)
  compared(*system, x_gradient, x.grad.numpy(), **TOLERANCE, of='gradients')
  if kind is LightweightConvolution:
    taps_gradient = gradient.kernel[...][:, None]
  else:
    taps_gradient = gradient.kernel.kernel[...].reshape(WIDTH, -1).T
  compared(*system, taps_gradient, taps.grad.numpy(), **TOLERANCE, of='gradients')


@pytest.mark.parametrize('scores', [AdditiveScores, BilinearScores])
def test_scores_equal_joeynmt(scores, compared):
  joeynmt = archives.module('joeynmt', '2.3.0', 'joeynmt.attention')
  attention = functools.partial(MultiHeadAttention, num_heads=1, scores=scores)
  ours = perturbed(FromSource(WIDTH, sublayer=attention, rngs=nnx.Rngs(0)))
  states = rng.normal(size=(2, 7, WIDTH)).astype(np.float32)
  segments = np.asarray([[1] * 7, [1] * 4 + [0] * 3])
  q, k, v = (
    tensor(part(x)[:, :, 0])
    for part, x in (
      (ours.q, jnp.asarray(X)),
      (ours.k, jnp.asarray(states)),
      (ours.v, jnp.asarray(states)),
    )
  )
  w = tensor(ours.scores.w[...])
  if scores is AdditiveScores:
    system = 'additive scores', 'joeynmt 2.3.0 BahdanauAttention'
    theirs = joeynmt.BahdanauAttention(WIDTH, WIDTH, WIDTH)
    copies = {'key_layer': torch.eye(WIDTH), 'query_layer': torch.eye(WIDTH), 'energy_layer': w}
  else:
    system = 'bilinear scores', 'joeynmt 2.3.0 LuongAttention'
    theirs = joeynmt.LuongAttention(WIDTH, WIDTH)
    copies = {'key_layer': w[0]}
  with torch.no_grad():
    for name, weight in copies.items():
      getattr(theirs, name).weight.copy_(weight)
    theirs.compute_proj_keys(k)
    mask = tensor(segments[:, None] > 0)
    # Their layers read one query at a time.
    context = torch.cat([theirs(q[:, i : i + 1], mask, v)[0] for i in range(LENGTH)], dim=1)
  expected = ours.out(jnp.asarray(context.numpy())[:, :, None])
  source = SourceSequence(jnp.asarray(states), Tokens.row(7, segments=jnp.asarray(segments)))
  y, _ = applied(ours, jnp.asarray(X), source=source)
  compared(*system, y, expected, **TOLERANCE)
