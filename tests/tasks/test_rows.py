"""What tasks state about their rows is true of the rows that they read."""

import jax
import numpy as np
import pytest
import tiny_tasks
from fake_models import WithLogits, spec

from t2x.data import Batches
from t2x.layers import Tokens

STATE_PADDING = {
  *('SpanCorruption', 'SequenceClassification', 'WordClassification', 'SpanPrediction'),
  *(
    'Captions',
    'Transcription',
    'CaptionContrast',
    'Contrastive',
    'MaskedPairs',
    'TextRegression',
    'MultipleChoice',
  ),
  *('MaskedTranslations', 'Denoising', 'VersionContrast'),
}


class Called(Exception):
  """Carries the metadata that a model was called with."""


class Recording(WithLogits):
  """A model that raises the metadata of its call."""

  spec = spec()

  def logits(self, x):
    return x

  def __call__(self, *inputs, **settings):
    return self.hidden(*inputs, **settings)

  def hidden(self, *inputs, tokens=None, source_tokens=None, target_tokens=None, **settings):
    given = [tokens, source_tokens, target_tokens]
    # A model of two towers gets those of both.
    both = tokens if isinstance(tokens, tuple) else ()
    raise Called([t for t in (*given, *both) if isinstance(t, Tokens)])


@pytest.fixture(scope='module')
def tasks(tmp_path_factory):
  folder = tmp_path_factory.mktemp('data')
  tiny_tasks.write_data(folder)
  return tiny_tasks.make(folder)


def tokens_of(task, batch_size=8):
  """The metadata of each train batch."""
  task = task.bound(task.fit_tokenizer())
  rows = task.rows(task.train_split)
  batches = Batches(rows, task.transform(train=True), batch_size=batch_size, seed=0)
  for step in range(-(-len(rows) // batch_size)):
    with pytest.raises(Called) as called:
      task.sums(Recording(), jax.tree.map(jax.numpy.asarray, batches[step]), None)
    yield from called.value.args[0]


def test_rows_that_are_stated_to_be_padded_at_the_end_are(tasks):
  stated = set()
  for name in set(tasks) - {'ImageClassification', 'AudioClassification'}:
    for tokens in tokens_of(tasks[name]):
      if tokens.right_padded:
        stated.add(name)
        segments = np.asarray(tokens.segments)
        count = (segments != 0).sum(1, keepdims=True)
        np.testing.assert_array_equal(segments, np.arange(segments.shape[1]) < count)
        assert count.min() < segments.shape[1]
  assert stated == STATE_PADDING
