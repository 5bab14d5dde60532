"""Contrastive learning of pairs (CLIP, https://arxiv.org/abs/2103.00020, figure 3), and retrieval."""

import abc
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

import jax
import jax.numpy as jnp
import numpy as np

from t2x.base.ranges import Fraction, NonEmpty, Size
from t2x.data import PadPairs
from t2x.data.sources.subset import spread
from t2x.domains.retrieval.pair_losses import PairLoss, PairRows, Scores, Softmax
from t2x.layers import Tokens
from t2x.models import Inputs
from t2x.models.ranks import ROUNDING, rank
from t2x.tasks.base import Task, example_weights
from t2x.tasks.evaluators import Evaluation, TaskEvaluator
from t2x.tasks.output import TaskOutput
from t2x.tasks.text import TextTask

__all__ = ['Contrastive', 'PairTask', 'Retrieval']


def split_sides(row: Mapping[str, Any], rng: np.random.Generator) -> dict[str, Any]:
  """Returns the row of a pair with the sides `a` and `b`, and `weight` (1)."""
  names = {
    'source': 'a',
    'source_segments': 'a_segments',
    'target': 'b',
    'target_segments': 'b_segments',
  }
  return {new: row[old] for old, new in names.items()} | {'weight': np.int32(1)}


@dataclasses.dataclass(frozen=True, kw_only=True)
class PairTask(TextTask):
  """Learns vectors of two inputs, of which each is closer to its own counterpart than to those of other pairs.

  The loss compares all pairs of a batch, so batches are not accumulated. accuracy is the fraction of `a` whose own `b`
  is closer than all others of the batch. Evaluation compares `eval_rows` consecutive pairs of the split whatever the
  batch of training; `Retrieval` compares all pairs of a split.

  Attributes:
    loss: compares the vectors of a batch: `Softmax` (CLIP), `Sigmoid` (SigLIP), `SigmoidInBlocks` or `RingSigmoid`.
    eval_rows: number of pairs that evaluation compares, on which its loss and accuracy depend.
  """

  loss: PairLoss = Softmax()
  eval_rows: Size = 64

  whole_batch: ClassVar[bool] = True
  inputs: ClassVar[Inputs] = {'a': 'ids', 'b': 'ids'}
  outputs: ClassVar[str] = 'paired vectors'
  head: ClassVar[str] = 'TwoTower'
  unit: ClassVar[str] = 'examples'
  has_perplexity: ClassVar[bool] = False
  text_fields: ClassVar[tuple[str, ...]] = ('source', 'target')
  best_metric: ClassVar[str] = 'accuracy'
  best_mode: ClassVar[Literal['min', 'max']] = 'max'

  def check_model(self, model):
    """Also raises UserError if the model has a parameter that the loss does not use."""
    super().check_model(model)
    self.loss.check_model(model)

  @abc.abstractmethod
  def side(self, batch: Mapping[str, jax.Array], name: str) -> Tokens | None:
    """Returns the metadata of the tokens of 'a' or 'b'; None: unpadded rows."""

  def texts(self, batch: Mapping[str, jax.Array]) -> jax.Array | None:
    """Returns two hashes of the text of each row, uint32 [batch, 2], where equal texts are no negatives; else None."""
    return None

  target_weights = example_weights

  def vectors(self, model, batch, key=None):
    """Returns the outputs of both sides, with vectors of unit length [batch, dim]."""
    tokens = tuple(self.side(batch, name) for name in self.inputs)
    return model(batch['a'], batch['b'], tokens=tokens, key=key)

  def sums(self, model, batch, key):
    """Returns loss and accuracy over the pairs with weight 1."""
    a, b = self.vectors(model, batch, key)
    rows = PairRows(jnp.arange(len(a.x)), batch['weight'] != 0, self.texts(batch))
    bias = None if model.bias is None else model.bias[...].astype(jnp.float32)
    pairs = self.loss(a.x, b.x, Scores(model.factor, bias), rows)
    weights = self.weighted_targets(batch)
    total = weights.sum()
    sums = {
      'loss': ((pairs.losses * weights).sum(), total),
      'accuracy': ((pairs.correct * weights).sum(), total),
      'factor': (model.factor * total, total),
    }
    if bias is not None:
      sums['bias'] = bias * total, total
    return TaskOutput(sums, a.aux + b.aux)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Contrastive(PairTask):
  """Learns vectors of pairs of texts, of which each is closer to its own counterpart than to those of other pairs.

  Texts that are equal in several pairs of a batch are negatives of each other: `Deduplicated` removes
  them from a source.

  Attributes:
    source_length: maximum number of tokens of a source, including eos. Longer pairs are dropped.
    target_length: maximum number of tokens of a target, including eos.
    max_dropped: share of the pairs of a split that may be dropped as too long; more are an error.
  """

  source_length: Size
  target_length: Size
  max_dropped: Fraction = 0.1

  data_fields: ClassVar[frozenset[str]] = TextTask.data_fields | {'max_dropped'}

  @property
  def plan(self):
    """One pair per row."""
    return PadPairs(self.source_length, self.target_length)

  def transform(self, *, train):
    """Returns the transform that names the sides."""
    return split_sides

  def spec(self, batch_size):
    """Returns a, b and their segments: int32 [batch, length]; weight: int32 [batch]."""
    shapes = {'a': self.source_length, 'b': self.target_length}
    sides = {
      f'{name}{column}': jax.ShapeDtypeStruct((batch_size, length), jnp.int32)
      for name, length in shapes.items()
      for column in ('', '_segments')
    }
    return sides | {'weight': jax.ShapeDtypeStruct((batch_size,), jnp.int32)}

  def side(self, batch, name):
    return Tokens.row(batch[name].shape[1], segments=batch[f'{name}_segments'], right_padded=True)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Retrieval(TaskEvaluator):
  """Finds the target of each source among all targets of a split by their vectors, and the reverse.

  Metrics: recall_K, the fractions whose counterpart is among the closest K, and mean_reciprocal_rank; those of sources
  for targets begin with reverse_. Texts with equal vectors, or NaN, rank before the counterpart.

  Attributes:
    closest: the numbers K.
  """

  closest: Annotated[Sequence[Size], NonEmpty] = (1, 10)

  kinds: ClassVar[tuple[type[Task], ...]] = (PairTask,)

  def __call__(self, evaluated):
    """Returns the metrics and, per pair, whether its target is the closest."""
    task, rows = evaluated.task, evaluated.rows(self._split(evaluated.task))
    indices = spread(min(self.num_examples or len(rows), len(rows)), len(rows))
    pairs = evaluated.predict(
      [rows[i] for i in indices],
      lambda model, batch: [out.x for out in task.vectors(model, batch)],
    )
    a, b = (np.stack(side) for side in zip(*(output for _, output in pairs), strict=True))
    metrics = {'examples': float(len(a))}
    ranks = {'': _ranks(a, b), 'reverse_': _ranks(b, a)}
    for prefix, own in ranks.items():
      metrics |= {f'{prefix}recall_{k}': float(np.mean(own <= k)) for k in self.closest}
      metrics[f'{prefix}mean_reciprocal_rank'] = float(np.mean(1 / own))
    first = self.closest[0]
    return Evaluation(metrics, examples={f'recall_{first}': (ranks[''] <= first).astype(float)})


def _ranks(queries: np.ndarray, keys: np.ndarray) -> np.ndarray:
  """Returns the rank of the own key of each query, from 1."""
  own, numbers = np.einsum('nd,nd->n', queries, keys), np.arange(len(keys))
  ranks = np.empty(len(queries))
  for start in range(0, len(queries), 1024):
    part = slice(start, start + 1024)
    others = numbers[part, None] != numbers
    ranks[part] = rank(own[part], queries[part] @ keys.T, others, ROUNDING)
  return ranks
