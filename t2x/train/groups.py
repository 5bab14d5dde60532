"""Groups of parameters that are frozen or have other learning rates."""

import dataclasses
import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import jax.numpy as jnp
import numpy as np

from t2x.base.errors import UserError
from t2x.base.ranges import Positive, Text
from t2x.base.text_table import text_table
from t2x.train.params import ParamInfo, Params
from t2x.train.schedules import Schedule

__all__ = ['Group', 'LayerDecay', 'LayerRate']


@runtime_checkable
class LayerRate(Protocol):
  """Learning rate factor as a function of the layer."""

  def __call__(self, layer: int, num_layers: int) -> float:
    """Returns the factor of a layer, which is counted from 0."""


@dataclasses.dataclass(frozen=True)
class LayerDecay(LayerRate):
  """Layer-wise decay of the learning rate.

  The factor of layer i of L, counted from 0, is top * decay^(L - 1 - i) (Howard and Ruder 2018,
  https://arxiv.org/abs/1801.06146, section 3.2).

  Attributes:
    decay: ratio between the factors of a layer and the layer above it.
    top: factor of the last layer.
  """

  decay: Positive
  top: Positive = 1.0

  def __call__(self, layer: int, num_layers: int) -> float:
    return self.top * self.decay ** (num_layers - 1 - layer)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Group:
  """Parameters that are frozen or have another learning rate.

  Attributes:
    match: regular expression that must match the full parameter name ('embedding.*', '.*bias').
    layers: (first, end) of the layers of the stack, as in a Python slice: (0, 6) selects the first six
      layers, (-2, None) the last two. None selects all layers and parameters outside stacks.
    rate: a number multiplies the learning rate; a LayerRate such as @LayerDecay() computes the number for
      each layer; a Schedule replaces Trainer.schedule.
    frozen: keeps the initial values. Frozen parameters have no gradient and no optimizer state, and do not
      count in the gradient norm.
  """

  match: Text
  layers: tuple[int, int | None] | None = None
  rate: Positive | Schedule | LayerRate = 1.0
  frozen: bool = False

  def __post_init__(self):
    check_pattern('Group.match', self.match)
    if self.frozen and self.rate != 1.0:
      raise UserError(
        f'Group.rate has no effect on the frozen parameters of Group.match = {self.match!r}: remove one'
      )

  def rows(self, info: ParamInfo) -> np.ndarray | None:
    """Returns the indices of the stacked dimension that are in the group; None for the whole parameter.

    Raises:
      UserError: `layers` is set, and layers share the parameter.
    """
    if self.layers is None:
      return None
    if info.layers is None:
      return np.zeros(0, int)
    if any(len(users) > 1 for users in info.layers):
      raise UserError(
        f'Group.layers = {self.layers}: layers share the parameter {info.name}: remove Group.layers'
      )
    chosen = range(info.num_layers)[slice(*self.layers)]
    return np.array([i for i, (layer,) in enumerate(info.layers) if layer in chosen], int)


def _layer(info: ParamInfo, row: int) -> int:
  """Returns the layer that uses a row of a stacked parameter."""
  (layer, *others) = (info.layers or ((0,),))[row]
  if others:
    raise UserError(f'Group.rate: layers share the parameter {info.name}: set the rate to a number')
  return layer


Rate = float | np.ndarray | Schedule


class Groups:
  """Assigns each parameter, or each layer of a stacked parameter, to the first group that matches it.

  Args:
    groups: groups in order of precedence.
    infos: metadata of all parameters by name.

  Attributes:
    trained: metadata of the trained parameters; of a partly frozen parameter, that of the trained layers.
    ruled: metadata of the parameters that rules move, as for `trained`.
    frozen: metadata of the frozen parameters; of a partly frozen parameter, that of the frozen layers.
    rates: factor of the learning rate (a number, or an array that broadcasts to the trained part), or
      the schedule that replaces it; parameters with factor 1 are omitted.

  Raises:
    UserError: a group without effect, layers that do not exist or are shared, or no trained parameter.
  """

  def __init__(self, groups: Sequence[Group], infos: Mapping[str, ParamInfo]):
    self.infos, self._groups = dict(infos), tuple(groups)
    # Index of the group of each row (0-d if no layers are stacked); -1 for no group.
    self._group_indices = {
      name: np.full(len(info.layers) if info.layers else (), -1) for name, info in infos.items()
    }
    for number, group in enumerate(groups):
      self._assign(number, group)
    self.trained: dict[str, ParamInfo] = {}
    self.ruled: dict[str, ParamInfo] = {}
    self.frozen: dict[str, ParamInfo] = {}
    self._rows: dict[str, tuple[np.ndarray, np.ndarray]] = {}
    for name, info in infos.items():
      is_frozen = np.array([n >= 0 and groups[n].frozen for n in self._group_indices[name].ravel()])
      own = self.trained if info.rule is None else self.ruled
      if not is_frozen.any():
        own[name] = info
      elif is_frozen.all():
        self.frozen[name] = info
      else:
        rows = np.flatnonzero(~is_frozen), np.flatnonzero(is_frozen)
        self._rows[name] = rows
        own[name], self.frozen[name] = map(info.rows, rows)
    if not self.trained:
      raise UserError(
        'Trainer.groups freezes every parameter: leave at least one parameter to train'
      )
    self.rates = {name: rate for name in self.trained if (rate := self._rate(name)) is not None}

  def _assign(self, number: int, group: Group) -> None:
    matching = [info for name, info in self.infos.items() if re.fullmatch(group.match, name)]
    if not matching:
      raise no_match_error('Group.match', group.match, 'parameter of the model', self.infos)
    count = 0
    for info in matching:
      rows = group.rows(info)
      free = self._group_indices[info.name] < 0
      if rows is not None:
        free &= np.isin(np.arange(free.size), rows) if free.ndim else False
      if free.any() and callable(group.rate) and not info.layers:
        raise UserError(
          f'Group.rate = {group.rate}: {info.name} is not in a layer: put it in a group with a number'
        )
      # Rates have no effect on parameters that rules move.
      count += int(free.sum()) if group.frozen or info.rule is None else 0
      self._group_indices[info.name][free] = number
    if not count:
      where = '' if group.layers is None else f' in layers {group.layers}'
      raise UserError(
        f'Group.match = {group.match!r} has no effect: earlier groups match all of its parameters{where}, '
        'rules move them, or there are none; change or remove it'
      )

  def _rate(self, name: str) -> Rate | None:
    info, numbers = self.trained[name], self._group_indices[name]
    if name in self._rows:
      numbers = numbers[self._rows[name][0]]
    rates = [self._groups[n].rate if n >= 0 else 1.0 for n in numbers.ravel()]
    schedules = [rate for rate in rates if isinstance(rate, Schedule)]
    if schedules:
      if any(rate != schedules[0] for rate in rates):
        raise UserError(
          f'Group.rate: layers of {name} have different schedules: set the same schedule for all'
        )
      return schedules[0]
    factors = [
      rate if isinstance(rate, (int, float)) else rate(_layer(info, row), info.num_layers)
      for row, rate in enumerate(rates)
    ]
    if all(factor == 1.0 for factor in factors):
      return None
    if len(set(factors)) == 1:
      return float(factors[0])
    following = len(info.shape) - 1 - info.layer_axis
    return np.array(factors, np.float32).reshape(-1, *[1] * following)

  @property
  def in_state(self) -> dict[str, ParamInfo]:
    """Metadata of the parameters of a train state: trained parameters, and parameters moved by rules."""
    return self.trained | self.ruled

  def split(self, params: Mapping[str, Any]) -> tuple[Params, Params]:
    """Splits all parameters into the parameters of the train state and the frozen parameters."""
    trained = {name: params[name] for name in self.in_state}
    frozen = {name: params[name] for name in self.frozen}
    for name, (trained_rows, frozen_rows) in self._rows.items():
      at = (slice(None),) * self.infos[name].layer_axis
      trained[name] = params[name][*at, trained_rows]
      frozen[name] = params[name][*at, frozen_rows]
    return trained, frozen

  def frozen_rows(self, name: str) -> list[int] | None:
    """Returns the frozen indices of the stacked dimension; None if all of the parameter is frozen."""
    return self._rows[name][1].tolist() if name in self._rows else None

  def join(self, trained: Mapping[str, Any], frozen: Mapping[str, Any]) -> Params:
    """Merges trained and frozen parameters; the inverse of `split`."""
    params = {name: (trained if name in trained else frozen)[name] for name in self.infos}
    for name, (trained_rows, frozen_rows) in self._rows.items():
      parts = (trained_rows, trained[name]), (frozen_rows, frozen[name])
      params[name] = join_rows(*parts, axis=self.infos[name].layer_axis)
    return params

  def table(self) -> str:
    """Returns a table with the parameters, trained parameters and learning rates of each layer."""
    lines: dict[tuple[str, int], list[Any]] = {}
    for name, info in self.infos.items():
      stack, separator, _ = name.partition('.blocks.')
      rows = info.layers or ((-1,),)
      for row, users in enumerate(rows):
        number = self._group_indices[name].ravel()[row]
        group = self._groups[number] if number >= 0 else Group(match='x')
        place = (stack if separator else name.partition('.')[0], users[0])
        line = lines.setdefault(place, [0, 0, []])
        size = info.size // len(rows)
        line[0] += size
        line[1] += 0 if group.frozen else size
        rate = group.rate
        if callable(rate):
          rate = rate(users[0], info.num_layers)
        text = 'frozen' if group.frozen else _rate_text(rate)
        if text not in line[2]:
          line[2].append(text)
    cells = [('', 'parameters', 'trained', 'learning rate')]
    for part in dict.fromkeys(part for part, _ in lines):
      for layer in sorted(layer for name, layer in lines if name == part):
        size, trained, rates = lines[part, layer]
        label = part if layer < 0 else f'{part}, layer {layer}'
        cells.append((label, f'{size:,}', f'{trained:,}', ', '.join(rates)))
    return text_table(cells, '<>><')


def _rate_text(rate: float | Schedule) -> str:
  return str(rate) if isinstance(rate, Schedule) else f'x {rate:.4g}'


def join_rows(*parts: tuple[np.ndarray, Any], axis: int = 0) -> Any:
  """Merges parts of a stacked array, each (ascending indices, rows at these indices of the dimension `axis`)."""
  indices, rows = zip(*sorted(parts, key=lambda part: part[0][0]), strict=True)
  array, order = jnp.concatenate(rows, axis), np.concatenate(indices)
  # No gather if the parts are in order already.
  return array if (np.diff(order) > 0).all() else array.take(np.argsort(order), axis)


def check_pattern(where: str, pattern: str) -> None:
  """Raises UserError if the pattern of the setting `where` is not a regular expression."""
  try:
    re.compile(pattern)
  except re.error as error:
    raise UserError(f'{where}: {pattern!r} is not a regular expression: {error}') from error


def no_match_error(where: str, pattern: str, target: str, names: Iterable[str]) -> UserError:
  """Returns the error for a pattern without a match, with the most similar names.

  Args:
    where: the setting that has the pattern.
    pattern: the regular expression.
    target: what the pattern is matched with, such as 'parameter of the model'.
    names: names of the possible matches.
  """
  plain = pattern.replace('.*', '').replace('\\', '')
  similar = difflib.get_close_matches(plain, list(names), 3, 0.0)
  return UserError(
    f'{where}: {pattern!r} matches no {target}; the most similar are {", ".join(similar)}'
  )
