"""Contrastive learning of pairs (CLIP, https://arxiv.org/abs/2103.00020, figure 3), and retrieval."""

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import jax
import jax.numpy as jnp
import numpy as np

from t2x.base.ranges import Size
from t2x.data import PadPairs
from t2x.data.sources.subset import spread
from t2x.layers import Tokens
from t2x.layers.constraints import constrain
from t2x.models import Inputs
from t2x.models.losses import cross_entropy
from t2x.tasks.base import Task, TaskOutput
from t2x.tasks.evaluators import Evaluation, TaskEvaluator
from t2x.tasks.text import TextTask

__all__ = ['Contrastive', 'Retrieval']

MASKED = -1e9


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
class Contrastive(TextTask):
  """Learns vectors of pairs of texts, of which each is closer to its own counterpart than to those of other pairs.

  The loss is the mean of two cross-entropies: of the `target` among all targets of the batch, for each `source`, and
  the reverse. It compares all pairs of a batch, so batches are not accumulated. In evaluation it depends on the number
  of pairs in a batch; `Retrieval` compares all pairs of a split. accuracy is the fraction of sources whose target is
  the closest of the batch.

  Attributes:
    source_length: maximum number of tokens of a source, including eos. Longer pairs are dropped.
    target_length: maximum number of tokens of a target, including eos.
  """

  source_length: Size
  target_length: Size

  whole_batch: ClassVar[bool] = True
  inputs: ClassVar[Inputs] = {'a': 'ids', 'b': 'ids'}
  outputs: ClassVar[str] = 'paired vectors'
  head: ClassVar[str] = 'TwoTower'
  unit: ClassVar[str] = 'examples'
  text_fields: ClassVar[tuple[str, ...]] = ('source', 'target')
  best_metric: ClassVar[str] = 'accuracy'
  best_mode: ClassVar[Literal['min', 'max']] = 'max'

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

  def target_weights(self, batch):
    return batch['weight'].astype(jnp.float32)

  def vectors(self, model, batch, key=None):
    """Returns the outputs of both sides, with vectors of unit length [batch, dim]."""
    tokens = tuple(
      Tokens.row(batch[name].shape[1], segments=batch[f'{name}_segments'], right_padded=True)
      for name in self.inputs
    )
    return model(batch['a'], batch['b'], tokens=tokens, key=key)

  def sums(self, model, batch, key):
    """Returns loss and accuracy over the pairs with weight 1."""
    a, b = self.vectors(model, batch, key)
    logits = constrain(model.factor * (a.x @ b.x.T), 'batch', None)
    weights, labels = self.weighted_targets(batch), jnp.arange(len(a.x))
    # Padding is no candidate of the pairs.
    present = batch['weight'] != 0
    losses = (
      cross_entropy(jnp.where(present, logits, MASKED), labels),
      cross_entropy(jnp.where(present, logits.T, MASKED), labels),
    )
    hits = jnp.argmax(jnp.where(present, logits, MASKED), axis=1) == labels
    total = weights.sum()
    sums = {
      'loss': (((losses[0] + losses[1]) / 2 * weights).sum(), total),
      'accuracy': ((hits * weights).sum(), total),
      'factor': (model.factor * total, total),
    }
    return TaskOutput(sums, a.aux + b.aux)

  def summarise(self, means, info=None):
    """Returns the metrics without perplexity."""
    return Task.summarise(self, means, info)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Retrieval(TaskEvaluator):
  """Finds the target of each source among all targets of a split by their vectors, and the reverse.

  Metrics: recall_1 and recall_10, the fractions whose counterpart is among the closest 1 and 10, and mean_reciprocal_rank;
  those of sources for targets begin with reverse_.
  """

  kinds: ClassVar[tuple[type[Task], ...]] = (Contrastive,)

  def __call__(self, evaluated):
    """Returns the metrics and, per pair, whether its target is the closest."""
    task, rows = evaluated.task, evaluated.rows(self._split(evaluated.task))
    assert isinstance(task, Contrastive)
    indices = spread(min(self.num_examples or len(rows), len(rows)), len(rows))
    pairs = evaluated.predict(
      [rows[i] for i in indices],
      lambda model, batch: [out.x for out in task.vectors(model, batch)],
    )
    a, b = (np.stack(side) for side in zip(*(output for _, output in pairs), strict=True))
    metrics = {'examples': float(len(a))}
    ranks = {'': _ranks(a, b), 'reverse_': _ranks(b, a)}
    for prefix, rank in ranks.items():
      metrics |= {f'{prefix}recall_{k}': float(np.mean(rank <= k)) for k in (1, 10)}
      metrics[f'{prefix}mean_reciprocal_rank'] = float(np.mean(1 / rank))
    return Evaluation(metrics, examples={'recall_1': (ranks[''] <= 1).astype(float)})


def _ranks(queries: np.ndarray, keys: np.ndarray) -> np.ndarray:
  """Returns the rank of the own key of each query, from 1; equal keys count half."""
  own = np.einsum('nd,nd->n', queries, keys)
  ranks = np.empty(len(queries))
  for start in range(0, len(queries), 1024):
    part = slice(start, start + 1024)
    products = queries[part] @ keys.T
    # The product with the own key is computed again, to be compared exactly.
    products[np.arange(len(products)), np.arange(start, start + len(products))] = -np.inf
    larger, equal = (op(products, own[part, None]).sum(axis=1) for op in (np.greater, np.equal))
    ranks[part] = 1 + larger + equal / 2
  return ranks
