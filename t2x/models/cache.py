"""The key/value cache of an encoder or decoder."""

import dataclasses
from typing import Any

import jax
from jaxtyping import Array, Int

from t2x.layers import Cache, Slots, SourceSequence
from t2x.layers.attention.cache import MAX_COPIES, SharedSlots


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class BodyCache(Cache):
  """Caches of all layers of a body during generation.

  Attributes:
    layers: caches of the layers, in the structure that `LayerStack.init_cache` returns.
    slots: metadata of the tokens in the slots of the key/value caches.
    source: the source without its vectors, shared by all copies of a row; None without a source.
  """

  layers: Any
  slots: Slots
  source: SourceSequence | None = None

  def repeat(self, copies: int) -> 'BodyCache':
    return dataclasses.replace(super().repeat(copies), source=self.source)

  def take(self, rows: Int[Array, ' batch']) -> 'BodyCache':
    return dataclasses.replace(super().take(rows), source=self.source)

  def share(self, copies: int, num_slots: int) -> 'BodyCache | None':
    if copies > MAX_COPIES:
      return None
    layers = [
      {name: cache.share(copies, num_slots) for name, cache in layer.items()}
      for layer in self.layers
    ]
    if any(cache is None for layer in layers for cache in layer.values()):
      return None
    return BodyCache(layers, SharedSlots.of(self.slots, copies, num_slots), self.source)
