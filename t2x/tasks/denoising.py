"""Denoising: an encoder-decoder restores a corrupted text (BART: Lewis et al. 2020, https://arxiv.org/abs/1910.13461)."""

import dataclasses
from collections.abc import Sequence
from typing import Annotated, ClassVar

from t2x.base.ranges import NonEmpty, Range
from t2x.data import Chain, ConcatenateAndSplit, CorruptText, InfillSpans, Noise, PermuteSentences
from t2x.tasks.translation import SourceTargetTask

__all__ = ['Denoising']


@dataclasses.dataclass(frozen=True, kw_only=True)
class Denoising(SourceTargetTask):
  """Predicts a row of text from a corrupted one.

  Documents are concatenated and split into rows; ends of documents are ordinary tokens. The default is BART's final
  corruption: permuted sentences, then infilled spans.

  Attributes:
    length: tokens of the source and of the target, including eos.
    noise: corruptions in the order of application, such as [@PermuteSentences(), @InfillSpans()].
  """

  length: Annotated[int, Range('2 <= x')]
  noise: Annotated[Sequence[Noise], NonEmpty] = (PermuteSentences(), InfillSpans())

  data_fields: ClassVar[frozenset[str]] = SourceTargetTask.data_fields | {'noise'}

  @property
  def lengths(self):
    """Tokens of both sides, including eos."""
    return {'source': self.length, 'target': self.length}

  @property
  def plan(self):
    """Rows of concatenated documents without padding."""
    return ConcatenateAndSplit(self.planned(self.length - 1))

  def transform(self, *, train):
    """Returns the transform that corrupts rows; evaluation uses a fixed seed and so fixed corruptions."""
    corrupt = CorruptText(tokenizer=self.fitted, noise=tuple(self.noise), length=self.length)
    first = self.resegment({'tokens': self.length - 1}, train)
    return corrupt if first is None else Chain((first, corrupt))
