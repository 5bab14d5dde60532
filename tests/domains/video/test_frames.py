"""Moving digits, and the preparation of videos."""

import numpy as np
import pytest
from scipy.stats import chisquare

from t2x.base.errors import UserError
from t2x.data.sources.base import NoSource
from t2x.domains.video import VideoClassification
from t2x.samples import MovingDigits
from t2x.samples.digits import in_published_order
from t2x.samples.moving_digits import DIRECTIONS


def videos(split='train', **settings):
  settings = {'label': 'direction', 'noise': 0, 'train_examples': 200} | settings
  return MovingDigits(**settings).load(split)


def test_a_frame_is_the_one_before_it_moved_in_the_direction_of_the_label():
  names = list(DIRECTIONS)
  speeds = set()
  for example in videos():
    step = np.array(DIRECTIONS[names[example['label']]])
    first, *others = example['video'][..., 0]
    moved = [n for n in (1, 2) if np.array_equal(others[0], np.roll(first, n * step, (0, 1)))]
    assert len(moved) == 1
    for number, frame in enumerate(others, 1):
      np.testing.assert_array_equal(frame, np.roll(first, number * moved[0] * step, (0, 1)))
    assert example['text'].endswith(f' moves {names[example["label"]]}')
    speeds |= {*moved}
  assert speeds == {1, 2}


def test_the_digit_is_that_of_the_label_and_of_other_writers_in_other_splits():
  digits = in_published_order()
  images = [image.tobytes() for image, _ in digits]
  places = {}
  for split in ('train', 'validation', 'test'):
    of_digits, others = (videos(split, label=name)[:40] for name in ('digit', 'direction'))
    for example, other in zip(of_digits, others, strict=True):
      np.testing.assert_array_equal(example['video'], other['video'])
      frame = example['video'][0]
      shifts = [np.roll(frame, (-i, -j), (0, 1))[:8, :8] for i in range(16) for j in range(16)]
      [index] = {images.index(one.tobytes()) for one in shifts if one.tobytes() in images}
      places.setdefault(split, []).append(index)
      assert digits[index][1] == example['label']
  assert max(places['train']) < min(places['validation']) - 139
  assert max(places['validation']) < min(places['test']) - 139


def test_one_frame_says_nothing_about_the_direction():
  """Of each direction, all places of the last frame are equally frequent, up to chance."""
  counts = np.zeros((8, 16))
  for example in videos(train_examples=4000):
    rows = example['video'][-1, :, :, 0].sum(axis=1).astype(float)
    # The centre of mass on a circle.
    angle = np.angle((rows * np.exp(2j * np.pi * np.arange(16) / 16)).sum())
    counts[example['label'], int(np.floor(angle / (2 * np.pi) * 16)) % 16] += 1
  assert min(chisquare(one.reshape(4, 4).sum(axis=1)).pvalue for one in counts) > 1e-3


SHAPE = 3, 6, 4, 2
VIDEO = np.arange(8 * 6 * 4 * 2, dtype=np.uint8).reshape(8, 6, 4, 2)


def prepared(seed=0, train=True, video=VIDEO, **settings):
  settings = {'video_shape': SHAPE, 'num_classes': 3, 'mean': 0.0, 'std': 1 / 255} | settings
  task = VideoClassification(source=NoSource(), **settings)
  row = {'video': video, 'label': 1}
  return task.transform(train=train)(row, np.random.default_rng(seed))['video']


def test_inputs_are_frames_in_the_middle_or_at_random_with_the_step():
  middle = prepared(train=False, frame_step=2)
  np.testing.assert_allclose(middle, VIDEO[1:6:2], atol=1e-4)
  starts = {int(prepared(seed, frame_step=2)[0, 0, 0, 0].round()) // 48 for seed in range(40)}
  assert starts == {0, 1, 2, 3}


def test_all_frames_are_mirrored_and_cropped_alike():
  seen = set()
  for seed in range(200):
    frames = prepared(seed, video=VIDEO[:3], flip=True, crop_padding=1)
    # With the same content in all frames, the prepared frames are equal.
    same = prepared(seed, video=VIDEO[:1].repeat(3, 0), flip=True, crop_padding=1)
    np.testing.assert_array_equal(same[0], same[1])
    np.testing.assert_array_equal(same[0], frames[0])
    seen.add(frames[0].tobytes())
  assert len(seen) == 18


def test_a_mean_per_channel_is_that_of_each_frame():
  found = prepared(mean=(0.0, 0.5), std=(1.0, 0.5), train=False)
  expected = (VIDEO[2:5] / 255 - [0, 0.5]) / [1, 0.5]
  np.testing.assert_allclose(found, expected, atol=1e-6)


@pytest.mark.parametrize(
  ('settings', 'message'),
  [
    ({'video': VIDEO[:2]}, r'a video of shape \(2, 6, 4, 2\): .* at least 3 frames'),
    ({'video': VIDEO[..., 0]}, 'must have frames, height, width and channels'),
    ({'video_shape': (3, 6, 6, 2)}, r'\(3, 6, 4, 2.0\), but VideoClassification.video_shape'),
    ({'mean': (0.1, 0.2, 0.3)}, r'one number for each channel of VideoClassification.video_shape'),
  ],
)
def test_videos_that_do_not_fit_are_refused(settings, message):
  with pytest.raises(UserError, match=message):
    prepared(**settings)
