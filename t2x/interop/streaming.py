"""Saving of models larger than memory, one piece of an array at a time."""

import asyncio
import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
import tensorstore
from orbax.checkpoint import type_handlers

from t2x.base.files import write_checksums
from t2x.layers.arrays import Lazy
from t2x.train.checkpoints.store import FORMAT, quiet_orbax

# Bytes per read and write, and size of a checkpoint chunk.
PIECE = 1 << 26


class _StreamingHandler(type_handlers.NumpyHandler):
  """Writes arrays one piece at a time, one array at a time."""

  def __init__(self):
    super().__init__(deepcopy_host_arrays=False)
    # Orbax writes all arrays concurrently.
    self._array_lock = asyncio.Lock()

  async def _open_and_write(self, value: Lazy, tspec: dict[str, Any], ts_context: Any) -> None:
    async with self._array_lock:
      await self._write(value, tspec, ts_context)

  async def _write(self, value: Lazy, tspec: dict[str, Any], ts_context: Any) -> None:
    store = await tensorstore.open(
      tensorstore.Spec(tspec), create=True, open=True, context=ts_context
    )
    index = tuple(slice(0, size) for size in value.shape)
    if not index:
      await store.write(value.read(index))
      return
    row = value.size // value.shape[0] * np.dtype(value.dtype).itemsize
    chunk = (store.chunk_layout.write_chunk.shape or (1,))[0] or 1
    rows = chunk * max(1, PIECE // max(1, row * chunk))
    for start in range(0, value.shape[0], rows):
      stop = min(start + rows, value.shape[0])
      await store[start:stop].write(value.read((slice(start, stop), *index[1:])))


def save_streamed(folder: Path, arrays: Mapping[str, Lazy], extra: Mapping[str, Any]) -> None:
  """Writes a checkpoint of step 0 for `Checkpoints` atomically.

  Args:
    folder: the folder of the checkpoints.
    arrays: name -> array, such as `params.embedding.table`.
    extra: see `Checkpoints.save`.
  """
  quiet_orbax()
  folder = folder.absolute()
  folder.mkdir(parents=True, exist_ok=True)
  temporary = folder / 'streamed.tmp'
  shutil.rmtree(temporary, ignore_errors=True)
  about = {'extra': dict(extra), 'best': ['loss', 'min'], 'format': FORMAT}
  about['arrays'] = {name: list(lazy.shape) for name, lazy in arrays.items()}
  registry = type_handlers.create_type_handler_registry((Lazy, _StreamingHandler()))
  handlers = ocp.CompositeCheckpointHandler(
    state=ocp.PyTreeCheckpointHandler(type_handler_registry=registry),
    about=ocp.JsonCheckpointHandler(),
  )
  tree = dict(arrays)

  def save_args(lazy: Lazy) -> ocp.SaveArgs:
    # Chunks along the first dimension, the dimension of stacked layers.
    return ocp.SaveArgs(chunk_byte_size=PIECE, shard_axes=(0,) if lazy.shape else ())

  args = ocp.args.Composite(
    state=ocp.args.PyTreeSave(tree, save_args=jax.tree.map(save_args, tree)),
    about=ocp.args.JsonSave(json.loads(json.dumps(about, default=float))),
  )
  try:
    with ocp.Checkpointer(handlers) as writer:
      writer.save(temporary, args=args)
    write_checksums(temporary)
    temporary.rename(folder / '0')
  finally:
    for partial in folder.glob('streamed.tmp*'):
      shutil.rmtree(partial)
