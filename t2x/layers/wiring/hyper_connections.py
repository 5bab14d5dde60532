"""Hyper-connections: several residual streams, mixed by learned weights around each sublayer (Zhu et al. 2024,
https://arxiv.org/abs/2409.19606)."""

import dataclasses
import math
from collections.abc import Callable
from typing import Annotated, Any

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from t2x.base.ranges import Positive, Range, TunableRate
from t2x.layers.building import branch_index
from t2x.layers.dtypes import exact_einsum
from t2x.layers.initializers import ones, zeros
from t2x.layers.interfaces import Norm
from t2x.layers.norms import LayerNorm
from t2x.layers.parameters import param
from t2x.layers.wiring.residual import NormedWiring, float32

__all__ = ['DynamicHyperConnections', 'HyperConnections']


class HyperConnections(NormedWiring):
  """Static hyper-connections: H' = A_r' H + B' sublayer(norm(A_m' H)) for the streams H [streams, d_model].

  At initialisation A_r is the identity, B is 1, and branch k of the stack reads stream k mod streams, which equals
  `PreNorm` up to a factor of the output.

  Args:
    d_model: width of a residual stream.
    num_streams: number of residual streams, at least 2.
    norm: builds the norm before the sublayer.
  """

  def __init__(
    self,
    d_model: int,
    *,
    num_streams: Annotated[int, Range('2 <= x <= 1024')] = 4,
    norm: Callable[..., Norm] = LayerNorm,
    dropout_rate: TunableRate = 0.0,
    rngs: nnx.Rngs,
  ):
    stream = branch_index() % num_streams

    def one_hot(key, shape, dtype):
      return (jnp.arange(num_streams) == stream).astype(dtype)

    def weights(init, *shape):
      axes = ['streams'] * len(shape)
      return param(init, shape, axes, rngs, kind='identity', keep_float32=True)

    super().__init__(d_model, norm=norm, dropout_rate=dropout_rate, rngs=rngs)
    self.num_streams = num_streams
    self.read = weights(one_hot, num_streams)
    # A_r minus the identity.
    self.mix = weights(zeros(), num_streams, num_streams)
    self.write = weights(ones(), num_streams)

  def weights(self, x: Float[Array, 'batch length streams d_model']) -> tuple[Any, Any, Any]:
    """Returns A_m [#batch, #length, streams], A_r [#batch, #length, streams, streams] and B as A_m, in float32."""
    mix = jnp.eye(self.num_streams) + float32(self.mix)
    return float32(self.read)[None, None], mix[None, None], float32(self.write)[None, None]

  def connect(self, x, branch):
    """Mixes the streams and adds the branch to each, times its weight."""
    read, mix, write = self.weights(x)
    wide = x.astype(read.dtype)
    h = (wide * read[..., None]).sum(axis=-2).astype(x.dtype)
    result = branch(self.norm(h))
    y = result.x.astype(wide.dtype)
    mixed = exact_einsum('...nm,...nd->...md', mix, wide)
    x = (mixed + write[..., None] * y[..., None, :]).astype(x.dtype)
    return dataclasses.replace(result, x=x)


class DynamicHyperConnections(HyperConnections):
  """Hyper-connections whose weights depend on the streams: A_m + s_a tanh(norm(H) W_m), A_r + s_a tanh(norm(H) W_r)
  and B + s_b tanh(norm(H) W_b), with W = 0 at initialisation.

  Args:
    norm: builds the norm before the sublayer and that of the streams.
    scale: initial value of s_a and s_b.
  """

  def __init__(
    self,
    d_model: int,
    *,
    num_streams: Annotated[int, Range('2 <= x <= 1024')] = 4,
    norm: Callable[..., Norm] = LayerNorm,
    scale: Positive = 0.01,
    dropout_rate: TunableRate = 0.0,
    rngs: nnx.Rngs,
  ):
    super().__init__(
      d_model, num_streams=num_streams, norm=norm, dropout_rate=dropout_rate, rngs=rngs
    )

    def projection(*outputs):
      axes, matrix = ('embed', *['streams'] * len(outputs)), (d_model, math.prod(outputs))
      return param(zeros(), (d_model, *outputs), axes, rngs, matrix=matrix, keep_float32=True)

    def factor():
      init = nnx.initializers.constant(scale)
      return param(init, (), (), rngs, kind='scalar', keep_float32=True)

    self.stream_norm = norm(d_model, rngs=rngs)
    self.read_projection = projection()
    self.mix_projection = projection(num_streams)
    self.write_projection = projection()
    self.width_scale = factor()
    self.depth_scale = factor()

  def weights(self, x: Float[Array, 'batch length streams d_model']) -> tuple[Any, Any, Any]:
    """Returns A_m, A_r and B of each token; see `HyperConnections.weights`."""
    read, mix, write = super().weights(x)
    h = self.stream_norm(x).astype(read.dtype)

    def added(scale, projection):
      return float32(scale) * jnp.tanh(exact_einsum('blnd,d...->bln...', h, float32(projection)))

    read = read + added(self.width_scale, self.read_projection)
    mix = mix + added(self.width_scale, self.mix_projection)
    return read, mix, write + added(self.depth_scale, self.write_projection)
