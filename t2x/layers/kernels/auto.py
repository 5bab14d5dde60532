"""The kernel that picks another by what is known before run time, and says why, once."""

import dataclasses
import functools
import logging
from typing import Any

import jax
from jaxtyping import Array, Float

from t2x.hyperparameters import Tunable
from t2x.layers.base import Tokens
from t2x.layers.kernels.base import Kernel, reads_queries
from t2x.layers.kernels.blockwise import Blockwise
from t2x.layers.kernels.dense import Dense
from t2x.layers.kernels.xla import XLA
from t2x.layers.patterns import Pattern
from t2x.ranges import Size

__all__ = ['Auto']


@dataclasses.dataclass(frozen=True)
class Auto(Kernel):
  """cuDNN where it can, dense for short rows and decoding, blockwise for long rows.

  Attributes:
    dense_scores: up to this many scores a head (q_len times k_len), dense attention is taken. On
      two CPU cores the two break even at 512 x 512; at 1024 causal blockwise takes half the time.
  """

  dense_scores: Size = 512 * 512

  def choose(
    self,
    q: Any,
    k: Any,
    v: Any,
    *,
    pattern: Pattern,
    q_tokens: Tokens,
    k_tokens: Tokens,
    bias: Any = None,
    dropout_rate: Tunable = 0.0,
    key: jax.Array | None = None,
  ) -> tuple[Kernel, str]:
    """The kernel and the reason. Reads shapes and dtypes alone: arrays may be abstract."""
    cudnn = XLA('cudnn')
    refusal = cudnn.refusal(
      q,
      k,
      v,
      pattern=pattern,
      q_tokens=q_tokens,
      k_tokens=k_tokens,
      bias=bias,
      dropout_rate=dropout_rate,
      key=key,
    )
    if refusal is None:
      return cudnn, f'cuDNN takes {pattern}'
    if reads_queries(bias):
      return Dense(), f'{type(bias).__name__} reads the queries; {refusal}'
    q_len, k_len = q.shape[1], k.shape[1]
    if q_len * k_len <= self.dense_scores:
      return Dense(), f'{q_len} x {k_len} scores are few; {refusal}'
    return Blockwise(), f'{q_len} x {k_len} scores are many; {refusal}'

  def __call__(
    self,
    q: Float[Array, 'batch q_len heads head_dim'],
    k: Float[Array, 'batch k_len kv_heads head_dim'],
    v: Float[Array, 'batch k_len kv_heads v_dim'],
    *,
    pattern: Pattern,
    q_tokens: Tokens,
    k_tokens: Tokens,
    bias: Any = None,
    scale: float,
    dropout_rate: Tunable = 0.0,
    key: jax.Array | None = None,
  ) -> Float[Array, 'batch q_len heads v_dim']:
    asked: dict[str, Any] = {
      'pattern': pattern,
      'q_tokens': q_tokens,
      'k_tokens': k_tokens,
      'bias': bias,
      'dropout_rate': dropout_rate,
      'key': key,
    }
    kernel, reason = self.choose(q, k, v, **asked)
    _tell_once(kernel, reason)
    return kernel(q, k, v, scale=scale, **asked)


@functools.cache
def _tell_once(kernel: Kernel, reason: str) -> None:
  logging.getLogger('t2x').debug('attention kernel %s: %s', kernel, reason)
