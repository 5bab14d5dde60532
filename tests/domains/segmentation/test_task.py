"""Mean intersection over union against scikit-learn, and masks as they are drawn."""

import jax.numpy as jnp
import numpy as np
import pytest
from evaluating import evaluated
from fake_models import IMAGE, spec
from flax import nnx
from sklearn import metrics as sklearn

from t2x.base.errors import UserError
from t2x.data.sources.base import NoSource
from t2x.domains.segmentation import MeanIoU, PredictedMasks, SemanticSegmentation
from t2x.domains.segmentation.predicted_masks import voc_colours
from t2x.models import Output

CLASSES, SIDES = 6, (5, 7)
TASK = SemanticSegmentation(source=NoSource(), image_shape=(*SIDES, 1), num_classes=CLASSES)


class Thresholds(nnx.Module):
  """Predicts the class that the shade of a pixel, 40 per class, stands for."""

  def __init__(self):
    self.spec = nnx.static(spec(IMAGE, 'class logits of a grid', num_classes=CLASSES))

  def __call__(self, images, key=None):
    shades = (images + 1) * 255 / 2 / 40
    return Output(-jnp.abs(shades - jnp.arange(CLASSES)))


def rows(num_labels, num_predicted, count=7):
  """Images with labels and predictions below some classes; a tenth of the pixels have none."""
  rng = np.random.default_rng(num_labels)
  masks = rng.integers(0, num_labels, (count, *SIDES)).astype(np.uint8)
  masks[rng.random(masks.shape) < 0.1] = 255
  predicted = np.minimum(masks, num_predicted - 1)
  wrong = rng.random(masks.shape) < 0.4
  predicted[wrong] = rng.integers(0, num_predicted, wrong.sum())
  return [
    {'image': (40 * p).astype(np.uint8), 'mask': m} for p, m in zip(predicted, masks, strict=True)
  ], predicted


# All classes; one that is only predicted; some that are neither; two that are never predicted.
@pytest.mark.parametrize(('num_labels', 'num_predicted'), [(6, 6), (5, 6), (3, 3), (6, 4)])
def test_mean_iou_is_that_of_the_confusion_matrix_of_scikit_learn(num_labels, num_predicted):
  examples, predicted = rows(num_labels, num_predicted)
  masks = np.stack([row['mask'] for row in examples])
  pair = masks[masks != 255], predicted[masks != 255]
  counts = sklearn.confusion_matrix(*pair)
  hits = counts.diagonal()
  union = counts.sum(axis=0) + counts.sum(axis=1) - hits
  found = MeanIoU()(evaluated(TASK, Thresholds(), examples, 3)).metrics
  one_class = np.full_like(pair[0], np.bincount(pair[0]).argmax())
  assert found == pytest.approx(
    {
      'examples': 7.0,
      'mean_iou': np.mean(hits / union),
      'mean_accuracy': sklearn.balanced_accuracy_score(*pair),
      'pixel_accuracy': sklearn.accuracy_score(*pair),
      'mean_iou_one_class': sklearn.jaccard_score(pair[0], one_class, average='macro'),
    },
    abs=1e-12,
  )
  assert (
    MeanIoU(num_examples=2)(evaluated(TASK, Thresholds(), examples, 3)).metrics['examples'] == 2
  )


def test_without_classes_the_metrics_are_not_a_number():
  nothing = [{'image': np.zeros(SIDES, np.uint8), 'mask': np.full(SIDES, 255)}]
  assert np.isnan(MeanIoU()(evaluated(TASK, Thresholds(), nothing, 3)).metrics['mean_iou'])


def test_masks_are_drawn_beside_images_in_the_colours_of_pascal_voc():
  # The first colours of the development kit of PASCAL VOC.
  expected = [(0, 0, 0), (128, 0, 0), (0, 128, 0), (128, 128, 0), (0, 0, 128), (128, 0, 128)]
  np.testing.assert_array_equal(voc_colours(256)[:6], expected)
  assert tuple(voc_colours(256)[9]) == (192, 0, 0)
  examples, predicted = rows(6, 6)
  images = PredictedMasks(num_examples=1)(evaluated(TASK, Thresholds(), examples, 3)).images
  height, width, factor = *SIDES, -(-96 // SIDES[1])
  panels = [images['masks'][:, i * (factor * width + 2) :][:, : factor * width] for i in range(3)]
  image, mask, prediction = (panel[::factor, ::factor] for panel in panels)
  assert mask.shape == (height, width, 3)
  np.testing.assert_array_equal(image[..., 0], 40 * predicted[0])
  np.testing.assert_array_equal(prediction, voc_colours(256)[predicted[0]])
  labelled = examples[0]['mask'] != 255
  np.testing.assert_array_equal(mask[labelled], voc_colours(256)[examples[0]['mask'][labelled]])
  assert (mask[~labelled] == 255).all() and not labelled.all()


def test_settings_and_models_that_do_not_fit_are_refused():
  with pytest.raises(UserError, match=r'ignored = 2 is one of its 6 classes'):
    SemanticSegmentation(image_shape=(4, 4, 1), num_classes=CLASSES, ignored=2)
  with pytest.raises(UserError, match=r'mean = \(0.5, 0.5\)'):
    SemanticSegmentation(image_shape=(4, 4, 1), num_classes=CLASSES, mean=(0.5, 0.5))
  few = SemanticSegmentation(image_shape=(*SIDES, 1), num_classes=4)
  with pytest.raises(UserError, match='the model has 6 classes'):
    few.check_model(Thresholds())
