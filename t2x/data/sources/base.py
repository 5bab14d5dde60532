"""What a source of raw examples is."""

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

# `text`, or `source` and `target`: str; or `image`: uint8 [height, width, channels] and `label`: int.
# Labelled text: `text` and `label`: str; `words` and `labels`: lists of str; `question` and `context`:
# str, with `answers` (list of str) and `starts` (their first characters' places in the context).
Example = dict[str, Any]


class Examples(Sequence[Example]):
  """Examples that are made when they are read."""

  @abc.abstractmethod
  def label_values(self) -> set[Any] | None:
    """The values that `label` may have; None where only reading every example would tell."""


def label_values(examples: Sequence[Example]) -> set[Any] | None:
  """The values of `label` in examples; None where they cannot be told without much reading."""
  if isinstance(examples, Examples):
    return examples.label_values()
  if isinstance(examples, list):
    return {_scalar(example['label']) for example in examples if 'label' in example}
  return None


def _scalar(label: Any) -> Any:
  return label.item() if isinstance(label, np.generic | np.ndarray) else label


@runtime_checkable
class Source(Protocol):
  """Raw examples by split. Ours are frozen dataclasses: equal settings, equal sources."""

  def splits(self) -> tuple[str, ...]:
    """Names of the splits."""
    ...

  def load(self, split: str) -> Sequence[Example]:
    """A split's examples, read at random."""
    ...

  def fingerprint(self) -> str:
    """Changes when the settings or the content do; a change of place is none."""
    ...

  def describe(self) -> str:
    """One line for people: the class and the settings that are not the default."""
    fields: dict[str, dataclasses.Field] = getattr(self, '__dataclass_fields__', {})
    set_here = [
      f'{field.name}={_told(getattr(self, field.name))}'
      for field in fields.values()
      if getattr(self, field.name) != _default_of(field)
    ]
    return f'{type(self).__name__}({", ".join(set_here)})'


def _told(value: Any) -> str:
  return value.__name__ if isinstance(value, types.FunctionType) else repr(value)


def _default_of(field: dataclasses.Field) -> Any:
  factory: Any = field.default_factory
  return field.default if factory is dataclasses.MISSING else factory()


@dataclasses.dataclass(frozen=True)
class NoSource(Source):
  """What a task has whose config sets no source: it generates, and is neither trained nor evaluated."""

  def splits(self) -> tuple[str, ...]:
    """None."""
    return ()

  def load(self, split: str) -> Sequence[Example]:
    """Raises UserError: there is nothing to load."""
    raise UserError("the task has no examples: set its 'source'")

  def fingerprint(self) -> str:
    """Of nothing."""
    return 'no source'


def require_split(source: Source, split: str) -> None:
  """Raises a UserError that tells the splits there are unless `split` is one of them."""
  if split not in source.splits():
    known = ', '.join(source.splits())
    raise UserError(f"no split '{split}' in {source.describe()}: it has {known}")


def with_progress(items: Sequence, what: str) -> Iterable:
  """The items, with a progress bar on stderr where that is a terminal."""
  return track(items, what, console=console(), transient=True, disable=not sys.stderr.isatty())
