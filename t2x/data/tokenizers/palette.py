"""Palettes: the pixels of images as tokens, after the tokens of a text if there is one."""

import dataclasses
from collections.abc import Iterable
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from t2x.base.errors import UserError
from t2x.base.packages import imported
from t2x.base.ranges import Natural, Size
from t2x.data.tokenizers.base import SpecialIds, Tokenizer, TokenizerConfig
from t2x.data.tokenizers.existing import load_tokenizer

__all__ = ['Palette']


class PaletteTokenizer(Tokenizer):
  """Tokenizer of pixels: the id of a pixel is that of the nearest colour.

  Without text the ids are those of the colours and, last, that of the start token, as in ImageGPT. With text the ids of
  its tokenizer are first.

  Attributes:
    colours: the colours, float64 [colours, channels], from 0 to 255.
    text: the tokenizer of texts before images; None: images only.
    first: the id of the first colour.
  """

  kind = 'palette'

  def __init__(self, colours: Float[np.ndarray, 'colours channels'], text: Tokenizer | None = None):
    self.colours, self.text = colours, text
    self.first = 0 if text is None else text.vocab_size
    self.vocab_size = self.first + len(colours) + (text is None)
    if text is None:
      start = len(colours)
      self.pad_id = self.eos_id = self.unk_id = self.bos_id = self.start_id = start
      self.mask_id = None
      self.single = self.pair = ((start, 0), ('A', 0))
    else:
      for name in ('pad_id', 'eos_id', 'unk_id', 'bos_id', 'mask_id', 'start_id'):
        setattr(self, name, getattr(text, name))
      self.single, self.pair = text.single, text.pair

  def pixels(self, image: np.ndarray) -> Int[np.ndarray, ' pixels']:
    """Returns the ids of the pixels of an image, uint8 [height, width, channels], row by row."""
    channels = self.colours.shape[1]
    if image.dtype != np.uint8 or image.shape[-1] != channels:
      raise UserError(
        f'an image is {image.dtype} of shape {image.shape}, but the palette has colours of {channels} channels of uint8'
      )
    pixels = image.reshape(-1, channels).astype(np.float64)
    # |pixel - colour|^2 without |pixel|^2, which is the same for all colours.
    distances = np.square(self.colours).sum(axis=1) - 2 * pixels @ self.colours.T
    return (distances.argmin(axis=1) + self.first).astype(np.int32)

  def image(self, ids: np.ndarray, height: int, width: int) -> np.ndarray:
    """Returns images, uint8 [..., height, width, channels], of ids [..., height * width]; other ids get colour 0."""
    colours = self.colours[np.maximum(np.asarray(ids) - self.first, 0)]
    shape = *colours.shape[:-2], height, width, colours.shape[-1]
    return np.rint(colours).astype(np.uint8).reshape(shape)

  def encode(self, text):
    """Returns the ids of a text."""
    return self._of_text().encode(text)

  def locate(self, text):
    """Returns the ids of a text, with their character spans."""
    return self._of_text().locate(text)

  def decode(self, ids):
    """Returns the text; skips pixels."""
    return '' if self.text is None else self.text.decode(i for i in ids if int(i) < self.first)

  @property
  def _pieces(self):
    colours = ['#' + ''.join(f'{int(v):02x}' for v in np.rint(c)) for c in self.colours]
    return [*colours, '<start>'] if self.text is None else [*self.text._pieces, *colours]

  def _of_text(self) -> Tokenizer:
    if self.text is None:
      raise UserError('a palette encodes images, not texts')
    return self.text

  def files(self):
    """Returns tokenizer.json with the colours, and the files of the tokenizer of texts in a folder."""
    own = self._description(colours=self.colours.tolist(), text=self.text is not None)
    inner = {} if self.text is None else self.text.files()
    return {'tokenizer.json': own} | {f'text/{name}': data for name, data in inner.items()}

  @classmethod
  def load(cls, folder, saved):
    text = load_tokenizer(folder / 'text') if saved['text'] else None
    return cls(np.array(saved['colours'], np.float64), text)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Palette(TokenizerConfig):
  """The colours of training images: centres of k-means (Chen et al. 2020, "Generative Pretraining from Pixels", section
  3.3, with 512 colours of 9 bits). It is fitted to the training split only, and stored in the run folder.

  Attributes:
    num_colours: number of colours.
    num_pixels: number of pixels that k-means reads, chosen at random from the training images.
    seed: random seed of this choice and of k-means.
    text: tokenizer of the texts before the images of a row; None: rows are images only.
  """

  packages = ('sklearn',)

  kinds = (PaletteTokenizer,)

  num_colours: Size = 512
  num_pixels: Size = 200_000
  seed: Natural = 0
  text: TokenizerConfig | None = None

  # The ids of texts and the colours, or the colours and the start token.
  vocab_size: int | None = dataclasses.field(init=False, repr=False, compare=False)

  def __post_init__(self):
    of_text = 1 if self.text is None else self.text.vocab_size
    vocab_size = None if of_text is None else of_text + self.num_colours
    # The field of all tokenizers, here computed from other settings.
    object.__setattr__(self, 'vocab_size', vocab_size)

  @property
  def ids(self):
    """The special ids: those of texts, or that of the start token."""
    if self.text is not None:
      return self.text.ids
    ids = SpecialIds()
    ids.pad_id = ids.eos_id = ids.unk_id = ids.bos_id = ids.start_id = self.num_colours
    ids.mask_id = None
    return ids

  def train(self, texts: Iterable[Any]) -> PaletteTokenizer:
    """Computes the colours, from dark to light, and trains the tokenizer of texts.

    Args:
      texts: images, uint8 [height, width, channels], with their texts, in pairs.
    """
    clusters = imported('sklearn.cluster', 'Palette')
    images, captions = zip(*texts, strict=True)
    pixels = np.concatenate([image.reshape(-1, image.shape[-1]) for image in images])
    if pixels.dtype != np.uint8:
      raise UserError(f'images have values of type {pixels.dtype}: a Palette needs uint8')
    if len(pixels) > self.num_pixels:
      random = np.random.default_rng(self.seed)
      pixels = pixels[random.choice(len(pixels), self.num_pixels, replace=False)]
    # Equal colours are one point with a weight: few points in images of one channel or of drawings.
    unique, counts = np.unique(pixels, axis=0, return_counts=True)
    if len(unique) < self.num_colours:
      raise UserError(
        f'Palette.num_colours = {self.num_colours}, but the training images have {len(unique)} colours: set it to at '
        'most that number'
      )
    settings = {'n_clusters': self.num_colours, 'random_state': self.seed, 'n_init': 1}
    means = clusters.KMeans(**settings).fit(unique.astype(np.float64), sample_weight=counts)
    centres = np.round(means.cluster_centers_, 2)
    order = np.lexsort((*centres.T, centres.mean(axis=1)))
    text = None if self.text is None else self.text.train(iter(captions))
    return PaletteTokenizer(centres[order], text)
