"""Videos as visual words after a caption (VideoBERT: Sun et al. 2019, https://arxiv.org/abs/1904.01766)."""

import dataclasses
from collections.abc import Iterable, Sequence

import numpy as np
from jaxtyping import Float

from t2x.base.errors import UserError
from t2x.base.packages import imported
from t2x.base.ranges import Natural, Size
from t2x.data.prepared_folders import fingerprint
from t2x.data.sources.base import Example, Source
from t2x.samples.built import BuiltSource

__all__ = ['FrameWords']


@dataclasses.dataclass(frozen=True, kw_only=True)
class FrameWords(BuiltSource):
  """Texts of a caption and the visual words of its video, one per frame: 'a three moves east > v017 v203 ...'.

  A visual word is the nearest centre of k-means of the frames of the train split; in the paper, of features of 1.5
  seconds. The texts are prepared once, in the cache folder.

  Attributes:
    source: source whose examples have `video` uint8 [frames, height, width, channels] and `text`.
    num_words: number of visual words.
    num_frames: number of frames that k-means reads, evenly spaced in the train split.
    seed: random seed of k-means.
  """

  packages = ('sklearn',)

  source: Source
  num_words: Size = 256
  num_frames: Size = 8000
  seed: Natural = 0

  def splits(self) -> tuple[str, ...]:
    return self.source.splits()

  def fingerprint(self) -> str:
    """Identifies the source and the settings of k-means."""
    settings = self.num_words, self.num_frames, self.seed
    return fingerprint('FrameWords', self.source.fingerprint(), settings)

  def generate(self):
    """Computes the visual words of the train split, and returns the texts of all splits.

    Raises:
      UserError: scikit-learn is not installed, an example lacks a video or a text, or there are
        fewer frames than words.
    """
    centres = self.centres(self.source.load('train'))
    return {split: self._texts(split, centres) for split in self.splits()}

  def centres(self, examples: Sequence[Example]) -> Float[np.ndarray, 'words pixels']:
    """Returns the centres of the frames of some examples, from dark to light."""
    clusters = imported('sklearn.cluster', 'FrameWords')
    frames = np.concatenate([self._frames(example) for example in examples])
    chosen = np.linspace(0, len(frames) - 1, min(self.num_frames, len(frames))).astype(int)
    if len(chosen) < self.num_words:
      raise UserError(
        f'FrameWords.num_words = {self.num_words}, but k-means reads {len(chosen)} frames: set it '
        'to at most that number'
      )
    means = clusters.KMeans(n_clusters=self.num_words, random_state=self.seed, n_init=1).fit(
      frames[chosen]
    )
    centres = np.round(means.cluster_centers_, 2)
    return centres[np.lexsort((*centres.T, centres.mean(axis=1)))]

  def _texts(self, split: str, centres: np.ndarray) -> Iterable[Example]:
    digits = len(str(self.num_words - 1))
    for example in self.source.load(split):
      frames = self._frames(example)
      # |frame - centre|^2 without |frame|^2, which is the same for all centres.
      distances = np.square(centres).sum(axis=1) - 2 * frames @ centres.T
      words = ' '.join(f'v{word:0{digits}}' for word in distances.argmin(axis=1))
      yield {'text': f'{example["text"]} > {words}'}

  def _frames(self, example: Example) -> Float[np.ndarray, 'frames pixels']:
    if 'video' not in example or not isinstance(example.get('text'), str):
      raise UserError(
        f'FrameWords needs a video and a text, but the examples of {self.source.describe()} have {", ".join(example)}'
      )
    return example['video'].reshape(len(example['video']), -1).astype(np.float64)
