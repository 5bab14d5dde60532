"""Two residual streams, with and without norms (ResiDual: Xie et al. 2023, https://arxiv.org/abs/2304.14802)."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from t2x.layers.interfaces import Norm, StreamEnds
from t2x.layers.norms import LayerNorm
from t2x.layers.wiring.residual import PostNorm

__all__ = ['ResiDual']


class ResiDual(PostNorm):
  """A post-norm stream x, which the sublayers read, and a sum d of their outputs: x' = norm(x + y) and d' = d + y for
  y = dropout(sublayer(x)).

  Both streams begin as the input of the stack, and its output is x + norm(d), with one more norm per stack. Gradients
  reach each sublayer through d as in `PreNorm`, and outputs of later layers weigh as much as in `PostNorm`.

  Args:
    d_model: width of a residual stream.
    norm: builds the norms.
  """

  num_streams = 2

  def __init__(
    self,
    d_model: int,
    *,
    norm: Callable[..., Norm] = LayerNorm,
    rngs: nnx.Rngs,
    **settings: Any,
  ):
    super().__init__(d_model, norm=norm, rngs=rngs, **settings)
    self.build_norm = norm

  def connect(self, x, branch):
    normed, plain = x[:, :, 0], x[:, :, 1]
    result = branch(normed)
    streams = [self.norm(normed + result.x), plain + result.x]
    return dataclasses.replace(result, x=jnp.stack(streams, axis=2))

  @property
  def ends(self) -> Callable[..., StreamEnds]:
    return functools.partial(PairEnds, norm=self.build_norm)


class PairEnds(nnx.Module):
  """Copies of the input at the beginning, and x + norm(d) at the end.

  Args:
    d_model: width of a stream.
    num_streams: 2.
    norm: builds the norm of d.
  """

  def __init__(self, d_model: int, num_streams: int, *, norm: Callable[..., Norm], rngs: nnx.Rngs):
    self.norm = norm(d_model, rngs=rngs)

  def expand(
    self, x: Float[Array, 'batch length d_model']
  ) -> Float[Array, 'batch length streams d_model']:
    return jnp.stack([x, x], axis=2)

  def collapse(
    self, x: Float[Array, 'batch length streams d_model']
  ) -> Float[Array, 'batch length d_model']:
    return x[:, :, 0] + self.norm(x[:, :, 1])
