"""Mixtures: several sources of rows in one stream, in proportion to weights.

Row j of a source with weight w is due at time (j + phase) / w, and the stream takes the rows in the order of
these times. Among the first n rows of the stream, the number from each source therefore differs little from
its share of n, and it follows from n without reading what came before: a batch is a function of the
seed and the step. The phases spread the first rows of sources with equal weights.
"""

import bisect
import dataclasses
import heapq
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Protocol, runtime_checkable

import numpy as np

from t2x.base.errors import UserError
from t2x.base.ranges import Count, Natural, NonEmpty, NonNegative, Range, Text
from t2x.data.batches import (
  Order,
  Transform,
  needs_rows,
  rows_fingerprint,
  seed_of,
  shuffled,
  transformed,
)
from t2x.data.prepared_folders import fingerprint

__all__ = [
  'FixedWeights',
  'Interleaved',
  'MixtureRows',
  'MixtureTransform',
  'MixtureWeights',
  'ProportionalWeights',
  'StagedWeights',
]

# (first step, name -> weight) of each stage of a mixture; the first stage starts at step 0.
Stages = Sequence[tuple[int, Mapping[str, float]]]
# Shares and phases are rounded to multiples of 2^-30, so that counts are exact integers.
_UNITS = 1 << 30
_GOLDEN_RATIO = 0x9E3779B97F4A7C15  # Times 2^-64.


@runtime_checkable
class MixtureWeights(Protocol):
  """Weights of the sources of a mixture."""

  def stages(self, sizes: Mapping[str, int]) -> Stages:
    """Returns the weights by stage.

    Args:
      sizes: name -> number of rows of each source.

    Raises:
      UserError: the names of the weights and of the sources differ.
    """
    ...


@dataclasses.dataclass(frozen=True)
class FixedWeights(MixtureWeights):
  """Constant weights.

  Attributes:
    weights: name -> weight. Only their ratios count; 0 leaves a source out.
  """

  weights: Annotated[Mapping[Text, NonNegative], NonEmpty]

  def __post_init__(self):
    if not any(self.weights.values()):
      raise UserError(f'FixedWeights.weights = {dict(self.weights)}: one of them must be above 0')

  def stages(self, sizes):
    if set(self.weights) != set(sizes):
      raise UserError(
        f'FixedWeights.weights has {_names(self.weights)}, but the mixture has {_names(sizes)}: '
        'set one weight for each (0 leaves one out)'
      )
    return [(0, self.weights)]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ProportionalWeights(MixtureWeights):
  """Weights min(rows, limit)^(1 / temperature) (T5, https://arxiv.org/abs/1910.10683, section 3.5.2).

  Attributes:
    limit: number of rows above which a source counts as one of this size (K in T5); None: no limit.
    temperature: 1 samples in proportion to the sizes; larger ones approach equal weights. 1 / 0.7 samples languages as
      XLM (https://arxiv.org/abs/1901.07291, section 3.1), in proportion to the sizes to the power of 0.7.
  """

  limit: Count | None = None
  temperature: Annotated[float, Range('0.1 <= x')] = 1.0

  def stages(self, sizes):
    counted = {name: min(size, self.limit or size) for name, size in sizes.items()}
    return [(0, {name: size ** (1 / self.temperature) for name, size in counted.items()})]


@dataclasses.dataclass(frozen=True)
class StagedWeights(MixtureWeights):
  """Weights that change at given steps, such as a last stage with the best data only.

  Attributes:
    by_step: (first step, weights) of each stage, in order; the first step is 0.
  """

  by_step: Annotated[Sequence[tuple[Natural, MixtureWeights]], NonEmpty]

  def __post_init__(self):
    steps = [step for step, _ in self.by_step]
    if steps[0] != 0 or any(a >= b for a, b in itertools.pairwise(steps)):
      raise UserError(f'StagedWeights.by_step begins at steps {steps}: must be 0 and then increase')

  def stages(self, sizes):
    stages = []
    for step, weights in self.by_step:
      (_, only), *more = weights.stages(sizes)
      if more:
        raise UserError('StagedWeights.by_step contains @StagedWeights(): list its stages instead')
      stages.append((step, only))
    return stages


class MixtureRows(Sequence):
  """Concatenated rows of several sources; each row has the number of its source as `task`.

  Args:
    sources: name -> rows.

  Attributes:
    info: totals of the statistics that all sources have.
    fingerprint: identifies the rows of all sources.
  """

  def __init__(self, sources: Mapping[str, Sequence[Mapping[str, Any]]]):
    self.sources = dict(sources)
    self._rows = list(self.sources.values())
    self.starts = list(itertools.accumulate(map(len, self._rows), initial=0))
    infos = [getattr(rows, 'info', None) or {} for rows in self._rows]
    common = set.intersection(*map(set, infos)) & {'examples', 'tokens', 'bytes'}
    self.info = {name: sum(info[name] for info in infos) for name in common}

  @property
  def fingerprint(self) -> str:
    """Identifies the names and the rows of the sources."""
    return fingerprint(
      'mixture', *((name, rows_fingerprint(rows)) for name, rows in self.sources.items())
    )

  def __len__(self) -> int:
    return self.starts[-1]

  def __getitem__(self, index):
    """Returns the row at `index`; a negative index counts from the end."""
    i = range(len(self))[index]
    number = bisect.bisect_right(self.starts, i) - 1
    return {**self._rows[number][i - self.starts[number]], 'task': np.int32(number)}


@dataclasses.dataclass(frozen=True)
class MixtureTransform:
  """Applies the transform of a row's source, and adds the source's number and loss weight.

  Attributes:
    transforms: the transform of each source; None: no change.
    loss_weights: the loss weight of the rows of each source.
  """

  transforms: tuple[Transform | None, ...]
  loss_weights: tuple[float, ...]

  @property
  def needs_rows(self) -> bool:
    """Whether a transform needs other rows, which are those of its own source."""
    return any(map(needs_rows, self.transforms))

  def __call__(
    self, row: Mapping[str, Any], rng: np.random.Generator, rows: MixtureRows | None = None
  ) -> dict[str, Any]:
    """Returns the transformed row with `task` (int32) and `loss_weight` (float32)."""
    number = int(row['task'])
    example = {name: value for name, value in row.items() if name != 'task'}
    own = () if rows is None else list(rows.sources.values())[number]
    return {
      **transformed(self.transforms[number], example, rng, own),
      'task': np.int32(number),
      'loss_weight': np.float32(self.loss_weights[number]),
    }


class Interleaved(Order):
  """Order of the rows of a mixture. Each source has its own epochs, each in an order of its own.

  Args:
    rows: the rows of the sources.
    stages: the weights by stage.
    batch_size: rows per step, at which stages begin.
    seed: seed of the orders.

  Raises:
    UserError: a source with a weight has no rows, or one without a weight in any stage.
  """

  def __init__(self, rows: MixtureRows, stages: Stages, batch_size: int, seed: int):
    self.names, self.starts = list(rows.sources), rows.starts
    self.sizes = [len(source) for source in rows.sources.values()]
    self.stages = [
      (step * batch_size, [_units(weights, name) for name in self.names])
      for step, weights in stages
    ]
    self.seeds = [seed_of(seed, name) for name in self.names]
    for number, (name, size) in enumerate(zip(self.names, self.sizes, strict=True)):
      if not any(weights[number] for _, weights in self.stages):
        raise UserError(f"the weight of '{name}' is 0 in the entire mixture: remove '{name}'")
      if not size:
        raise UserError(f"'{name}' has no rows: remove it from the mixture")

  @property
  def identity(self) -> object:
    return [self.names, self.sizes, self.stages]

  def __call__(self, numbers: range) -> tuple[np.ndarray, np.ndarray]:
    """Returns epoch (of its source) and row of consecutive numbers of the stream."""
    sources = np.empty(len(numbers), np.int64)
    places = np.empty(len(numbers), np.int64)
    for i, (source, place) in enumerate(self._take(numbers)):
      sources[i], places[i] = source, place
    epochs, indices = np.empty_like(places), np.empty_like(places)
    for source in np.unique(sources).tolist():
      chosen = sources == source
      epoch, index = shuffled(places[chosen], self.sizes[source], self.seeds[source])
      epochs[chosen], indices[chosen] = epoch, index + self.starts[source]
    return epochs, indices

  def counts(self, number: int) -> list[int]:
    """Returns how many of the first `number` rows of the stream come from each source."""
    total = [0] * len(self.names)
    for i, (start, weights) in enumerate(self.stages):
      stop = self.stages[i + 1][0] if i + 1 < len(self.stages) else number
      if start < number:
        stage = _counts(weights, min(stop, number) - start)
        total = [a + b for a, b in zip(total, stage, strict=True)]
    return total

  def _take(self, numbers: range) -> Iterator[tuple[int, int]]:
    """Yields the source of each number, and the number within the source."""
    number = numbers.start
    while number < numbers.stop:
      stage = bisect.bisect_right([start for start, _ in self.stages], number) - 1
      start, weights = self.stages[stage]
      stop = self.stages[stage + 1][0] if stage + 1 < len(self.stages) else numbers.stop
      stop = min(stop, numbers.stop)
      before = self.counts(start)
      for source, place in interleaved(weights, range(number - start, stop - start)):
        yield source, before[source] + place
      number = stop


def interleaved(weights: Sequence[int], numbers: range) -> Iterator[tuple[int, int]]:
  """Yields (source, place within the source) of consecutive numbers of a stream with constant weights."""
  taken = _counts(weights, numbers.start)
  for source in itertools.islice(_merged(weights, taken), len(numbers)):
    yield source, taken[source]
    taken[source] += 1


def _names(names: Mapping[str, Any]) -> str:
  return ', '.join(f"'{name}'" for name in names)


def _units(weights: Mapping[str, float], name: str) -> int:
  """Returns the share of a source in units; at least one for a weight above 0."""
  share = weights[name] / sum(weights.values())
  return max(round(share * _UNITS), int(share > 0))


def _phase(source: int) -> int:
  """Returns the phase of a source in units, from the golden-ratio sequence, whose beginnings are even."""
  return ((source + 1) * _GOLDEN_RATIO % (1 << 64)) * _UNITS >> 64


def _due(weight: int, source: int, place: int) -> int:
  """Returns the time at which a row is due, times a constant. Different times give different integers."""
  return ((place * _UNITS + _phase(source)) << 100) // weight


def _counts(weights: Sequence[int], number: int) -> list[int]:
  """Returns how many of the first `number` rows of a stage come from each source."""
  # At most `number` rows are due at this time, and nearly as many: at most one per source more than its share.
  total, time = sum(weights), max(number - len(weights), 0)
  counts = [
    max((weight * time * _UNITS - _phase(source) * total) // (total * _UNITS) + 1, 0)
    if weight
    else 0
    for source, weight in enumerate(weights)
  ]
  for source in itertools.islice(_merged(weights, counts), number - sum(counts)):
    counts[source] += 1
  return counts


def _merged(weights: Sequence[int], taken: Sequence[int]) -> Iterator[int]:
  """Yields the sources in the order in which their next rows are due, after the `taken` rows."""
  taken = list(taken)
  heap = [(_due(weight, i, taken[i]), i) for i, weight in enumerate(weights) if weight]
  heapq.heapify(heap)
  while True:
    _, source = heap[0]
    yield source
    taken[source] += 1
    heapq.heapreplace(heap, (_due(weights[source], source, taken[source]), source))
