"""Span corruption: what the model reads and writes, and which ids are sentinels."""

import math

import jax.numpy as jnp
import numpy as np
import pytest
from fake_models import PAIR, WithLogits, spec
from in_order import InOrder

from t2x.base.errors import UserError
from t2x.data import Batches, Bytes, SampledPieces, SentencePiece, TextFiles
from t2x.layers import Causal
from t2x.models import Output
from t2x.tasks import SpanCorruption

BYTES = Bytes().train([])


class Model(WithLogits):
  """Keeps what it reads; every token is as likely."""

  def __init__(self, vocab_size=361):
    self.spec = spec(PAIR, patterns=[Causal()], vocab_size=vocab_size)

  def hidden(self, source, target, *, source_tokens, target_tokens, key):
    self.read = source, target, source_tokens, target_tokens
    return Output(jnp.zeros((*target.shape, 4)))

  def logits(self, x):
    return jnp.zeros((*x.shape[:-1], self.spec.vocab_size))


@pytest.fixture
def text(tmp_path, monkeypatch):
  monkeypatch.setenv('T2X_CACHE', str(tmp_path / 'cache'))
  file = tmp_path / 'text.txt'
  file.write_text('\n\n'.join(f'the {i} brown foxes jump over {i} lazy dogs' for i in range(40)))
  return TextFiles(train=str(file))


def task(source, **settings):
  settings = {'source_length': 32, 'tokenizer': Bytes(), 'eval_split': 'train'} | settings
  return SpanCorruption(source=source, **settings)


def batch_of(made, tokenizer, train=True):
  bound = made.bound(tokenizer)
  rows, transform = bound.rows('train'), bound.transform(train=train)
  return Batches(rows, transform, batch_size=4, seed=0, order=InOrder(len(rows)))[0]


def test_a_batch_is_as_specified_and_full(text):
  made = task(text)
  batch = batch_of(made, BYTES)
  assert {k: (v.shape, v.dtype) for k, v in batch.items()} == {
    k: (v.shape, v.dtype) for k, v in made.spec(4).items()
  }
  assert batch['source_segments'].all() and batch['target_segments'].all()
  assert made.count(batch) == 4 * (32 + made.target_length)


def test_the_decoder_reads_the_target_shifted_and_padding_is_not_counted(text):
  made, model = task(text), Model()
  batch = {k: jnp.asarray(v) for k, v in batch_of(made, BYTES).items()}
  batch['target_segments'] = batch['target_segments'].at[0, 5:].set(0)
  sums = made.sums(model, batch, None).metrics
  source, target, source_tokens, target_tokens = model.read
  np.testing.assert_array_equal(source, batch['source'])
  assert (target[:, 0] == BYTES.start_id).all()
  np.testing.assert_array_equal(target[1:, 1:], batch['target'][1:, :-1])
  np.testing.assert_array_equal(source_tokens.segments, batch['source_segments'])
  np.testing.assert_array_equal(target_tokens.segments, batch['target_segments'])
  assert float(sums['loss'][1]) == 3 * made.target_length + 5
  means = {name: (float(a), float(b)) for name, (a, b) in sums.items()}
  metrics = made.summarise(means)
  assert math.isclose(metrics['perplexity'], model.spec.vocab_size, rel_tol=1e-5)
  assert metrics['accuracy'] == 0


def test_sentinels_follow_the_tokenizer_or_are_given(text):
  vocab = BYTES.vocab_size
  for settings, first in (({}, vocab + 99), ({'first_sentinel': 250, 'num_sentinels': 9}, 250)):
    batch = batch_of(task(text, **settings), BYTES)
    assert (batch['target'][:, 0] == first).all()
    assert (batch['source'] == first).sum() == 4


def test_pieces_drawn_anew_fill_the_same_shapes(text):
  config = SentencePiece(vocab_size=300)
  made = task(text, tokenizer=config, pieces=SampledPieces(rate=0.3))
  tokenizer = made.fit_tokenizer()
  batch = batch_of(made, tokenizer)
  assert {k: v.shape for k, v in batch.items()} == {k: v.shape for k, v in made.spec(4).items()}


def test_a_model_without_rows_for_the_sentinels_is_refused(text):
  task(text).check_model(Model())
  with pytest.raises(UserError, match='at least 361'):
    task(text).check_model(Model(360))
  with pytest.raises(UserError, match='261 tokens'):
    task(text).check_model(Model(200))


@pytest.mark.parametrize(
  ('settings', 'told'),
  [
    ({'source_length': 4096}, 'num_sentinels'),
    ({'first_sentinel': 50}, 'first_sentinel'),
    ({'rate': 1.5}, 'rate'),
  ],
)
def test_impossible_settings_are_refused(settings, told, text):
  with pytest.raises(UserError, match=told):
    task(text, **settings)
