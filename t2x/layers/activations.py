"""Activation functions, elementwise: array -> array of the same shape and type."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

__all__ = [
  'elu',
  'gelu',
  'gelu_exact',
  'linear',
  'quick_gelu',
  'relu',
  'relu_squared',
  'selu',
  'sigmoid',
  'silu',
  'softplus',
  'swish',
  'tanh',
]


def relu(x: Float[Array, '*shape']) -> Float[Array, '*shape']:
  """max(x, 0), its gradient 0 at 0."""
  return jax.nn.relu(x)


def gelu(x: Float[Array, '*shape']) -> Float[Array, '*shape']:
  """GELU by its tanh approximation, as in GPT-2 and T5 v1.1 (https://arxiv.org/abs/1606.08415)."""
  return jax.nn.gelu(x, approximate=True)


def gelu_exact(x: Float[Array, '*shape']) -> Float[Array, '*shape']:
  """GELU by the error function, as in BERT and ViT (https://arxiv.org/abs/1606.08415)."""
  return jax.nn.gelu(x, approximate=False)


def quick_gelu(x: Float[Array, '*shape']) -> Float[Array, '*shape']:
  """x * sigmoid(1.702 x), CLIP's approximation of GELU."""
  return x * jax.nn.sigmoid(1.702 * x)


def silu(x: Float[Array, '*shape']) -> Float[Array, '*shape']:
  """x * sigmoid(x) (https://arxiv.org/abs/1710.05941)."""
  return jax.nn.silu(x)


def swish(x: Float[Array, '*shape']) -> Float[Array, '*shape']:
  """Another name of `silu`."""
  return silu(x)


def elu(x: Float[Array, '*shape']) -> Float[Array, '*shape']:
  """x above 0, exp(x) - 1 below (https://arxiv.org/abs/1511.07289)."""
  return jax.nn.elu(x)


def selu(x: Float[Array, '*shape']) -> Float[Array, '*shape']:
  """The self-normalising `elu` (https://arxiv.org/abs/1706.02515)."""
  return jax.nn.selu(x)


def sigmoid(x: Float[Array, '*shape']) -> Float[Array, '*shape']:
  """1 / (1 + exp(-x)); the gate of the original GLU."""
  return jax.nn.sigmoid(x)


def softplus(x: Float[Array, '*shape']) -> Float[Array, '*shape']:
  """log(1 + exp(x))."""
  return jax.nn.softplus(x)


def tanh(x: Float[Array, '*shape']) -> Float[Array, '*shape']:
  """Hyperbolic tangent."""
  return jnp.tanh(x)


def linear(x: Float[Array, '*shape']) -> Float[Array, '*shape']:
  """x itself; the gate of the bilinear unit."""
  return x


def relu_squared(x: Float[Array, '*shape']) -> Float[Array, '*shape']:
  """max(x, 0) squared, as in Primer (https://arxiv.org/abs/2109.08668)."""
  return jnp.square(relu(x))
