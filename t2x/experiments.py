"""Experiments from config files: the parts that configs can name, and readers of config files."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from t2x import config as config_lib
from t2x.base.errors import UserError
from t2x.base.names import packages

if TYPE_CHECKING:
  from t2x.train import Experiment

# The packages whose public names config files may use. A package is imported when a config names a part of it.
PACKAGES = packages()
# Exported functions with side effects (downloads, files, connections), which configs must not call.
SIDE_EFFECTS = ('connect', 'fetch', 'inspect_batches', 'train')

# Settings in which a config may differ from that of the run that it resumes: they do not change results.
_IGNORED = ('Experiment.trainer.max_minutes: ',)


def read_config(
  files: Sequence[str | Path | config_lib.GinText],
  overrides: Sequence[str] = (),
  *,
  base: config_lib.Config | None = None,
  folders: Sequence[str] | None = None,
  root: str = 'Experiment',
  overriding: Sequence[str] = (),
) -> config_lib.Config:
  """Reads gin files and checks every value, without building anything.

  Args:
    files: paths of gin files or generated gin texts, read in order.
    overrides: `NAME=VALUE` each; they override the files.
    base: a config whose parts the files may replace.
    folders: search folders of modules that the files import; None: the folders of the files.
    root: the part to build, such as `@MLP`.
    overriding: those of the files that override scoped bindings of other files, as `overrides` do.

  Raises:
    UserError: one line per error, each with file and line.
  """
  try:
    return config_lib.load(
      files,
      overrides,
      PACKAGES,
      root,
      base,
      without=SIDE_EFFECTS,
      folders=folders,
      overriding=overriding,
    )
  except UserError:
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
    sides = config_lib.resolved(own), config_lib.resolved(config)
    for path, before, after in config_lib.differences(*sides):
      if path.startswith('Experiment.mup'):
        raise UserError(
          f'{path} = {before} in {folder}/config.gin, which overrides cannot change to {after}: the model would '
          'compute other logits from the same parameters'
        )
  return config


def resolve(path: Path, overrides: Sequence[str] = ()) -> config_lib.Resolved:
  """Returns what a gin file or the config of a run resolves to.

  Without overrides, that of a run is what it resolved to when the run was trained, whatever its code is today.

  Raises:
    UserError: one line per error.
  """
  if not path.is_dir():
    return config_lib.resolved(read_config([path], overrides))
  recorded = None if overrides else config_lib.read_resolved(path)
  return recorded or config_lib.resolved(read_config([path / 'config.gin'], overrides))


def changed_settings(
  config: config_lib.Config, data: Callable[[], Mapping[str, str]], file: Path
) -> list[str]:
  """Returns a line per setting, module or source of data that changes results and differs from that of a run.

  Args:
    config: the config to train.
    data: returns the fingerprints of its sources (see `data_of`).
    file: the config.gin of the run.

  Raises:
    UserError: the file cannot be read.
  """
  before = config_lib.read_resolved(file.parent, config.used.sources)
  if before is None:
    # A run of an older version. The project may have moved: modules are searched in the folders of the new config.
    before = config_lib.resolved(read_config([file], folders=config.folders))
  now = config_lib.resolved(config)
  if before.data:
    now = dataclasses.replace(now, data=data())
  lines = config_lib.change_lines(config_lib.differences(before, now))
  return [line for line in lines if not line.startswith(_IGNORED)]


def record_run(folder: Path, config: config_lib.Config, data: Mapping[str, str]) -> None:
  """Writes into a run folder what its config resolves to, with the digests of code and data, and copies of the user's
  modules."""
  content = dataclasses.replace(config_lib.resolved(config), data=data)
  config_lib.write_resolved(folder, content, config.used.imported)


def data_of(experiment: 'Experiment', cache: dict[str, str] | None = None) -> dict[str, str]:
  """Returns the fingerprint of each source that an experiment trains on or evaluates with, by its settings.

  Returns {} if a source cannot be read; training then reports the error.

  Args:
    experiment: the experiment.
    cache: earlier fingerprints, to which this call adds new fingerprints.
  """
  cache = {} if cache is None else cache
  tasks = [experiment.task, *(item.task for item in experiment.evaluations.values())]
  parts = [part for task in tasks if task is not None for part in task.parts.values()]
  sources = {part.source.describe(): part.source for part in parts}
  try:
    cache |= {name: source.fingerprint() for name, source in sources.items() if name not in cache}
  except UserError:
    return {}
  return {name: cache[name] for name in sources}


def binds_sweep(file: str | Path) -> bool:
  """Returns True if a gin file is a sweep file."""
  return any(map(is_sweep_binding, config_lib.parse_files([file]).statements))


def is_sweep_binding(statement: config_lib.Statement) -> bool:
  """Returns True for a binding of `Sweep`."""
  return statement.name == 'Sweep' and not statement.is_macro
