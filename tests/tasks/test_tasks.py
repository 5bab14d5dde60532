"""What each task counts."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from fake_models import IMAGE, ONE, PAIR, WithLogits, spec
from flax import nnx
from loss_terms import TASKS

from t2x.base.errors import UserError
from t2x.data import Bytes, TextFiles
from t2x.decode import Greedy
from t2x.layers import Causal, Full, Prefix, Window
from t2x.models import Output
from t2x.samples import BabelDates, Digits
from t2x.tasks import (
  CausalLM,
  ImageClassification,
  MaskedLM,
  SequenceClassification,
  SpanCorruption,
  Translation,
  WordClassification,
)

TEXT = {'source': TextFiles(train='none'), 'tokenizer': Bytes()}


class Uniform(WithLogits, nnx.Module):
  """Gives every token the same probability."""

  def __init__(self, inputs=ONE, patterns=(), outputs='token logits'):
    self.spec = nnx.static(spec(inputs, outputs, patterns, vocab_size=512))

  def hidden(self, *ids, **known):
    return Output(jnp.zeros((*ids[-1].shape, 4)))

  def logits(self, x):
    return jnp.zeros((*x.shape[:-1], 512))


def batch(task, seed=0):
  rng = np.random.default_rng(seed)
  arrays = {
    name: jnp.asarray(rng.integers(1, 3, size=spec.shape).astype(spec.dtype))
    for name, spec in task.spec(2).items()
  }
  for name in ('masked_positions', 'in_source'):
    if name in arrays:
      arrays[name] = jnp.zeros_like(arrays[name])
  return arrays


PAIRS = {'source': BabelDates(), 'tokenizer': Bytes()}


@pytest.mark.parametrize(
  'task',
  [
    CausalLM(**TEXT, length=8),
    Translation(**PAIRS, source_length=8, target_length=8),
    SpanCorruption(**TEXT, source_length=40),
  ],
)
@pytest.mark.parametrize(
  ('pattern', 'proposed'),
  [
    (Window(3), r'use \(Causal\(\) & Window\(size=3, dilation=1\)\)'),
    (Full(), r'use Causal\(\)'),
    (Causal() | Window(2), 'attends to later tokens'),
  ],
)
def test_a_pattern_that_shows_later_tokens_is_refused(task, pattern, proposed):
  for seen in (Causal(), Causal() & Window(3), Causal() | Prefix()):
    task.check_model(Uniform(task.inputs, (seen,)))
  with pytest.raises(UserError, match=proposed):
    task.check_model(Uniform(task.inputs, (Causal(), pattern)))


def test_a_decoder_of_a_task_that_is_not_causal_may_see_everything():
  MaskedLM(**TEXT, length=16).check_model(Uniform(patterns=(Full(),)))


@pytest.mark.parametrize(
  ('task', 'inputs'),
  [
    (CausalLM(**TEXT, length=8), PAIR),
    (MaskedLM(**TEXT, length=16), IMAGE),
    (Translation(**PAIRS, source_length=8, target_length=8), ONE),
    (SpanCorruption(**TEXT, source_length=40), ONE),
    (ImageClassification(source=Digits(), image_shape=(8, 8, 1), num_classes=10), ONE),
  ],
)
def test_a_model_of_other_inputs_is_refused(task, inputs):
  name, first, other = type(task).__name__, next(iter(task.inputs)), next(iter(inputs))
  with pytest.raises(
    UserError,
    match=rf'{name} needs a model that takes {first} \(.*, but .* @Uniform takes {other} \(.*:',
  ):
    task.check_model(Uniform(inputs))


@pytest.mark.parametrize(
  ('task', 'outputs', 'head'),
  [
    (CausalLM(**TEXT, length=8), 'class logits', 'TiedHead'),
    (Translation(**PAIRS, source_length=8, target_length=8), 'vectors', 'TiedHead'),
    (
      SequenceClassification(**TEXT, labels=['a', 'b'], length=8),
      'classes per token',
      'SequenceClassifier',
    ),
    (
      WordClassification(**TEXT, labels=['a', 'b'], length=8),
      'token logits',
      'TokenClassifier',
    ),
    (
      ImageClassification(source=Digits(), image_shape=(8, 8, 1), num_classes=10),
      'vectors',
      'Classifier',
    ),
  ],
)
def test_a_head_of_other_outputs_is_refused(task, outputs, head):
  reason = f'needs {task.outputs}, but the head of @Uniform computes {outputs}: bind .* @{head}'
  with pytest.raises(UserError, match=reason):
    task.check_model(Uniform(task.inputs, outputs=outputs))


WITH_Z_LOSS = {name: task for name, task in TASKS.items() if hasattr(task, 'z_loss')}


@pytest.mark.parametrize('name', WITH_Z_LOSS)
def test_the_z_loss_is_added_in_training_only(name):
  """The normaliser of 512 logits that are 0 is 512."""
  task = dataclasses.replace(WITH_Z_LOSS[name], z_loss=0.1, auxiliaries={})
  arrays = batch(task)
  training = task.sums(Uniform(), arrays, jax.random.key(0)).metrics
  evaluation = task.sums(Uniform(), arrays, None).metrics
  total, weight = map(float, training['z_loss'])
  assert math.isclose(total / weight, 0.1 * math.log(512) ** 2, rel_tol=1e-6)
  assert math.isclose(training['loss'][0], evaluation['loss'][0] + total, rel_tol=1e-6)
  assert math.isclose(evaluation['loss'][0] / weight, math.log(512), rel_tol=1e-6)
  assert 'z_loss' not in evaluation


@pytest.mark.parametrize(
  'task',
  [
    CausalLM(**TEXT, length=8),
    MaskedLM(**TEXT, length=16),
    Translation(**PAIRS, source_length=8, target_length=6, label_smoothing=0.1),
  ],
)
def test_a_uniform_model_has_the_vocabulary_as_perplexity(task):
  sums = task.sums(Uniform(), batch(task), None).metrics
  means = {name: (float(a), float(b)) for name, (a, b) in sums.items()}
  metrics = task.summarise(means)
  assert math.isclose(metrics['perplexity'], 512, rel_tol=1e-5)
  assert math.isclose(metrics['loss'], math.log(512), rel_tol=1e-6)


def test_bits_per_byte_counts_the_bytes_of_the_split():
  task = CausalLM(**TEXT, length=8)
  metrics = task.summarise({'loss': (100 * math.log(2), 50.0)}, {'bytes': 25, 'tokens': 50})
  assert math.isclose(metrics['bits_per_byte'], 4.0)


def test_masked_places_do_not_exceed_the_row():
  assert MaskedLM(**TEXT, length=20).spec(3)['labels'].shape == (3, 3)


def test_padding_is_not_counted():
  task = CausalLM(**TEXT, length=4)
  assert task.count({'segments': np.array([[1, 1, 2, 0], [1, 0, 0, 0]]), 'tokens': None}) == 4


def test_top5_accuracy_of_a_tabulated_ranking():
  task = ImageClassification(source=Digits(), image_shape=(2, 2, 1), num_classes=10)

  class Ranked(nnx.Module):
    def __call__(self, images, key=None):
      return Output(jnp.broadcast_to(-jnp.arange(10.0), (len(images), 10)))

  labels = jnp.array([0, 4, 5, 0])
  arrays = {'image': jnp.zeros((4, 2, 2, 1)), 'label': labels, 'weight': jnp.array([1.0, 1, 1, 0])}
  sums = task.sums(Ranked(), arrays, None).metrics
  metrics = task.summarise({name: (float(a), float(b)) for name, (a, b) in sums.items()})
  assert math.isclose(metrics['accuracy'], 1 / 3, rel_tol=1e-6)
  assert math.isclose(metrics['top5_accuracy'], 2 / 3, rel_tol=1e-6)


def test_of_at_most_five_classes_no_top5_accuracy_is_computed():
  for num_classes, has_top5 in ((3, False), (5, False), (6, True)):
    task = ImageClassification(source=Digits(), image_shape=(2, 2, 1), num_classes=num_classes)

    class Equal(nnx.Module):
      def __call__(self, images, key=None, size=num_classes):
        return Output(jnp.zeros((len(images), size)))

    arrays = {'image': jnp.zeros((1, 2, 2, 1)), 'label': jnp.zeros(1, int), 'weight': jnp.ones(1)}
    assert ('top5_accuracy' in task.sums(Equal(), arrays, None).metrics) == has_top5


def test_label_smoothing_applies_only_in_training():
  task = ImageClassification(
    source=Digits(), image_shape=(2, 2, 1), num_classes=3, label_smoothing=0.3
  )

  class Sure(nnx.Module):
    def __call__(self, images, key=None):
      return Output(jnp.tile(jnp.array([4.0, 0.0, -4.0]), (len(images), 1)))

  arrays = {
    'image': jnp.zeros((2, 2, 2, 1)),
    'label': jnp.zeros(2, jnp.int32),
    'weight': jnp.ones(2),
  }
  train = task.sums(Sure(), arrays, jax.random.key(0)).metrics
  evaluation = task.sums(Sure(), arrays, None).metrics
  assert train['loss'][0] > evaluation['loss'][0] + 1.0


def test_the_error_of_an_unknown_split_names_the_splits():
  task = ImageClassification(source=Digits(), image_shape=(8, 8, 1), num_classes=10)
  with pytest.raises(UserError, match='train'):
    task.rows('nowhere')


@pytest.mark.parametrize('name', [n for n, task in TASKS.items() if not task.answers_prompts])
def test_tasks_without_answers_say_what_to_do(name):
  with pytest.raises(UserError, match=r'pass a split to `t2x eval`|use (a CausalLM|fill_masks)'):
    TASKS[name].generate(None, ['a.png'], strategy=Greedy(), max_new_tokens=1)


def test_a_folder_of_images_is_not_taken_for_texts():
  """`t2x generate RUN --input FOLDER` of a task that reads images says that it generates nothing."""
  assert TASKS['pixel_classes'].prompts == TASKS['image_classification'].prompts == 'files'
