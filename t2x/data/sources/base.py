"""Interface of sources of raw examples."""

import abc
import dataclasses
import sys
import types
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Protocol, runtime_checkable

import numpy as np
from rich.progress import track

from t2x.base.errors import UserError
from t2x.base.terminal import console

__all__ = ['Example', 'Source', 'label_values']

# Text: `text`, or `source` and `target`: str. Captions: `source`: uint8 [height, width, channels] and
# `target`: str. Images: `image`: uint8 [height, width, channels] and `label`: int. Labelled text: `text`
# and `label`: str; `words` and `labels`: lists of str; `question` and `context`: str, with `answers` (list
# of str) and `starts` (their offsets). Pictures with questions: `image`, `question`, `answer`; with masks: `image` and
# `mask`, integers [height, width].
Example = dict[str, Any]


class Examples(Sequence[Example]):
  """Examples that are created when they are read."""

  def label_values(self) -> set[Any] | None:
    """Returns the possible values of `label`; None if this would require reading all examples."""
    return None

  def names(self) -> list[str]:
    """Returns the name of each example, such as the path of its file; empty if the examples have none."""
    return []


class BulkExamples(Examples):
  """Examples of which several are read at once, in less time than one by one."""

  # Number of examples to read at once in iteration.
  chunk: ClassVar[int] = 256

  @abc.abstractmethod
  def read(self, indices: Sequence[int]) -> Iterable[Example]:
    """Yields the examples at `indices`, each at least 0 and below the number of examples."""

  def __getitem__(self, index):
    """Returns the example at `index`; a negative index counts from the end. A slice is a list."""
    if isinstance(index, slice):
      return list(self.read(range(*index.indices(len(self)))))
    [example] = self.read([range(len(self))[index]])
    return example

  def __iter__(self):
    for start in range(0, len(self), self.chunk):
      yield from self.read(range(start, min(start + self.chunk, len(self))))


def in_range(examples: Sequence[Any], part: range) -> Iterator[Any]:
  """Yields the examples of a range, several read at once where the examples can."""
  for start in range(part.start, part.stop, BulkExamples.chunk):
    yield from read_at(examples, range(start, min(start + BulkExamples.chunk, part.stop)))


def read_at(examples: Sequence[Any], indices: Sequence[int]) -> Iterable[Any]:
  """Returns the examples at indices, read at once where the examples can."""
  if isinstance(examples, BulkExamples):
    return examples.read(indices)
  return (examples[i] for i in indices)


def example_names(examples: object) -> list[str]:
  """Returns the names of examples or rows; empty if they have none."""
  return examples.names() if isinstance(examples, Examples) else []


def label_values(examples: Sequence[Example]) -> set[Any] | None:
  """Returns the values of `label` in examples; None if this would require reading all of them."""
  if isinstance(examples, Examples):
    return examples.label_values()
  if isinstance(examples, list):
    return {_scalar(example['label']) for example in examples if 'label' in example}
  return None


def _scalar(label: object) -> Any:
  return label.item() if isinstance(label, np.generic | np.ndarray) else label


@runtime_checkable
class Source(Protocol):
  """Raw examples by split. Sources are frozen dataclasses, equal if their settings are equal."""

  def splits(self) -> tuple[str, ...]:
    """Returns the names of the splits."""
    ...

  def load(self, split: str) -> Sequence[Example]:
    """Returns the examples of a split: picklable, with random access and slices."""
    ...

  def fingerprint(self) -> str:
    """Returns a string that identifies the settings and the content, but not the location."""
    ...

  def describe(self) -> str:
    """Returns one line for messages: the class and the settings that differ from their defaults."""
    fields: tuple[dataclasses.Field, ...] = (
      dataclasses.fields(self) if dataclasses.is_dataclass(self) else ()
    )
    settings = [
      f'{field.name}={_setting_text(getattr(self, field.name))}'
      for field in fields
      if getattr(self, field.name) != _default_of(field)
    ]
    return f'{type(self).__name__}({", ".join(settings)})'


class FileBacked(Source):
  """A source of which rows are prepared from local files, which `t2x data verify` compares."""

  @abc.abstractmethod
  def files(self) -> list[Path]:
    """Returns the files of all splits."""


def _setting_text(value: object) -> str:
  if isinstance(value, Source):
    return value.describe()
  return value.__name__ if isinstance(value, types.FunctionType) else repr(value)


def _default_of(field: dataclasses.Field) -> Any:
  factory = field.default_factory
  return field.default if factory is dataclasses.MISSING else factory()


@runtime_checkable
class ClassSource(Source, Protocol):
  """A source whose labels are numbers of named classes."""

  def class_names(self) -> Sequence[str]:
    """Returns the names of the classes in the order of the labels."""
    ...


def origins(source: Source | None) -> Iterator[Source]:
  """Yields a source, and the sources that its examples come from, outermost first."""
  while source is not None:
    yield source
    source = getattr(source, 'source', None)


def class_names(source: Source) -> Sequence[str]:
  """Returns the names of the classes of a source in the order of the labels; empty if it has none."""
  sources = (inner for inner in origins(source) if isinstance(inner, ClassSource))
  return next((inner.class_names() for inner in sources), ())


@dataclasses.dataclass(frozen=True)
class NoSource(Source):
  """Source of a task whose config sets none: it can generate, but not train or evaluate."""

  def splits(self) -> tuple[str, ...]:
    return ()

  def load(self, split: str) -> Sequence[Example]:
    raise UserError("the task has no examples: set its 'source'")

  def fingerprint(self) -> str:
    return 'no source'


# Sets of fields that a record can have, identified by their first field.
KINDS = (
  ('source', 'target'),
  ('question', 'context'),
  ('words', 'labels'),
  ('text',),
  ('image', 'label'),
)
# Fields that are not text; tasks check them.
NO_TEXT = ('words', 'labels', 'label', 'answers', 'starts', 'image', 'captions')


def select(record: dict[str, Any], fields: Mapping[str, str], source: str) -> Example:
  """Returns a record with its fields renamed; without `fields`, unchanged.

  Raises:
    UserError: a field is missing, or is not text.
  """
  required = fields
  if not fields:
    kind = next((names for names in KINDS if names[0] in record), ('text',))
    required = {name: name for name in kind}
  for ours, name in required.items():
    # The source of a caption is an image.
    if name not in record or not (ours in NO_TEXT or isinstance(record[name], str | np.ndarray)):
      problem = f'it has {", ".join(map(repr, record))}' if name not in record else 'it is not text'
      what = 'a value' if ours in NO_TEXT else 'text'
      raise UserError(
        f"needs {what} in the field '{name}', but {problem}; {source}.fields renames fields"
      )
  return {ours: record[name] for ours, name in fields.items()} if fields else record


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
