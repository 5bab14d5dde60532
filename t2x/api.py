"""Python API for notebooks and other programs: reads configs and loads trained models."""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from t2x.base.errors import UserError
from t2x.experiments import read_config, read_experiment, read_run_config
from t2x.loaded import Loaded, load_model_folder, load_run
from t2x.parallel import Processes

__all__ = ['load', 'read_config', 'read_experiment']


def load(
  path: str | Path,
  *,
  checkpoint: Literal['best', 'last'] | int = 'last',
  overrides: Sequence[str] = (),
  processes: Processes | None = None,
  batch_size: int | None = None,
) -> Loaded:
  """Loads a trained model.

  Args:
    path: a run folder, or a Hugging Face model folder (config.json, safetensors).
    checkpoint: 'best', 'last' or a step of a run.
    overrides: `NAME=VALUE` each; they override the config of a run.
    processes: the processes of a distributed program; None: a single process.
    batch_size: rows per evaluation batch; None: the trainer's batch size, or 32 without a trainer.

  Raises:
    UserError: the folder is neither of these, or is damaged.
  """
  folder = Path(path)
  if (folder / 'config.gin').exists():
    experiment = read_run_config(folder, overrides).build()
    return load_run(folder, experiment, checkpoint, processes, batch_size)
  if not (folder / 'config.json').exists():
    raise UserError(
      f'{folder} is neither a run folder (no config.gin) nor a model folder (no config.json)'
    )
  if checkpoint != 'last' or overrides:
    raise UserError(
      f'{folder} is a Hugging Face model folder without checkpoints and config.gin: omit checkpoint '
      'and overrides'
    )
  return load_model_folder(folder, processes)
