"""Elementwise activation functions: the output has the shape and dtype of the input."""

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

# JAX's functions, under the names that configs use. (gelu and elu have further arguments in JAX and are
# wrapped below.)
relu = jax.nn.relu  # The gradient at 0 is 0.
selu = jax.nn.selu  # https://arxiv.org/abs/1706.02515
sigmoid = jax.nn.sigmoid  # The gate of the original GLU.
silu = jax.nn.silu  # https://arxiv.org/abs/1710.05941
softplus = jax.nn.softplus
tanh = jnp.tanh


def gelu(x: Float[Array, '*shape']) -> Float[Array, '*shape']:
  """Tanh approximation of GELU, as in GPT-2 and T5 v1.1 (https://arxiv.org/abs/1606.08415)."""
  return jax.nn.gelu(x, approximate=True)


def gelu_exact(x: Float[Array, '*shape']) -> Float[Array, '*shape']:
  """Exact GELU, with the error function, as in BERT and ViT (https://arxiv.org/abs/1606.08415)."""
  return jax.nn.gelu(x, approximate=False)


def quick_gelu(x: Float[Array, '*shape']) -> Float[Array, '*shape']:
  """CLIP's approximation of GELU, x * sigmoid(1.702 x)."""
  return x * jax.nn.sigmoid(1.702 * x)


def swish(x: Float[Array, '*shape']) -> Float[Array, '*shape']:
  """Alias of `silu`. (A separate function, so that the identity of configs that name it is stable.)"""
  return silu(x)


def elu(x: Float[Array, '*shape']) -> Float[Array, '*shape']:
  """ELU: x where x > 0, else exp(x) - 1 (https://arxiv.org/abs/1511.07289)."""
  return jax.nn.elu(x)


def linear(x: Float[Array, '*shape']) -> Float[Array, '*shape']:
  """Identity, the activation of the bilinear variant of `GatedMLP`."""
  return x


def relu_squared(x: Float[Array, '*shape']) -> Float[Array, '*shape']:
  """Squared ReLU, max(x, 0)^2, as in Primer (https://arxiv.org/abs/2109.08668)."""
  return jnp.square(relu(x))
