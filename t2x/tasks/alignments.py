"""Agreement of the attention of translation models with a dictionary and with the diagonal.

The dictionary is IBM model 1 (Brown et al. 1993, https://aclanthology.org/J93-2003), estimated from pairs of the
training split, without the evaluated model.
"""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float, Int

from t2x.base.errors import UserError
from t2x.base.ranges import NonNegative, Size
from t2x.data import Tokenizer
from t2x.data.sources.subset import spread
from t2x.models import Model, TextModel
from t2x.models.ranks import ROUNDING, choice
from t2x.tasks.base import Task
from t2x.tasks.evaluators import Evaluated, Evaluation, TaskEvaluator
from t2x.tasks.inspection import source_readers
from t2x.tasks.translation import Translation

__all__ = ['AlignmentAgreement']

# Number of the empty source word of IBM model 1.
_EMPTY = -1
# Numbers of the words of a source and of its target.
Pair = tuple[Int[np.ndarray, ' source'], Int[np.ndarray, ' target']]


class Words:
  """Numbers the words of token rows.

  A word ends before a piece that begins with a space, and before and after special tokens and pieces without letters
  and digits. Words with the same text have the same number, without regard to spaces.
  """

  def __init__(self, tokenizer: Tokenizer):
    self.tokenizer = tokenizer
    self.numbers: dict[str, int] = {}

  def __call__(
    self, ids: Int[np.ndarray, ' tokens']
  ) -> tuple[Int[np.ndarray, ' words'], Bool[np.ndarray, 'words tokens']]:
    """Returns the number of each word, and which tokens are its pieces."""
    pieces = [
      piece.replace('\N{LOWER ONE EIGHTH BLOCK}', ' ') for piece in self.tokenizer.pieces(ids)
    ]
    marks = np.array([bool(p.strip()) and not any(map(str.isalnum, p)) for p in pieces])
    starts = self.tokenizer.word_starts(ids) | marks
    starts[1:] |= marks[:-1]
    word = np.cumsum(starts) - 1
    belongs = word == np.arange(word[-1] + 1)[:, None]
    texts = [''.join(pieces[i] for i in np.flatnonzero(own)).strip() for own in belongs]
    return np.array([self.numbers.setdefault(t, len(self.numbers)) for t in texts]), belongs


class Dictionary:
  """Translation probabilities t(target word | source word) of IBM model 1 after expectation maximisation.

  Args:
    pairs: numbers of the words of sources and their targets, from 0.
    num_steps: iterations of expectation maximisation, which starts from equal probabilities.
  """

  def __init__(self, pairs: Sequence[Pair], num_steps: int):
    sources, targets, groups, start = [], [], [], 0
    for source, target in pairs:
      words = np.append(source, _EMPTY)
      sources.append(np.tile(words, len(target)))
      targets.append(np.repeat(target, len(words)))
      groups.append(start + np.repeat(np.arange(len(target)), len(words)))
      start += len(target)
    links = np.stack([np.concatenate(sources), np.concatenate(targets)], axis=1)
    words, inverse = np.unique(links, axis=0, return_inverse=True)
    inverse, group = inverse.reshape(-1), np.concatenate(groups)
    probabilities = np.ones(len(words))
    for _ in range(num_steps):
      weights = probabilities[inverse]
      weights /= np.bincount(group, weights)[group]
      counts = np.bincount(inverse, weights)
      probabilities = counts / np.bincount(words[:, 0] + 1, counts)[words[:, 0] + 1]
    pairs_of_words = map(tuple, words.tolist())
    self.probabilities = dict(zip(pairs_of_words, probabilities.tolist(), strict=True))

  def links(self, source: Int[np.ndarray, ' source'], word: int) -> Bool[np.ndarray, ' source']:
    """Returns which source words are the likeliest translation of a target word; none if the empty word is."""
    scores = np.array([self.probabilities.get((int(s), word), 0.0) for s in source])
    best = max(scores.max(), self.probabilities.get((_EMPTY, word), 0.0))
    return (scores == best) & (best > 0)


def near_diagonal(source: int, target: int, width: float) -> Bool[np.ndarray, '{target} {source}']:
  """Returns which source words are at most `width` words from the line between the first and the last words."""
  line = np.arange(target) * (source - 1) / max(target - 1, 1)
  return np.abs(line[:, None] - np.arange(source)) <= width


@dataclasses.dataclass(frozen=True, kw_only=True)
class AlignmentAgreement(TaskEvaluator):
  """Computes how often the most attended source word of a target word is the one that a dictionary
  or the diagonal gives.

  The decoder reads the reference (teacher forcing). The weights are the mean over the heads and layers that read the
  source, summed over the pieces of both words. Metrics, as fractions of target words without eos: `dictionary`, the
  source word is a likeliest translation by the dictionary; `diagonal`, it is near the diagonal; `either`; and the
  expected value of each for source words drawn at random, `chance_...`.

  Attributes:
    num_pairs: number of training pairs for the dictionary, spread evenly over the rows.
    num_steps: iterations of expectation maximisation.
    width: largest distance from the diagonal, in source words.
    num_examples: number of rows, sampled evenly from the split; a packed row has several pairs.
  """

  num_pairs: Size = 10_000
  num_steps: Size = 5
  width: NonNegative = 1.0

  kinds: ClassVar[tuple[type[Task], ...]] = (Translation,)

  def check(self, task: Task, model: Model) -> None:
    """Also raises UserError if no layer of the decoder records attention to the source."""
    super().check(task, model)
    if not source_readers(model, 'decoder'):
      raise UserError('AlignmentAgreement: no sublayer of the decoder attends to the source')

  def __call__(self, evaluated: Evaluated) -> Evaluation:
    """Returns the metrics."""
    task = evaluated.task
    sides = Words(task.fitted), Words(task.fitted.target)
    dictionary = Dictionary(self._training_pairs(evaluated, sides), self.num_steps)
    rows = evaluated.rows(self._split(task))
    chosen = [rows[i] for i in spread(min(self.num_examples or len(rows), len(rows)), len(rows))]
    readers = source_readers(evaluated.model(), 'decoder')
    values: dict[str, list[np.ndarray]] = {}
    for row, weights in evaluated.predict(chosen, lambda *args: _weights(task, readers, *args)):
      for source, target in _segments(row):
        sources, of_source = sides[0](row['source'][source])
        targets, of_target = sides[1](row['target'][target])
        attention = of_target @ weights[np.ix_(target, source)] @ of_source.T
        best = choice(attention, ROUNDING)[:, None]
        # The last token is eos.
        for name, agrees in self._agreements(dictionary, sources, targets).items():
          hits = np.take_along_axis(agrees, best, axis=1)[:, 0] & (best[:, 0] >= 0)
          values.setdefault(name, []).append(hits[:-1])
          values.setdefault(f'chance_{name}', []).append(agrees.mean(axis=1)[:-1])
    columns = {name: np.concatenate(arrays) for name, arrays in values.items()}
    metrics = {name: float(column.mean()) for name, column in columns.items()}
    return Evaluation({'words': float(len(columns['either'])), **metrics})

  def _agreements(
    self, dictionary: Dictionary, sources: np.ndarray, targets: np.ndarray
  ) -> dict[str, Bool[np.ndarray, 'target source']]:
    """Returns which source words agree with each target word, by name."""
    linked = np.stack([dictionary.links(sources, int(word)) for word in targets])
    diagonal = near_diagonal(len(sources), len(targets), self.width)
    return {'dictionary': linked, 'diagonal': diagonal, 'either': linked | diagonal}

  def _training_pairs(self, evaluated: Evaluated, sides: tuple[Words, Words]) -> list[Pair]:
    rows = evaluated.rows(evaluated.task.train_split)
    pairs: list[Pair] = []
    for index in spread(min(self.num_pairs, len(rows)), len(rows)):
      row = rows[index]
      pairs += [
        # Without eos.
        (sides[0](row['source'][s])[0][:-1], sides[1](row['target'][t])[0][:-1])
        for s, t in _segments(row)
      ]
    return [pairs[i] for i in spread(min(self.num_pairs, len(pairs)), len(pairs))]


def _segments(row: Mapping[str, np.ndarray]) -> Iterator[tuple[np.ndarray, np.ndarray]]:
  """Yields the positions of the source and of the target of each pair of a row."""
  for segment in range(1, int(row['target_segments'].max()) + 1):
    source, target = (
      np.flatnonzero(row[f'{side}_segments'] == segment) for side in ('source', 'target')
    )
    if len(source) and len(target):
      yield source, target


def _weights(
  task: Translation, readers: frozenset[str], model: TextModel, batch: Mapping[str, jax.Array]
) -> Float[jax.Array, 'batch target source']:
  """Returns the attention of each target token to the source, the mean over heads and layers."""
  out = task.hidden(model, batch, None, record=frozenset({'probabilities'}))
  # [repeats, batch, heads, target, source]
  layers = [
    array.mean(axis=2)
    for name, array in out.recorded.items()
    if name.startswith('decoder.')
    and any(name.endswith(f'.{reader}.probabilities') for reader in readers)
  ]
  return jnp.concatenate(layers).mean(axis=0)
