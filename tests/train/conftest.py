"""A tiny model with every kind of parameter: a table, stacked projections, a norm, biases."""

import math

import jax
import jax.numpy as jnp
import pytest
from flax import nnx

from t2x.layers import param, stacked

ones, zeros = nnx.initializers.ones, nnx.initializers.zeros


def normal(key, shape, dtype):
  """Numbers that differ from key to key; much quicker to compile than truly random ones."""
  count = jnp.arange(math.prod(shape), dtype=dtype).reshape(shape)
  return jnp.sin(count + jax.random.key_data(key).sum().astype(dtype))


class TinyBlock(nnx.Module):
  def __init__(self, width, rngs):
    heads = 'heads', 'head_dim'
    self.q = param(normal, (width, 2, 4), ('embed', *heads), rngs, matrix=(width, 8))
    self.bias = param(zeros, (2, 4), heads, rngs, kind='vector')
    self.out = param(normal, (2, 4, width), (*heads, 'embed'), rngs, matrix=(8, width))
    self.scale = param(ones, (width,), ('embed',), rngs, kind='vector')


class TinyModel(nnx.Module):
  def __init__(self, width, rngs):
    self.table = param(normal, (16, width), ('vocab', 'embed'), rngs, kind='table')
    self.blocks = stacked(lambda _, rngs: TinyBlock(width, rngs), 3, rngs)
    self.mlp = nnx.List([param(normal, (width, 16), ('embed', 'mlp'), rngs, matrix=(width, 16))])

  def __call__(self, ids):
    return self.table[...][ids]  # Models can be called: optax must not take a mask for a function.


@pytest.fixture(scope='session')
def tiny():
  """`tiny(width=8, seed=0)` builds the model; the seed may be a key."""
  return lambda width=8, seed=0: TinyModel(width, nnx.Rngs(seed))
