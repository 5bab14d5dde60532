"""Start and end of the residual streams of a stack."""

from typing import Protocol, runtime_checkable

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

__all__ = ['StreamEnds']


@runtime_checkable
class StreamEnds(Protocol):
  """Beginning and end of the residual streams of a stack; may have parameters."""

  def expand(
    self, x: Float[Array, 'batch length d_model']
  ) -> Float[Array, 'batch length *streams d_model']:
    """Returns the residual streams before the first layer."""
    ...

  def collapse(
    self, x: Float[Array, 'batch length *streams d_model']
  ) -> Float[Array, 'batch length d_model']:
    """Returns the output of the stack."""
    ...


class Copies(nnx.Module):
  """Streams that begin as copies of the input and whose sum is the output.

  Args:
    d_model: width of a stream.
    num_streams: number of streams; 1: x has no dimension of streams.
  """

  def __init__(self, d_model: int, num_streams: int, *, rngs: nnx.Rngs):
    self.num_streams = num_streams

  def expand(self, x: Array) -> Array:
    if self.num_streams == 1:
      return x
    return jnp.broadcast_to(x[:, :, None], (*x.shape[:2], self.num_streams, x.shape[2]))

  def collapse(self, x: Array) -> Array:
    return x if self.num_streams == 1 else x.sum(axis=2)
