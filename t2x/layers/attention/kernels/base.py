"""Interface and inputs of attention kernels, and functions that kernels share."""

import abc
import dataclasses
import functools
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from t2x.base.errors import UserError
from t2x.base.hyperparameters import Tunable
from t2x.base.step import is_plain, target
from t2x.layers.arrays import Leaf
from t2x.layers.constraints import constrain
from t2x.layers.patterns.algebra import Full, Pattern, mark_names, query_key_views
from t2x.layers.patterns.tiles import Bounds, Tiles
from t2x.layers.positions.encoding import PositionEncoding
from t2x.layers.tokens import RowLayout, Tokens

__all__ = [
  'ATTENTION_OUTPUT',
  'AttentionInputs',
  'DotProduct',
  'Kernel',
  'Logits',
  'PositionTerms',
  'attention_mask',
]

# Name (`jax.ad_checkpoint.checkpoint_name`) of the arrays that a kernel needs for its backward pass besides its
# inputs, and of its output, for rematerialisation policies that save them.
ATTENTION_OUTPUT = 'attention_output'

# The fields are not annotated with shapes: arrays may be abstract, and tree functions put leaves other than
# arrays into them.


@functools.partial(
  jax.tree_util.register_dataclass,
  data_fields=['q', 'k', 'sink'],
  meta_fields=['scale', 'soft_cap'],
)
@dataclasses.dataclass(frozen=True)
class DotProduct:
  """Scores scale q k', optionally soft-capped.

  Query head h uses key head h // (heads // kv_heads).

  Attributes:
    q: queries [batch, q_len, heads, head_dim].
    k: keys [batch, k_len, kv_heads, head_dim].
    scale: factor of q k'.
    soft_cap: replaces scores s by soft_cap * tanh(s / soft_cap), before position terms are added (Gemma 2,
      https://arxiv.org/abs/2408.00118). None: no cap.
    sink: logits [heads] without values that each head's softmax includes (gpt-oss; attention sinks,
      https://arxiv.org/abs/2309.17453). None: no sinks.
  """

  q: Leaf
  k: Leaf
  scale: float
  soft_cap: float | None = None
  sink: Leaf | None = None


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Logits:
  """Precomputed scores.

  Attributes:
    array: scaled scores [#batch, heads, q_len, k_len].
    mixture: [heads, heads]; head h attends with the sum over g of mixture[g, h] times the softmax of head g.
      None: each head attends with its own softmax.
  """

  array: Leaf
  mixture: Leaf | None = None


@functools.partial(
  jax.tree_util.register_dataclass, data_fields=['encoding', 'content'], meta_fields=['scale']
)
@dataclasses.dataclass(frozen=True)
class PositionTerms:
  """Terms that a position encoding adds to the scores and the output of an attention layer.

  Attributes:
    encoding: position encoding with the hook `scores`, `values` or both.
    scale: scale of the attention's dot products.
    content: scores [#batch, heads, q_len, k_len] of an encoding that reads queries or keys; None for all
      other encodings, whose scores kernels compute from the token metadata.
  """

  encoding: PositionEncoding
  scale: float
  content: Leaf | None = None

  @property
  def name(self) -> str:
    """Class name of the encoding, for error messages."""
    return type(self.encoding).__name__

  @property
  def has_values(self) -> bool:
    """True if the encoding adds vectors to the output."""
    return 'values' in self.encoding.hooks

  def scores(
    self, q_tokens: Tokens, k_tokens: Tokens, num_heads: int
  ) -> Float[Array, '#batch heads queries keys'] | None:
    """Returns the terms added to the scaled scores; None for an encoding without the hook `scores`.

    Raises:
      UserError: the numbers of heads of the encoding and of the attention differ.
    """
    if 'scores' not in self.encoding.hooks:
      return None
    added = self.content
    if added is None:
      added = self.encoding.scores(None, None, q_tokens, k_tokens, scale=self.scale)
    if added.shape[1] != num_heads:
      raise UserError(
        f'{self.name} has scores for {added.shape[1]} heads, but the attention has {num_heads} heads: '
        f'set {self.name}.num_heads = {num_heads}'
      )
    return added


@functools.partial(
  jax.tree_util.register_dataclass,
  data_fields=['scores', 'v', 'q_tokens', 'k_tokens', 'terms', 'key', 'memory'],
  meta_fields=['pattern', 'dropout_rate'],
)
@dataclasses.dataclass(frozen=True)
class AttentionInputs:
  """Inputs of an attention kernel.

  Attributes:
    scores: scores before position terms and mask.
    v: values [batch, k_len, kv_heads, v_dim]. Query head h reads value head h // (heads // kv_heads).
    pattern: attention pattern.
    q_tokens: metadata of the queries.
    k_tokens: metadata of the keys.
    terms: terms of a position encoding; None: no terms.
    dropout_rate: dropout of the attention probabilities.
    key: random keys of dropout as in `Call`; None: no dropout.
    memory: keys [n, kv_heads, head_dim] and values [n, kv_heads, v_dim] without tokens, which every query sees and to
      whose scores nothing is added; None: none.
  """

  scores: DotProduct | Logits
  v: Leaf
  pattern: Pattern
  q_tokens: Tokens
  k_tokens: Tokens
  terms: PositionTerms | None = None
  dropout_rate: Tunable = 0.0
  key: Leaf | None = None
  memory: tuple[Any, Any] | None = None

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
    """Dtype of scores and softmax: float32, or the dtype of the scores if it is wider."""
    scores = self.scores
    return softmax_dtype(scores.q if isinstance(scores, DotProduct) else scores.array)

  @property
  def has_dropout(self) -> bool:
    """True if dropout is applied to the probabilities."""
    return self.key is not None and self.dropout_rate != 0.0

  def with_complete_rows(self) -> 'AttentionInputs':
    """Returns the inputs with the keys and values of complete rows on each device."""
    v = constrain(self.v, 'batch', None, 'kv_heads', None)
    scores = self.scores
    if isinstance(scores, DotProduct):
      scores = dataclasses.replace(scores, k=constrain(scores.k, 'batch', None, 'kv_heads', None))
    return dataclasses.replace(self, scores=scores, v=v)

  def without_features(self) -> 'AttentionInputs':
    """Returns the inputs without `Tokens.features`, through which kernels with tiles have no gradients."""
    q, k = (dataclasses.replace(tokens, features={}) for tokens in (self.q_tokens, self.k_tokens))
    return dataclasses.replace(self, q_tokens=q, k_tokens=k)

  def added_scores(self) -> Float[Array, '#batch heads q_len k_len'] | None:
    """Returns the position terms of all pairs, or None without terms."""
    if self.terms is None:
      return None
    return self.terms.scores(self.q_tokens, self.k_tokens, self.num_heads)


class Kernel(abc.ABC):
  """Computes softmax(scores) v over the keys that each query sees.

  Kernels are immutable values and must agree with `Dense`, the reference. The softmax is computed in
  float32, or the dtype of the scores if it is wider. The output of a query that sees no key is zero.

  Attributes:
    needs_complete_rows: whether each device needs the keys and values of complete rows, also where rows are
      split over devices.
  """

  needs_complete_rows: ClassVar[bool] = True

  @abc.abstractmethod
  def supports(self, inputs: AttentionInputs) -> str | None:
    """Returns the reason why the kernel does not support `inputs`, or None if it does.

    Reads shapes, dtypes and static fields only; arrays may be abstract.
    """

  @abc.abstractmethod
  def attend(self, inputs: AttentionInputs) -> Float[Array, 'batch q_len heads v_dim']:
    """Computes the output for inputs that the kernel supports, and names it `ATTENTION_OUTPUT`."""

  def __call__(self, inputs: AttentionInputs) -> Float[Array, 'batch q_len heads v_dim']:
    """Checks the inputs and computes the output.

    Raises:
      UserError: the kernel does not support the inputs, the numbers of heads do not match, or the tokens do
        not have a mark that the pattern reads.
    """
    _check_heads(inputs)
    reason = self.supports(inputs)
    if reason is not None:
      raise UserError(f'{self} does not support this attention: {reason}; use Auto() or Dense()')
    return self.attend(inputs.with_complete_rows() if self.needs_complete_rows else inputs)


def _check_heads(inputs: AttentionInputs) -> None:
  scores, heads, kv_heads = inputs.scores, inputs.num_heads, inputs.v.shape[2]
  if heads % kv_heads:
    raise UserError(
      f'attention: {heads} query heads do not divide among {kv_heads} key/value heads: use a multiple'
    )
  if isinstance(scores, DotProduct) and scores.k.shape[2] != kv_heads:
    raise UserError(
      f'attention: keys have {scores.k.shape[2]} heads, but values have {kv_heads}: make them equal'
    )
  if inputs.memory is not None and not isinstance(scores, DotProduct):
    raise UserError(
      'MultiHeadAttention.memory needs scores that are dot products of queries and keys, such as @DotProductScores'
    )


def no_forward_mode(name: str) -> str | None:
  """Returns the reason why a kernel that has only gradients is not used with `plain_operations`, or None."""
  return f'{name} has no forward-mode derivatives (plain_operations)' if is_plain() else None


def no_gpu(name: str) -> str | None:
  """Returns the reason why the kernel `name` for NVIDIA GPUs does not support the program, or None."""
  is_gpu = target() == 'gpu'
  return None if is_gpu else f'{name} needs an NVIDIA GPU, but the backend is {target()}'


def not_tiled(inputs: AttentionInputs) -> str | None:
  """Returns the reason why a kernel of dot products by tiles does not support the inputs, or None."""
  if not isinstance(inputs.scores, DotProduct):
    return 'it supports dot products only, but the scores are an array of logits'
  if inputs.memory is not None:
    return 'it does not support keys without tokens (MultiHeadAttention.memory)'
  return None


def common_layout(q_tokens: Tokens, k_tokens: Tokens) -> RowLayout:
  """Returns the static relation between the positions of queries and of keys.

  If both are PACKED they are the same rows: in cross-attention the keys are ARBITRARY.
  """
  layout = q_tokens.layout
  return layout if layout is k_tokens.layout else RowLayout.ARBITRARY


def softmax_dtype(scores: Float[Array, '...']) -> jnp.dtype:
  """Returns float32, or the dtype of the scores if it is wider."""
  return jnp.promote_types(scores.dtype, jnp.float32)


def apply_soft_cap(scores: Array, soft_cap: float | None) -> Array:
  """Returns soft_cap * tanh(scores / soft_cap), or the scores without a cap."""
  return scores if soft_cap is None else soft_cap * jnp.tanh(scores / soft_cap)


def zero_masked_queries(
  out: Float[Array, 'batch q_len heads v_dim'], mask: Bool[Array, '#batch 1 q_len k_len']
) -> Float[Array, 'batch q_len heads v_dim']:
  """Sets the outputs of queries that see no key to zero; their softmax is uniform over masked keys."""
  return jnp.where(jnp.any(mask, axis=-1)[:, 0, :, None, None], out, 0)


def visible(pattern: Pattern, q: Tokens, k: Tokens) -> Any:
  """Returns whether each query sees each key, bool [#batch, q_len, k_len].

  A query sees the keys that the pattern allows, in its own segment, without padding. If only one side has
  segments, only its padding is masked.
  """
  q, k = query_key_views(q, k)
  mask = pattern.allows(q, k)
  for tokens in (q, k):
    if tokens.segments is not None:
      mask = mask & (tokens.segments != 0)
  if q.segments is not None and k.segments is not None:
    mask = mask & (q.segments == k.segments)
  return mask


def visible_tiles(pattern: Pattern, q: Bounds, k: Bounds) -> Tiles:
  """Classifies the tiles of the mask returned by `visible`, from bounds that broadcast."""
  empty, full = pattern.tiles(q, k)
  if q.high.segments is None and k.high.segments is None:
    return Tiles(empty, full)
  if q.high.segments is None or k.high.segments is None:
    high = k.high.segments if q.high.segments is None else q.high.segments
    disjoint = high == 0
  else:
    # The maximum of a block of padding is 0, below every minimum.
    disjoint = (q.high.segments < k.low.segments) | (k.high.segments < q.low.segments)
  return Tiles(empty | disjoint, np.bool_(False))


def attention_mask(
  pattern: Pattern, q: Tokens, k: Tokens
) -> Bool[Array, '#batch 1 q_len k_len'] | None:
  """Returns the dense mask of `visible` with a dimension for heads; None if every query sees every key.

  Raises:
    UserError: the pattern reads token metadata that is absent.
  """
  check_reads(pattern, q, k)
  if pattern == Full() and q.segments is None and k.segments is None:
    return None
  return jnp.asarray(visible(pattern, q, k))[:, None]


def check_reads(pattern: Pattern, q: Tokens, k: Tokens) -> None:
  """Raises UserError if the pattern reads token metadata that is absent.

  Marks are required of keys only: queries without them, such as generated tokens, are unmarked.
  """
  absent = [f'marks[{name!r}]' for name in mark_names(pattern) if name not in k.marks]
  fields = {'coords': (q.coords, k.coords), 'order': (q.order, k.order)}
  absent += [f for f in fields if f in pattern.reads and any(x is None for x in fields[f])]
  if absent:
    raise UserError(
      f'the pattern {pattern} reads Tokens.{absent[0]}, which this batch does not have: use a task '
      'that provides it or another pattern'
    )
