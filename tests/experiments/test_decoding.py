"""Measures of generated text against their formulas."""

import collections
import math
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / 'experiments' / 'decoding'


@pytest.fixture
def measures(monkeypatch):
  monkeypatch.syspath_prepend(str(FOLDER))
  import measures

  yield measures
  sys.modules.pop('measures')


def test_repetition_counts_ngrams_that_occur_earlier_in_the_same_text(measures):
  # Bigrams 12, 23, 31, 12, 23: two are repeated. The second text repeats none, and shares 12 with the first.
  assert measures.repetition([[1, 2, 3, 1, 2, 3], [1, 2]], n=2) == pytest.approx(2 / 6)
  assert measures.repetition([[1, 2]], n=4) == 0


def test_distinct_counts_ngrams_of_all_texts_once(measures):
  assert measures.distinct([[1, 2, 3, 1, 2, 3], [1, 2]], n=2) == pytest.approx(3 / 6)
  assert measures.distinct([[1, 1], [1, 2]], n=1) == pytest.approx(2 / 4)


def bleu(text, references):
  """BLEU of Papineni et al. 2002 with clipped counts and the closest reference length; no precision may be 0."""
  logs = []
  for n in range(1, 5):
    own, best = (collections.Counter() for _ in range(2))
    own.update(tuple(text[i : i + n]) for i in range(len(text) - n + 1))
    for reference in references:
      best |= collections.Counter(
        tuple(reference[i : i + n]) for i in range(len(reference) - n + 1)
      )
    logs.append(math.log((own & best).total() / own.total()))
  closest = min((abs(len(r) - len(text)), len(r)) for r in references)[1]
  brevity = min(0.0, 1 - closest / len(text))
  return 100 * math.exp(sum(logs) / 4 + brevity)


def test_self_bleu_is_the_mean_bleu_of_each_text_by_the_others(measures):
  texts = [[1, 2, 3, 4, 5, 6], [1, 2, 3, 4, 5, 7, 8, 9], [9, 2, 3, 4, 5, 6, 6]]
  wanted = [bleu(text, texts[:i] + texts[i + 1 :]) for i, text in enumerate(texts)]
  assert measures.self_bleu(texts) == pytest.approx(sum(wanted) / 3, rel=1e-6)
  assert measures.self_bleu([[1, 2, 3, 4, 5]] * 3) == pytest.approx(100)
