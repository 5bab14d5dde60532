"""Masked language modelling in several languages and translation language modelling (XLM,
https://arxiv.org/abs/1901.07291, section 3)."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, ClassVar

from t2x.base.errors import UserError
from t2x.base.ranges import Natural, NonEmpty, Text
from t2x.data import ParallelTexts
from t2x.tasks.masked_lm import MaskedLM

__all__ = ['MaskedTranslations']


@dataclasses.dataclass(frozen=True, kw_only=True)
class MaskedTranslations(MaskedLM):
  """Predicts the masked tokens of a text, or of a text and its translation, which see each other.

  The type of a token is its language, whose vector is added to that of the token, and positions start anew in the
  translation. A mixture of such tasks learns several languages; `ProportionalWeights` draws them. Masks of prompts are
  filled in language 0.

  Attributes:
    packing: makes the rows, called with the tokens per row and the languages.
    languages: field -> number of its language, of one field (masked language modelling) or two (translation language
      modelling).
    predicted: languages whose tokens are masked and predicted; None: all.
  """

  packing: Callable[..., ParallelTexts] = ParallelTexts  # type: ignore[assignment]
  languages: Annotated[Mapping[Text, Natural], NonEmpty]
  predicted: Annotated[Sequence[Natural], NonEmpty] | None = None

  data_fields: ClassVar[frozenset[str]] = MaskedLM.data_fields | {'languages', 'predicted'}
  has_types: ClassVar[bool] = True

  def __post_init__(self):
    if self.pieces is not None:
      raise UserError(
        'MaskedTranslations does not sample segmentations: leave out MaskedTranslations.pieces'
      )
    for language in self.predicted or ():
      if language not in self.languages.values():
        raise UserError(
          f'MaskedTranslations.predicted has the language {language}, but MaskedTranslations.languages has only '
          f'{", ".join(map(str, self.languages.values()))}'
        )

  @property
  def plan(self):
    return self.packing(self.length, dict(self.languages))

  def texts_of(self, example):
    """Returns the texts of the fields; the tokenizer is trained on them."""
    return {name: example[name] for name in self.languages}

  @property
  def masks(self):
    types = None if self.predicted is None else tuple(self.predicted)
    return dataclasses.replace(super().masks, types=types)

  def spec(self, batch_size):
    """Returns the arrays of `MaskedLM` and types: int32 [batch, length]."""
    spec = super().spec(batch_size)
    return spec | {'types': spec['tokens']}

  def check_model(self, model):
    """Also raises UserError if the embedding has no vector of a language."""
    super().check_model(model)
    needed = 1 + max(self.languages.values())
    if model.spec.num_types < needed:
      raise UserError(
        f'MaskedTranslations.languages needs {needed} languages, but the embedding of @{type(model).__name__} has '
        f'{model.spec.num_types} types: set TokenEmbedding.num_types = {needed}'
      )
