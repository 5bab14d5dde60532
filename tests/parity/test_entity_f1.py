"""Entity-level F1 against seqeval's."""

import jax
import numpy as np
import pytest

from t2x.tasks.entities import Tags, entities, num_equal

metrics = pytest.importorskip('seqeval.metrics', reason="the extra 'references' is not installed")

LABELS = ('O', 'B-PER', 'I-PER', 'B-LOC', 'I-LOC')
SENTENCES, LENGTH = 6, 12


@jax.jit
def counts(told, true, present):
  one, other = (entities(Tags.from_labels(LABELS), side, present) for side in (told, true))
  return num_equal(one, other), one.begins.sum(), other.begins.sum()


def test_entity_f1_matches_seqeval():
  rng = np.random.default_rng(0)
  for _ in range(200):
    lengths = rng.integers(1, LENGTH + 1, SENTENCES)
    true = rng.integers(0, len(LABELS), (SENTENCES, LENGTH))
    # Some predicted tags are correct, so that some entities are.
    told = np.where(rng.random(true.shape) < 0.7, true, rng.integers(0, len(LABELS), true.shape))
    right, num_told, num_true = counts(told, true, np.arange(LENGTH) < lengths[:, None])
    words = (
      [[LABELS[i] for i in row[:n]] for row, n in zip(side, lengths, strict=True)]
      for side in (true, told)
    )
    expected = metrics.f1_score(*words, zero_division=0)
    assert 2 * right / max(num_told + num_true, 1) == pytest.approx(expected, abs=1e-6)
