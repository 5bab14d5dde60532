"""Caches between the calls of a generation: the interface, states of fixed size, and the slots of key/value caches."""

import dataclasses
from collections.abc import Callable, Collection
from typing import ClassVar, NoReturn, TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

from t2x.base.errors import UserError
from t2x.layers.arrays import Leaf
from t2x.layers.patterns.algebra import Pattern
from t2x.layers.tokens import Tokens, write

__all__ = ['Cache', 'Slots']

AnyCache = TypeVar('AnyCache', bound='Cache')


class WithoutCache:
  """Base class of parts that refuse to decode token by token.

  Attributes:
    no_cache: the reason and what to use instead, after the name of the class in the error.
  """

  no_cache: ClassVar[str]

  def init_cache(self, *arguments: object, **settings: object) -> NoReturn:
    """Raises UserError."""
    raise UserError(f'{type(self).__name__} {self.no_cache}')


class Cache:
  """State of a part between the calls of a generation: a pytree whose arrays are [batch, ...].

  Tokens of segment 0 (padding) leave it unchanged or are written as masked tokens.
  """

  def repeat(self: AnyCache, copies: int) -> AnyCache:
    """Returns the cache with each row repeated `copies` times; unchanged if the copies can share a row."""
    return self._map(lambda cache: cache.repeat(copies), lambda a: jnp.repeat(a, copies, axis=0))

  def take(self: AnyCache, rows: Int[Array, ' batch']) -> AnyCache:
    """Returns the cache with row i replaced by row rows[i], which is a copy of the same original row."""
    return self._map(lambda cache: cache.take(rows), lambda a: a[rows])

  def _map(
    self: AnyCache, of_cache: Callable[['Cache'], 'Cache'], of_array: Callable[[Array], Array]
  ) -> AnyCache:
    """Applies functions to the caches that this one consists of, and to its other arrays."""
    return jax.tree.map(
      lambda a: of_cache(a) if isinstance(a, Cache) else of_array(a),
      self,
      is_leaf=lambda a: isinstance(a, Cache) and a is not self,
    )

  def share(self, copies: int, num_slots: int) -> 'Cache | None':
    """Returns the cache for `copies` sequences per row whose tokens share the slots of the row, so that `take`
    moves no keys; None if the part needs a row of slots per sequence.

    Parts that share slots group the sequences of a row with `Slots.queries`. A state of fixed size, which does
    not depend on `Call.slots`, is repeated.

    Args:
      copies: number of sequences per row; all continue the cached tokens.
      num_slots: number of slots per row from now on.
    """
    return None


class RecurrentState(Cache):
  """Base class of states whose size does not depend on the number of tokens."""

  def share(self: AnyCache, copies: int, num_slots: int) -> AnyCache:
    return self.repeat(copies)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Slots(Cache):
  """Metadata of the tokens in the slots of all key/value caches of a body.

  A slot is an index into the caches; it can differ from the position of its token.

  Attributes:
    tokens: positions, segments and marks, [batch, slots]; segment 0: the slot is empty or holds padding.
    start: slot of the first token of the current call, int32.
    next: first free slot, int32.
  """

  # Tree functions put leaves other than arrays into the fields.
  tokens: Tokens
  start: Leaf
  next: Leaf

  @staticmethod
  def empty(batch: int, num_slots: int, marks: Collection[str] = ()) -> 'Slots':
    """Returns empty slots for tokens with these marks."""
    zeros, zero = jnp.zeros((batch, num_slots), jnp.int32), jnp.zeros((), jnp.int32)
    return Slots(Tokens(zeros, zeros, marks=dict.fromkeys(marks, zeros.astype(bool))), zero, zero)

  def extend(self, tokens: Tokens) -> 'Slots':
    """Writes the tokens of a call to the first free slots; absent marks are written as False."""
    if tokens.encoded is not None:
      raise UserError('a cache cannot hold Tokens.encoded: decode one document per row')
    length, old = tokens.positions.shape[1], self.tokens
    written = Tokens(
      write(old.positions, tokens.positions, self.next, 1),
      write(old.segments, tokens.row_segments, self.next, 1),
      marks={
        name: write(mark, tokens.marks.get(name, jnp.zeros((1, length), jnp.int32)), self.next, 1)
        for name, mark in old.marks.items()
      },
    )
    return Slots(written, self.next, self.next + length)

  def repeat(self, copies: int) -> 'Slots':
    tokens = jax.tree.map(lambda a: jnp.repeat(a, copies, axis=0), self.tokens)
    return dataclasses.replace(self, tokens=tokens)

  def take(self, rows: Int[Array, ' batch']) -> 'Slots':
    return dataclasses.replace(self, tokens=jax.tree.map(lambda a: a[rows], self.tokens))

  def queries(self, tokens: Tokens, pattern: Pattern) -> tuple[Tokens, Pattern]:
    """Returns tokens and pattern of a call as those of the queries of the slots, grouped by row of the slots."""
    return tokens, pattern
