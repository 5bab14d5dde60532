"""Pictures of parameters: neighbours of token embeddings and position vectors."""

import dataclasses
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Float, Int

from t2x.layers import FactorisedEmbedding, PositionEncoding, TokenEmbedding, Tokens
from t2x.look.attention import Grid

__all__ = ['Neighbours', 'PositionVectors']

# Maximum number of positions in a picture, from 0.
MAX_POSITIONS = 128


@dataclasses.dataclass(frozen=True)
class Neighbour:
  """A token and the cosine similarity of its embedding."""

  token: str
  cosine: float


@dataclasses.dataclass(frozen=True)
class Neighbours:
  """Nearest neighbours of token embeddings by cosine similarity.

  Attributes:
    name: which embedding, '' for the only one.
    tokens: each different token of a text, in order of appearance.
    nearest: the nearest other tokens of each, nearest first.
  """

  name: str
  tokens: tuple[str, ...]
  nearest: tuple[tuple[Neighbour, ...], ...]


@dataclasses.dataclass(frozen=True)
class PositionVectors:
  """Vectors that a position encoding adds to the embedded tokens.

  Attributes:
    name: class of the encoding, and its side in an encoder-decoder.
    values: the vectors.
    similarity: cosine similarity of each pair of positions.
    is_learned: whether they are parameters.
    grid: the grid of the positions; None for texts.
  """

  name: str
  values: Float[np.ndarray, 'positions width']
  similarity: Float[np.ndarray, 'positions positions']
  is_learned: bool
  grid: Grid | None = None

  @property
  def similarity_map(self) -> Float[np.ndarray, 'rows columns']:
    """The similarities as a picture: for a grid, a map over the grid for each patch, at the place of the patch."""
    if self.grid is None:
      return self.similarity
    rows, columns, extra = self.grid.rows, self.grid.columns, self.grid.num_extra
    maps = self.similarity[extra:, extra:].reshape(rows, columns, rows, columns)
    return maps.transpose(0, 2, 1, 3).reshape(rows * rows, columns * columns)


def neighbours(
  name: str,
  embedding: object,
  ids: Sequence[int] | Int[np.ndarray, ' length'],
  name_of: Callable[[int], str],
  count: int = 8,
) -> Neighbours | None:
  """Returns the nearest neighbours of the embeddings of `ids`; None if the embedding has no table of tokens.

  Args:
    name: which embedding, '' for the only one.
    embedding: the token embedding.
    ids: tokens of a text.
    name_of: returns the name of a token.
    count: number of neighbours per token.
  """
  if not isinstance(embedding, TokenEmbedding | FactorisedEmbedding):
    return None
  table = np.asarray(embedding.table[...], np.float32)[: embedding.vocab_size]
  unit = _unit(table)
  chosen = list(dict.fromkeys(int(i) for i in ids))
  cosines = unit[chosen] @ unit.T
  cosines[np.arange(len(chosen)), chosen] = -np.inf
  count = min(count, len(table) - 1)
  order = np.argsort(-cosines, axis=-1, kind='stable')[:, :count]
  nearest = tuple(
    tuple(Neighbour(name_of(int(i)), float(row[i])) for i in best)
    for row, best in zip(cosines, order, strict=True)
  )
  return Neighbours(name, tuple(map(name_of, chosen)), nearest)


def position_vectors(
  name: str, encoding: PositionEncoding, width: int, tokens: Tokens
) -> PositionVectors | None:
  """Returns the vectors that an encoding adds; None if it adds none.

  Args:
    name: which encoding.
    encoding: the encoding.
    width: width of the embedded tokens.
    tokens: a row whose tokens have a grid, or any row of a text.
  """
  if 'embed' not in encoding.hooks:
    return None
  grid = None
  if tokens.grid is None:
    tokens = Tokens.row(min(encoding.max_length or MAX_POSITIONS, MAX_POSITIONS))
  elif len(tokens.grid) == 2:
    grid = Grid(tokens.grid[0], tokens.grid[1], tokens.num_extra)
  zeros = jnp.zeros((1, tokens.positions.shape[1], width))
  values = np.asarray(encoding.embed(zeros, tokens)[0])
  unit = _unit(values)
  is_learned = bool(jax.tree.leaves(nnx.state(encoding, nnx.Param)))
  return PositionVectors(name, values, unit @ unit.T, is_learned, grid)


def _unit(x: np.ndarray) -> np.ndarray:
  """Returns the rows divided by their norms; zero vectors stay zero."""
  norm = np.linalg.norm(x, axis=-1, keepdims=True)
  return x / np.where(norm > 0, norm, 1.0)
