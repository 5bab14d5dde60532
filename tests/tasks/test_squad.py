"""Exact match and F1 are those of SQuAD's script."""

import collections

import pytest
from hypothesis import given
from hypothesis import strategies as st

from t2x.tasks.squad import exact_match, normalise, word_f1


@pytest.mark.parametrize(
  ('prediction', 'answers', 'exact', 'f1'),
  [
    ('The Eiffel Tower!', ['Eiffel tower'], 1, 1),
    ('in Paris', ['Paris', 'France'], 0, 2 / 3),
    ('a b b', ['b c'], 0, 0.5),
    ('', ['Paris'], 0, 0),
    ('', [], 1, 1),
    ('Paris', [], 0, 0),
    ('the', ['a'], 1, 1),
    ('x', ['the', 'x y'], 0, 2 / 3),
    ('1,000 km', ['1000 km'], 1, 1),
  ],
)
def test_metrics_of_tabulated_answers(prediction, answers, exact, f1):
  assert exact_match(prediction, answers) == exact
  assert word_f1(prediction, answers) == pytest.approx(f1)


def test_articles_are_complete_words():
  assert normalise(' An  answer-the Theory\ta ') == 'answerthe theory'


text = st.text(st.sampled_from('ab the,.!an \t'), max_size=20)


def official(prediction, answer):
  """F1 as the script has it: from precision and recall over a bag of tokens."""
  gold, told = normalise(answer).split(), normalise(prediction).split()
  if not gold or not told:
    return int(gold == told)
  same = sum((collections.Counter(gold) & collections.Counter(told)).values())
  if same == 0:
    return 0
  precision, recall = same / len(told), same / len(gold)
  return 2 * precision * recall / (precision + recall)


@given(text, st.lists(text, min_size=1, max_size=3))
def test_the_best_answer_counts(prediction, answers):
  gold = [answer for answer in answers if normalise(answer)] or ['']
  assert exact_match(prediction, answers) == any(
    normalise(prediction) == normalise(g) for g in gold
  )
  assert word_f1(prediction, answers) == pytest.approx(max(official(prediction, g) for g in gold))
