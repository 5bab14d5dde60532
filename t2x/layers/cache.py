"""What attention keeps of earlier tokens: keys and values of the sequence itself, or of a source."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from t2x.layers.interfaces import Cache, write

# The fields are not annotated with shapes: a stack puts its layers before the batch.


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class KeyValueCache(Cache):
  """Keys and values of the tokens so far, in the slots that `Slots` describes for all layers.

  Attributes:
    k: rotated keys, [batch, kv_heads, slots, head_dim]; None for a mixer without keys.
    v: values, [batch, kv_heads, slots, v_dim].
  """

  k: Any
  v: Any

  def extend(
    self,
    k: Float[Array, 'batch length kv_heads head_dim'] | None,
    v: Float[Array, 'batch length kv_heads v_dim'],
    start: Int[Array, ''],
  ) -> 'KeyValueCache':
    """The cache with the keys and values of a call's tokens from slot `start` on."""
    new = None if k is None else write(self.k, k.swapaxes(1, 2), start, 2)
    return KeyValueCache(new, write(self.v, v.swapaxes(1, 2), start, 2))

  def repeat(self, copies: int) -> 'KeyValueCache':
    return jax.tree.map(lambda a: jnp.repeat(a, copies, axis=0), self)

  def take(self, rows: Int[Array, ' batch']) -> 'KeyValueCache':
    return jax.tree.map(lambda a: a[rows], self)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class SourceCache(Cache):
  """Keys and values of a source, computed once. The copies of a row (beams) share them.

  Attributes:
    k: keys, [batch, kv_heads, source, head_dim].
    v: values, [batch, kv_heads, source, v_dim].
  """

  k: Any
  v: Any

  def repeat(self, copies: int) -> 'SourceCache':
    return self

  def take(self, rows: Int[Array, ' batch']) -> 'SourceCache':
    return self
