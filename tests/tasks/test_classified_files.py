"""Classifiers of images and recordings classify files."""

import json

import jax.numpy as jnp
import numpy as np
import pytest
from fake_models import IMAGE, spec
from flax import nnx
from PIL import Image
from scipy.io import wavfile
from scipy.special import softmax

from t2x.base.errors import UserError
from t2x.cli.prompts import read_prompts
from t2x.data import HeldOut, ImageFolder, Part, Resized
from t2x.data.sources.base import NoSource, example_names
from t2x.decode import Greedy
from t2x.domains.speech import AudioClassification, LogMel
from t2x.models import Output
from t2x.tasks import ImageClassification

PIXELS = np.random.default_rng(0).integers(0, 256, (6, 5, 4, 3), np.uint8)


class Channels(nnx.Module):
  """Class logits are the mean channels of an image."""

  spec = spec(IMAGE, 'class logits', num_classes=3)

  def __call__(self, x, key=None):
    return Output(5 * x.mean(axis=(1, 2)))


@pytest.fixture
def folder(tmp_path):
  """Images of three classes, two of each."""
  for i, pixels in enumerate(PIXELS):
    path = tmp_path / 'train' / 'bgr'[i // 2] / f'{i}.png'
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)
  return tmp_path / 'train'


def task_of(source, shape=(5, 4, 3)):
  return ImageClassification(source=source, image_shape=shape, num_classes=3, mean=0.0, std=1.0)


def generated(task, paths, count=1):
  return task.generate(
    Channels(), list(map(str, paths)), strategy=Greedy(), max_new_tokens=1, num_return=count
  )


def test_the_classes_of_files_have_the_probabilities_of_the_softmax(folder):
  task = task_of(ImageFolder(train=str(folder)))
  answers = generated(task, [folder / 'b' / '0.png', folder / 'g' / '3.png'], 3)
  expected = softmax(5 * PIXELS[[0, 3]].mean(axis=(1, 2)) / 255, axis=1)
  for row, probabilities in zip(answers, expected, strict=True):
    order = np.argsort(-probabilities)
    # Folders are sorted: b, g, r.
    assert [one['text'] for one in row] == ['bgr'[label] for label in order]
    found = [one['probability'] for one in row]
    np.testing.assert_allclose(found, probabilities[order], rtol=1e-5)
    np.testing.assert_allclose([one['score'] for one in row], np.log(found), rtol=1e-6)


def test_a_file_is_resized_as_the_images_of_the_source(folder):
  source = Resized(source=ImageFolder(train=str(folder)), height=2, width=2)
  task = task_of(source, (2, 2, 3))
  image = task.prepared(folder / 'b' / '0.png')['image']
  np.testing.assert_array_equal(
    image, task.transform(train=False)(source.load('train')[0], None)['image']
  )


def test_a_file_of_another_shape_and_one_that_is_no_image_are_refused(folder):
  task = task_of(ImageFolder(train=str(folder)), (4, 4, 3))
  with pytest.raises(
    UserError, match=r'0.png is of shape \(5, 4, 3\), but the model reads \(4, 4, 3\)'
  ):
    task.check_prompt(str(folder / 'b' / '0.png'))
  (folder / 'text.png').write_text('no image')
  with pytest.raises(UserError, match=r'text\.png cannot be read'):
    task.check_prompt(str(folder / 'text.png'))
  with pytest.raises(UserError, match=r'none\.png cannot be read'):
    task.check_prompt(str(folder / 'none.png'))


def test_classes_are_numbered_where_the_source_is_missing(folder):
  task = task_of(ImageFolder(train='/nowhere'))
  assert generated(task, [folder / 'b' / '0.png'])[0][0]['text'] in '012'


def test_a_recording_is_classified(tmp_path):
  class Loudness(nnx.Module):
    def __call__(self, x, key=None):
      spread = x.std(axis=(1, 2))
      return Output(jnp.stack([spread, 0.1 + 0 * spread], axis=-1))

  features = LogMel(rate=8000, num_frames=20)
  task = AudioClassification(source=NoSource(), num_classes=2, features=features)
  for name, scale in (('loud', 20_000), ('soft', 0)):
    samples = scale * np.sin(np.arange(800))
    wavfile.write(tmp_path / f'{name}.wav', 8000, samples.astype(np.int16))
  paths = [str(tmp_path / f'{name}.wav') for name in ('loud', 'soft')]
  answers = task.generate(Loudness(), paths, strategy=Greedy(), max_new_tokens=1)
  assert [answer['text'] for (answer,) in answers] == ['0', '1']


def test_examples_of_a_folder_are_named_by_their_files(folder):
  images = ImageFolder(train=str(folder))
  names = ['b/0.png', 'b/1.png', 'g/2.png', 'g/3.png', 'r/4.png', 'r/5.png']
  assert example_names(Resized(source=images, height=2, width=2).load('train')) == names
  assert example_names(Part(source=images, examples={'train': 3}).load('train')) == names[::2]
  held = HeldOut(source=images, validation=0.5)
  found = [*example_names(held.load('train')), *example_names(held.load('validation'))]
  assert sorted(found) == names


def test_prompts_are_the_lines_of_a_text_or_the_files_of_a_folder(tmp_path):
  (tmp_path / 'in.txt').write_bytes('eins\r\n\nzwei\u2028drei'.encode())
  lines = [
    (f'{tmp_path}/in.txt:{i}', text) for i, text in enumerate(['eins', '', 'zwei\u2028drei'], 1)
  ]
  assert read_prompts(str(tmp_path / 'in.txt')) == lines
  (tmp_path / 'in.jsonl').write_text(json.dumps({'prompt': 'eins'}))
  assert read_prompts(str(tmp_path / 'in.jsonl'))[0][1] == 'eins'
  (tmp_path / 'images' / '.thumbnails').mkdir(parents=True)
  with pytest.raises(UserError, match='images has no files'):
    read_prompts(str(tmp_path / 'images'))
  for name in ('b.png', 'a.png', '.hidden', '.thumbnails/a.png'):
    (tmp_path / 'images' / name).write_text('')
  paths = [str(tmp_path / 'images' / name) for name in ('a.png', 'b.png')]
  assert read_prompts(str(tmp_path / 'images')) == [(path, path) for path in paths]
