"""Tasks of the domains in model folders: `t2x/domains/X/interop.py` lists them as TASK_FILES."""

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from t2x.base.names import domain_modules
from t2x.layers import InputKind


@dataclasses.dataclass(frozen=True)
class TaskFiles:
  """Files and fields of a model folder for the task of encoder-decoders whose source is not text.

  Attributes:
    kind: kind of the source.
    task: class of the task.
    settings: `(folder, model, tokenizer, fields, notes) -> gin`, the settings of the task of an imported model.
    write: `(task, folder) -> fields`, writes the files of the task and returns its fields of config.json.
  """

  kind: InputKind
  task: type
  settings: Callable[[Path, Any, Any, Mapping[str, Any], list[str]], str]
  write: Callable[[Any, Path], dict[str, Any]]


def task_files() -> list[TaskFiles]:
  """Returns the task files of all domains."""
  return [files for module in domain_modules('interop') for files in module.TASK_FILES]
