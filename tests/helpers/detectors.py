"""Batches of boxes for detectors, and their losses and matches beside those of transformers."""

import jax
import jax.numpy as jnp
import numpy as np
from renamed import model_of

from t2x.data import Batches
from t2x.domains.detection import Detection

CLASSES, QUERIES = 5, 6


def task(height, width, **settings):
  """A task of images with three channels."""
  return Detection(
    image_shape=(height, width, 3), num_classes=CLASSES, num_queries=QUERIES, **settings
  )


def rows(height, width, counts=(2, 0, 3, 1)):
  """Random images with these numbers of objects."""
  rng = np.random.default_rng(0)

  def row(count):
    first = rng.uniform(0, 0.5, (count, 2)) * (width, height)
    size = rng.uniform(0.1, 0.5, (count, 2)) * (width, height)
    return {
      'image': rng.integers(0, 256, (height, width, 3)).astype(np.uint8),
      'boxes': np.concatenate([first, size], axis=1),
      'labels': rng.integers(0, CLASSES, count),
    }

  return [row(count) for count in counts]


def batch_of(task):
  """A batch from the transform of the task."""
  examples = rows(*task.image_shape[:2])
  return Batches(examples, task.transform(train=False), batch_size=len(examples), seed=0)[0]


def check_detector(
  compared, system, reference, torch, task, shapes, rename, model, run, statistics=None
):
  """Compares outputs, matches, losses and the gradients of all parameters of a model for object detection.

  Args:
    compared: the fixture.
    system, reference: names for it.
    torch: the package.
    task: our task.
    shapes: our abstract model.
    rename: fills a `Renamed`.
    model: the model of transformers.
    run: called with pixel_values and labels; returns the output of the model with its losses.
    statistics: arrays of the model that are not parameters, by name.
  """
  batch = batch_of(task)
  inputs = jax.tree.map(jnp.asarray, batch)
  task.check_model(shapes)
  labels = [
    {
      'class_labels': torch.tensor(label[label < CLASSES].astype(np.int64)),
      'boxes': torch.tensor(boxes[label < CLASSES]),
    }
    for label, boxes in zip(batch['label'], batch['boxes'], strict=True)
  ]
  out = run(pixel_values=torch.tensor(batch['image'].transpose(0, 3, 1, 2)), labels=labels)
  out.loss.backward()
  trained = dict(model.named_parameters())

  def loss(arrays):
    ours = model_of(shapes, rename, arrays, statistics)
    result, weights = task.sums(ours, inputs, None), task.weights(inputs)
    heads = ours(inputs['image']).heads
    terms = {name: total / weights[name] for name, total in result.terms.items()}
    return sum(terms.values()), (terms, heads, task.matches(heads, inputs))

  arrays = {name: jnp.asarray(p.detach().numpy()) for name, p in trained.items()}
  (total, (terms, heads, order)), slopes = jax.jit(jax.value_and_grad(loss, has_aux=True))(arrays)
  layers = [*(out.auxiliary_outputs or ()), {'logits': out.logits, 'pred_boxes': out.pred_boxes}]
  assert heads['classes'].shape[1] == len(layers)
  _check_layers(compared, system, reference, layers, heads, labels, order)
  compared(system, reference, total, out.loss.item(), rtol=1e-5)
  classes = sum(v.item() for name, v in out.loss_dict.items() if name.startswith('loss_ce'))
  compared(system, reference, terms['loss'], classes, rtol=1e-5)
  largest = max(p.grad.abs().max().item() for p in trained.values() if p.grad is not None)
  for name, parameter in trained.items():
    wanted = np.zeros(parameter.shape) if parameter.grad is None else parameter.grad.numpy()
    atol = 1e-5 * max(np.abs(wanted).max(), 1e-2 * largest)
    compared(system, reference, slopes[name], wanted, atol=atol, of='gradients')
  return slopes


def _check_layers(compared, system, reference, layers, heads, labels, order):
  """Compares logits, boxes and matches of each layer."""
  from transformers.loss.loss_for_object_detection import HungarianMatcher

  matcher = HungarianMatcher(class_cost=1, bbox_cost=5, giou_cost=2)
  for number, layer in enumerate(layers):
    for name, theirs in (('classes', 'logits'), ('boxes', 'pred_boxes')):
      compared(system, reference, heads[name][:, number], layer[theirs].detach().numpy())
    for row, (queries, objects) in enumerate(matcher(layer, labels)):
      np.testing.assert_array_equal(order[row, number][np.asarray(queries)], objects)
      assert sorted(order[row, number].tolist()) == list(range(QUERIES))
