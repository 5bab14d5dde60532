"""Models of configs/models at tiny sizes against NumPy in float64, written out here; needs no other package."""

from pathlib import Path

import jax
import numpy as np
from applying import moved
from flax import nnx

from t2x.experiments import read_config
from t2x.layers.arrays import named_leaves

MODELS = Path(__file__).parents[2] / 'configs' / 'models'
rng = np.random.default_rng(0)


def built(name, *overrides):
  """A model with noise in all parameters, and its parameters by name in float64."""
  experiment = read_config([MODELS / f'{name}.gin'], overrides).build()
  model = moved(experiment.complete_model()(rngs=nnx.Rngs(0)), scale=0.2)
  return model, {n: np.asarray(leaf, np.float64) for n, leaf in named_leaves(model)}


def softmax(x):
  e = np.exp(x - x.max(axis=-1, keepdims=True))
  return e / e.sum(axis=-1, keepdims=True)


def rms_norm(x, scale):
  return x / np.sqrt((x**2).mean(axis=-1, keepdims=True) + 1e-5) * scale


def rotated(x, theta):
  """Rotary positions of [length, heads, dim]: feature i turns with feature i + dim / 2."""
  half = x.shape[-1] // 2
  angles = np.arange(len(x))[:, None] * theta ** (-np.arange(half) / half)
  cos, sin = np.cos(angles)[:, None], np.sin(angles)[:, None]
  a, b = x[..., :half], x[..., half:]
  return np.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)


def mixtral(p, ids):
  """Logits of one row of tokens by a Mixtral of one layer, two query heads that share a key head, and three experts."""
  x, layer = p['embedding.table'][ids], 'body.stack.blocks.0'
  own = {name.removeprefix(f'{layer}.'): a[0] for name, a in p.items() if name.startswith(layer)}
  y = rms_norm(x, own['mixer_wiring.norm.scale'])
  q, k, v = (np.einsum('ld,dhe->lhe', y, own[f'mixer.{name}.kernel']) for name in 'qkv')
  q, k = rotated(q, 1e6), rotated(k, 1e6)
  heads = []
  for h in range(q.shape[1]):
    scores = q[:, h] @ k[:, 0].T / np.sqrt(q.shape[-1])
    scores[np.triu_indices(len(ids), 1)] = -np.inf
    heads.append(softmax(scores) @ v[:, 0])
  x = x + np.einsum('hle,hed->ld', heads, own['mixer.out.kernel'])
  y = rms_norm(x, own['feed_forward_wiring.norm.scale'])
  probabilities = softmax(y @ own['feed_forward.router.kernel'])
  for i, token in enumerate(y):
    chosen = np.argsort(-probabilities[i])[:2]
    for expert in chosen:
      gate, up, down = (
        own[f'feed_forward.expert.{name}.kernel'][expert] for name in ('gate', 'up', 'down')
      )
      g = token @ gate
      share = probabilities[i, expert] / probabilities[i, chosen].sum()
      x[i] += share * ((g / (1 + np.exp(-g)) * (token @ up)) @ down)
  return rms_norm(x, p['body.final_norm.scale']) @ p['head.out.kernel']


def test_mixtral_equals_numpy():
  model, p = built(
    'mixtral_8x7b',
    *('d_model=8', 'num_layers=1', 'TokenEmbedding.vocab_size=11', 'GatedMLP.hidden_dim=6'),
    *('MultiHeadAttention.num_heads=2', 'MultiHeadAttention.num_kv_heads=1'),
    'MixtureOfExperts.num_experts=3',
  )
  ids = rng.integers(0, 11, (2, 7))
  expected = [mixtral(p, row) for row in ids]
  np.testing.assert_allclose(jax.jit(model)(ids).x, expected, atol=1e-4)


def convolved(x, kernel, stride=1):
  """Cross-correlation of [rows, columns, in] with [size, size, in, out], with zeros around."""
  size = len(kernel)
  x = np.pad(x, ((size // 2, size // 2),) * 2 + ((0, 0),))
  rows, columns = ((n - size) // stride + 1 for n in x.shape[:2])
  y = np.zeros((rows, columns, kernel.shape[-1]))
  for i, j in np.ndindex(rows, columns):
    window = x[i * stride : i * stride + size, j * stride : j * stride + size]
    y[i, j] = np.einsum('abc,abcd->d', window, kernel)
  return y


def group_norm(x, scale, bias, groups):
  y = x.reshape(*x.shape[:2], groups, -1)
  y = (y - y.mean(axis=(0, 1, 3), keepdims=True)) / np.sqrt(
    y.var(axis=(0, 1, 3), keepdims=True) + 1e-5
  )
  return y.reshape(x.shape) * scale + bias


def max_pooled(x):
  """The largest of 3 x 3 values, at every second one."""
  x = np.pad(x, ((1, 1), (1, 1), (0, 0)), constant_values=-np.inf)
  rows, columns = ((n - 3) // 2 + 1 for n in x.shape[:2])
  return np.array(
    [
      [x[2 * i : 2 * i + 3, 2 * j : 2 * j + 3].max(axis=(0, 1)) for j in range(columns)]
      for i in range(rows)
    ]
  )


def resnet(p, x, groups):
  """Class logits of one image by a ResNet of two stages: one block, then one that halves the grid and one more."""

  def part(name, x, stride=1):
    """A convolution and its norm; parameters of a stack have its layer first."""
    kernel, scale, bias = (
      p[f'{name}.{parameter}'] for parameter in ('convolution.kernel', 'norm.scale', 'norm.bias')
    )
    if '.blocks.' in name:
      kernel, scale, bias = kernel[0], scale[0], bias[0]
    return group_norm(convolved(x, kernel, stride), scale, bias, groups)

  def branch(name, x, stride=1):
    return part(f'{name}.second', np.maximum(part(f'{name}.first', x, stride), 0))

  x = max_pooled(np.maximum(part('embedding.convolution', x, 2), 0))
  x = np.maximum(x + branch('body.stack.stages.0.blocks.0.mixer', x), 0)
  merge = 'body.stack.merges.0'
  x = np.maximum(part(f'{merge}.shortcut', x, 2) + branch(merge, x, 2), 0)
  x = np.maximum(x + branch('body.stack.stages.1.blocks.0.mixer', x), 0)
  return x.mean(axis=(0, 1)) @ p['head.out.kernel'] + p['head.out.bias']


def test_resnet_equals_numpy():
  model, p = built(
    'resnet_18',
    *('VisionTransformer.d_model=4', 'stem/GridConvolution.width=4', 'GroupNorm.num_groups=2'),
    *('Stages.stages=[@first/Stack, @Stack]', 'first/Stack.num_layers=1'),
    *('Classifier.num_classes=3', 'GridStem.channels=2'),
  )
  images = rng.normal(size=(2, 20, 16, 2)).astype(np.float32)
  expected = [resnet(p, image, 2) for image in images.astype(np.float64)]
  np.testing.assert_allclose(jax.jit(model)(images).x, expected, atol=1e-4)
