"""Rules that mark tokens of texts for patterns such as `Or(Window(64), Marked('starts'))`."""

import abc
import dataclasses
import types
from collections.abc import Collection, Mapping, Sequence
from typing import Annotated

from t2x.base.errors import UserError
from t2x.base.ranges import NonEmpty, Text
from t2x.data import Tokenizer
from t2x.data.tokenizers.base import ids_with
from t2x.layers.marks import MarkFunction, Marks, TokenMark
from t2x.layers.patterns.algebra import mark_names
from t2x.models import Model

__all__ = ['MarkRule', 'MarkStarts', 'MarkTexts']


class MarkRule(abc.ABC):
  """Decides which tokens of a text are marked, from each token and the token before it."""

  @abc.abstractmethod
  def function(self, tokenizer: Tokenizer) -> MarkFunction:
    """Returns the marks of token ids, as an immutable, hashable function."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class MarkStarts(MarkRule):
  """Marks the first token of each text, and each token after one whose text contains one of `after`.

  Attributes:
    after: texts, by default the end of a line.
  """

  after: Annotated[Sequence[Text], NonEmpty] = ('\n',)

  def function(self, tokenizer):
    """Returns the marks of the tokens after those with these texts."""
    return TokenMark(ids_with(tokenizer, tuple(self.after), 'MarkStarts.after'), after=True)


@dataclasses.dataclass(frozen=True, kw_only=True)
class MarkTexts(MarkRule):
  """Marks each token whose text contains one of `texts`.

  Attributes:
    texts: texts, by default the ends of sentences.
  """

  texts: Annotated[Sequence[Text], NonEmpty] = ('.', '!', '?')

  def function(self, tokenizer):
    """Returns the marks of the tokens with these texts."""
    return TokenMark(ids_with(tokenizer, tuple(self.texts), 'MarkTexts.texts'))


# The rules of tasks that set no marks.
NO_RULES: Mapping[str, MarkRule] = types.MappingProxyType({})


def marks_of(rules: Mapping[str, MarkRule], tokenizer: Tokenizer | None) -> Marks:
  """Returns the marks of rules by name; without a fitted tokenizer no token is marked."""
  none = TokenMark(())
  functions = (none if tokenizer is None else rule.function(tokenizer) for rule in rules.values())
  return Marks(tuple(zip(rules, functions, strict=True)))


def check_marks(model: Model, names: Collection[str], task: str) -> None:
  """Raises UserError if no pattern of the model reads a mark that a task sets.

  Args:
    model: the model or its shapes.
    names: names of the marks.
    task: name of the task.
  """
  read = {name for pattern in model.spec.patterns for name in mark_names(pattern)}
  for name in names:
    if name == 'prefix':
      raise UserError(f"{task}.marks cannot set 'prefix', which PrefixLM sets: use another name")
    if name not in read:
      raise UserError(
        f"{task}.marks sets '{name}', which no attention pattern of the model reads: leave it out, or add "
        f"Marked('{name}') to a pattern"
      )
