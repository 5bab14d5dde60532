"""Interface of sources of raw examples."""

import abc
import dataclasses
import sys
import types
from collections.abc import Iterable, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np
from rich.progress import track

from t2x.errors import UserError
from t2x.terminal import console

# Text: `text`, or `source` and `target`: str. Images: `image`: uint8 [height, width, channels] and
# `label`: int. Labelled text: `text` and `label`: str; `words` and `labels`: lists of str;
# `question` and `context`: str, with `answers` (list of str) and `starts` (their offsets).
Example = dict[str, Any]


class Examples(Sequence[Example]):
  """Examples that are created when they are read."""

  @abc.abstractmethod
  def label_values(self) -> set[Any] | None:
    """Returns the possible values of `label`; None if this would require reading all examples."""


def label_values(examples: Sequence[Example]) -> set[Any] | None:
  """Returns the values of `label` in examples; None if this would require reading all of them."""
  if isinstance(examples, Examples):
    return examples.label_values()
  if isinstance(examples, list):
    return {_scalar(example['label']) for example in examples if 'label' in example}
  return None


def _scalar(label: Any) -> Any:
  return label.item() if isinstance(label, np.generic | np.ndarray) else label


@runtime_checkable
class Source(Protocol):
  """Raw examples by split. Sources are frozen dataclasses, equal if their settings are equal."""

  def splits(self) -> tuple[str, ...]:
    """Returns the names of the splits."""
    ...

  def load(self, split: str) -> Sequence[Example]:
    """Returns the examples of a split, with random access."""
    ...

  def fingerprint(self) -> str:
    """Returns a string that identifies the settings and the content, but not the location."""
    ...

  def describe(self) -> str:
    """Returns one line for messages: the class and the settings that differ from their defaults."""
    fields: dict[str, dataclasses.Field] = getattr(self, '__dataclass_fields__', {})
    settings = [
      f'{field.name}={_setting_text(getattr(self, field.name))}'
      for field in fields.values()
      if getattr(self, field.name) != _default_of(field)
    ]
    return f'{type(self).__name__}({", ".join(settings)})'


def _setting_text(value: Any) -> str:
  if isinstance(value, Source):
    return value.describe()
  return value.__name__ if isinstance(value, types.FunctionType) else repr(value)


def _default_of(field: dataclasses.Field) -> Any:
  factory: Any = field.default_factory
  return field.default if factory is dataclasses.MISSING else factory()


@dataclasses.dataclass(frozen=True)
class NoSource(Source):
  """Source of a task whose config sets none: it can generate, but not train or evaluate."""

  def splits(self) -> tuple[str, ...]:
    """Returns no names."""
    return ()

  def load(self, split: str) -> Sequence[Example]:
    """Raises a UserError."""
    raise UserError("the task has no examples: set its 'source'")

  def fingerprint(self) -> str:
    """Returns a constant."""
    return 'no source'


def require_split(source: Source, split: str) -> None:
  """Raises a UserError that lists the splits unless `split` is one of them."""
  if split not in source.splits():
    names = ', '.join(source.splits())
    raise UserError(f"no split '{split}' in {source.describe()}: must be one of {names}")


def with_progress(items: Sequence, description: str) -> Iterable:
  """Returns the items, with a progress bar if stderr is a terminal."""
  return track(
    items, description, console=console(), transient=True, disable=not sys.stderr.isatty()
  )
