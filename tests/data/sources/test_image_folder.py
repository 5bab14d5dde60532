"""Images in one folder per class."""

import json
import pickle

import numpy as np
import pytest
from PIL import Image

from t2x.base.errors import UserError
from t2x.data import ImageFolder, PrepareImage, Resized, label_values


def picture(seed, size=(6, 4)):
  """RGB pixels [height, width, 3]."""
  return np.random.default_rng(seed).integers(0, 256, (*size[::-1], 3)).astype(np.uint8)


@pytest.fixture
def folder(tmp_path):
  """Three classes with two images each; a test split with one class."""
  for number, name in enumerate(('cat', 'dog', 'é')):
    for i in range(2):
      path = tmp_path / 'train' / name / f'{i}.png'
      path.parent.mkdir(parents=True, exist_ok=True)
      Image.fromarray(picture(10 * number + i)).save(path)
  (tmp_path / 'test' / 'dog').mkdir(parents=True)
  Image.fromarray(picture(99, (3, 3))).save(tmp_path / 'test' / 'dog' / 'x.PNG')
  (tmp_path / 'train' / '.DS_Store').write_text('')
  (tmp_path / 'train' / 'cat' / '.hidden').write_text('')
  return tmp_path


@pytest.fixture
def source(folder):
  return ImageFolder(train=str(folder / 'train'), test=str(folder / 'test'))


def test_labels_are_of_sorted_classes_of_the_train_split(source):
  assert source.splits() == ('train', 'test')
  train = source.load('train')
  assert [e['label'] for e in train] == [0, 0, 1, 1, 2, 2]
  for i, example in enumerate(train):
    np.testing.assert_array_equal(example['image'], picture(10 * (i // 2) + i % 2))
  [only] = source.load('test')
  assert only['label'] == 1
  assert only['image'].shape == (3, 3, 3)
  assert label_values(train) == label_values(source.load('test')) == {0, 1, 2}


def test_labels_of_an_imported_classifier_are_found_by_name(folder):
  path = folder / 'config.json'
  path.write_text(json.dumps({'id2label': {'2': 'cat', '0': 'é', '3': 'wolf', '1': 'dog'}}))
  source = ImageFolder(train=str(folder / 'train'), labels=str(path))
  assert [e['label'] for e in source.load('train')] == [0, 0, 1, 1, 2, 2]
  np.testing.assert_array_equal(source.load('train')[0]['image'], picture(20))
  assert source.load('train').label_values() == {0, 1, 2, 3}


@pytest.mark.parametrize(
  ('labels', 'told'),
  [
    ({'0': 'cat', '1': 'dog'}, "has the class 'é', which ImageFolder.labels = "),
    ({'0': 'cat', '1': 'dog', '2': 'é', '3': 'dog'}, "has several classes 'dog'"),
    ({'1': 'cat', '2': 'dog', '3': 'é'}, 'has no id2label'),
  ],
)
def test_labels_that_do_not_name_each_folder_are_refused(folder, labels, told):
  path = folder / 'config.json'
  path.write_text(json.dumps({'id2label': labels}))
  with pytest.raises(UserError) as caught:
    ImageFolder(train=str(folder / 'train'), labels=str(path)).load('train')
  assert told in str(caught.value)


def test_images_can_be_read_in_any_order_and_process(source):
  examples = pickle.loads(pickle.dumps(source.load('train')))
  assert [examples[i]['label'] for i in (-1, 0, 3)] == [2, 0, 1]
  assert [e['label'] for e in examples[1:5]] == [0, 1, 1, 2]
  with pytest.raises(IndexError):
    examples[6]


def test_images_of_all_modes_have_the_channels_that_are_set(folder):
  paths = [folder / 'train' / 'cat' / name for name in ('0.png', '1.png')]
  pixels = Image.fromarray(picture(5))
  for mode in ('L', 'P', 'RGBA', 'CMYK', '1', 'LA'):
    paths[0].unlink(missing_ok=True)
    suffix = '.tif' if mode == 'CMYK' else '.png'
    paths[0] = paths[0].with_suffix(suffix)
    (pixels.convert('L').convert(mode) if mode == 'LA' else pixels.convert(mode)).save(paths[0])
    for channels in (1, 3):
      source = ImageFolder(train=str(folder / 'train'), channels=channels)
      image = source.load('train')[0]['image']
      assert (image.shape, image.dtype) == ((4, 6, channels), np.uint8)


def test_images_are_rotated_by_their_exif_orientation(folder):
  image = Image.fromarray(picture(5))
  exif = Image.Exif()
  exif[0x0112] = 6  # Turned by 90 degrees.
  image.save(folder / 'train' / 'cat' / '0.png', exif=exif)
  turned = ImageFolder(train=str(folder / 'train')).load('train')[0]['image']
  np.testing.assert_array_equal(turned, np.rot90(picture(5), -1))


def test_resized_images_fit_the_task(source):
  row = Resized(source=source, height=8, width=8).load('test')[0]
  prepared = PrepareImage(num_classes=3)(row, np.random.default_rng(0))
  assert prepared['image'].shape == (8, 8, 3)
  assert prepared['label'] == 1


def test_the_fingerprint_is_of_names_content_and_settings(source, folder, tmp_path):
  before = source.fingerprint()
  (folder / 'moved').mkdir()
  for name in ('train', 'test'):
    (folder / name).rename(folder / 'moved' / name)
  moved = ImageFolder(train=str(folder / 'moved/train'), test=str(folder / 'moved/test'))
  assert moved.fingerprint() == before
  grey = ImageFolder(train=moved.train, test=moved.test, channels=1)
  without = ImageFolder(train=moved.train)
  prints = {before, grey.fingerprint(), without.fingerprint()}
  image = folder / 'moved' / 'train' / 'cat' / '1.png'
  Image.fromarray(picture(77)).save(image)
  prints.add(moved.fingerprint())
  image.rename(image.with_name('2.png'))
  prints.add(moved.fingerprint())
  image.with_name('2.png').rename(folder / 'moved' / 'train' / 'dog' / '2.png')
  prints.add(moved.fingerprint())
  assert len(prints) == 6


def test_damaged_images_are_errors_with_their_path(source, folder, message):
  path = folder / 'train' / 'cat' / '0.png'
  content = path.read_bytes()
  examples = source.load('train')
  for damaged in (b'', b'no image', content[:-40]):
    path.write_bytes(damaged)
    assert f'{path} cannot be read: no image, or a damaged one' in message(lambda: examples[0])
  Image.fromarray(np.zeros((4, 4), np.uint16)).save(path)
  assert 'more than 8 bits per channel' in message(lambda: examples[0])
  path.unlink()
  assert f'{path} cannot be read' in message(lambda: examples[0])


def test_unsuitable_folders_are_errors(source, folder, message):
  assert 'ImageFolder.validation is not set' in message(source.load, 'validation')
  absent = ImageFolder(train=str(folder / 'no'))
  assert "no' is not a folder" in message(absent.load, 'train')
  empty = folder / 'empty'
  empty.mkdir()
  assert 'no folders of classes' in message(ImageFolder(train=str(empty)).load, 'train')
  (folder / 'test' / 'bird').mkdir()
  assert 'has no images: remove this class' in message(source.load, 'test')
  Image.fromarray(picture(1)).save(folder / 'test' / 'bird' / 'a.png')
  assert "has the class 'bird', which ImageFolder.train" in message(source.load, 'test')
  (folder / 'train' / 'cat' / 'labels.csv').write_text('')
  assert 'labels.csv is no image: must end in .bmp' in message(source.load, 'train')
  Image.fromarray(picture(1)).save(folder / 'train' / 'a.jpg')
  assert 'has the image a.jpg in no class' in message(source.load, 'train')
