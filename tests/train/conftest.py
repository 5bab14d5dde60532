"""A tiny model with every kind of parameter: a table, stacked projections, a norm, biases."""

import math

import jax
import jax.numpy as jnp
import pytest
from flax import nnx

from t2x.layers import param

ones, zeros = nnx.initializers.ones, nnx.initializers.zeros


def normal(key, shape, dtype):
  """Numbers that differ from key to key; much quicker to compile than truly random ones."""
  count = jnp.arange(math.prod(shape), dtype=dtype).reshape(shape)
  return jnp.sin(count + jax.random.key_data(key).sum().astype(dtype))


class TinyBlock(nnx.Module):
  def __init__(self, width, rngs):
    self.q = param(normal, (width, 2, 4), ('embed', 'heads', 'head_dim'), rngs)
    self.bias = param(zeros, (2, 4), ('heads', 'head_dim'), rngs)
    self.out = param(normal, (2, 4, width), ('heads', 'head_dim', 'embed'), rngs)
    self.scale = param(ones, (width,), ('embed',), rngs)


class TinyModel(nnx.Module):
  def __init__(self, width, rngs):
    self.table = param(normal, (16, width), ('vocab', 'embed'), rngs)
    keys = jax.random.split(rngs.params(), 3)
    self.blocks = jax.vmap(lambda key: TinyBlock(width, nnx.Rngs(key)))(keys)
    self.mlp = nnx.List([param(normal, (width, 16), ('embed', 'mlp'), rngs)])

  def __call__(self, ids):
    return self.table[...][ids]  # Models can be called: optax must not take a mask for a function.


@pytest.fixture(scope='session')
def tiny():
  """`tiny(width=8, seed=0)` builds the model; the seed may be a key."""
  return lambda width=8, seed=0: TinyModel(width, nnx.Rngs(seed))
