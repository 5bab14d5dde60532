"""Average precision of boxes: the conversion against pycocotools' own files of results."""

import contextlib
import dataclasses
import io
import json

import jax
import jax.numpy as jnp
import numpy as np
from detectors import CLASSES, QUERIES, rows, task
from evaluating import evaluated
from pycocotools import coco

from t2x.domains.detection import AveragePrecision
from t2x.models import Output

HEIGHT, WIDTH = 60, 40


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Table:
  """A detector whose predictions for image i stand in row i of tables."""

  classes: jax.Array
  boxes: jax.Array

  def __call__(self, images):
    number = jnp.round(images[:, 0, 0, 0]).astype(jnp.int32)
    heads = {'classes': self.classes[number][:, None], 'boxes': self.boxes[number][:, None]}
    return Output(heads['classes'][:, -1], heads=heads)


def scenes(count=24):
  """Images with crowds and images without objects; the first pixel numbers the image."""
  rng = np.random.default_rng(1)
  examples = rows(HEIGHT, WIDTH, counts=rng.integers(0, 5, count))
  for i, example in enumerate(examples):
    example['image'] = np.full_like(example['image'], i)
    example['crowd'] = rng.random(len(example['labels'])) < 0.3
  return examples


def predictions(examples):
  """Boxes near the objects and elsewhere; every fourth image has equal probabilities."""
  rng = np.random.default_rng(2)
  boxes = rng.uniform(0.1, 0.5, (len(examples), QUERIES, 4)).astype(np.float32)
  logits = rng.normal(size=(len(examples), QUERIES, CLASSES + 1)).astype(np.float32)
  for i, example in enumerate(examples):
    near = example['boxes'] + rng.normal(scale=2, size=example['boxes'].shape)
    shares = np.concatenate([near[:, :2] + near[:, 2:] / 2, near[:, 2:]], axis=1)
    boxes[i, : len(near)] = shares / np.tile([WIDTH, HEIGHT], 2)
    logits[i, np.arange(len(near)), example['labels']] += 3
    if i % 4 == 0:
      logits[i] = np.round(logits[i])
  return logits, boxes


def reference(examples, logits, boxes, folder):
  """The summary of pycocotools, which reads objects and results from files."""
  from pycocotools.cocoeval import COCOeval

  objects, results = [], []
  for i, (example, logit, box) in enumerate(zip(examples, logits, boxes, strict=True)):
    for j, (x, y, w, h) in enumerate(example['boxes']):
      item = {'image_id': i, 'category_id': int(example['labels'][j]) + 1, 'bbox': [x, y, w, h]}
      item |= {'area': w * h, 'iscrowd': int(example['crowd'][j]), 'id': len(objects) + 1}
      objects.append(item)
    odds = np.exp(logit.astype(np.float64))
    shares = (odds / odds.sum(axis=1, keepdims=True))[:, :-1]
    for share, (x, y, w, h) in zip(shares, box.astype(float), strict=True):
      sides = [(x - w / 2) * WIDTH, (y - h / 2) * HEIGHT, w * WIDTH, h * HEIGHT]
      item = {'image_id': i, 'category_id': int(share.argmax()) + 1, 'bbox': sides}
      # A query with two likeliest classes has decided nothing.
      if (share == share.max()).sum() == 1:
        results.append({**item, 'score': float(share.max())})
  data = {
    'images': [{'id': i} for i in range(len(examples))],
    'categories': [{'id': i + 1} for i in range(CLASSES)],
    'annotations': objects,
  }
  (folder / 'objects.json').write_text(json.dumps(data))
  (folder / 'results.json').write_text(json.dumps(results))
  with contextlib.redirect_stdout(io.StringIO()):
    truth = coco.COCO(str(folder / 'objects.json'))
    evaluation = COCOeval(truth, truth.loadRes(str(folder / 'results.json')), 'bbox')
    evaluation.evaluate()
    evaluation.accumulate()
    evaluation.summarize()
  return evaluation.stats[:3]


def test_metrics_equal_pycocotools_with_crowds_ties_and_empty_images(tmp_path):
  examples = scenes()
  logits, boxes = predictions(examples)
  own = task(HEIGHT, WIDTH, mean=0.0, std=1 / 255)
  model = Table(jnp.asarray(logits), jnp.asarray(boxes))
  # Batches of seven, so that the last one is padded.
  found = AveragePrecision()(evaluated(own, model, examples, 7)).metrics
  wanted = reference(examples, logits, boxes, tmp_path)
  assert 0.1 < wanted[0] < wanted[1] < 1
  np.testing.assert_allclose([found[n] for n in ('ap', 'ap50', 'ap75')], wanted, atol=1e-9)
  assert found['examples'] == len(examples)
  assert not np.allclose(wanted, reference(examples[1:], logits[1:], boxes[1:], tmp_path))


def test_boxes_of_nan_match_no_object():
  """pycocotools finds that NaN overlaps with everything."""
  examples = rows(HEIGHT, WIDTH, counts=[2, 3, 1])
  for example in examples:
    example['image'] = np.zeros_like(example['image'])
  logits = np.random.default_rng(0).normal(size=(1, QUERIES, CLASSES + 1)).astype(np.float32)
  for query, example in enumerate(examples):
    logits[0, query, example['labels'][0]] = 9
  model = Table(jnp.asarray(logits), jnp.full((1, QUERIES, 4), jnp.nan))
  own = task(HEIGHT, WIDTH, mean=0.0, std=1 / 255)
  found = AveragePrecision()(evaluated(own, model, examples, 2)).metrics
  assert [found['ap'], found['ap50'], found['ap75']] == [0, 0, 0]


def test_a_split_without_objects_has_no_average_precision():
  examples = rows(HEIGHT, WIDTH, counts=[0, 0])
  model = Table(jnp.zeros((256, QUERIES, CLASSES + 1)), jnp.full((256, QUERIES, 4), 0.3))
  found = AveragePrecision()(evaluated(task(HEIGHT, WIDTH), model, examples, 2)).metrics
  assert np.isnan([found['ap'], found['ap50']]).all()
