"""Augmentations of images against timm."""

import numpy as np
import pytest
from PIL import Image

from t2x.data.rand_augment import LARGEST, operations

torch = pytest.importorskip('torch', reason="the extra 'parity' is not installed")
reason = "the extra 'parity' is not installed"
auto_augment = pytest.importorskip('timm.data.auto_augment', reason=reason)

rng = np.random.default_rng(0)
PICTURE = Image.fromarray((20 + 200 * rng.random((32, 24, 3)) ** 2).astype(np.uint8))
# Our operations by their order, without the identity: timm's name, and the name of its levels. Those called
# 'Increasing' change more with a larger magnitude, as ours do.
OPERATIONS = {
  1: ('AutoContrast', None),
  2: ('Equalize', None),
  3: ('Rotate', 'Rotate'),
  4: ('Solarize', 'SolarizeIncreasing'),
  5: ('Color', 'ColorIncreasing'),
  7: ('Contrast', 'ContrastIncreasing'),
  8: ('Brightness', 'BrightnessIncreasing'),
  9: ('Sharpness', 'SharpnessIncreasing'),
  10: ('ShearX', 'ShearX'),
  11: ('ShearY', 'ShearY'),
  12: ('TranslateXRel', 'TranslateXRel'),
  13: ('TranslateYRel', 'TranslateYRel'),
}
FILL = (128, 128, 128)


@pytest.mark.parametrize('sign', [1, -1])
@pytest.mark.parametrize('index', OPERATIONS, ids=[name for name, _ in OPERATIONS.values()])
def test_rand_augment_equals_timm(index, sign, monkeypatch):
  # timm draws the sign, and moves by 0.45 of the width at most where AutoAugment moves by 150 of 331 pixels.
  monkeypatch.setattr(auto_augment.random, 'random', lambda: 0.0 if sign > 0 else 1.0)
  name, levels = OPERATIONS[index]
  for magnitude in (3, 9, 10):
    level = levels and auto_augment.LEVEL_TO_ARG[levels](magnitude, {'translate_pct': 150 / 331})
    expected = auto_augment.NAME_TO_OP[name](
      PICTURE, *(level or ()), fillcolor=FILL, resample=Image.NEAREST
    )
    ours = operations()[index](PICTURE, magnitude / LARGEST, sign, FILL[0])
    np.testing.assert_array_equal(np.asarray(ours), np.asarray(expected))


@pytest.mark.parametrize('magnitude', [0, 5, 10])
def test_posterize_equals_timm_where_both_keep_whole_bits(magnitude):
  # In timm's levels of AutoAugment, larger ones change less.
  (bits,) = auto_augment.LEVEL_TO_ARG['PosterizeOriginal'](LARGEST - magnitude, {})
  ours = operations()[6](PICTURE, magnitude / LARGEST, 1, FILL[0])
  np.testing.assert_array_equal(np.asarray(ours), np.asarray(auto_augment.posterize(PICTURE, bits)))
