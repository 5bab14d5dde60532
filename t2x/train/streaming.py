"""Saving a model that never is in memory as a whole: one array after the other."""

import dataclasses
import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import orbax.checkpoint as ocp
from orbax.checkpoint import type_handlers

from t2x.train.checkpoints import nest
from t2x.train.checksums import write_checksums

__all__ = ['Lazy', 'save_streamed']


@dataclasses.dataclass(frozen=True)
class Lazy:
  """An array that is made when its turn comes to be written.

  Attributes:
    shape: of the array.
    dtype: of the array.
    make: gives it, in the sharding in which it is to be made.
  """

  shape: tuple[int, ...]
  dtype: Any
  make: Callable[[], jax.Array]


class _OneByOne(type_handlers.ArrayHandler):
  """Writes each array to its end before the next one is made."""

  async def serialize(
    self, values: Sequence[Lazy], infos: Sequence[Any], args: Sequence[Any] | None = None
  ) -> Sequence[Any]:
    for value, info, arg in zip(values, infos, args or [None] * len(values), strict=True):
      for written in await super().serialize([value.make()], [info], arg and [arg]):
        written.result()
    return []


def save_streamed(folder: Path, arrays: Mapping[str, Lazy], extra: Mapping[str, Any]) -> None:
  """Writes a checkpoint of step 0 that `Checkpoints` reads; it is there whole or not at all.

  Args:
    folder: of the checkpoints.
    arrays: by name, as `model/embedding/table`.
    extra: as in `Checkpoints.save`.
  """
  folder = folder.absolute()
  folder.mkdir(parents=True, exist_ok=True)
  temporary = folder / 'streamed.tmp'
  shutil.rmtree(temporary, ignore_errors=True)
  about = {'extra': dict(extra), 'metrics': None, 'best': ['loss', 'min']}
  about['arrays'] = {name: list(lazy.shape) for name, lazy in arrays.items()}
  registry = type_handlers.create_type_handler_registry((Lazy, _OneByOne()))
  handlers = ocp.CompositeCheckpointHandler(
    state=ocp.PyTreeCheckpointHandler(type_handler_registry=registry),
    about=ocp.JsonCheckpointHandler(),
  )
  args = ocp.args.Composite(
    state=ocp.args.PyTreeSave(nest(arrays)),
    about=ocp.args.JsonSave(json.loads(json.dumps(about, default=float))),
  )
  try:
    with ocp.Checkpointer(handlers) as writer:
      writer.save(temporary, args=args)
    write_checksums(temporary)
    temporary.rename(folder / '0')
  finally:
    shutil.rmtree(temporary, ignore_errors=True)
