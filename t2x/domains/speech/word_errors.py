"""Word error rate of transcriptions."""

import dataclasses
import re
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from t2x.base.errors import UserError
from t2x.base.packages import imported
from t2x.base.ranges import Text
from t2x.tasks.base import Task
from t2x.tasks.captions import Captions
from t2x.tasks.evaluators import NUM_SAMPLES, Evaluation
from t2x.tasks.translation_scores import GeneratedTargets

__all__ = ['WordErrors', 'plain_words']


def plain_words(text: str) -> str:
  """Returns a text in lower case, with a space in place of each sequence of punctuation and white space."""
  kept = (c if unicodedata.category(c)[0] in 'LNM' or c == "'" else ' ' for c in text.lower())
  return re.sub(r' +', ' ', ''.join(kept)).strip()


@dataclasses.dataclass(frozen=True, kw_only=True)
class WordErrors(GeneratedTargets):
  """Computes the word and the character error rate of generated texts with jiwer: insertions, deletions and
  substitutions per word or character of the references; and the fraction of exact matches.

  Attributes:
    normalise: function of a text, applied to outputs and references, such as `plain_words`. None: texts are compared as
      they are.
    by: field of the examples, such as 'language': also reports the word error rate of each of its values. None: none.
  """

  packages: ClassVar[tuple[str, ...]] = ('jiwer',)

  normalise: Callable[[str], str] | None = None
  by: Text | None = None

  kinds: ClassVar[tuple[type[Task], ...]] = (Captions,)

  def _score(self, pairs, outputs):
    jiwer, clean = imported('jiwer', 'WordErrors'), self.normalise or str
    references, texts = [clean(pair['target']) for pair in pairs], [clean(o) for o in outputs]
    if not all(map(str.split, references)):
      raise UserError('WordErrors: an example has a target without words')
    exact = np.array([o == r for o, r in zip(texts, references, strict=True)], float)
    metrics = {
      'examples': float(len(pairs)),
      'word_error_rate': float(jiwer.wer(references, texts)),
      'character_error_rate': float(jiwer.cer(references, texts)),
      'exact_match': float(exact.mean()),
    }
    for value, indices in self._groups(pairs).items():
      own = ([lines[i] for i in indices] for lines in (references, texts))
      metrics[f'word_error_rate/{value}'] = float(jiwer.wer(*own))
    samples = [
      {'target': pair['target'], 'output': output}
      for pair, output in list(zip(pairs, outputs, strict=True))[:NUM_SAMPLES]
    ]
    return Evaluation(metrics, samples, examples={'exact_match': exact})

  def _groups(self, pairs: Sequence[Mapping[str, Any]]) -> dict[str, list[int]]:
    """Returns the indices of the examples with each value of the field `by`."""
    groups: dict[str, list[int]] = {}
    if self.by is None:
      return groups
    for i, pair in enumerate(pairs):
      if self.by not in pair:
        raise UserError(
          f"WordErrors.by = '{self.by}': the examples have no such field, but {', '.join(pair)}"
        )
      groups.setdefault(str(pair[self.by]), []).append(i)
    return dict(sorted(groups.items()))
