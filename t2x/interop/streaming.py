"""Saving a model that never is in memory as a whole, nor any of its arrays."""

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

from t2x.arrays import Lazy
from t2x.files import write_checksums
from t2x.train.checkpoints import FORMAT, quiet_orbax

# Bytes that are read and written at once, and that a process reads back at least.
PIECE = 1 << 26


class _PieceByPiece(type_handlers.NumpyHandler):
  """Writes one piece of one array after the other."""

  def __init__(self):
    super().__init__(deepcopy_host_arrays=False)
    # Orbax asks for all arrays at once.
    self._one_array = asyncio.Lock()

  async def _open_and_write(self, value: Any, tspec: Any, ts_context: Any) -> None:
    async with self._one_array:
      await self._write(value, tspec, ts_context)

  async def _write(self, value: Any, tspec: Any, ts_context: Any) -> None:
    store = await tensorstore.open(
      tensorstore.Spec(tspec), create=True, open=True, context=ts_context
    )
    whole = tuple(slice(0, size) for size in value.shape)
    if not whole:
      await store.write(value.read(whole))
      return
    row = value.size // value.shape[0] * np.dtype(value.dtype).itemsize
    chunk = (store.chunk_layout.write_chunk.shape or (1,))[0] or 1
    rows = chunk * max(1, PIECE // max(1, row * chunk))
    for start in range(0, value.shape[0], rows):
      stop = min(start + rows, value.shape[0])
      await store[start:stop].write(value.read((slice(start, stop), *whole[1:])))


def save_streamed(folder: Path, arrays: Mapping[str, Lazy], extra: Mapping[str, Any]) -> None:
  """Writes a checkpoint of step 0 that `Checkpoints` reads; it is there whole or not at all.

  Args:
    folder: of the checkpoints.
    arrays: by name, as `params.embedding.table`.
    extra: as in `Checkpoints.save`.
  """
  quiet_orbax()
  folder = folder.absolute()
  folder.mkdir(parents=True, exist_ok=True)
  temporary = folder / 'streamed.tmp'
  shutil.rmtree(temporary, ignore_errors=True)
  about = {'extra': dict(extra), 'best': ['loss', 'min'], 'format': FORMAT}
  about['arrays'] = {name: list(lazy.shape) for name, lazy in arrays.items()}
  registry = type_handlers.create_type_handler_registry((Lazy, _PieceByPiece()))
  handlers = ocp.CompositeCheckpointHandler(
    state=ocp.PyTreeCheckpointHandler(type_handler_registry=registry),
    about=ocp.JsonCheckpointHandler(),
  )
  tree = dict(arrays)

  def cut(lazy: Lazy) -> ocp.SaveArgs:
    # Along the first dimension, which is that of the layers.
    return ocp.SaveArgs(chunk_byte_size=PIECE, shard_axes=(0,) if lazy.shape else ())

  args = ocp.args.Composite(
    state=ocp.args.PyTreeSave(tree, save_args=jax.tree.map(cut, tree)),
    about=ocp.args.JsonSave(json.loads(json.dumps(about, default=float))),
  )
  try:
    with ocp.Checkpointer(handlers) as writer:
      writer.save(temporary, args=args)
    write_checksums(temporary)
    temporary.rename(folder / '0')
  finally:
    for left in folder.glob('streamed.tmp*'):
      shutil.rmtree(left)
