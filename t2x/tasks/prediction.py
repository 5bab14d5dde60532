"""Outputs of a model for examples, computed in batches of one shape on the devices of the model."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import jax
import numpy as np

from t2x.data import evaluation_batches
from t2x.data.batches import Transform
from t2x.parallel.placed import runs_model, spread_over

T = TypeVar('T')
# Yields the items of an iterable and monitors the time spent on each.
Watched = Callable[[Iterable], Iterable]


def on_devices(function: Callable[..., Any], model: object, *arrays: object) -> Any:
  """Returns `function(model, *arrays)` as NumPy arrays, on every process.

  Args:
    function: a compiled function that `runs_model`, whose outputs are arrays [batch, ...].
    model: the model with its parameters; `whole_rows` of it if the rows may have any length.
    arrays: arrays [batch, ...], or mappings of arrays, which are split by row over the model's mesh.
  """
  spread, gathered = spread_over(model, len(jax.tree.leaves(arrays)[0]))
  return jax.device_get(gathered(function(model, *jax.tree.map(spread, arrays))))


def in_batches(
  items: Sequence[T],
  function: Callable[[list[T]], Sequence[Any]],
  batch_size: int,
  *,
  size: Callable[[T], int] | None = None,
  watched: Watched = iter,
) -> Iterator[tuple[T, Any]]:
  """Yields each item with its output, in the order of the items.

  Args:
    items: texts, pairs of token ids, ...
    function: returns the outputs of a batch. Each batch has `batch_size` items, so that all have one compiled program:
      the last one is filled with its last item.
    batch_size: items per batch.
    size: the size of an item. Batches then have items of similar size, and little padding.
    watched: wraps the iterable of batches.
  """
  order, outputs, position = list(range(len(items))), dict[int, Any](), 0
  if size is not None:
    order.sort(key=lambda i: size(items[i]))
  for start in watched(range(0, len(order), batch_size)):
    batch = order[start : start + batch_size]
    padded = [*batch, *[batch[-1]] * (batch_size - len(batch))]
    outputs |= zip(batch, function([items[i] for i in padded]), strict=False)
    while position in outputs:
      yield items[position], outputs.pop(position)
      position += 1


def predict(
  model: object,
  rows: Sequence[Mapping[str, Any]],
  transform: Transform | None,
  function: Callable[[Any, Mapping[str, jax.Array]], Any],
  batch_size: int,
  watched: Watched = iter,
) -> Iterator[tuple[Mapping[str, Any], Any]]:
  """Yields each row with its output.

  Args:
    model: the model with its parameters.
    rows: prepared rows of a task.
    transform: the task's transform for evaluation.
    function: `(model, batch) -> outputs`, traced once: the outputs are a tree of arrays [batch, ...].
    batch_size: rows per batch. The last batch is padded with rows of zeros, whose outputs are not returned.
    watched: wraps the iterable of batches.
  """
  compiled, batches = jax.jit(runs_model(function)), evaluation_batches(rows, transform, batch_size)
  for number in watched(range(len(batches))):
    outputs = on_devices(compiled, model, batches[number])
    start = number * batch_size
    for row in range(min(batch_size, len(rows) - start)):
      yield rows[start + row], jax.tree.map(lambda a, row=row: np.asarray(a)[row], outputs)
