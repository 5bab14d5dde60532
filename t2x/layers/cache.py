"""Key/value caches of self-attention and cross-attention."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from t2x.layers.interfaces import Cache, write

# The fields are not annotated with shapes: a stack adds a leading dimension for its layers.


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class KeyValueCache(Cache):
  """Per-layer key/value cache of earlier tokens; `Slots` holds the metadata of its slots for all layers.

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
    """Returns the cache with the keys and values of a call's tokens written from slot `start` on."""
    new = None if k is None else write(self.k, k.swapaxes(1, 2), start, 2)
    return KeyValueCache(new, write(self.v, v.swapaxes(1, 2), start, 2))

  def repeat(self, copies: int) -> 'KeyValueCache':
    return jax.tree.map(lambda a: jnp.repeat(a, copies, axis=0), self)

  def take(self, rows: Int[Array, ' batch']) -> 'KeyValueCache':
    return jax.tree.map(lambda a: a[rows], self)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class SourceCache(Cache):
  """Keys and values of a source, computed once per generation. Beams of a row share them.

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
