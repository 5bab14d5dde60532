"""Words of texts that a masked language model fills in (VideoBERT's classification of videos by the words of a caption:
Sun et al. 2019, https://arxiv.org/abs/1904.01766, section 4.2)."""

import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from t2x.base.errors import UserError
from t2x.base.ranges import Size, Text
from t2x.models.ranks import choice
from t2x.tasks.base import Task
from t2x.tasks.evaluators import Evaluation, TaskEvaluator
from t2x.tasks.fill_mask import fill_masks
from t2x.tasks.masked_lm import MASK, MaskedLM

__all__ = ['Cloze']

# Number of filled texts that are stored per evaluation.
_NUM_SAMPLES = 5


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cloze(TaskEvaluator):
  """Masks some words of each text and computes the accuracy of the likeliest token for each: NAME of a word, and `all`
  of the texts whose words are all right. A word is wrong if another token is as likely, or a probability is NaN.

  Attributes:
    pattern: regular expression of a text whose named groups are the words, each one token: 'a (?P<digit>\\w+) moves'.
    batch_size: texts per batch.
  """

  pattern: Text
  batch_size: Size = 64

  kinds: ClassVar[tuple[type[Task], ...]] = (MaskedLM,)

  def __post_init__(self):
    try:
      names = list(re.compile(self.pattern).groupindex)
    except re.error as error:
      raise UserError(
        f'Cloze.pattern = {self.pattern!r} is no regular expression: {error}'
      ) from error
    if not names:
      raise UserError(
        f"Cloze.pattern = {self.pattern!r} has no named group: write '(?P<NAME>\\w+)' for a word"
      )

  def __call__(self, evaluated):
    """Returns the accuracies.

    Raises:
      UserError: a text does not match the pattern, or a word is not one token.
    """
    task = evaluated.task
    examples, hits = self._examples(task), []
    pairs = [self._masked(examples[i]['text'], task) for i in range(len(examples))]
    samples = []
    starts = range(0, len(pairs), self.batch_size)
    for start in evaluated.watched(starts):
      chosen = pairs[start : start + self.batch_size]
      prompts = [prompt for prompt, _ in chosen]
      answers = fill_masks(evaluated.model(), task.fitted, prompts, 2, task.token_marks)
      for (prompt, words), answer in zip(chosen, answers, strict=True):
        hits.append([_is(word, mask) for word, mask in zip(words, answer['masks'], strict=True)])
        samples.append({'prompt': prompt, 'output': answer['text']})
    of_words = np.array(hits, float)
    examples_of = dict(zip(self._names, of_words.T, strict=True)) | {'all': of_words.min(axis=1)}
    metrics = {'examples': float(len(pairs))}
    metrics |= {name: float(values.mean()) for name, values in examples_of.items()}
    return Evaluation(metrics, samples[:_NUM_SAMPLES], examples=examples_of)

  @property
  def _names(self) -> list[str]:
    """The names of the words, in the order of the pattern."""
    groups = re.compile(self.pattern).groupindex
    return sorted(groups, key=lambda name: groups[name])

  def _masked(self, text: str, task: MaskedLM) -> tuple[str, list[int]]:
    """Returns the text with masks, and the ids of the masked words."""
    match = re.search(self.pattern, text)
    if match is None:
      raise UserError(f'Cloze.pattern = {self.pattern!r} does not match the text {text!r}')
    ids = []
    for name in self._names:
      own = task.fitted.encode(match[name])
      if len(own) != 1:
        raise UserError(f'{match[name]!r} is {len(own)} tokens, but Cloze masks words of one token')
      ids += own
    for name in reversed(self._names):
      start, end = match.span(name)
      text = text[:start] + MASK + text[end:]
    return text, ids


def _is(word: int, tokens: Sequence[Mapping[str, Any]]) -> bool:
  """Returns whether a word is the likeliest token of a mask."""
  likeliest = int(choice(np.array([token['probability'] for token in tokens])))
  return likeliest >= 0 and tokens[likeliest]['id'] == word
