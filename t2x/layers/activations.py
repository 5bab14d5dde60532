"""Activation functions, elementwise: array -> array of the same shape and type."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

# JAX's own functions, under the names that configs use. (Its gelu and elu have further arguments, which the
# functions below leave out.)
relu = jax.nn.relu  # The gradient at 0 is 0.
selu = jax.nn.selu  # https://arxiv.org/abs/1706.02515
sigmoid = jax.nn.sigmoid  # The gate of the original GLU.
silu = jax.nn.silu  # https://arxiv.org/abs/1710.05941
softplus = jax.nn.softplus
tanh = jnp.tanh


def gelu(x: Float[Array, '*shape']) -> Float[Array, '*shape']:
  """GELU by its tanh approximation, as in GPT-2 and T5 v1.1 (https://arxiv.org/abs/1606.08415)."""
  return jax.nn.gelu(x, approximate=True)


def gelu_exact(x: Float[Array, '*shape']) -> Float[Array, '*shape']:
  """GELU by the error function, as in BERT and ViT (https://arxiv.org/abs/1606.08415)."""
  return jax.nn.gelu(x, approximate=False)


def quick_gelu(x: Float[Array, '*shape']) -> Float[Array, '*shape']:
  """x * sigmoid(1.702 x), CLIP's approximation of GELU."""
  return x * jax.nn.sigmoid(1.702 * x)


def swish(x: Float[Array, '*shape']) -> Float[Array, '*shape']:
  """`silu` under its other name. (A part of its own: configs that name it keep their identity.)"""
  return silu(x)


def elu(x: Float[Array, '*shape']) -> Float[Array, '*shape']:
  """x above 0, exp(x) - 1 below (https://arxiv.org/abs/1511.07289)."""
  return jax.nn.elu(x)


def linear(x: Float[Array, '*shape']) -> Float[Array, '*shape']:
  """x itself; the gate of the bilinear unit."""
  return x


def relu_squared(x: Float[Array, '*shape']) -> Float[Array, '*shape']:
  """max(x, 0) squared, as in Primer (https://arxiv.org/abs/2109.08668)."""
  return jnp.square(relu(x))
