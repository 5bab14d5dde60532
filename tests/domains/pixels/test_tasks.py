"""Sampled pixels have the probabilities of the forward pass, known pixels stay, pictures are those of the samples."""

import dataclasses
import functools
import io
from pathlib import Path

import jax
import numpy as np
import pytest
from applying import moved
from evaluating import evaluated
from flax import nnx
from PIL import Image
from tiny_lm import lm

from t2x.base.errors import UserError
from t2x.data import Bytes
from t2x.data.sources.tfds_source import quiet_tfds
from t2x.data.tokenizers.palette import PaletteTokenizer
from t2x.domains.pixels import (
  AllPixels,
  CentralPixels,
  Colours,
  CompletedImages,
  LowerPixels,
  PixelLM,
  TextToImage,
)
from t2x.experiments import read_config
from t2x.layers import LearnedPositions
from t2x.models import LMHead
from t2x.samples import Digits, DrawnScenes, DrawnTexts
from t2x.samples.drawn_scenes import read_caption, read_picture

SIDE, GREYS = 4, np.array([[0.0], [80.0], [160.0], [255.0]])
RGB = np.array([[0, 0, 0], [250, 0, 0], [0, 127, 0], [0, 0, 255], [255, 255, 255]], float)
TASK = PixelLM(source=Digits(), image_shape=(SIDE, SIDE, 1)).bound(PaletteTokenizer(GREYS))
DRAWING = TextToImage(
  source=DrawnScenes(examples={'train': 8, 'validation': 8}),
  image_shape=(16, 16, 3),
  text_length=70,
).bound(PaletteTokenizer(RGB, Bytes().fit(list)))


def model(vocab_size, length, **head):
  head = functools.partial(LMHead, **head)
  encoding = functools.partial(LearnedPositions, max_length=length)
  build = lm(8, vocab_size=vocab_size, hidden_dim=16, encoding=encoding, head=head)
  return moved(build(rngs=nnx.Rngs(0)), scale=0.5, seed=0)


@pytest.fixture(scope='module')
def pixels():
  return model(5, SIDE * SIDE, unpredicted=1)


def test_sampling_token_by_token_has_the_probabilities_of_the_forward_pass(pixels):
  """Also where some pixels are known: their probability is that of the model, not 1."""
  image = TASK.palette.pixels(Digits().load('train')[0]['image'][:SIDE, :SIDE]).reshape(SIDE, SIDE)
  allowed = np.stack(
    [kind.allowed(TASK.palette, image) for kind in (AllPixels(), LowerPixels(), CentralPixels())]
  ).reshape(3, SIDE * SIDE, -1)
  prompts = np.full((3, 1), 4, np.int32)
  out = TASK._sampled(pixels, prompts, allowed, TASK.strategy, jax.random.key(0))
  ids = np.asarray(out.tokens)[:, 0]
  assert allowed[np.arange(3)[:, None], np.arange(SIDE * SIDE), ids].all()
  np.testing.assert_array_equal(ids[1].reshape(SIDE, SIDE)[:2], image[:2])
  known = ~CentralPixels().places(SIDE, SIDE)
  np.testing.assert_array_equal(ids[2].reshape(SIDE, SIDE)[known], image[known])
  batch = {'tokens': jax.numpy.asarray(ids)}
  logits = pixels.logits(TASK.hidden(pixels, batch, None).x)
  wanted = np.take_along_axis(jax.nn.log_softmax(logits), ids[..., None], axis=-1)[..., 0]
  np.testing.assert_allclose(np.asarray(out.log_probs)[:, 0], wanted, atol=1e-5)
  np.testing.assert_array_equal(TASK.sampled(pixels, prompts, allowed), ids)


@pytest.mark.parametrize(
  ('kind', 'rows'),
  [
    (AllPixels(), ['xxxx'] * 4),
    (LowerPixels(), ['....', '....', 'xxxx', 'xxxx']),
    (LowerPixels(share=0.25), ['....', '....', '....', 'xxxx']),
    (CentralPixels(), ['....', '.xx.', '.xx.', '....']),
    (CentralPixels(share=1.0), ['xxxx'] * 4),
  ],
)
def test_hidden_places(kind, rows):
  np.testing.assert_array_equal(kind.places(4, 4), [[c == 'x' for c in row] for row in rows])


def test_a_colour_is_allowed_if_its_grey_is_close():
  palette = PaletteTokenizer(RGB)
  image = np.array([[1, 4]])  # red, whose grey is 74.75 as that of green; white
  np.testing.assert_array_equal(
    Colours(tolerance=8.0).allowed(palette, image),
    [[[False, True, True, False, False], [False, False, False, False, True]]],
  )
  assert Colours(tolerance=50.0).allowed(palette, image)[0, 0].tolist() == [
    False,
    *[True] * 3,
    False,
  ]
  np.testing.assert_array_equal(Colours().visible(palette, image)[0], [[75] * 3, [255] * 3])


def test_the_picture_has_the_image_what_is_known_and_the_samples(pixels):
  rows = TASK.rows('test')[:2]
  own = {'hidden': LowerPixels(), 'num_examples': 2, 'num_samples': 3, 'batch_size': 4}
  evaluator = CompletedImages(**own)
  evaluator.check(TASK, jax.eval_shape(lambda: pixels))
  result = evaluator(evaluated(TASK, pixels, rows, 4))
  picture = result.images['images']
  side, gap = 96, 2
  cells = [
    [
      picture[y : y + side : 24, x : x + side : 24, 0]
      for x in range(0, 5 * (side + gap), side + gap)
    ]
    for y in (0, side + gap)
  ]
  right = []
  for row, (image, known, *samples) in zip(rows, cells, strict=True):
    ids = TASK.transform(train=False)(row, np.random.default_rng(0))['tokens']
    np.testing.assert_array_equal(image, TASK.palette.image(ids, SIDE, SIDE)[..., 0])
    np.testing.assert_array_equal(known[:2], image[:2])
    assert (known[2:] == 128).all()
    for sample in samples:
      np.testing.assert_array_equal(sample[:2], image[:2])
      right.append((sample[2:] == image[2:]).mean())
  assert len(right) == 6
  assert result.metrics['accuracy'] == pytest.approx(np.mean(right))
  everything = dataclasses.replace(evaluator, hidden=AllPixels())
  assert not everything(evaluated(TASK, pixels, rows, 4)).metrics


def test_colours_are_completed_after_the_text():
  drawer = model(DRAWING.palette.vocab_size, 70 + 256)
  rows = DRAWING.source.load('validation')[:1]
  evaluator = CompletedImages(hidden=Colours(tolerance=255.0), num_examples=1, num_samples=1)
  evaluator.check(DRAWING, jax.eval_shape(lambda: drawer))
  picture = evaluator(evaluated(DRAWING, drawer, rows, 1)).images['images']
  sample = picture[:96:6, 2 * 98 :: 6]
  np.testing.assert_array_equal(sample, DRAWING.images(drawer, [rows[0]['text']])[0])


def test_images_of_texts_follow_the_text_and_are_compared_with_it(monkeypatch):
  drawer = model(DRAWING.palette.vocab_size, 70 + 256)
  evaluator = DrawnTexts(num_examples=4, batch_size=2, num_drawn=3)
  evaluator.check(DRAWING, jax.eval_shape(lambda: drawer))
  texts = [example['text'] for example in DRAWING.source.load('validation')][:2]
  images = DRAWING.images(drawer, texts)
  assert images.shape == (2, 16, 16, 3)
  assert {tuple(pixel) for pixel in images.reshape(-1, 3)} <= {
    tuple(c) for c in RGB.astype(np.uint8)
  }
  examples = DRAWING.source.load('validation')
  drawn = {e['text']: e['image'] for e in examples}
  # The first of the two of each batch is drawn as its text says, the other one is blank.
  monkeypatch.setattr(
    TextToImage,
    'images',
    lambda self, model, texts, *rest: np.stack(
      [drawn[t] if i == 0 else np.zeros_like(drawn[t]) for i, t in enumerate(texts)]
    ),
  )
  result = evaluator(evaluated(DRAWING, drawer, None, 2))
  assert result.metrics['match'] == result.metrics['relation'] == 0.5
  assert len(result.samples) == 3
  assert read_picture(examples[0]['image']) == read_caption(examples[0]['text'])


def test_settings_without_effect_are_refused(pixels):
  with pytest.raises(UserError, match=r'DrawnTexts evaluates @TextToImage, not @PixelLM'):
    DrawnTexts().check(TASK, None)
  digits = dataclasses.replace(DRAWING, source=Digits())
  with pytest.raises(UserError, match=r'TextToImage\.source = @DrawnScenes'):
    DrawnTexts(split='test').check(digits, None)
  with pytest.raises(UserError, match=r'Palette\.text'):
    DRAWING.bound(TASK.palette).transform(train=True)
  with pytest.raises(UserError, match=r'21 tokens, but TextToImage\.text_length = 20'):
    dataclasses.replace(DRAWING, text_length=20).images(pixels, ['a' * 20])


def test_the_config_for_imagenet_reads_the_features_of_tfds(tmp_path):
  """Of a few random images: the data set itself is not here."""
  config = Path(__file__).parents[3] / 'configs' / 'runs' / 'image_gpt_imagenet.gin'
  experiment = read_config([config], [f'TFDS.data_dir = "{tmp_path}"']).build()
  task, random = experiment.task, np.random.default_rng(0)
  builder = task.source._builder()
  examples = []
  for i in range(3):
    file = io.BytesIO()
    Image.fromarray(random.integers(0, 256, (32, 32, 3)).astype(np.uint8)).save(file, 'png')
    examples.append((i, {'image': file.getvalue(), 'label': i}))
  builder._split_generators = lambda manager: {'train': examples, 'validation': examples[:2]}
  with quiet_tfds():
    builder.download_and_prepare(file_format='array_record')
  bound = experiment.bound(task.fit_tokenizer())
  assert bound.task.palette.vocab_size == 513
  batch = bound.task.batches(bound.task.rows('validation'), batch_size=2, seed=0)[0]
  assert batch['tokens'].shape == (2, 1024)
  assert batch['tokens'].max() > 255
  bound.task.check_model(bound.shapes())
