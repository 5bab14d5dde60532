"""Load of experts: distribution of the tokens of groups of rows, such as languages, over the experts of each layer."""

import dataclasses
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float

from t2x.data.sources.subset import spread
from t2x.layers.composites import replace_parts
from t2x.look.anatomy import sides
from t2x.models import Stages
from t2x.tasks import Task
from t2x.tasks.prediction import predict

__all__ = ['ExpertLoad', 'load_of_input', 'load_of_rows', 'records_load']

LOAD = frozenset({'load'})


@dataclasses.dataclass(frozen=True)
class ExpertLoad:
  """The share of the choices of a group of rows that each expert of a layer receives; padding has none.

  Attributes:
    name: 'layer 2', 'encoder, layer 2'; followed by the name of the sublayer if it is not the usual one.
    groups: names of the groups.
    shares: the shares, which add up to 1 for each group with tokens.
  """

  name: str
  groups: tuple[str, ...]
  shares: Float[np.ndarray, 'groups experts']

  def joined(self, other: 'ExpertLoad') -> 'ExpertLoad':
    """Returns the load of the groups of both."""
    shares = np.concatenate([self.shares, other.shares])
    return ExpertLoad(self.name, self.groups + other.groups, shares)


def records_load(model: object) -> bool:
  """Returns whether a layer of the model has experts whose load it records."""
  return any('load' in part.body.recordable for part in sides(model).values())


def load_of_input(model: object, recorded: Mapping[str, np.ndarray]) -> tuple[ExpertLoad, ...]:
  """Returns the load of the rows of an input, as one group, from the arrays that its outputs recorded."""
  return tuple(
    ExpertLoad(name, ('input',), _shares(load.sum(axis=0, keepdims=True)))
    for name, load in _layers(model, recorded)
  )


def load_of_rows(
  model: object,
  task: Task,
  rows: Mapping[str, Sequence[Mapping[str, Any]]],
  num_rows: int,
  batch_size: int,
) -> tuple[ExpertLoad, ...]:
  """Returns the load of evenly sampled rows of each task of a mixture; of a single task, of each row.

  Args:
    model: the model with its parameters.
    task: the task of the run.
    rows: prepared rows of each of `task.parts`.
    num_rows: maximum number of rows of each task.
    batch_size: rows per batch.
  """
  results: dict[str, list[tuple[str, np.ndarray]]] = {}
  for name, part in task.parts.items():

    def loads(model, batch, part=part):
      copy, recorded = _recording(model)
      part.sums(copy, batch, None)
      return {key: np.moveaxis(load, 0, 1) for key, load in recorded.items()}

    indices = spread(min(num_rows, len(rows[name])), len(rows[name]))
    chosen = [rows[name][i] for i in indices]
    outputs = predict(model, chosen, part.transform(train=False), loads, batch_size)
    of_rows = [output for _, output in outputs]
    recorded = {key: np.stack([row[key] for row in of_rows], axis=1) for key in of_rows[0]}
    for layer, load in _layers(model, recorded):
      by_group = load.sum(axis=0, keepdims=True) if name else load
      groups = [name] if name else [f'row {i + 1}' for i in indices]
      results.setdefault(layer, []).extend(zip(groups, by_group, strict=True))
  return tuple(
    ExpertLoad(layer, tuple(group for group, _ in pairs), _shares(np.stack([n for _, n in pairs])))
    for layer, pairs in results.items()
  )


def _recording(model: Any) -> tuple[Any, dict[str, Any]]:
  """Returns a copy of a model whose method `hidden` keeps the recorded load of its experts, and the dict with it."""
  recorded: dict[str, Any] = {}

  def hidden(*args: Any, record: frozenset[str] = frozenset(), **settings: Any) -> Any:
    out = model.hidden(*args, record=record | LOAD, **settings)
    recorded.update({name: a for name, a in out.recorded.items() if name.endswith('.load')})
    return out

  return replace_parts(model, hidden=hidden), recorded


def _layers(
  model: object, recorded: Mapping[str, np.ndarray]
) -> Iterator[tuple[str, Float[np.ndarray, 'batch experts']]]:
  """Yields the load of the experts of each layer with the name of the layer, first layer first."""
  found = []
  for key, array in recorded.items():
    match = re.fullmatch(
      r'(?:(encoder|decoder)\.)?(?:stages\.(\d+)\.)?blocks\.(\d+)\.(.+)\.load', key
    )
    if match is None:
      continue
    side, stage, block, sublayer = match[1] or '', int(match[2] or 0), int(match[3]), match[4]
    stack: Any = sides(model)[side].body.stack
    stack = stack.stages[stage] if isinstance(stack, Stages) else stack
    for repeat, load in enumerate(array):
      number = stack.first_layer + repeat * len(stack.blocks) + block + 1
      name = f'{side}, layer {number}' if side else f'layer {number}'
      name += '' if sublayer == 'feed_forward' else f' ({sublayer})'
      found.append(((side == 'decoder', number), name, np.asarray(load, np.float32)))
  for _, name, load in sorted(found, key=lambda item: item[0]):
    yield name, load


def _shares(load: np.ndarray) -> Float[np.ndarray, 'groups experts']:
  return load / np.maximum(load.sum(axis=-1, keepdims=True), 1)
