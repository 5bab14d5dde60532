"""Which process prepares the rows of a split."""

import contextlib
import dataclasses
import functools
from types import SimpleNamespace

import numpy as np
import pytest

from t2x.data import Bytes, ConcatenateAndSplit, TextFiles
from t2x.data.sources.base import Examples, Source
from t2x.layers import MLP, LearnedGrid, MultiHeadAttention, PatchEmbedding
from t2x.models import Block, Classifier, Encoder, Stack, VisionTransformer
from t2x.tasks import CausalLM, ImageClassification
from t2x.train import Experiment
from t2x.train.evaluation import Inference


@pytest.mark.parametrize('shared', [True, False])
def test_processes_prepare_together_if_the_task_shares_its_preparation(tmp_path, shared):
  (tmp_path / 'text.txt').write_text('some text')
  events = []

  @contextlib.contextmanager
  def process_zero_first():
    events.append('enter')
    yield
    events.append('leave')

  @dataclasses.dataclass(frozen=True)
  class Source(TextFiles):
    def fingerprint(self):
      events.append('fingerprint')
      return 'fingerprint'

  @dataclasses.dataclass(frozen=True, kw_only=True)
  class Task(CausalLM):
    shares_preparation = shared
    plan = ConcatenateAndSplit(8)

    def rows(self, split):
      events.append(f'rows of {split}')
      return [split]

  task = Task(source=Source(train=str(tmp_path / 'text.txt')), tokenizer=Bytes(), length=8)
  run = SimpleNamespace(processes=SimpleNamespace(process_zero_first=process_zero_first), task=task)
  assert Inference.rows(run, 'train') == ['train']
  # A source may download its data when its splits or its fingerprint are first used.
  assert events == (
    ['enter', 'fingerprint', 'leave', 'rows of train']
    if shared
    else ['enter', 'rows of train', 'leave']
  )


def test_the_values_of_examples_are_those_of_each_row_alone():
  """Of all rows of a split that is no multiple of the batch size, against batches of one row."""
  images = np.random.default_rng(0).random((7, 8, 8, 1), np.float32)
  labels = np.arange(7) % 6

  class NamedImages(Examples):
    def __len__(self):
      return len(images)

    def __getitem__(self, index):
      return {'image': images[index], 'label': labels[index]}

    def names(self):
      return [f'image {i}' for i in range(len(images))]

  @dataclasses.dataclass(frozen=True)
  class Images(Source):
    def load(self, split):
      return NamedImages()

    def splits(self):
      return ('train', 'validation')

    def fingerprint(self):
      return 'images'

  task = ImageClassification(source=Images(), image_shape=(8, 8, 1), num_classes=6)

  block = functools.partial(
    Block,
    mixer=functools.partial(MultiHeadAttention, num_heads=2),
    feed_forward=functools.partial(MLP, hidden_dim=16),
  )
  build = functools.partial(
    VisionTransformer,
    d_model=8,
    embedding=functools.partial(PatchEmbedding, patch_size=4, channels=1),
    positions=functools.partial(LearnedGrid, height=2, width=2),
    body=functools.partial(Encoder, stack=functools.partial(Stack, num_layers=1, blocks=[block])),
    head=functools.partial(Classifier, num_classes=6),
  )
  experiment = Experiment(model=build, task=task)
  several, single = (Inference(experiment, None, batch_size=size) for size in (4, 1))
  blueprint = several.program.blueprint
  model = blueprint.shapes
  params = {
    name: np.random.default_rng(number).normal(0, 0.3, leaf.shape).astype(leaf.dtype)
    for number, (name, leaf) in enumerate(blueprint.params(model).items())
  }
  result = several.evaluation(params, 'validation')
  metrics = {'loss', 'accuracy', 'top5_accuracy'}
  assert {*result.examples} == {*metrics, 'label', 'prediction', 'name'}
  assert {'label', 'prediction'}.isdisjoint(result.metrics)
  np.testing.assert_array_equal(result.examples['label'], labels)
  right = result.examples['prediction'] == labels
  np.testing.assert_array_equal(right, result.examples['accuracy'])
  assert result.examples['name'].tolist() == [f'image {i}' for i in range(7)]
  step = single.program.eval_step()
  alone = [
    step(params, batch).sums for batch in single.evaluation_batches(task.rows('validation'), task)
  ]
  for name in metrics:
    values = result.examples[name]
    np.testing.assert_allclose(values, [float(sums[name][0]) for sums in alone], rtol=1e-5)
    assert result.metrics[name] == pytest.approx(values.mean(), rel=1e-6)
  assert len({*result.examples['accuracy']}) == 2
