"""Token shift: part of a sublayer's input comes from the neighbouring tokens (RWKV, https://arxiv.org/abs/2305.13048;
in this form from x-transformers)."""

import dataclasses
from collections.abc import Callable
from typing import cast

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array

from t2x.layers.attention.head_projections import Hidden
from t2x.layers.attention.kernels.base import check_reads
from t2x.layers.building import given
from t2x.layers.caches import Cache
from t2x.layers.composites import Around
from t2x.layers.interfaces import Call, Result, SourceSequence, Sublayer
from t2x.layers.mixers.convolutions import RecentTokens, apply_with_recent, is_visible, taps_before
from t2x.layers.patterns.algebra import Full, Pattern
from t2x.layers.tokens import Tokens

__all__ = ['TokenShift']


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class ShiftCache(Cache):
  """Cache of `TokenShift`.

  Attributes:
    recent: the last input token of each row.
    own: cache of the sublayer, or None.
  """

  recent: RecentTokens
  own: Cache | None

  def share(self, copies: int, num_slots: int) -> 'ShiftCache | None':
    own = self.own and self.own.share(copies, num_slots)
    if own is None and self.own is not None:
      return None
    return ShiftCache(self.recent.share(copies, num_slots), own)


class TokenShift(Around):
  """Applies a sublayer to an input whose second half of the features is that of the previous token.

  If the pattern also shows later tokens, the first third of the features is that of the next token, the second
  that of the token itself and the third that of the previous token. Features of neighbours that are masked, in
  another segment or padding are zero. Has no parameters of its own.

  Args:
    d_model: width of the input and output.
    sublayer: builds the token mixer or feed-forward layer.
    reads_source: whether the sublayer attends to the source; see `FromSource`.
  """

  def __init__(
    self,
    d_model: int,
    *,
    sublayer: Callable[..., Sublayer],
    reads_source: bool = False,
    rngs: nnx.Rngs,
  ):
    self.d_model = d_model
    self.sublayer: Sublayer = given(sublayer, reads_source=reads_source)(d_model, rngs=rngs)

  @property
  def reads(self) -> frozenset[str]:
    return (self.sublayer.reads | {'pattern'}) - {'encoding.features'}

  def init_cache(  # type: ignore[override]  # Its sublayer reads no features.
    self,
    batch: int,
    num_slots: int,
    dtype: DTypeLike = jnp.float32,
    source: SourceSequence | None = None,
  ) -> ShiftCache:
    """Returns an empty cache for the previous token, with that of the sublayer."""
    recent = RecentTokens.empty(batch, 1, (self.d_model,), dtype)
    return ShiftCache(recent, self.sublayer.init_cache(batch, num_slots, dtype, source))

  def __call__(self, x: Hidden, call: Call, cache: ShiftCache | None = None) -> Result:
    """Applies the sublayer to the shifted input."""
    own = call if 'pattern' in self.sublayer.reads else dataclasses.replace(call, pattern=Full())

    def moved(x: Array, tokens: Tokens, order: Array | None) -> Array:
      check_reads(call.pattern, tokens, tokens)
      return shifted(x, tokens, call.pattern)

    y, recent = apply_with_recent(moved, x, call.tokens, None if cache is None else cache.recent)
    result = self.sublayer(y, own, None if cache is None else cache.own)
    new = None if recent is None else ShiftCache(recent, cast(Cache | None, result.cache))
    return dataclasses.replace(result, cache=new)


def shifted(x: Hidden, tokens: Tokens, pattern: Pattern) -> Hidden:
  """Returns `x` with parts of its features from neighbouring tokens; see `TokenShift`."""
  # A kernel of three taps is centred if the pattern shows later tokens.
  is_causal = taps_before(pattern, 3) == 2
  offsets = (0, -1) if is_causal else (1, 0, -1)
  size = x.shape[2] // len(offsets)
  parts = []
  for index, offset in enumerate(offsets):
    part = x[..., index * size : (index + 1) * size]
    if offset:
      visible = is_visible(offset, x.shape[1], tokens, pattern)
      part = jnp.where(visible, jnp.roll(part, -offset, axis=1), 0)
    parts.append(part)
  return jnp.concatenate([*parts, x[..., size * len(offsets) :]], axis=-1)
