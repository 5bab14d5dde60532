"""Losses that compare all pairs of a batch: cross-entropies (CLIP, https://arxiv.org/abs/2103.00020), or a logistic
regression of each pair (SigLIP, https://arxiv.org/abs/2303.15343), at once, in blocks, or around a ring of devices."""

import dataclasses
from typing import NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, UInt32

from t2x.base.errors import UserError
from t2x.base.ranges import Size
from t2x.layers.constraints import constrain, split_of
from t2x.models.losses import cross_entropy
from t2x.models.ranks import ROUNDING, exceeds

__all__ = ['PairLoss', 'PairRows', 'RingSigmoid', 'Sigmoid', 'SigmoidInBlocks', 'Softmax']

MASKED = -1e9


class PairRows(NamedTuple):
  """Metadata of the rows of a batch; each row is a pair.

  Attributes:
    numbers: number of the row in the batch.
    present: whether the row is not padding.
    texts: two hashes of the text; rows with equal texts are not negatives of each other. None: all
      other rows are negatives.
  """

  numbers: Int[Array, 'rows']
  present: Bool[Array, 'rows']
  texts: UInt32[Array, 'rows 2'] | None = None


class Scores(NamedTuple):
  """Factor and offset of the products of vectors in a loss, float32."""

  factor: Float[Array, '']
  bias: Float[Array, ''] | None = None


class PairSums(NamedTuple):
  """Loss of each row, and whether its own product exceeds all compared products; ties and NaN do not count."""

  losses: Float[Array, 'rows']
  correct: Bool[Array, 'rows']


@runtime_checkable
class PairLoss(Protocol):
  """Loss over all pairs of a batch of vectors; a frozen dataclass."""

  def check_model(self, model: object) -> None:
    """Raises UserError if the model has a parameter that the loss does not use."""

  def log_probs(self, logits: Float[Array, 'rows classes']) -> Float[Array, 'rows classes']:
    """Returns the log-probabilities of products."""
    ...

  def __call__(
    self,
    a: Float[Array, 'rows dim'],
    b: Float[Array, 'rows dim'],
    scores: Scores,
    rows: PairRows,
  ) -> PairSums:
    """Returns the loss of each row and whether its own `b` is closer to its `a` than all others."""
    ...


def compared(left: PairRows, right: PairRows) -> tuple[Bool[Array, 'l r'], Bool[Array, 'l r']]:
  """Returns which pairs are of one row, and which a loss compares: no padding, no other row with the same text."""
  own = left.numbers[:, None] == right.numbers[None, :]
  pairs = left.present[:, None] & right.present[None, :]
  if left.texts is not None and right.texts is not None:
    pairs &= own | (left.texts[:, None] != right.texts[None, :]).any(axis=-1)
  return own, pairs


@dataclasses.dataclass(frozen=True)
class Softmax(PairLoss):
  """The mean of two cross-entropies: of the own `b` of each `a` among all of the batch, and the reverse."""

  def check_model(self, model):
    """Raises UserError if the model has a bias, which a softmax ignores."""
    if model.bias is not None:
      raise UserError(
        'TwoTower.bias has no effect on Softmax, which is the same for any offset of all products: remove it, or use '
        '@Sigmoid as the loss'
      )

  def log_probs(self, logits):
    """Returns the log-probabilities of mutually exclusive classes."""
    return jax.nn.log_softmax(logits)

  def __call__(self, a, b, scores, rows):
    logits = constrain(scores.factor * (a @ b.T), 'batch', None)
    own, pairs = compared(rows, rows)
    best = _largest(logits, pairs & ~own)
    # A row of padding has the weight 0: it needs a finite loss.
    logits = jnp.where(pairs, logits, MASKED)
    labels = jnp.arange(len(a))
    losses = (cross_entropy(logits, labels) + cross_entropy(logits.T, labels)) / 2
    return _finished(a, b, scores, losses, jax.lax.stop_gradient(best))


def _block(
  a: Array, rows: PairRows, b: Array, others: PairRows, scores: Scores
) -> tuple[Array, Array]:
  """Returns for each row of `a` its loss over the rows of `b`, and its largest product with the `b` of another row."""
  logits = scores.factor * (a @ b.T)
  if scores.bias is not None:
    logits += scores.bias
  own, pairs = compared(rows, others)
  losses = -jax.nn.log_sigmoid(jnp.where(own, logits, -logits))
  best = _largest(logits, pairs & ~own)
  return jnp.where(pairs, losses, 0.0).sum(axis=1), jax.lax.stop_gradient(best)


def _largest(logits: Array, others: Array) -> Array:
  """Returns the largest product of each row with others; infinity if one of them is NaN, which a maximum may ignore."""
  logits = jnp.where(jnp.isnan(logits), jnp.inf, logits)
  return jnp.where(others, logits, -jnp.inf).max(axis=1)


def _finished(a: Array, b: Array, scores: Scores, losses: Array, best: Array) -> PairSums:
  own = scores.factor * (a * b).sum(axis=1) + (0.0 if scores.bias is None else scores.bias)
  return PairSums(losses, exceeds(own, best[:, None], ROUNDING * scores.factor)[:, 0])


@dataclasses.dataclass(frozen=True)
class Sigmoid(PairLoss):
  """The sum over all `b` of the batch of -log p(own or not), for each `a`: each pair is a classification of its own.

  The products of all pairs are in memory at once.
  """

  def check_model(self, model):
    """Accepts models with and without a bias."""

  def log_probs(self, logits):
    """Returns those of each class: several, or none, may be right."""
    return jax.nn.log_sigmoid(logits)

  def __call__(self, a, b, scores, rows):
    return _finished(a, b, scores, *_block(a, rows, b, rows, scores))


@dataclasses.dataclass(frozen=True, kw_only=True)
class SigmoidInBlocks(Sigmoid):
  """`Sigmoid` over `size` rows of `b` at a time, which are computed again in the backward pass.

  Attributes:
    size: number of rows of `b` in a block; divides the rows of a larger batch.
  """

  size: Size

  def __call__(self, a, b, scores, rows):
    size = min(self.size, len(b))
    if len(b) % size:
      raise UserError(
        f'SigmoidInBlocks.size = {self.size} must divide the {len(b)} rows of a batch: change one of them'
      )
    blocks = jax.tree.map(lambda x: x.reshape(-1, size, *x.shape[1:]), (b, rows))

    def step(carry, block):
      losses, best = jax.checkpoint(_block)(a, rows, *block, scores)
      return (carry[0] + losses, jnp.maximum(carry[1], best)), None

    start = jnp.zeros(len(a), a.dtype), jnp.full(len(a), -jnp.inf, a.dtype)
    (losses, best), _ = jax.lax.scan(step, start, blocks)
    return _finished(a, b, scores, losses, best)


@dataclasses.dataclass(frozen=True)
class RingSigmoid(Sigmoid):
  """`Sigmoid` of rows that are split over devices: each device passes its `b` to the next one until it has met all.

  No device has more products at a time than those of its own rows. On one device it is `Sigmoid`.
  """

  def __call__(self, a, b, scores, rows):
    split = split_of('batch')
    if split is None:
      return super().__call__(a, b, scores, rows)
    ring = [(i, (i + 1) % split.num_parts) for i in range(split.num_parts)]

    def shard(a, b, rows, scores):
      def step(carry, _):
        losses, best, visitors = carry
        here, there = jax.checkpoint(_block)(a, rows, *visitors, scores)
        # Of the last step this is the start again.
        visitors = jax.lax.ppermute(visitors, split.names, ring)
        return (losses + here, jnp.maximum(best, there), visitors), None

      start = jnp.zeros(len(a), a.dtype), jnp.full(len(a), -jnp.inf, a.dtype), (b, rows)
      (losses, best, _), _ = jax.lax.scan(step, start, None, length=split.num_parts)
      return tuple(_finished(a, b, scores, losses, best))

    mapped = split.map(shard, (True, True, True, False), (True, True))
    return PairSums(*mapped(a, b, rows, scores))
