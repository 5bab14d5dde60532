"""What the parts of a block are to each other, as protocols that configs are checked against.

Every part is built as `Part(d_model, *, settings, rngs)`. `key` None means no dropout.
"""

from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

from jaxtyping import Array, Float

from t2x.layers.base import Context, Tokens
from t2x.layers.kernels.base import DotProduct, Logits
from t2x.layers.patterns import Pattern
from t2x.layers.position_encoding import PositionEncoding

__all__ = ['Aux', 'CrossMixer', 'FeedForward', 'Mixer', 'Norm', 'Scores', 'Sublayer', 'Wiring']

# Auxiliary losses by name: one value per row of the batch, coefficient included. The train step adds
# the mean over the rows of the whole batch to the loss.
Aux = dict[str, Float[Array, ' batch']]
# A sublayer's input -> its output and a second value, which the wiring hands through.
Sublayer = Callable[[Array], tuple[Array, Any]]


@runtime_checkable
class Mixer(Protocol):
  """Moves information between the tokens of a sequence."""

  def init_cache(self, batch: int, length: int, dtype: Any) -> Any:
    """An empty cache for `length` tokens."""

  def __call__(
    self,
    x: Float[Array, 'batch length d_model'],
    context: Context | None = None,
    *,
    pattern: Pattern,
    tokens: Tokens,
    encoding: PositionEncoding | None = None,
    cache: Any = None,
    key: Array | None = None,
  ) -> tuple[Float[Array, 'batch length d_model'], Any]:
    """Returns the output and the new cache, or None without one."""
    ...


@runtime_checkable
class CrossMixer(Mixer, Protocol):
  """A mixer that can read another sequence."""

  def cross_cache(self, context: Context) -> Any:
    """What is computed of the context once for a whole generation."""


@runtime_checkable
class FeedForward(Protocol):
  """Works on each token by itself."""

  def __call__(
    self, x: Float[Array, 'batch length d_model'], key: Array | None = None
  ) -> tuple[Float[Array, 'batch length d_model'], Aux]:
    """Returns the output and auxiliary losses [batch] by name."""
    ...


@runtime_checkable
class Norm(Protocol):
  """Normalises over the last dimension."""

  def __call__(self, x: Float[Array, '*rest d_model']) -> Float[Array, '*rest d_model']:
    """The normalised vectors, in the type of `x`."""
    ...


@runtime_checkable
class Scores(Protocol):
  """Scores of the pairs of queries and keys. Built as `Scores(num_heads, head_dim, rngs=rngs)`.

  Attributes:
    reads: which arguments the scores depend on: 'q', 'k', 'positions' and 'scale'. Attention creates only
      those of the projections q and k that are read.
    max_length: most positions that there are scores for; None: no limit.
  """

  reads: frozenset[str]
  max_length: int | None

  def __call__(
    self,
    q: Float[Array, 'batch queries heads head_dim'] | None,
    k: Float[Array, 'batch keys kv_heads head_dim'] | None,
    q_tokens: Tokens,
    k_tokens: Tokens,
    *,
    scale: float,
  ) -> DotProduct | Logits:
    """Returns the scores before position terms and mask.

    Args:
      q: projected and rotated queries; None unless read.
      k: projected and rotated keys; None unless read.
      q_tokens: tokens of the queries, with positions.
      k_tokens: tokens of the keys, with positions.
      scale: multiplies dot products.
    """
    ...


@runtime_checkable
class Wiring(Protocol):
  """Puts a sublayer around the residual stream."""

  @property
  def ends_with_norm(self) -> bool:
    """Whether the new stream is normalised."""
    ...

  def __call__(
    self,
    x: Float[Array, 'batch length d_model'],
    sublayer: Sublayer,
    key: Array | None = None,
    keep: Float[Array, 'batch 1 1'] | Float[Array, ''] | None = None,
  ) -> tuple[Float[Array, 'batch length d_model'], Any]:
    """Returns the new stream and the second value of `sublayer`.

    `keep` multiplies the branch (stochastic depth).
    """
    ...
