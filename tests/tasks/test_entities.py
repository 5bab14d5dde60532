"""Entities are those that conlleval and seqeval count."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from t2x.base.errors import UserError
from t2x.tasks.entities import Tags, entities, num_equal

LABELS = ('O', 'B-PER', 'I-PER', 'B-LOC', 'I-LOC')
TAGS = Tags.from_labels(LABELS)
LENGTH = 12


def by_hand(labels):
  """conlleval's rule, one tag after the other: {(begin, end, type)}."""
  found, begin, kind = set(), None, None
  for place, label in enumerate([*labels, 'O']):
    tag, _, this = label.partition('-')
    if begin is not None and (tag in 'OB' or this != kind):
      found.add((begin, place, kind))
      begin = None
    if begin is None and tag != 'O':
      begin, kind = place, this
  return found


def as_rows(sentences, rows=4):
  """Label ids and which places are words."""
  ids, present = np.zeros((rows, LENGTH), int), np.zeros((rows, LENGTH), bool)
  for row, sentence in enumerate(sentences):
    ids[row, : len(sentence)] = [LABELS.index(label) for label in sentence]
    present[row, : len(sentence)] = True
  return ids, present


@jax.jit
def counted(told, true, present):
  """How many entities are right, told and true."""
  one, other = entities(TAGS, told, present), entities(TAGS, true, present)
  return num_equal(one, other), one.begins.sum(), other.begins.sum()


def counts(told, true):
  ids, present = as_rows(told)
  return tuple(map(int, counted(ids, as_rows(true)[0], present)))


sentences = st.integers(1, LENGTH).flatmap(
  lambda n: st.tuples(*[st.lists(st.sampled_from(LABELS), min_size=n, max_size=n)] * 2)
)


@settings(max_examples=200)
@given(sentences)
def test_entities_match_the_rule(pair):
  told, true = (by_hand(labels) for labels in pair)
  assert counts([pair[0]], [pair[1]]) == (len(told & true), len(told), len(true))


def test_padding_ends_an_entity_and_is_none():
  ids, present = jnp.full((1, 4), 2), jnp.array([[True, True, False, False]])
  found = entities(TAGS, ids, present)
  assert found.begins.tolist() == [[True, False, False, False]]
  assert found.ends[0, 0] == 2


def test_labels_are_bio_tags_all_or_none():
  assert Tags.from_labels(['NOUN', 'VERB']) is None
  assert Tags.from_labels(['O', 'B-X']).types.tolist() == [0, 1]
  with pytest.raises(UserError, match="'PER' is not a BIO tag, but"):
    Tags.from_labels(['O', 'B-PER', 'PER'])
