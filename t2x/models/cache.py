"""What a body remembers of a generation."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
from jaxtyping import Array, Int

from t2x.layers import Cache, Slots, Tokens


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class BodyCache(Cache):
  """What a body remembers of a generation.

  Attributes:
    layers: the caches of the layers, as the stack made them.
    slots: the tokens in the slots of all key-value caches.
    source: the tokens of the source, whose copies of a row share them; None without a source.
  """

  layers: Any
  slots: Slots
  source: Tokens | None = None

  def repeat(self, copies: int) -> 'BodyCache':
    layers = self._each_layer(lambda cache: cache.repeat(copies))
    return BodyCache(layers, self.slots.repeat(copies), self.source)

  def take(self, rows: Int[Array, ' batch']) -> 'BodyCache':
    layers = self._each_layer(lambda cache: cache.take(rows))
    return BodyCache(layers, self.slots.take(rows), self.source)

  def _each_layer(self, change: Callable[[Cache], Cache]) -> list[dict[str, Cache]]:
    """The caches of single layers, changed; those of a stack have another axis before the batch."""
    return [{name: change(cache) for name, cache in layer.items()} for layer in self.layers]
