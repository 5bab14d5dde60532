"""Key/value caches of self-attention and cross-attention.

In beam search the beams of a row can share its slots: their keys form one row, the beams are queries of this
row, and each slot stores the set of beams that continue its token. A reordering of the beams then changes these
sets and moves no keys. The tokens of a prompt are stored once.
"""

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

from t2x.layers.arrays import Leaf
from t2x.layers.caches import Cache, Slots
from t2x.layers.dtypes import Tree
from t2x.layers.patterns.algebra import Pattern
from t2x.layers.tokens import RowLayout, Tokens, write

__all__ = ['InputMemory', 'KeyValueCache', 'SourceCache']

# The fields are not annotated with shapes: a stack adds a leading dimension for its layers.


@dataclasses.dataclass(frozen=True)
class _KeysAndValues(Cache):
  """Keys and values of tokens, or what they are computed from (`KeyValues.project`).

  Attributes:
    k: keys, [batch, kv_heads, tokens, head_dim]; None for a mixer without keys.
    v: values, [batch, value_heads, tokens, v_dim].
  """

  k: Leaf | None
  v: Leaf

  def keys_and_values(self) -> tuple[Array | None, Array]:
    """Returns keys and values as [batch, tokens, kv_heads, ...]."""
    return None if self.k is None else self.k.swapaxes(1, 2), self.v.swapaxes(1, 2)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class KeyValueCache(_KeysAndValues):
  """Per-layer key/value cache of earlier tokens; `Slots` holds the metadata of its slots for all layers.

  Attributes:
    k: rotated keys, [batch, kv_heads, slots, head_dim]; None for a mixer without keys.
    v: values, [batch, value_heads, slots, v_dim].
    features: `Tokens.features` of the slots, [batch, slots, ...].
  """

  features: Any = dataclasses.field(default_factory=dict)

  @staticmethod
  def empty(
    batch: int,
    num_slots: int,
    shapes: Sequence[tuple[int, int] | None],
    features: Mapping[str, tuple[int, ...]],
    dtype: DTypeLike,
  ) -> 'KeyValueCache':
    """Returns a cache of zeros.

    Args:
      batch: number of rows.
      num_slots: number of tokens per row.
      shapes: (heads, features) of keys and of values; None: no such array.
      features: shapes of the features of a token, which are in float32.
      dtype: dtype of keys and values.
    """
    k, v = (s and jnp.zeros((batch, s[0], num_slots, s[1]), dtype) for s in shapes)
    assert v is not None
    zeros = {name: jnp.zeros((batch, num_slots, *s)) for name, s in features.items()}
    return KeyValueCache(k, v, zeros)

  def with_features(self, features: Mapping[str, Array], start: Int[Array, '']) -> 'KeyValueCache':
    """Returns the cache with features of a call's tokens written from slot `start` on."""
    new = {name: write(a, features[name], start, 1) for name, a in self.features.items()}
    return dataclasses.replace(self, features=new)

  def extend(
    self,
    k: Float[Array, 'batch length kv_heads head_dim'] | None,
    v: Float[Array, 'batch length value_heads v_dim'],
    start: Int[Array, ''],
  ) -> 'KeyValueCache':
    """Returns the cache with the keys and values of a call's tokens written from slot `start` on."""
    assert (k is None) == (self.k is None)
    new = None if k is None or self.k is None else write(self.k, k.swapaxes(1, 2), start, 2)
    return KeyValueCache(new, write(self.v, v.swapaxes(1, 2), start, 2), self.features)

  def share(self, copies: int, num_slots: int) -> 'SharedKeyValueCache | None':
    if self.features:
      return None
    k, v = jax.tree.map(lambda a: _pad(a, num_slots, 2), (self.k, self.v))
    return SharedKeyValueCache(None if k is None else k.swapaxes(2, 3), v)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class SharedKeyValueCache(KeyValueCache):
  """Key/value cache whose slots are shared by the sequences of a row; see `SharedSlots`.

  The keys are [batch, kv_heads, head_dim, slots], which XLA multiplies by several queries without a copy.
  """

  def keys_and_values(self) -> tuple[Array | None, Array]:
    return None if self.k is None else self.k.transpose(0, 3, 1, 2), self.v.swapaxes(1, 2)

  def extend(
    self,
    k: Float[Array, 'batch length kv_heads head_dim'] | None,
    v: Float[Array, 'batch length value_heads v_dim'],
    start: Int[Array, ''],
  ) -> 'SharedKeyValueCache':
    assert (k is None) == (self.k is None)
    new = None if k is None or self.k is None else write(self.k, k.transpose(0, 2, 3, 1), start, 3)
    return SharedKeyValueCache(new, write(self.v, v.swapaxes(1, 2), start, 2))

  def take(self, rows: Int[Array, ' batch']) -> 'SharedKeyValueCache':
    return self


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class SourceCache(_KeysAndValues):
  """Keys and values of a source, computed once per generation. Beams of a row share them.

  In the cache of a part that also has a state, beams move the state and not the keys and values.
  """

  @staticmethod
  def of(
    k: Float[Array, 'batch source kv_heads head_dim'] | None,
    v: Float[Array, 'batch source kv_heads v_dim'],
  ) -> 'SourceCache':
    """Returns the cache of the keys and values of a source."""
    return SourceCache(None if k is None else k.swapaxes(1, 2), v.swapaxes(1, 2))

  def repeat(self, copies: int) -> 'SourceCache':
    return self

  def take(self, rows: Int[Array, ' batch']) -> 'SourceCache':
    return self

  def share(self, copies: int, num_slots: int) -> 'SourceCache':
    return self


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class InputMemory(Cache):
  """Inputs of an attention layer for the tokens before those of a call, from which it computes further keys and
  values (Transformer-XL, https://arxiv.org/abs/1901.02860). No gradient flows into them.

  The tokens of `Call.slots` are those of the memory, then those of the call.

  Attributes:
    x: inputs, [batch, tokens, d_model].
  """

  x: Leaf

  def extend(
    self, x: Float[Array, 'batch length d_model']
  ) -> tuple[Float[Array, 'batch keys d_model'], 'InputMemory']:
    """Returns the inputs of the memory and of a call, and the memory of the next call: the last of them."""
    both = jnp.concatenate([jax.lax.stop_gradient(self.x).astype(x.dtype), x], axis=1)
    return both, InputMemory(both[:, x.shape[1] :].astype(self.x.dtype))


# Mark of tokens: bit i is set if the token belongs to sequence i of its row.
_COPIES = '_copies'
MAX_COPIES = 32  # bits


@dataclasses.dataclass(frozen=True)
class SameCopy(Pattern):
  """Every query sees the keys of its own sequence, of the sequences that share a row of slots."""

  reads = frozenset({f'marks.{_COPIES}'})

  def allows(self, q: Tokens, k: Tokens) -> Any:
    return (q.marks[_COPIES] & k.marks[_COPIES]) != 0


@functools.partial(
  jax.tree_util.register_dataclass, data_fields=['tokens', 'start', 'next'], meta_fields=['copies']
)
@dataclasses.dataclass(frozen=True)
class SharedSlots(Slots):
  """Slots that several sequences per row share; the batch of a call has a row per sequence.

  Attributes:
    copies: number of sequences per row, at most `MAX_COPIES`.
  """

  copies: int = 1

  @staticmethod
  def of(slots: Slots, copies: int, num_slots: int) -> 'SharedSlots':
    """Returns `num_slots` slots per row; all sequences continue the tokens in `slots`."""
    tokens = jax.tree.map(lambda a: _pad(a, num_slots, 1), slots.tokens)
    # Empty slots are masked by their segment until they are written.
    everyone = jnp.full(tokens.positions.shape, jnp.iinfo(jnp.uint32).max, jnp.uint32)
    tokens = dataclasses.replace(tokens, marks={**tokens.marks, _COPIES: everyone})
    return SharedSlots(tokens, slots.start, slots.next, copies)

  def extend(self, tokens: Tokens) -> 'SharedSlots':
    slots = super().extend(self._grouped(tokens))
    return SharedSlots(slots.tokens, slots.start, slots.next, self.copies)

  def queries(self, tokens: Tokens, pattern: Pattern) -> tuple[Tokens, Pattern]:
    return self._grouped(tokens), pattern & SameCopy()

  def take(self, rows: Int[Array, ' batch']) -> 'SharedSlots':
    marks, copies = self.tokens.marks, jnp.arange(self.copies, dtype=jnp.uint32)
    parents = (rows % self.copies).reshape(-1, self.copies, 1).astype(jnp.uint32)
    belongs = (marks[_COPIES][:, None] >> parents) & 1
    # Each sequence has a bit of its own, so that the sum is the union.
    union = (belongs << copies[None, :, None]).sum(axis=1, dtype=jnp.uint32)
    tokens = dataclasses.replace(self.tokens, marks={**marks, _COPIES: union})
    return dataclasses.replace(self, tokens=tokens)

  def _grouped(self, tokens: Tokens) -> Tokens:
    """Returns tokens [#batch, length] as [rows of the slots, copies * length], with their bits."""
    rows, length = self.tokens.positions.shape[0], tokens.positions.shape[1]
    bits = jnp.repeat(jnp.uint32(1) << jnp.arange(self.copies, dtype=jnp.uint32), length)[None]
    grouped = _grouped(tokens, rows, self.copies)
    return dataclasses.replace(grouped, marks={**grouped.marks, _COPIES: bits})


def source_queries(rows: int, queries: Tree, batch: int, tokens: Tokens) -> tuple[Tree, Tokens]:
  """Returns queries of a source as queries of its rows: beams that share a row become tokens of the row.

  Args:
    rows: number of rows of the source.
    queries: arrays [batch, length, ...].
    batch: `rows` times the number of beams.
    tokens: metadata of the queries, [#batch, length].

  Returns:
    The arrays as [rows, batch / rows * length, ...], and their metadata.
  """
  if batch == rows:
    return queries, tokens
  grouped = jax.tree.map(lambda a: a.reshape(rows, -1, *a.shape[2:]), queries)
  return grouped, _grouped(tokens, rows, batch // rows)


def _grouped(tokens: Tokens, rows: int, copies: int) -> Tokens:
  """Returns tokens [#batch, length] of `copies` sequences per row as [rows, copies * length]."""
  length = tokens.positions.shape[1]

  def group(a):
    whole = jnp.broadcast_to(a, (rows * copies, *a.shape[1:]))
    return whole.reshape(rows, copies * length, *a.shape[2:])

  grouped = jax.tree.map(group, tokens)
  return dataclasses.replace(grouped, layout=RowLayout.ARBITRARY, right_padded=False)


def _pad(a: Array, size: int, axis: int) -> Array:
  """Pads an axis with zeros at its end."""
  padding = [(0, 0)] * a.ndim
  padding[axis] = 0, size - a.shape[axis]
  return jnp.pad(a, padding)
