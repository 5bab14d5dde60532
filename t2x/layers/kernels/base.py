"""What every attention kernel is called with, and what they share."""

import abc
from typing import Any, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from t2x.errors import UserError
from t2x.hyperparameters import Tunable
from t2x.layers.base import RowLayout, Tokens
from t2x.layers.patterns import Pattern

__all__ = ['Bias', 'Kernel']


@runtime_checkable
class Bias(Protocol):
  """What adds to the scores: a pytree, so that gradients reach its parameters.

  One with `reads_queries` true is asked for `query_bias` instead, as `PositionEncoding` tells.
  """

  def bias(self, q_pos: Any, k_pos: Any) -> Any:
    """[#batch, q] and [#batch, k] integer positions -> [#batch, heads, q, k]."""


class Kernel(abc.ABC):
  """How scores become outputs under a pattern: softmax(scale q k' + bias) v over what is visible.

  Kernels are immutable values. They agree with `Dense`, the reference; what one cannot honour it
  refuses with a UserError, and nothing is dropped silently.
  """

  @abc.abstractmethod
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
    """Attends. Head h reads key and value head h // (heads // kv_heads).

    A query that sees nothing gives zeros. Softmax is in float32, or wider where the inputs are.

    Args:
      bias: a `Bias`, or None.
      scale: multiplies q k'.
      dropout_rate: share of the probabilities dropped, when `key` is given.
    """


def common_layout(q_tokens: Tokens, k_tokens: Tokens) -> RowLayout:
  """What is static about the positions of queries and keys together.

  PACKED on both sides means the same packed rows: cross-attention hands in keys that are ARBITRARY.
  """

  layout = q_tokens.layout
  return layout if layout is k_tokens.layout else RowLayout.ARBITRARY


def reads_queries(bias: Any) -> bool:
  """Whether what `bias` adds depends on the queries."""
  return getattr(bias, 'reads_queries', False)


def added_scores(bias: Any, q: Any, q_pos: Any, k_pos: Any, scale: float) -> Any:
  """What `bias` adds to scale q k': [#batch, heads, q, k]. Raises as `position_bias`."""
  if reads_queries(bias):
    return bias.query_bias(q, q_pos, k_pos) * scale
  return position_bias(bias, q_pos, k_pos, q.shape[2])


def position_bias(bias: Any, q_pos: Any, k_pos: Any, num_heads: int) -> Any:
  """A bias that depends on positions only: [#batch, heads, q, k].

  Raises:
    UserError: it has another number of heads than the attention.
  """
  added = bias.bias(q_pos, k_pos)
  if added.shape[1] != num_heads:
    name = type(bias).__name__
    raise UserError(
      f'{name} has scores for {added.shape[1]} heads, the attention has {num_heads}: '
      f'set {name}.num_heads = {num_heads}'
    )
  return added


def group_size(q: Any, k: Any) -> int:
  """How many query heads read one key head."""
  heads, kv_heads = q.shape[2], k.shape[2]
  if heads % kv_heads:
    raise UserError(f'attention: {heads} heads do not divide among {kv_heads} key/value heads')
  return heads // kv_heads


def softmax_dtype(q: Any) -> jnp.dtype:
  """float32, or wider when the inputs are."""
  return jnp.promote_types(q.dtype, jnp.float32)


def hide_blind(
  out: Float[Array, 'batch q_len heads v_dim'], mask: Bool[Array, '#batch 1 q_len k_len']
) -> Float[Array, 'batch q_len heads v_dim']:
  """Zeros for the queries that see nothing, whose softmax over nothing is a mean of all values."""
  return jnp.where(jnp.any(mask, axis=-1)[:, 0, :, None, None], out, 0)
