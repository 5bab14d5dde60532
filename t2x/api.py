"""Python API to read configs and load runs, for notebooks, the command line and sweeps."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from t2x import config as config_lib
from t2x.base.errors import UserError

if TYPE_CHECKING:
  from t2x.loaded import Loaded
  from t2x.parallel import Processes
  from t2x.train import Experiment

# The packages whose public names config files may use.
PACKAGES = tuple(
  f't2x.{name}' for name in ('layers', 'models', 'data', 'tasks', 'decode', 'parallel', 'train')
)
# Exported functions with side effects (downloads, files, connections), which configs must not call.
SIDE_EFFECTS = ('connect', 'draw_patterns', 'fetch', 'inspect_batches', 'train')


def read_config(
  files: Sequence[str | Path | config_lib.GinText],
  overrides: Sequence[str] = (),
  *,
  base: config_lib.Config | None = None,
  folders: Sequence[str] | None = None,
  root: str = 'Experiment',
) -> config_lib.Config:
  """Reads gin files and checks every value, without building anything.

  Args:
    files: paths of gin files or generated gin texts, read in order.
    overrides: `NAME=VALUE` each; they override the files.
    base: a config whose parts the files may replace.
    folders: search folders of modules that the files import; None: the folders of the files.
    root: the part to build, such as `@MLP`.

  Raises:
    UserError: one line per error, each with file and line.
  """
  try:
    return config_lib.load(
      files, overrides, PACKAGES, root, base, without=SIDE_EFFECTS, folders=folders
    )
  except UserError:
    from t2x.sweeps.sweep import binds_sweep

    for file in files:
      if not isinstance(file, config_lib.GinText) and binds_sweep(file):
        raise UserError(
          f'{file} is a sweep file: `t2x sweep {file}` runs it, `t2x check {file}` checks it'
        ) from None
    raise


def registry(modules: Sequence[str] = ()) -> config_lib.Registry:
  """Returns the parts that configs can name.

  Args:
    modules: modules whose parts are added, in the current folder or installed.

  Raises:
    UserError: a module cannot be imported.
  """
  return config_lib.registry(PACKAGES, SIDE_EFFECTS, modules)


def read_experiment(
  files: Sequence[str | Path | config_lib.GinText], overrides: Sequence[str] = ()
) -> 'Experiment':
  """Builds the experiment that gin files describe.

  Args:
    files: paths of gin files or generated gin texts, read in order.
    overrides: `NAME=VALUE` each; they override the files.

  Raises:
    UserError: one line per error, each with file and line.
  """
  return read_config(files, overrides).build()


def read_run_config(folder: Path, overrides: Sequence[str] = ()) -> config_lib.Config:
  """Reads the config of a run, with overrides.

  Raises:
    UserError: one line per error; or an override changes `Experiment.mup`, which scales the logits of the trained
      parameters.
  """
  config = read_config([folder / 'config.gin'], overrides)
  if overrides:
    own = read_config([folder / 'config.gin'])
    for path, before, after in config_lib.differences(own, config):
      if path.startswith('Experiment.mup'):
        raise UserError(
          f'{path} = {before} in {folder}/config.gin, which overrides cannot change to {after}: the model would '
          'compute other logits from the same parameters'
        )
  return config


def load(
  path: str | Path,
  *,
  checkpoint: Literal['best', 'last'] | int = 'last',
  overrides: Sequence[str] = (),
  processes: 'Processes | None' = None,
  batch_size: int | None = None,
) -> 'Loaded':
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
  from t2x.loaded import load_model_folder, load_run

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
