"""Inputs of attention kernels, and the functions that kernels share."""

import abc
import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from t2x.errors import UserError
from t2x.hyperparameters import Tunable
from t2x.layers.base import RowLayout, Tokens
from t2x.layers.patterns import Pattern
from t2x.layers.position_encoding import PositionEncoding

# The fields are not annotated with shapes: arrays may be abstract, and tree functions put other leaves
# into them.


@functools.partial(
  jax.tree_util.register_dataclass,
  data_fields=['q', 'k', 'sink'],
  meta_fields=['scale', 'soft_cap'],
)
@dataclasses.dataclass(frozen=True)
class DotProduct:
  """Scores scale q k', optionally soft-capped.

  Query head h meets key head h // (heads // kv_heads).

  Attributes:
    q: queries [batch, q_len, heads, head_dim].
    k: keys [batch, k_len, kv_heads, head_dim].
    scale: multiplies q k'.
    soft_cap: s becomes soft_cap * tanh(s / soft_cap), before position terms are added (Gemma 2,
      https://arxiv.org/abs/2408.00118). None: no cap.
    sink: logits [heads] that take part in each head's softmax without a value (gpt-oss; attention sinks,
      https://arxiv.org/abs/2309.17453). None: no sinks.
  """

  q: Any
  k: Any
  scale: float
  soft_cap: float | None = None
  sink: Any = None


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Logits:
  """Scores as an array, scaled already.

  Attributes:
    array: [#batch, heads, q_len, k_len].
  """

  array: Any


@functools.partial(
  jax.tree_util.register_dataclass, data_fields=['encoding', 'content'], meta_fields=['scale']
)
@dataclasses.dataclass(frozen=True)
class PositionTerms:
  """What a position encoding adds to the scores and the output of one attention layer.

  Attributes:
    encoding: has the hook `scores`, `values` or both.
    scale: the scale of the attention's dot products.
    content: the scores [#batch, heads, q_len, k_len] of an encoding that reads queries or keys; None for
      all others, which kernels compute from the tokens.
  """

  encoding: PositionEncoding
  scale: float
  content: Any = None

  @property
  def name(self) -> str:
    """The class of the encoding, for messages."""
    return type(self.encoding).__name__

  @property
  def has_values(self) -> bool:
    """Whether the encoding adds to the output."""
    return 'values' in self.encoding.hooks

  def scores(
    self, q_tokens: Tokens, k_tokens: Tokens, num_heads: int
  ) -> Float[Array, '#batch heads queries keys'] | None:
    """What is added to the scaled scores; None for an encoding without the hook `scores`.

    Raises:
      UserError: the encoding has another number of heads than the attention.
    """
    if 'scores' not in self.encoding.hooks:
      return None
    added = self.content
    if added is None:
      added = self.encoding.scores(None, None, q_tokens, k_tokens, scale=self.scale)
    if added.shape[1] != num_heads:
      raise UserError(
        f'{self.name} has scores for {added.shape[1]} heads, the attention has {num_heads}: '
        f'set {self.name}.num_heads = {num_heads}'
      )
    return added


@functools.partial(
  jax.tree_util.register_dataclass,
  data_fields=['scores', 'v', 'q_tokens', 'k_tokens', 'terms', 'key'],
  meta_fields=['pattern', 'dropout_rate'],
)
@dataclasses.dataclass(frozen=True)
class AttentionInputs:
  """All that a kernel reads.

  Attributes:
    scores: before position terms, pattern and padding.
    v: values [batch, k_len, kv_heads, v_dim]. Value head h // (heads // kv_heads) is read by query head h.
    pattern: which keys a query sees, by position.
    q_tokens: tokens of the queries.
    k_tokens: tokens of the keys.
    terms: added by a position encoding; None: nothing.
    dropout_rate: share of the probabilities that is dropped, where a key is given.
    key: for dropout; None: no dropout.
  """

  scores: DotProduct | Logits
  v: Any
  pattern: Pattern
  q_tokens: Tokens
  k_tokens: Tokens
  terms: PositionTerms | None = None
  dropout_rate: Tunable = 0.0
  key: Any = None

  @property
  def q_len(self) -> int:
    """Number of queries."""
    scores = self.scores
    return scores.q.shape[1] if isinstance(scores, DotProduct) else scores.array.shape[2]

  @property
  def k_len(self) -> int:
    """Number of keys."""
    return self.v.shape[1]

  @property
  def num_heads(self) -> int:
    """Number of query heads."""
    scores = self.scores
    return scores.q.shape[2] if isinstance(scores, DotProduct) else scores.array.shape[1]

  @property
  def dtype(self) -> jnp.dtype:
    """Type of scores and softmax: float32, or wider where the scores are."""
    scores = self.scores
    return softmax_dtype(scores.q if isinstance(scores, DotProduct) else scores.array)

  @property
  def drops(self) -> bool:
    """Whether probabilities are dropped."""
    return self.key is not None and self.dropout_rate != 0.0

  def added_scores(self) -> Float[Array, '#batch heads q_len k_len'] | None:
    """The position terms of all pairs, or None."""
    if self.terms is None:
      return None
    return self.terms.scores(self.q_tokens, self.k_tokens, self.num_heads)


class Kernel(abc.ABC):
  """Computes softmax(scores) v over the keys that each query sees.

  Kernels are immutable values and agree with `Dense`, the reference. Softmax is in float32, or wider
  where the scores are. A query that sees nothing gives zeros.
  """

  @abc.abstractmethod
  def supports(self, inputs: AttentionInputs) -> str | None:
    """The reason why this kernel cannot compute `inputs`, or None where it can.

    Reads shapes, dtypes and static fields only: arrays may be abstract.
    """

  @abc.abstractmethod
  def attend(self, inputs: AttentionInputs) -> Float[Array, 'batch q_len heads v_dim']:
    """The output for inputs that the kernel supports."""

  def __call__(self, inputs: AttentionInputs) -> Float[Array, 'batch q_len heads v_dim']:
    """Attends.

    Raises:
      UserError: the kernel does not support the inputs, numbers of heads do not divide, or the tokens
        lack a mark that the pattern reads.
    """
    _check_heads(inputs)
    reason = self.supports(inputs)
    if reason is not None:
      raise UserError(f'{self} cannot compute this attention: {reason}; use Auto() or Dense()')
    return self.attend(inputs)


def _check_heads(inputs: AttentionInputs) -> None:
  scores, heads, kv_heads = inputs.scores, inputs.num_heads, inputs.v.shape[2]
  if heads % kv_heads:
    raise UserError(f'attention: {heads} heads do not divide among {kv_heads} key/value heads')
  if isinstance(scores, DotProduct) and scores.k.shape[2] != kv_heads:
    raise UserError(
      f'attention: keys have {scores.k.shape[2]} heads and values {kv_heads}: make them equal'
    )


def common_layout(q_tokens: Tokens, k_tokens: Tokens) -> RowLayout:
  """What is static about the positions of queries and keys together.

  PACKED on both sides means the same packed rows: cross-attention hands in keys that are ARBITRARY.
  """
  layout = q_tokens.layout
  return layout if layout is k_tokens.layout else RowLayout.ARBITRARY


def softmax_dtype(scores: Any) -> jnp.dtype:
  """float32, or wider where the inputs are."""
  return jnp.promote_types(scores.dtype, jnp.float32)


def soft_capped(scores: Any, soft_cap: float | None) -> Any:
  """soft_cap * tanh(scores / soft_cap); the scores themselves without a cap."""
  return scores if soft_cap is None else soft_cap * jnp.tanh(scores / soft_cap)


def hide_blind(
  out: Float[Array, 'batch q_len heads v_dim'], mask: Bool[Array, '#batch 1 q_len k_len']
) -> Float[Array, 'batch q_len heads v_dim']:
  """Zeros for the queries that see nothing, whose softmax over nothing is a mean of all values."""
  return jnp.where(jnp.any(mask, axis=-1)[:, 0, :, None, None], out, 0)
