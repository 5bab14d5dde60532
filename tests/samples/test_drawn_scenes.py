"""Drawn scenes: what their captions and pictures say is what was drawn."""

import numpy as np
import pytest

from t2x.base.errors import UserError
from t2x.samples import DrawnScenes
from t2x.samples.drawn_scenes import (
  COLOURS,
  SHAPES,
  Scene,
  draw,
  matches,
  read_caption,
  read_picture,
  scenes,
)

SPLITS = ('train', 'validation', 'test')
SCENE = Scene(('red', 'blue'), ('square', 'circle'), 'left of')


def test_no_scene_is_in_two_splits_and_each_object_is_in_all():
  own = {split: set(scenes(split)) for split in SPLITS}
  assert sum(map(len, own.values())) == len(set().union(*own.values())) == 24 * 23 * 2
  for split in SPLITS:
    objects = {
      (one.relation, place, one.colours[place], one.shapes[place])
      for one in own[split]
      for place in (0, 1)
    }
    assert len(objects) > (90 if split == 'train' else 60), split
  for example in DrawnScenes().load('test')[:50]:
    assert example['facts'] in own['test']


def test_each_caption_describes_its_own_scene_only():
  seen = {}
  for split in SPLITS:
    for scene in scenes(split):
      assert len(scene.captions()) == 12
      for caption in scene.captions():
        assert seen.setdefault(caption, scene) is scene
        assert read_caption(caption) == scene


@pytest.mark.parametrize(
  ('caption', 'right'),
  [
    ('a red square left of a blue circle', True),
    ('there is a red square to the left of the blue circle', True),
    ('the blue circle is right of a red square', True),
    ('a blue circle left of a red square', False),
    ('a red square right of a blue circle', False),
    ('a red square above a blue circle', False),
    ('a red circle left of a blue square', False),
    ('a red square left of a blue', False),
    ('a red square left of a blue circle circle', False),
    ('', False),
  ],
)
def test_a_caption_is_right_if_objects_and_relation_are(caption, right):
  assert matches(caption, SCENE) == right


@pytest.mark.parametrize('size', [16, 24, 32])
def test_the_scene_of_every_picture_can_be_read(size):
  for example in DrawnScenes(size=size).load('test')[:300]:
    assert example['image'].shape == (size, size, 3)
    assert read_picture(example['image']) == example['facts']


def test_reading_tolerates_noise_and_needs_two_objects():
  random = np.random.default_rng(0)
  image = draw(SCENE, 16, random)
  noise = random.normal(0, 20, image.shape)
  assert read_picture(np.clip(image + noise, 0, 255).astype(np.uint8)) == SCENE
  assert read_picture(image[:, ::-1]).colours == ('blue', 'red')
  turned = Scene(SCENE.colours, SCENE.shapes, 'above')
  assert read_picture(image.transpose(1, 0, 2)) == turned
  image[:, 8:] = 0
  assert read_picture(image) is None and read_picture(np.zeros_like(image)) is None


def test_an_example_depends_on_its_index_and_split_only():
  source = DrawnScenes()
  alone, among = source.load('train')[7], source.load('train')[5:9][2]
  np.testing.assert_array_equal(alone['image'], among['image'])
  assert alone['text'] == among['target'] and alone['source'] is alone['image']
  assert alone['text'] in alone['captions'] and matches(alone['text'], alone['facts'])
  assert (source.load('test')[7]['image'] != alone['image']).any()
  assert (DrawnScenes(seed=1).load('train')[7]['image'] != alone['image']).any()


def test_settings_that_do_not_fit_are_refused():
  with pytest.raises(UserError, match='must be even'):
    DrawnScenes(size=17)
  with pytest.raises(UserError, match="split 'dev': scenes are divided into train, validation"):
    DrawnScenes(examples={'train': 10, 'dev': 5})
  assert len(COLOURS) * len(SHAPES) == 24
