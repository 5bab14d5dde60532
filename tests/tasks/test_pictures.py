"""Pictures show what the model computes: attention probabilities and predicted classes."""

import dataclasses
import functools
import types

import jax
import numpy as np
import pytest
from flax import nnx

from t2x.base.errors import UserError
from t2x.data import Bytes, TextFiles
from t2x.domains.video import Tubelets, VideoClassification
from t2x.layers import (
  MLP,
  LearnedGrid,
  MultiHeadAttention,
  PatchEmbedding,
  RoPE,
  TokenEmbedding,
  normal,
)
from t2x.models import (
  Block,
  Classifier,
  Decoder,
  Encoder,
  EncoderDecoder,
  LanguageModel,
  Stack,
  VisionTransformer,
)
from t2x.tasks import (
  AttentionMaps,
  CausalLM,
  Classification,
  ClassifiedImages,
  ImageClassification,
  Translation,
)
from t2x.tasks.inspection import Inspection

HEADS, LAYERS = 2, 3


def stack():
  block = functools.partial(
    Block,
    mixer=functools.partial(MultiHeadAttention, num_heads=HEADS),
    feed_forward=functools.partial(MLP, hidden_dim=8),
  )
  return functools.partial(Stack, num_layers=LAYERS, blocks=[block])


def language_model():
  return LanguageModel(
    d_model=8,
    embedding=functools.partial(TokenEmbedding, vocab_size=261),
    body=functools.partial(Decoder, stack=stack(), encoding=RoPE),
    rngs=nnx.Rngs(0),
  )


def vision_model():
  return VisionTransformer(
    d_model=8,
    embedding=functools.partial(PatchEmbedding, patch_size=4, channels=1),
    positions=functools.partial(LearnedGrid, height=2, width=2),
    body=functools.partial(Encoder, stack=stack()),
    head=functools.partial(Classifier, num_classes=3, init=normal(1.0)),
    rngs=nnx.Rngs(0),
  )


def encoder_decoder():
  block = functools.partial(
    Block,
    mixer=functools.partial(MultiHeadAttention, num_heads=HEADS),
    cross=functools.partial(MultiHeadAttention, num_heads=HEADS),
    feed_forward=functools.partial(MLP, hidden_dim=8),
  )
  target = functools.partial(Stack, num_layers=2, blocks=[block])
  return EncoderDecoder(
    d_model=8,
    embedding=functools.partial(TokenEmbedding, vocab_size=261),
    encoder=functools.partial(Encoder, stack=stack(), encoding=RoPE),
    decoder=functools.partial(Decoder, stack=target, encoding=RoPE),
    rngs=nnx.Rngs(0),
  )


def text_task():
  task = CausalLM(source=TextFiles(train='none'), tokenizer=Bytes(), length=16)
  return task.bound(Bytes().fit(lambda: ()))


def image_task():
  return ImageClassification(source=TextFiles(train='none'), image_shape=(8, 8, 1), num_classes=3)


ROWS = [{'image': np.full((8, 8), 20 * i, np.uint8), 'label': i % 3} for i in range(10)]


def evaluated(task, model):
  return types.SimpleNamespace(
    task=task, watched=iter, model=lambda: model, rows=lambda split: ROWS
  )


def test_attention_maps_are_the_probabilities_of_each_layer():
  model, task = language_model(), text_task()
  maps = AttentionMaps(texts=['abc', 'abcdef'])
  maps.check(task, model)
  images = maps(evaluated(task, model)).images
  assert list(images) == [f'attention/layer_{i:02}' for i in range(LAYERS)]
  layers = Inspection(model, task.fitted).layers('mixer.probabilities', ['abc', 'abcdef'])
  for image, layer in zip(images.values(), layers, strict=True):
    assert image.dtype == np.uint8 and image.shape[-1] == 3
    length = layer.shape[-1]
    size = (image.shape[0] - 2) // 2
    # The second map of the first row: head 1 of the first text.
    drawn = image[:size, size + 2 :, 0][:: size // length, :: size // length]
    np.testing.assert_allclose(drawn / 255, layer[0, 1] / layer[0, 1].max(), atol=0.003)
    assert (drawn[np.triu_indices(length, 1)] == 0).all(), 'causal'


def test_attention_maps_of_an_encoder_decoder_are_of_both_sides_and_in_between():
  lengths = {'source_length': 16, 'target_length': 16}
  task = Translation(source=TextFiles(train='none'), tokenizer=Bytes(), **lengths)
  task, model = task.bound(Bytes().fit(lambda: ())), encoder_decoder()
  maps = AttentionMaps(texts=['a source'], targets=['target'])
  maps.check(task, model)
  images = maps(evaluated(task, model)).images
  kinds = [name.split('/')[0] for name in images]
  assert {kind: kinds.count(kind) for kind in kinds} == {'attention': 2, 'encoder': 3, 'cross': 2}


def test_attention_maps_of_images_come_from_the_split():
  model, task = vision_model(), image_task()
  maps = AttentionMaps(num_examples=2)
  maps.check(task, model)
  assert len(maps(evaluated(task, model)).images) == LAYERS
  assert maps.replaced(num_examples=None, split='test').num_examples == 2


def test_classified_images_have_labels_predictions_and_frames():
  model, task = vision_model(), image_task()
  result = ClassifiedImages(num_examples=4)(evaluated(task, model))
  indices = [int(sample['label']) for sample in result.samples]
  assert len(indices) == 4
  rows = [task.transform(train=False)(row, np.random.default_rng(0)) for row in ROWS]
  logits = jax.jit(lambda model, images: model(images).x)(
    model, np.stack([r['image'] for r in rows])
  )
  predictions = {row['label']: [] for row in ROWS}
  for row, scores in zip(ROWS, logits, strict=True):
    (best,) = np.flatnonzero(scores == scores.max())
    predictions[row['label']].append(str(best))
  (image,) = result.images.values()
  for i, sample in enumerate(result.samples):
    assert sample['output'] in predictions[int(sample['label'])]
    size = (image.shape[0] - 2) // 2
    corner = image[i // 2 * (size + 2), i % 2 * (size + 2)]
    is_green = corner[1] > corner[0]
    assert is_green == (sample['label'] == sample['output'])


def test_frames_of_classified_videos_are_side_by_side_with_one_border():
  model = VisionTransformer(
    d_model=8,
    embedding=functools.partial(Tubelets, frames=1, patch_size=4, channels=1),
    positions=functools.partial(LearnedGrid, height=2, width=2),
    body=functools.partial(Encoder, stack=stack()),
    head=functools.partial(Classifier, num_classes=3, init=normal(1.0)),
    rngs=nnx.Rngs(0),
  )
  rows = [
    {
      'video': np.full((3, 8, 8, 1), 20 * i, np.uint8)
      + 7 * np.arange(3, dtype=np.uint8).reshape(3, 1, 1, 1),
      'label': i % 3,
    }
    for i in range(4)
  ]
  task = VideoClassification(
    source=TextFiles(train='none'), video_shape=(3, 8, 8, 1), num_classes=3
  )
  given = evaluated(task, model)
  given.rows = lambda split: rows
  result = ClassifiedImages(num_examples=4)(given)
  (image,) = result.images.values()
  for i, sample in enumerate(result.samples):
    top = i * (image.shape[0] + 2) // 4
    is_green = image[top, 0, 1] > image[top, 0, 0]
    assert is_green == (sample['label'] == sample['output'])
    centres = [image[top + 50, 3 + 98 * n + 48, 0] for n in range(3)]
    np.testing.assert_allclose(centres, 20 * i + 7 * np.arange(3), atol=1)


@pytest.mark.parametrize('settings', [{'mean': 0.3, 'std': 0.2}, {'mean': (0.3,), 'std': [0.2]}])
def test_classified_images_match_the_source(settings):
  task = dataclasses.replace(image_task(), **settings)
  result = ClassifiedImages(num_examples=2)(evaluated(task, vision_model()))
  (image,) = result.images.values()
  size = (image.shape[1] - 2) // 2
  middle = image[size // 2, size + 2 + size // 2]
  np.testing.assert_allclose(middle, ROWS[5]['image'][0, 0], atol=1)


@pytest.mark.parametrize(
  ('settings', 'is_text', 'told'),
  [
    ({}, True, 'AttentionMaps.texts is not set'),
    ({'texts': ['a'], 'num_examples': 2}, True, 'AttentionMaps.num_examples has no effect'),
    ({'texts': ['a'], 'split': 'test'}, True, 'AttentionMaps.split has no effect'),
    ({'texts': ['a'], 'targets': ['b']}, True, 'AttentionMaps.targets must'),
    ({'texts': ['a']}, False, 'AttentionMaps.texts has no effect'),
  ],
)
def test_settings_without_effect_are_refused(settings, is_text, told):
  task, model = (text_task(), language_model()) if is_text else (image_task(), vision_model())
  with pytest.raises(UserError, match=told):
    AttentionMaps(**settings).check(task, model)


def test_classified_images_need_their_task():
  with pytest.raises(UserError, match='evaluates @ImageClassification'):
    ClassifiedImages().check(text_task(), language_model())


def test_classified_images_need_the_statistics_of_the_pixels():
  """They undo the normalisation, so that other tasks over images are refused before training."""

  class Sketches(Classification):
    inputs = {'image': 'image'}

    def spec(self, batch_size):
      return super().spec(batch_size)

  sketches = Sketches(source=TextFiles(train='none'), num_classes=3)
  with pytest.raises(UserError, match=r'evaluates @ImageClassification and .*, not @Sketches'):
    ClassifiedImages().check(sketches, vision_model())
