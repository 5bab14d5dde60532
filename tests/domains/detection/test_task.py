"""Detection: the loss and its normaliser over micro-batches, matches, and refusals."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from detectors import CLASSES, QUERIES, task
from flax import nnx
from loss_terms import TASKS, assert_close, batch_of, gradient, model_of

from t2x.base.errors import UserError
from t2x.domains.detection import YOLOS, BoxHead, Detection
from t2x.domains.detection.boxes import least_cost, overlaps
from t2x.layers import MLP, LearnedGrid, MultiHeadAttention, PatchEmbedding
from t2x.models import Block, Encoder, Stack

TASK = TASKS['detection']
part = functools.partial


def area(box):
  return (box[2] - box[0]) * (box[3] - box[1])


def by_hand(a, b):
  """The generalised intersection over union of two boxes."""
  (ax, ay, aw, ah), (bx, by, bw, bh) = a.astype(float), b.astype(float)
  p, q = (
    (ax - aw / 2, ay - ah / 2, ax + aw / 2, ay + ah / 2),
    (
      *(bx - bw / 2, by - bh / 2),
      *(bx + bw / 2, by + bh / 2),
    ),
  )
  shared = [max(p[0], q[0]), max(p[1], q[1]), min(p[2], q[2]), min(p[3], q[3])]
  shared = area(shared) if shared[0] < shared[2] and shared[1] < shared[3] else 0.0
  around = area([min(p[0], q[0]), min(p[1], q[1]), max(p[2], q[2]), max(p[3], q[3])])
  union = area(p) + area(q) - shared
  return shared / union, shared / union - (around - union) / around


def test_the_loss_is_that_of_the_best_of_all_assignments():
  """By trying every permutation of the objects, of both layers, with padding, weights and an empty row."""
  batch = batch_of(TASK)
  batch['label'] = batch['label'].at[1].set(TASK.num_classes)
  heads = model_of(TASK)(batch['image']).heads
  logs = np.asarray(jax.nn.log_softmax(heads['classes'].astype(jnp.float32)), np.float64)
  weights = TASK.weights(batch)
  classes = boxes = 0.0
  for row, layer in itertools.product(range(len(logs)), range(2)):
    log, predicted = logs[row, layer], np.asarray(heads['boxes'][row, layer])
    label, wanted = np.asarray(batch['label'][row]), np.asarray(batch['boxes'][row])
    present = np.flatnonzero(label < TASK.num_classes)
    pairs = np.array([[by_hand(p, w)[1] for w in wanted] for p in predicted])
    distance = np.abs(predicted[:, None] - wanted).sum(axis=-1)
    cost = 5 * distance - 2 * pairs - np.exp(log)[:, label]
    best = min(
      itertools.permutations(range(len(label)), len(present)),
      key=lambda queries: sum(cost[q, o] for q, o in zip(queries, present, strict=True)),
    )
    own = np.full(len(label), TASK.num_classes)
    own[list(best)] = label[present]
    factor = np.where(own == TASK.num_classes, 0.3, 1.0) * batch['weight'][row]
    classes -= (log[np.arange(len(own)), own] * factor).sum()
    lost = 5 * distance + 2 * (1 - pairs)
    boxes += sum(lost[q, o] for q, o in zip(best, present, strict=True)) * batch['weight'][row]
  result = TASK.sums(model_of(TASK), batch, None)
  np.testing.assert_allclose(result.terms['loss'], classes, rtol=1e-5)
  np.testing.assert_allclose(result.terms['boxes'], boxes, rtol=1e-5)
  objects = ((batch['label'] < TASK.num_classes) * batch['weight'][:, None]).sum()
  assert weights['boxes'] == result.metrics['boxes'][1] == objects


def test_micro_batches_have_the_normaliser_of_the_whole_batch():
  batch, model = batch_of(TASK), model_of(TASK)
  # The first row of each pair has no object.
  batch['label'] = batch['label'].at[::2].set(TASK.num_classes)
  whole, metrics = gradient(TASK, model, batch)
  parts, same = gradient(TASK, model, batch, 4)
  assert_close(parts, whole)
  assert_close(same, metrics)
  none = {**batch, 'label': jnp.full_like(batch['label'], TASK.num_classes)}
  slopes, metrics = gradient(TASK, model, none)
  assert all(bool(jnp.isfinite(leaf).all()) for leaf in jax.tree.leaves(slopes))
  assert metrics['boxes'][0] == 0 and TASK.weights(none)['boxes'] == 1


def test_overlaps_equal_those_by_hand():
  rng = np.random.default_rng(0)
  a, b = rng.uniform(0.05, 0.6, (2, 30, 4)).astype(np.float32)
  wanted = np.array([by_hand(p, q) for p, q in zip(a, b, strict=True)])
  assert (wanted[:, 0] == 0).any() and (wanted[:, 0] > 0).any()
  np.testing.assert_allclose(
    np.stack(overlaps(jnp.asarray(a), jnp.asarray(b)), 1), wanted, atol=1e-6
  )


def test_invalid_predictions_are_matched_last():
  cost = np.ones((3, 3), np.float32)
  cost[0], cost[1, 2] = np.nan, np.inf
  found = least_cost(jnp.asarray(cost), jnp.asarray([True, False, True]))
  assert found.tolist() == [1, 0, 2]


def yolos(num_queries=QUERIES):
  block = part(
    Block,
    mixer=part(MultiHeadAttention, num_heads=2),
    feed_forward=part(MLP, hidden_dim=8),
  )
  return YOLOS(
    d_model=8,
    num_queries=num_queries,
    embedding=part(PatchEmbedding, patch_size=4, num_registers=QUERIES),
    positions=part(LearnedGrid, height=2, width=2),
    body=part(Encoder, stack=part(Stack, num_layers=1, blocks=[block])),
    head=part(BoxHead, num_classes=CLASSES),
    rngs=nnx.Rngs(0),
  )


def test_models_of_other_classes_or_queries_are_refused():
  shapes = jax.eval_shape(yolos)
  task(8, 8).check_model(shapes)
  for name, other in (('num_queries', QUERIES + 1), ('num_classes', CLASSES + 1)):
    settings = {'num_queries': QUERIES, 'num_classes': CLASSES, name: other}
    with pytest.raises(UserError, match=f'6 boxes of 5 classes, but .*{name} = {other}'):
      Detection(image_shape=(8, 8, 3), **settings).check_model(shapes)
  with pytest.raises(UserError, match=r'YOLOS\.num_queries = 8, but @PatchEmbedding has 7 tokens'):
    jax.eval_shape(part(yolos, 8))


def test_statistics_of_other_channels_are_refused():
  message = r'Detection.std = \(0.5, 0.5\): .* each channel of Detection.image_shape'
  with pytest.raises(UserError, match=message):
    task(8, 8, std=[0.5, 0.5])
