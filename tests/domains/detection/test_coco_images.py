"""Images with boxes in the files of COCO, written by hand."""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from t2x.base.errors import UserError
from t2x.domains.detection import CocoImages
from t2x.experiments import read_config

CONFIG = Path(__file__).parents[3] / 'configs' / 'runs' / 'coco_yolos_full.gin'

DATA = {
  'images': [
    {'id': 7, 'file_name': 'b.png', 'height': 4, 'width': 6},
    {'id': 3, 'file_name': 'a.png', 'height': 5, 'width': 5},
  ],
  'annotations': [
    {'id': 1, 'image_id': 7, 'category_id': 90, 'bbox': [1, 0, 2.5, 3], 'iscrowd': 1, 'area': 7.5},
    {'id': 2, 'image_id': 7, 'category_id': 1, 'bbox': [0, 0, 6, 4], 'iscrowd': 0, 'area': 24},
  ],
  'categories': [{'id': 90, 'name': 'toothbrush'}, {'id': 1, 'name': 'person'}],
}


@pytest.fixture
def source(tmp_path):
  def make(data=DATA, **settings):
    path = tmp_path / f'{len(list(tmp_path.iterdir()))}.json'
    path.write_text(json.dumps(data))
    return CocoImages(train=str(path), folders={'train': str(tmp_path)}, **settings)

  for name, side in (('a', (5, 5)), ('b', (6, 4))):
    Image.new('RGB', side, (10, 20, 30)).save(tmp_path / f'{name}.png')
  return make


def test_examples_have_the_boxes_of_their_image_and_labels_by_category_id(source):
  first, second = source().load('train')
  assert source().class_names() == ['person', 'toothbrush']
  assert first['image'].shape == (5, 5, 3) and first['boxes'] == first['labels'] == []
  assert second['image'].shape == (4, 6, 3) and set(second['image'].ravel()) == {10, 20, 30}
  assert second['boxes'] == [[1, 0, 2.5, 3], [0, 0, 6, 4]]
  assert second['labels'] == [1, 0] and second['crowd'] == [True, False]
  assert source(channels=1).load('train')[0]['image'].shape == (5, 5, 1)


def test_the_fingerprint_reads_annotations_and_images(source, tmp_path):
  same, other = source(), source({**DATA, 'annotations': DATA['annotations'][:1]})
  assert source().fingerprint() == same.fingerprint() != other.fingerprint()
  before = same.fingerprint()
  Image.fromarray(np.zeros((5, 5, 3), np.uint8)).save(tmp_path / 'a.png')
  assert same.fingerprint() != before


def test_mistakes_name_the_file(source):
  with pytest.raises(UserError, match=r"json has no list 'categories'"):
    source({'images': [], 'annotations': []}).load('train')
  with pytest.raises(UserError, match=r'json: annotation 2 lacks a field, or its image'):
    source({**DATA, 'categories': DATA['categories'][:1]}).load('train')
  with pytest.raises(UserError, match=r'c.png cannot be read'):
    source({**DATA, 'images': [{'id': 7, 'file_name': 'c.png'}]}).load('train')[0]


def test_the_config_of_coco_reads_a_file_of_annotations_written_by_hand(source):
  """In place of COCO's own files, which are not there."""
  own = source({**DATA, 'categories': [{'id': i, 'name': f'name {i}'} for i in range(1, 91)]})
  folder = own.folders['train']
  experiment = read_config(
    [CONFIG],
    overrides=[
      *(f"CocoImages.{split}='{own.train}'" for split in ('train', 'validation')),
      f"CocoImages.folders={{'train': '{folder}', 'validation': '{folder}'}}",
      'num_classes=90',
      'Detection.image_shape=(16, 32, 3)',
    ],
  ).build()
  task = experiment.task
  batches = task.batches(task.rows('train'), batch_size=2, seed=0)
  for train, batch in ((True, batches[0]), (False, task.transform(train=False))):
    rows = batch if train else batch(task.rows('validation')[1], np.random.default_rng(0))
    for name, spec in task.spec(2).items():
      assert rows[name].shape == (spec.shape if train else spec.shape[1:])
  # The group is left out; the other box fills the image.
  np.testing.assert_allclose(rows['boxes'][0], [0.5, 0.5, 1, 1])
  assert rows['label'].tolist() == [0, *[90] * 99]
