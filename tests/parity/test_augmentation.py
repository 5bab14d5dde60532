"""Augmentations of images against timm."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from PIL import Image

from t2x.base.errors import UserError
from t2x.data import ColourJitter, RandomErasing
from t2x.data.colour_jitter import adjusted
from t2x.data.rand_augment import LARGEST, operations
from t2x.models import Output
from t2x.samples import Digits
from t2x.tasks import CutMix, ImageClassification, MixUp

torch = pytest.importorskip('torch', reason="the extra 'references' is not installed")
reason = "the extra 'references' is not installed"
auto_augment = pytest.importorskip('timm.data.auto_augment', reason=reason)
mixup = pytest.importorskip('timm.data.mixup', reason=reason)
random_erasing = pytest.importorskip('timm.data.random_erasing', reason=reason)
soft_target_loss = pytest.importorskip('timm.loss', reason=reason).SoftTargetCrossEntropy()

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
def test_rand_augment_equals_timm(index, sign, monkeypatch, compared):
  # timm draws the sign, and moves by 0.45 of the width at most where AutoAugment moves by 150 of 331 pixels.
  monkeypatch.setattr(auto_augment.random, 'random', lambda: 0.0 if sign > 0 else 1.0)
  name, levels = OPERATIONS[index]
  for magnitude in (3, 9, 10):
    level = levels and auto_augment.LEVEL_TO_ARG[levels](magnitude, {'translate_pct': 150 / 331})
    expected = auto_augment.NAME_TO_OP[name](
      PICTURE, *(level or ()), fillcolor=FILL, resample=Image.NEAREST
    )
    ours = operations()[index](PICTURE, magnitude / LARGEST, sign, FILL[0])
    compared('RandAugment', 'timm', ours, expected, atol=0)


@pytest.mark.parametrize('magnitude', [0, 5, 10])
def test_posterize_equals_timm_where_both_keep_whole_bits(magnitude):
  # In timm's levels of AutoAugment, larger ones change less.
  (bits,) = auto_augment.LEVEL_TO_ARG['PosterizeOriginal'](LARGEST - magnitude, {})
  ours = operations()[6](PICTURE, magnitude / LARGEST, 1, FILL[0])
  np.testing.assert_array_equal(np.asarray(ours), np.asarray(auto_augment.posterize(PICTURE, bits)))


class Linear(nnx.Module):
  """Logits that are linear in the pixels."""

  num_classes = 10

  def __call__(self, images, key=None):
    return Output(images.reshape(len(images), -1) @ WEIGHTS)


WEIGHTS = rng.normal(size=(64, 10)).astype(np.float32)


@pytest.mark.parametrize('smoothing', [0.0, 0.1])
def test_mixup_equals_timm(smoothing, monkeypatch, compared):
  share = 0.3
  # timm mixes each image with that of the reversed batch.
  monkeypatch.setattr(jax.random, 'beta', lambda key, a, b, shape: jnp.full(shape, share))
  monkeypatch.setattr(jax.random, 'permutation', lambda key, n: jnp.arange(n)[::-1])
  theirs = mixup.Mixup(mixup_alpha=1.0, label_smoothing=smoothing, num_classes=10)
  monkeypatch.setattr(theirs, '_params_per_batch', lambda: (share, False))
  images = rng.normal(size=(6, 8, 8, 1)).astype(np.float32)
  labels = rng.integers(0, 10, 6)
  x, target = theirs(torch.tensor(images), torch.tensor(labels))
  expected = soft_target_loss(x.reshape(6, -1) @ torch.tensor(WEIGHTS), target).item()

  settings = {'image_shape': (8, 8, 1), 'num_classes': 10, 'label_smoothing': smoothing}
  task = ImageClassification(source=Digits(), mixing=MixUp(), **settings)
  key = jax.random.key(0)
  arrays = {'image': jnp.asarray(images), 'label': jnp.asarray(labels), 'weight': jnp.ones(6)}
  batch = task.batch(arrays, key)
  compared('MixUp', 'timm', batch['image'], x.numpy(), rtol=1e-6, atol=1e-6)
  total, weight = task.sums(Linear(), batch, key).metrics['loss']
  compared('MixUp', 'timm', total / weight, expected, rtol=1e-5, atol=0)


@pytest.mark.parametrize('share', [0.3, 0.9])
def test_cutmix_equals_timm(share, monkeypatch, compared):
  """The second rectangle is cut off at the border."""
  places = (3, 5) if share < 0.5 else (0, 8)
  monkeypatch.setattr(jax.random, 'beta', lambda key, a, b, shape: jnp.full(shape, share))
  monkeypatch.setattr(jax.random, 'permutation', lambda key, n: jnp.arange(n)[::-1])
  centres = jnp.array([(place + 0.5) / side for place, side in zip(places, (8, 9), strict=True)])
  monkeypatch.setattr(jax.random, 'uniform', lambda key, shape: centres)
  theirs = mixup.Mixup(mixup_alpha=0.0, cutmix_alpha=1.0, label_smoothing=0.0, num_classes=10)
  monkeypatch.setattr(theirs, '_params_per_batch', lambda: (share, True))
  drawn = iter(places)
  monkeypatch.setattr(mixup.np.random, 'randint', lambda low, high, size=None: next(drawn))
  images = rng.normal(size=(6, 8, 9, 1)).astype(np.float32)
  x, target = theirs(torch.tensor(images.transpose(0, 3, 1, 2)), torch.arange(6))
  found, other, part = CutMix()(jnp.asarray(images), jax.random.key(0))
  compared(None, 'timm', found, x.numpy().transpose(0, 2, 3, 1), rtol=0, atol=0)
  part = float(part[0])
  labels = part * np.eye(10)[:6] + (1 - part) * np.eye(10)[np.asarray(other)]
  compared(None, 'timm', labels, target.numpy(), rtol=1e-6, atol=1e-6)
  assert 0 < part < 1
  assert part != pytest.approx(share, abs=1e-3)


@pytest.mark.parametrize('channels', [1, 3])
@pytest.mark.parametrize('name', ['brightness', 'contrast', 'saturation'])
def test_colour_jitter_equals_torchvision(name, channels, compared):
  functional = pytest.importorskip('torchvision.transforms.functional', reason=reason)
  if (name, channels) == ('saturation', 1):
    with pytest.raises(UserError, match='saturation needs three'):
      ColourJitter(saturation=0.5)({'image': np.zeros((2, 2, 1), np.uint8)}, rng)
    return
  image = rng.integers(0, 256, (32, 24, channels)).astype(np.uint8)
  for factor in (0.0, 0.37, 1.0, 1.8):
    theirs = getattr(functional, f'adjust_{name}')(torch.tensor(image.transpose(2, 0, 1)), factor)
    expected = theirs.numpy().transpose(1, 2, 0)
    compared(None, 'torchvision', adjusted(name, image, factor), expected, atol=0)


class Draws:
  """Python's random numbers for timm, drawn from the generator that we draw from."""

  def __init__(self, seed):
    self.rng = np.random.default_rng(seed)
    self.random, self.uniform = self.rng.random, self.rng.uniform

  def randint(self, low, high):
    return low + int(self.rng.integers(high - low + 1))


@pytest.mark.parametrize('rate', [1.0, 0.5])
def test_random_erasing_equals_timm(monkeypatch, compared, rate):
  image = rng.normal(size=(9, 13, 3)).astype(np.float32)
  changed = 0
  for seed in range(40):
    draws = Draws(seed)
    monkeypatch.setattr(random_erasing, 'random', draws)

    def noise(per_pixel, rand_color, size, dtype, device, draws=draws):
      channels, height, width = size
      pixels = draws.rng.standard_normal((height, width, channels))
      return torch.tensor(pixels.transpose(2, 0, 1), dtype=dtype)

    monkeypatch.setattr(random_erasing, '_get_pixels', noise)
    erase = random_erasing.RandomErasing(probability=rate, mode='pixel', device='cpu')
    expected = erase(torch.tensor(image.transpose(2, 0, 1).copy())).numpy().transpose(1, 2, 0)
    ours = RandomErasing(rate=rate)({'image': image}, np.random.default_rng(seed))['image']
    compared(None, 'timm', ours, expected, rtol=0, atol=0)
    changed += int((ours != image).any())
  assert changed == 40 if rate == 1.0 else 10 < changed < 30
