"""Contrast of images and texts: equal texts, cut texts, what is refused, and classes by their descriptions."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from applying import moved
from evaluating import evaluated
from flax import nnx
from loss_terms import gradient
from PIL import Image

from t2x.base.errors import UserError
from t2x.data import Bytes, ShorterSide, WholeImage
from t2x.domains.retrieval import (
  CaptionContrast,
  PairRows,
  Retrieval,
  RingSigmoid,
  Sigmoid,
  SigmoidInBlocks,
  Softmax,
  Tower,
  TwoTower,
  VectorProjection,
  ZeroShot,
)
from t2x.domains.retrieval.pair_losses import Scores
from t2x.layers import MLP, MultiHeadAttention, PatchEmbedding, TokenEmbedding
from t2x.models import Block, Encoder, Stack, first_token, last_token
from t2x.samples import DigitRows
from t2x.tasks import ImageModality

TASK = CaptionContrast(
  source=DigitRows(longest=1, train_examples=20),
  tokenizer=Bytes(),
  modality=ImageModality(shape=(8, 8, 1)),
  target_length=8,
).bound(Bytes().train([]))
CLASSES = ('zero', 'one', 'two', 'three', 'four', 'five', 'six')

EMBEDDING = functools.partial(TokenEmbedding, vocab_size=264)
BLOCK = functools.partial(
  Block,
  mixer=functools.partial(MultiHeadAttention, num_heads=2),
  feed_forward=functools.partial(MLP, hidden_dim=16),
)
BODY = functools.partial(Encoder, stack=functools.partial(Stack, num_layers=1, blocks=[BLOCK]))


def towers(**settings):
  patches = functools.partial(PatchEmbedding, patch_size=4, channels=1)
  image = functools.partial(Tower, d_model=8, embedding=patches, body=BODY, pool=first_token)
  text = functools.partial(Tower, d_model=8, embedding=EMBEDDING, body=BODY, pool=last_token)
  return TwoTower(a=image, b=text, dim=8, rngs=nnx.Rngs(0), **settings)


@functools.cache
def batch():
  """Twelve digits, of which several are equal."""
  transform = TASK.transform(train=False)
  rows = [transform(row, None) for row in TASK.source.load('train')[:12]]
  return jax.tree.map(lambda *xs: jnp.stack(xs), *rows)


def expected(a, b, texts, present, loss, factor, bias):
  """The loss of each row in float64, one pair after another."""
  rows, losses = range(len(a)), []
  for i in rows:
    others = [j for j in rows if j == i or (present[j] and not np.array_equal(texts[i], texts[j]))]
    if isinstance(loss, Softmax):
      own = factor * a[i] @ b[i]
      across = np.log(sum(np.exp(factor * a[i] @ b[j]) for j in others)) - own
      back = np.log(sum(np.exp(factor * a[j] @ b[i]) for j in others)) - own
      losses.append((across + back) / 2)
    else:
      signed = [(factor * a[i] @ b[j] + bias) * (1 if i == j else -1) for j in others]
      losses.append(sum(np.log1p(np.exp(-s)) for s in signed))
  return np.array(losses)


@pytest.mark.parametrize('loss', [Softmax(), Sigmoid(), SigmoidInBlocks(size=4), RingSigmoid()])
def test_a_loss_is_that_of_each_pair_and_equal_texts_are_no_negatives(loss):
  rng = np.random.default_rng(0)
  a, b = (rng.normal(size=(12, 5)).astype(np.float32) / 2 for _ in range(2))
  hashes = TASK.texts(batch())
  words = [bytes(row) for row in np.asarray(batch()['b'])]
  assert len(set(words)) == len({tuple(row) for row in np.asarray(hashes).tolist()}) < 10
  present = np.arange(12) != 7
  rows = PairRows(jnp.arange(12), jnp.asarray(present), hashes)
  bias = None if isinstance(loss, Softmax) else jnp.float32(-2.0)
  pairs = jax.jit(loss)(a, b, Scores(jnp.float32(3.0), bias), rows)
  wanted = expected(*np.float64([a, b]), words, present, loss, 3.0, -2.0)
  np.testing.assert_allclose(pairs.losses[present], wanted[present], rtol=1e-5)
  products = a.astype(np.float64) @ b.T
  for i in np.flatnonzero(present):
    others = [j for j in range(12) if present[j] and words[j] != words[i]]
    assert bool(pairs.correct[i]) == all(products[i, i] > products[i, j] for j in others)


def test_other_hashes_are_those_of_other_texts():
  ids = np.random.default_rng(1).integers(1, 60000, (4000, 8)).astype(np.int32)
  ids[2000:, :7] = ids[:2000, :7]
  segments = np.ones_like(ids)
  hashes = np.asarray(TASK.texts({'b': jnp.asarray(ids), 'b_segments': jnp.asarray(segments)}))
  assert len({tuple(row) for row in hashes.tolist()}) == len({tuple(row) for row in ids.tolist()})
  # Padding is part of no text.
  segments[:, 5:] = 0
  cut = {'b': jnp.asarray(ids), 'b_segments': jnp.asarray(segments)}
  first = np.asarray(TASK.texts(cut))
  np.testing.assert_array_equal(first[:2000], first[2000:])


def test_accumulation_and_parameters_without_effect_are_refused():
  with pytest.raises(UserError, match=r'the loss of CaptionContrast compares all rows of a batch'):
    gradient(TASK, towers(), batch(), 2)
  with pytest.raises(UserError, match=r'TwoTower\.bias has no effect on Softmax'):
    TASK.check_model(towers(bias=-10.0))
  dataclasses.replace(TASK, loss=Sigmoid()).check_model(towers(bias=-10.0))
  with pytest.raises(UserError, match=r'a_projection = None needs vectors of width TwoTower.dim'):
    text = functools.partial(Tower, d_model=8, embedding=EMBEDDING, body=BODY)
    TwoTower(a=text, b=text, dim=6, a_projection=None, rngs=nnx.Rngs(0))
  three = jax.tree.map(lambda x: x[:9], batch())
  with pytest.raises(UserError, match=r'SigmoidInBlocks\.size = 4 must divide the 9 rows'):
    dataclasses.replace(TASK, loss=SigmoidInBlocks(size=4)).sums(towers(), three, None)
  with pytest.raises(UserError, match=r"templates = \('a photo',\): each must have one"):
    dataclasses.replace(TASK, templates=('a photo',))


def test_bias_and_projections_are_part_of_the_model():
  projection = functools.partial(VectorProjection, use_bias=True)
  model = moved(towers(bias=-10.0, a_projection=None, b_projection=projection), scale=0.3)
  grads, metrics = gradient(dataclasses.replace(TASK, loss=Sigmoid()), model, batch())
  assert float(metrics['bias'][0] / metrics['bias'][1]) == pytest.approx(float(model.bias[...]))
  assert model.a_projection is None
  for part in (grads.bias, grads.b_projection.bias, grads.log_factor):
    assert float(jnp.abs(part[...]).max()) > 1e-4


def test_long_texts_are_cut_before_the_end_token_and_padding_may_be_read():
  transform = TASK.transform(train=False)
  row = transform.text('a much longer text')
  assert row['b'].tolist() == [3, *Bytes().train([]).encode('a much'), 1]
  short = transform.text('a')
  assert short['b_segments'].tolist() == [1, 1, 1, 0, 0, 0, 0, 0]
  read = dataclasses.replace(TASK, reads_padding=True).transform(train=False).text('a')
  assert read['b_segments'].tolist() == [1] * 8
  assert read['b'].tolist() == short['b'].tolist()


def test_zero_shot_and_retrieval_are_those_of_all_vectors(tmp_path):
  model = moved(towers(), scale=0.3)
  task = dataclasses.replace(TASK, classes=CLASSES, templates=('{}', 'a {}'))
  words = {word: number for number, word in enumerate(CLASSES)}
  examples = [e for e in TASK.source.load('train') if e['target'] in words]
  rows = [e | {'label': words[e['target']]} for e in examples]
  names = [e | {'label': e['target']} for e in examples]
  logits = task.class_logits(model, [row['source'] for row in rows])

  def ask(evaluator, rows):
    source = dataclasses.make_dataclass('Rows', [])()
    source.load = lambda split: rows
    return evaluator(evaluated(dataclasses.replace(task, source=source), model, rows, 8))

  for given in (rows, names):
    found = ask(ZeroShot(), given)
    labels = np.array([row['label'] for row in rows])
    own = logits[np.arange(len(rows)), labels]
    ranks = (logits > own[:, None]).sum(axis=1)
    assert found.metrics['accuracy'] == pytest.approx(np.mean(ranks == 0))
    assert found.metrics['top_5_accuracy'] == pytest.approx(np.mean(ranks < 5))
  with pytest.raises(UserError, match=r"ZeroShot needs examples with a 'label'"):
    ask(ZeroShot(), examples)
  metrics = ask(Retrieval(closest=(2, 3)), rows).metrics
  assert {'recall_2', 'recall_3', 'reverse_recall_2', 'mean_reciprocal_rank'} <= set(metrics)
  assert 'recall_1' not in metrics

  path = tmp_path / 'digit.png'
  Image.fromarray(rows[0]['source'][..., 0]).save(path)
  task.check_prompt(str(path))
  [[first, second]] = task.generate(
    model, [str(path)], strategy=None, max_new_tokens=1, num_return=2
  )
  assert [first['text'], second['text']] == [CLASSES[i] for i in np.argsort(-logits[0])[:2]]
  with pytest.raises(UserError, match=r'CaptionContrast\.classes is empty: name the classes'):
    TASK.check_prompt(str(path))
  with pytest.raises(UserError, match=r'none\.png cannot be read: No such file'):
    task.check_prompt(str(tmp_path / 'none.png'))


def test_images_are_fitted_to_the_input():
  image = np.random.default_rng(0).integers(0, 256, (12, 30, 1), np.uint8)
  assert ShorterSide(side=9)(image, 8, 8).shape == WholeImage()(image, 8, 8).shape == (8, 8, 1)
  with pytest.raises(UserError, match=r'ShorterSide\.side = 7 is below the input of 8 x 8'):
    ShorterSide(side=7)(image, 8, 8)
  with pytest.raises(UserError, match=r'only uint8 with 1 or 3 channels'):
    WholeImage()(image.astype(np.float32), 8, 8)
  with pytest.raises(UserError, match=r'ImageModality\.mean = \(0\.5,\): must be a number'):
    ImageModality(shape=(8, 8, 3), mean=(0.5,))
  with pytest.raises(UserError, match=r'or set ImageModality\.fit'):
    ImageModality(shape=(8, 8, 1)).prepare(image, None)
