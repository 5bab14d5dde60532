"""Sets of tokens by name, which patterns such as `Marked('starts')` read, computed from the token ids.

Marks are the globally attending tokens that Longformer (Beltagy et al. 2020, https://arxiv.org/abs/2004.05150) and ETC
(Ainslie et al. 2020, https://arxiv.org/abs/2004.08483) select by the structure of a text.
"""

import dataclasses
from collections.abc import Callable

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int

# (ids, ids of the tokens before them in their segments or -1) -> whether each token is marked; hashable.
MarkFunction = Callable[[Int[Array, '*shape'], Int[Array, '*shape']], Bool[Array, '*shape']]


@dataclasses.dataclass(frozen=True)
class TokenMark:
  """Marks the tokens that have certain ids, or that follow such a token.

  Attributes:
    ids: token ids.
    after: False: marks the tokens with these ids. True: marks the first token of a segment and the tokens after
      those with these ids.
  """

  ids: tuple[int, ...]
  after: bool = False

  def __call__(
    self, ids: Int[Array, '*shape'], before: Int[Array, '*shape']
  ) -> Bool[Array, '*shape']:
    """Returns whether each token is marked.

    Args:
      ids: token ids.
      before: ids of the tokens before them, -1 at the start of a segment.
    """
    table = np.zeros(max(self.ids, default=0) + 2, bool)
    table[list(self.ids)] = True
    # The last row, which is also the row of -1, is False.
    marked = jnp.asarray(table)[jnp.minimum(before if self.after else ids, len(table) - 1)]
    return marked | (before < 0) if self.after else marked


@dataclasses.dataclass(frozen=True)
class Marks:
  """Computes marks of tokens by name. A mark depends on a token and on the token before it in its segment only, so that
  it does not contain later tokens, and is the same in a packed row, a separate row and token by token.

  Attributes:
    functions: name and function of each mark.
  """

  functions: tuple[tuple[str, MarkFunction], ...] = ()

  @property
  def names(self) -> frozenset[str]:
    """Names of the marks."""
    return frozenset(name for name, _ in self.functions)

  def __call__(
    self, ids: Int[Array, '*shape'], before: Int[Array, '*shape']
  ) -> dict[str, Bool[Array, '*shape']]:
    """Returns the marks of tokens, of which the token before is `before`, or -1 at the start of a segment."""
    return {name: function(ids, before) for name, function in self.functions}

  def of_rows(
    self,
    ids: Int[Array | np.ndarray, 'batch length'],
    segments: Int[Array | np.ndarray, '#batch length'] | None = None,
  ) -> dict[str, Bool[Array, 'batch length']]:
    """Returns the marks of rows; padding (segment 0) is not marked.

    Args:
      ids: token ids.
      segments: segment of each token; None: one segment.
    """
    if not self.functions:
      return {}
    ids = jnp.asarray(ids)
    before = jnp.pad(ids[:, :-1], ((0, 0), (1, 0)), constant_values=-1)
    if segments is None:
      return self(ids, before)
    segments = jnp.asarray(segments)
    same = jnp.pad(segments[:, :-1] == segments[:, 1:], ((0, 0), (1, 0)))
    marks = self(ids, jnp.where(same, before, -1))
    return {name: mark & (segments != 0) for name, mark in marks.items()}
