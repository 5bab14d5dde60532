"""Images and their masks in two folders, as ADE20K (http://sceneparsing.csail.mit.edu) and PASCAL VOC have them."""

import dataclasses
import io
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Integer

from t2x.base.errors import UserError
from t2x.base.external_files import read_bytes
from t2x.base.ranges import Natural, Text
from t2x.data.prepared_folders import fingerprint
from t2x.data.sources.base import BulkExamples
from t2x.data.sources.digests import digest_of
from t2x.data.sources.file_source import LocalSource
from t2x.data.sources.image_folder import EXTENSIONS, SAMPLED, decoding, read_image
from t2x.data.sources.subset import spread

__all__ = ['MaskFolder']

# Modes of Pillow whose pixels are numbers: shades and places in a palette.
MODES = ('L', 'P', 'I', 'I;16')


@dataclasses.dataclass(frozen=True, kw_only=True)
class MaskFolder(LocalSource):
  """Images IMAGES/SPLIT/NAME.jpg (or .png, ...) with masks MASKS/SPLIT/NAME.png: `image` uint8 [height, width, 3] and
  `mask` int32 [height, width].

  Images without a mask are skipped. Images and masks are decoded on use, in their own sizes.

  Attributes:
    train: subfolder of the split.
    validation: subfolder of the split; None: no such split.
    test: subfolder of the split; None: no such split.
    images: folder of the images.
    masks: folder of the masks, whose pixels are numbers: shades of grey, or places in a palette.
    void: number of pixels without a class, 0 in ADE20K; the masks then have 255 there, and the numbers after it are
      classes from 0. None: masks stay as they are.
  """

  images: Text
  masks: Text
  void: Natural | None = None

  def load(self, split: str) -> 'FolderMasks':
    """Returns the examples of a split, of which only the paths are in memory.

    Raises:
      UserError: a folder cannot be read or has no masks, or the image of a mask is missing.
    """
    setting, name = self.setting(split)
    folders = [Path(folder).expanduser() / name for folder in (self.images, self.masks)]
    for folder in folders:
      if not folder.is_dir():
        raise UserError(
          f'{folder} is not a folder (current folder: {Path.cwd()}): set MaskFolder.images, '
          f'MaskFolder.masks and {setting}'
        )
    images = {path.stem: path for path in folders[0].iterdir() if path.suffix.lower() in EXTENSIONS}
    masks = sorted(path for path in folders[1].glob('*.png') if not path.name.startswith('.'))
    if not masks:
      raise UserError(f'{folders[1]} has no masks: must have files of type .png')
    for mask in masks:
      if mask.stem not in images:
        raise UserError(f'{mask} has no image {folders[0] / mask.stem}.jpg (or .png, ...): add it')
    return FolderMasks([(images[mask.stem], mask) for mask in masks], self.void)

  def fingerprint(self) -> str:
    """Identifies the names of all masks, and the content of 64 masks and images of each split."""
    digests = []
    for split in self.splits():
      pairs = self.load(split).pairs
      sampled = [pairs[i] for i in spread(min(SAMPLED, len(pairs)), len(pairs))]
      names = [mask.name for _, mask in pairs]
      digests.append(
        (split, fingerprint(names), digest_of(path for pair in sampled for path in pair))
      )
    return fingerprint('MaskFolder', self.void, digests)


class FolderMasks(BulkExamples):
  """Images with masks.

  Args:
    pairs: paths of each image and of its mask.
    void: see `MaskFolder`.
  """

  def __init__(self, pairs: Sequence[tuple[Path, Path]], void: int | None):
    self.pairs, self.void = pairs, void

  def __len__(self) -> int:
    return len(self.pairs)

  def read(self, indices):
    for i in indices:
      image, mask = self.pairs[i]
      yield {'image': read_image(image, 3), 'mask': self._mask(mask)}

  def _mask(self, path: Path) -> Integer[np.ndarray, 'height width']:
    data = read_bytes(path)
    try:
      with decoding():
        mask = _numbers(data).astype(np.int32)
    except UserError as error:
      raise UserError(f'{path} cannot be read: {error}') from error
    if self.void is None:
      return mask
    return np.where(mask == self.void, 255, mask - (mask > self.void))


def _numbers(data: bytes) -> np.ndarray:
  from PIL import Image

  with Image.open(io.BytesIO(data)) as file:
    if file.mode not in MODES:
      raise UserError(
        f'its mode {file.mode} has colours: masks must have one number per pixel ({", ".join(MODES)})'
      )
    return np.asarray(file)
