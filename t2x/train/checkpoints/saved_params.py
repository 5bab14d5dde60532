"""Saved parameters of a run, without the rest of the train state.

Frozen parameters, including those of a teacher, are saved once for all checkpoints, in `checkpoints/frozen`.
"""

import functools
import json
import shutil
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from t2x.base.errors import UserError
from t2x.base.files import find_damage, write_checksums
from t2x.train.checkpoints.names import read_renamed, saved_names
from t2x.train.checkpoints.store import Checkpoints
from t2x.train.groups import Groups, join_rows
from t2x.train.params import TEACHER, Params

# For each frozen parameter: frozen indices of its stacked dimension (null for all), and its full shape.
_ROWS = 'rows.json'


def save_frozen(checkpoints: Checkpoints, groups: Groups, frozen: Params) -> None:
  """Saves the frozen parameters of a new run, and removes those of an earlier attempt."""
  folder = checkpoints.folder / 'frozen'
  temporary = folder.with_name('frozen.tmp')
  if jax.process_index() == 0:
    for old in (folder, temporary):
      shutil.rmtree(old, ignore_errors=True)
  if not frozen:
    return
  checkpoints.orbax.write_arrays(temporary, frozen)
  if jax.process_index() == 0:
    rows = {}
    for name, array in frozen.items():
      indices = groups.frozen_rows(name)
      rows[name] = [indices, array.shape if indices is None else groups.infos[name].shape]
    (temporary / _ROWS).write_text(json.dumps(rows))
    write_checksums(temporary)
    temporary.rename(folder)


def restore_frozen(checkpoints: Checkpoints, abstract: Params) -> Params:
  """Reads the frozen parameters of a run, with the shapes and shardings of `abstract`.

  Raises:
    UserError: they are missing, corrupt, or those of another config.
  """
  if not abstract:
    return {}
  folder, saved = _frozen(checkpoints)
  if saved_names(saved).keys() != abstract.keys():
    raise UserError(
      f'{folder} does not have the frozen parameters of this config: use --fresh to train from the start'
    )
  return read_renamed(functools.partial(checkpoints.orbax.read_arrays, folder), abstract, saved)


def _frozen(checkpoints: Checkpoints) -> tuple[Any, dict[str, Any]]:
  """Returns the folder of the frozen parameters and the content of `_ROWS`; {} if none are frozen.

  Raises:
    UserError: the folder is corrupt.
  """
  folder = checkpoints.folder / 'frozen'
  if not folder.is_dir():
    return folder, {}
  if (damage := find_damage(folder)) is not None:
    raise UserError(f'{folder} is corrupt ({damage}): use --fresh to train from the start')
  return folder, json.loads((folder / _ROWS).read_text())


class SavedParams:
  """All parameters of a model in one checkpoint, trained and frozen.

  Args:
    checkpoints: the checkpoints of the run.
    step: step of an intact checkpoint.
    use_ema: reads the moving average if the run has one.

  Attributes:
    shapes: full shape of each parameter by name; without the parameters of a teacher.
    averaged: whether the parameters are the moving average.
  """

  def __init__(self, checkpoints: Checkpoints, step: int, use_ema: bool = True):
    self.checkpoints, self.step = checkpoints, step
    arrays = checkpoints.about(step)['arrays']
    self.averaged = use_ema and any(name.startswith('ema.') for name in arrays)
    self._prefix = 'ema.' if self.averaged else 'params.'
    self._folder, self._saved = _frozen(checkpoints)
    rows = {name: self._saved[old] for name, old in saved_names(self._saved).items()}
    self._rows = {name: row for name, row in rows.items() if not name.startswith(TEACHER)}
    self.shapes = {
      name.removeprefix(self._prefix): tuple(shape)
      for name, shape in arrays.items()
      if name.startswith(self._prefix)
    }
    self.shapes |= {name: tuple(shape) for name, (_, shape) in self._rows.items()}

  def read(self, abstract: Mapping[str, jax.ShapeDtypeStruct]) -> Params:
    """Reads only the parameters in `abstract`, with its dtypes and shardings."""
    trained = {name: leaf for name, leaf in abstract.items() if name not in self._rows}
    frozen = {name: leaf for name, leaf in abstract.items() if self._rows.get(name, [0])[0] is None}
    params = self._trained_arrays(trained) | self._frozen_arrays(frozen)
    for name in abstract.keys() - params.keys():
      params[name] = self._joined(name, abstract[name])
    return {name: params[name] for name in abstract}

  def _trained_arrays(self, abstract: Mapping[str, Any]) -> Params:
    named = {self._prefix + name: leaf for name, leaf in abstract.items()}
    arrays = self.checkpoints.read(self.step, named) if named else {}
    return {name.removeprefix(self._prefix): array for name, array in arrays.items()}

  def _frozen_arrays(self, abstract: Mapping[str, Any]) -> Params:
    if not abstract:
      return {}
    read = functools.partial(self.checkpoints.orbax.read_arrays, self._folder)
    return read_renamed(read, abstract, self._saved)

  def _joined(self, name: str, abstract: jax.ShapeDtypeStruct) -> jax.Array:
    """Reads a stacked parameter of which some layers are frozen."""
    shape = tuple(self.checkpoints.about(self.step)['arrays'][self._prefix + name])
    axis = next(i for i, size in enumerate(shape) if size != abstract.shape[i])
    frozen = np.array(self._rows[name][0])
    trained = np.setdiff1d(np.arange(abstract.shape[axis]), frozen)

    def part(read, indices):
      part_shape = (*shape[:axis], len(indices), *shape[axis + 1 :])
      return indices, read({name: jax.ShapeDtypeStruct(part_shape, abstract.dtype)})[name]

    parts = part(self._trained_arrays, trained), part(self._frozen_arrays, frozen)
    array = join_rows(*parts, axis=axis)
    return array if abstract.sharding is None else jax.device_put(array, abstract.sharding)
