"""Exact match and word F1 of answers, as in SQuAD's official script (evaluate-v2.0.py;
https://arxiv.org/abs/1806.03822), as fractions.

The script of version 1.1 (https://arxiv.org/abs/1606.05250) gives the same values if neither answer is
empty after normalisation.
"""

import collections
import re
import string
from collections.abc import Sequence


def normalise(answer: str) -> str:
  """Converts to lower case; removes punctuation, articles and superfluous white space."""
  lower = ''.join(c for c in answer.lower() if c not in string.punctuation)
  return ' '.join(re.sub(r'\b(a|an|the)\b', ' ', lower).split())


def exact_match(prediction: str, answers: Sequence[str]) -> float:
  """Returns 1 if the prediction equals one of the answers after normalisation, else 0."""
  return float(normalise(prediction) in map(normalise, _references(answers)))


def word_f1(prediction: str, answers: Sequence[str]) -> float:
  """Returns the F1 of the prediction's words against the best-matching answer."""
  return max(
    _f1(normalise(prediction).split(), normalise(answer).split()) for answer in _references(answers)
  )


def _references(answers: Sequence[str]) -> Sequence[str]:
  """Returns the answers that are not empty after normalisation; without any, the empty answer."""
  return [answer for answer in answers if normalise(answer)] or ['']


def _f1(predicted: list[str], gold: list[str]) -> float:
  if not predicted or not gold:
    return float(predicted == gold)
  common = sum((collections.Counter(predicted) & collections.Counter(gold)).values())
  return 2 * common / (len(predicted) + len(gold))
