"""Exact match and F1 of an answer's words as SQuAD's official script computes them
(evaluate-v2.0.py; https://arxiv.org/abs/1806.03822), as fractions.

Where neither answer is empty after normalisation that is what the script of version 1.1
(https://arxiv.org/abs/1606.05250) gives too.
"""

import collections
import re
import string
from collections.abc import Sequence


def normalise(answer: str) -> str:
  """Lower case, without punctuation, articles and superfluous white space."""
  lower = ''.join(c for c in answer.lower() if c not in string.punctuation)
  return ' '.join(re.sub(r'\b(a|an|the)\b', ' ', lower).split())


def exact_match(prediction: str, answers: Sequence[str]) -> float:
  """1 where the prediction is one of the answers, normalised; else 0."""
  return float(normalise(prediction) in map(normalise, _gold(answers)))


def word_f1(prediction: str, answers: Sequence[str]) -> float:
  """The best F1 of the prediction's words over the answers."""
  return max(_f1(normalise(prediction).split(), normalise(one).split()) for one in _gold(answers))


def _gold(answers: Sequence[str]) -> Sequence[str]:
  """The answers that are more than articles and punctuation; a question without has the empty one."""
  return [answer for answer in answers if normalise(answer)] or ['']


def _f1(predicted: list[str], gold: list[str]) -> float:
  if not predicted or not gold:
    return float(predicted == gold)
  common = sum((collections.Counter(predicted) & collections.Counter(gold)).values())
  return 2 * common / (len(predicted) + len(gold))
