"""Reads and writes the files of checkpoints with Orbax; imported by `Checkpoints.orbax` only."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
from jax.sharding import SingleDeviceSharding

from t2x.train.checkpoints.retention import Retention

Abstract = Mapping[str, jax.ShapeDtypeStruct]
Arrays = dict[str, jax.Array]


def open_manager(
  folder: Path, retention: Retention, finish: Callable[[], None]
) -> ocp.CheckpointManager:
  """Creates a manager of the checkpoints in a folder, and removes incomplete checkpoints.

  Args:
    folder: folder of the checkpoints.
    retention: decides which checkpoints are kept.
    finish: called in a thread of Orbax when all files of a checkpoint are written, before it is renamed.
  """
  options = ocp.CheckpointManagerOptions(
    preservation_policy=retention,
    cleanup_tmp_directories=True,
    async_options=ocp.AsyncOptions(post_finalization_callback=finish),
  )
  return ocp.CheckpointManager(folder, options=options)


def save(
  manager: ocp.CheckpointManager, step: int, state: Mapping[str, Any], about: Mapping[str, Any]
) -> None:
  """Starts an asynchronous save of arrays by name, and of JSON-compatible metadata."""
  items = {'state': ocp.args.StandardSave(dict(state)), 'about': ocp.args.JsonSave(dict(about))}
  manager.save(step, args=ocp.args.Composite(**items), force=True)


def read_about(folder: Path) -> dict[str, Any]:
  """Reads the metadata of a checkpoint."""
  return _read_items(folder, about=ocp.args.JsonRestore()).about


def read_state(folder: Path, abstract: Abstract) -> Arrays:
  """Reads only the arrays in `abstract` of a checkpoint, with its dtypes and shardings."""
  return _read_items(folder, state=_partial(abstract)).state


def _read_items(folder: Path, **items: object) -> Any:
  reader = ocp.Checkpointer(ocp.CompositeCheckpointHandler())
  return reader.restore(folder, args=ocp.args.Composite(**items))


def write_arrays(folder: Path, arrays: Mapping[str, jax.Array]) -> None:
  """Writes arrays by name to a folder of their own."""
  with ocp.StandardCheckpointer() as writer:
    writer.save(folder, dict(arrays))


def read_arrays(folder: Path, abstract: Abstract) -> Arrays:
  """Reads only the arrays in `abstract` of `write_arrays`, with its dtypes and shardings."""
  reader = ocp.Checkpointer(ocp.PyTreeCheckpointHandler())
  return reader.restore(folder, args=_partial(abstract))


def _partial(abstract: Abstract) -> ocp.args.PyTreeRestore:
  """Returns the arguments with which Orbax reads only the arrays in `abstract`."""
  targets = {name: target_of(leaf) for name, leaf in abstract.items()}
  types = ocp.checkpoint_utils.construct_restore_args(targets)
  return ocp.args.PyTreeRestore(targets, types, partial_restore=True)


def target_of(leaf: jax.Array | np.ndarray | jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
  """Returns the shape, dtype and sharding that Orbax restores to; by default on the first local device."""
  sharding = getattr(leaf, 'sharding', None) or SingleDeviceSharding(jax.local_devices()[0])
  return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)
