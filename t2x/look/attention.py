"""Attention maps of one row, and statistics of each head.

Entropy, distance and the shares on previous, first and separator tokens describe heads as in Clark et al. 2019
(https://arxiv.org/abs/1906.04341); the distance between patches is from ViT (Dosovitskiy et al. 2020,
https://arxiv.org/abs/2010.11929, section 4.5).
"""

import dataclasses
from collections.abc import Sequence

import numpy as np
from jaxtyping import Bool, Float

__all__ = ['Attention', 'Grid']


@dataclasses.dataclass(frozen=True)
class HeadStatistics:
  """Statistics of the heads of a layer: means over the queries that see a key.

  Attributes:
    entropy: entropy of the attention in bits; 0 for a single key, log2(keys) for equal weights.
    distance: mean of |query position - key position| in tokens, or, between patches of a grid, the Euclidean
      distance in patches. None for cross-attention.
    previous: weight of the token before the query, over queries that have one. None for grids and
      cross-attention.
    first: weight of the first key, over all queries except that token itself. None for a grid without extra tokens.
    separator: weight of all separator tokens. None if the keys contain none.
  """

  entropy: Float[np.ndarray, ' heads']
  distance: Float[np.ndarray, ' heads'] | None
  previous: Float[np.ndarray, ' heads'] | None
  first: Float[np.ndarray, ' heads'] | None
  separator: Float[np.ndarray, ' heads'] | None


@dataclasses.dataclass(frozen=True)
class Grid:
  """Patches of an image, row by row, after extra tokens such as the class token."""

  rows: int
  columns: int
  num_extra: int = 0

  @property
  def num_tokens(self) -> int:
    """Number of extra tokens and patches."""
    return self.num_extra + self.rows * self.columns

  @property
  def names(self) -> tuple[str, ...]:
    """Names of the extra tokens and of the patches."""
    extra = [f'extra token {i + 1}' for i in range(self.num_extra)]
    if self.num_extra == 1:
      extra = ['class token']
    places = np.ndindex(self.rows, self.columns)
    return (*extra, *(f'row {row + 1}, column {column + 1}' for row, column in places))


@dataclasses.dataclass(frozen=True)
class Attention:
  """Attention probabilities of all layers of a body for one row.

  Attributes:
    name: 'self-attention', 'encoder self-attention', 'decoder self-attention' or 'cross-attention', followed by the
      name of the sublayer in parentheses if it is not the usual one.
    queries: labels of the queries. In cross-attention the tokens that are predicted, else the tokens that are read.
    keys: labels of the keys.
    layers: probabilities of each layer, [heads, queries, keys].
    statistics: statistics of the heads of each layer.
    grid: the grid of the keys, and in self-attention of the queries; None for texts.
  """

  name: str
  queries: tuple[str, ...]
  keys: tuple[str, ...]
  layers: tuple[Float[np.ndarray, 'heads queries keys'], ...]
  statistics: tuple[HeadStatistics, ...]
  grid: Grid | None = None

  @property
  def is_cross(self) -> bool:
    """Whether queries and keys are tokens of different sequences."""
    return self.name.startswith('cross-attention')


def self_attention(
  name: str,
  layers: Sequence[Float[np.ndarray, 'heads tokens tokens']],
  labels: Sequence[str],
  separators: Bool[np.ndarray, ' tokens'],
) -> Attention:
  """Returns the self-attention of a text with its statistics.

  Args:
    name: name of the attention.
    layers: probabilities of each layer.
    labels: the tokens.
    separators: whether each token is a separator.
  """
  statistics = tuple(text_statistics(layer, separators) for layer in layers)
  return Attention(name, tuple(labels), tuple(labels), tuple(layers), statistics)


def text_statistics(
  probabilities: Float[np.ndarray, 'heads tokens tokens'],
  separators: Bool[np.ndarray, ' tokens'],
) -> HeadStatistics:
  """Returns the statistics of self-attention between the tokens of a text."""
  p = probabilities.astype(np.float64)
  sees_keys = p.sum(-1) > 0
  positions = np.arange(p.shape[1])
  offset = np.abs(positions[:, None] - positions[None, :])
  after_first = sees_keys & (positions > 0)
  before = np.concatenate(
    [np.zeros((len(p), 1)), np.diagonal(p, offset=-1, axis1=1, axis2=2)], axis=1
  )
  return HeadStatistics(
    entropy=_mean(_entropy(p), sees_keys),
    distance=_mean((p * offset).sum(-1), sees_keys),
    previous=_mean(before, after_first) if len(positions) > 1 else None,
    first=_mean(p[:, :, 0], after_first) if len(positions) > 1 else None,
    separator=_share(p, separators, sees_keys),
  )


def cross_statistics(
  probabilities: Float[np.ndarray, 'heads queries keys'],
  separators: Bool[np.ndarray, ' keys'],
) -> HeadStatistics:
  """Returns the statistics of cross-attention, in which positions are not comparable."""
  p = probabilities.astype(np.float64)
  sees_keys = p.sum(-1) > 0
  return HeadStatistics(
    _mean(_entropy(p), sees_keys),
    None,
    None,
    _mean(p[:, :, 0], sees_keys),
    _share(p, separators, sees_keys),
  )


def grid_statistics(
  probabilities: Float[np.ndarray, 'heads tokens tokens'], grid: Grid
) -> HeadStatistics:
  """Returns the statistics of self-attention between patches; distances are between patches only."""
  p = probabilities.astype(np.float64)
  sees_keys = p.sum(-1) > 0
  places = np.indices((grid.rows, grid.columns)).reshape(2, -1).T
  distances = np.linalg.norm(places[:, None] - places[None, :], axis=-1)
  patches = p[:, grid.num_extra :, grid.num_extra :]
  weight = patches.sum(-1)
  total = (patches * distances).sum(-1)
  distance = np.divide(total, weight, out=np.zeros_like(total), where=weight > 0)
  after_first = sees_keys & (np.arange(p.shape[1]) > 0)
  return HeadStatistics(
    entropy=_mean(_entropy(p), sees_keys),
    distance=_mean(distance, weight > 0),
    previous=None,
    first=_mean(p[:, :, 0], after_first) if grid.num_extra else None,
    separator=None,
  )


def _entropy(p: np.ndarray) -> np.ndarray:
  return -(p * np.log2(np.where(p > 0, p, 1.0))).sum(-1)


def _share(p: np.ndarray, separators: np.ndarray, sees_keys: np.ndarray) -> np.ndarray | None:
  return _mean(p[:, :, separators].sum(-1), sees_keys) if separators.any() else None


def _mean(values: np.ndarray, where: np.ndarray) -> np.ndarray:
  """Returns the mean of [heads, queries] over the queries in `where`; 0 if there are none."""
  count = where.sum(-1)
  return np.where(where, values, 0.0).sum(-1) / np.maximum(count, 1)
