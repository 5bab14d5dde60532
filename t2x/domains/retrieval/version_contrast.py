"""Contrastive pre-training: a text against versions of itself with shuffled order or replaced words."""

import dataclasses
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

import jax.numpy as jnp
import numpy as np

from t2x.base.ranges import NonEmpty, Text
from t2x.data import Noise, ReplaceTokens, SentenceRows, ShuffleTokens, Tokenizer
from t2x.data.plans import padded
from t2x.data.tokenizers.base import Located
from t2x.domains.retrieval.pair_losses import MASKED
from t2x.models.losses import classification_sums
from t2x.tasks.labelled import LabelledTask

__all__ = ['VersionContrast']


@dataclasses.dataclass(frozen=True, kw_only=True)
class AddVersions:
  """Converts a text to corrupted versions and the text, each with the special ids of a single text.

  Attributes:
    tokenizer: that of the text.
    noise: the corruption of each version.
    length: tokens per version.
  """

  tokenizer: Tokenizer = dataclasses.field(repr=False)
  noise: tuple[Noise, ...]
  length: int

  def __call__(self, row: Mapping[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    """Returns `tokens`, `types` and `segments`, int32 [texts * length] with the text last, and `weight`: 0 if all
    versions equal the text."""
    text = np.asarray(row['tokens'], np.int32)[np.asarray(row['segments']) != 0]
    versions = [noise(text, self.tokenizer, rng) for noise in self.noise]
    encoded = [self._encoded(ids) for ids in (*versions, text)]
    differs = any(not np.array_equal(version, text) for version in versions)
    result: dict[str, Any] = {
      name: np.concatenate([one[name] for one in encoded]) for name in encoded[0]
    }
    return result | {'weight': np.int32(differs)}

  def _encoded(self, ids: np.ndarray) -> dict[str, np.ndarray]:
    encoding = self.tokenizer.join(Located(ids, np.zeros((len(ids), 2), np.int64)))
    values = {'tokens': encoding.ids, 'types': encoding.types, 'segments': np.ones(len(encoding))}
    return {name: padded(array, self.length) for name, array in values.items()}


@dataclasses.dataclass(frozen=True, kw_only=True)
class VersionContrast(LabelledTask):
  """Finds a text among versions of itself, by one score of each.

  The loss is the cross-entropy of a softmax over the scores of the text and of its versions. A version that equals the
  text does not count, nor does a text without other versions. `accuracy` is the fraction of texts with the highest
  score; the metric of each version is the fraction of texts with a higher score than it. Equal scores are wrong.

  Rows are consecutive sentences of a document. `ReplacedTokenDetection` contrasts single tokens instead.

  Attributes:
    versions: corruptions by name, by default shuffled order and replaced words.
  """

  versions: Annotated[Mapping[Text, Noise], NonEmpty] = dataclasses.field(
    default_factory=lambda: {'shuffled': ShuffleTokens(), 'replaced': ReplaceTokens()}
  )

  outputs: ClassVar[str] = 'class logits'
  head: ClassVar[str] = 'SequenceClassifier'
  unit: ClassVar[str] = 'examples'
  best_metric: ClassVar[str] = 'accuracy'
  best_mode: ClassVar[Literal['min', 'max']] = 'max'
  answers_prompts: ClassVar[bool] = False
  data_fields: ClassVar[frozenset[str]] = LabelledTask.data_fields | {'versions'}

  @property
  def num_texts(self):
    return len(self.versions) + 1

  @property
  def plans(self):
    """Rows of consecutive sentences."""
    return [SentenceRows(length=self.length)]

  def transform(self, *, train):
    """Returns the transform that adds versions; those of evaluation are fixed."""
    noise = tuple(self.versions.values())
    return AddVersions(tokenizer=self.fitted, noise=noise, length=self.length)

  def sums(self, model, batch, key):
    """Returns loss, accuracy and the metric of each version over the texts that have other versions."""
    scores, out = self.text_logits(model, batch, key)
    ids = batch['tokens'].reshape(*scores.shape, self.length)
    differs = (ids[:, :-1] != ids[:, -1:]).any(axis=2)
    others, own = jnp.where(differs, scores[:, :-1], MASKED), scores[:, -1:]
    # The last one is chosen only if its score is above all others.
    labels, weights = jnp.full(len(scores), len(self.versions)), self.weighted_targets(batch)
    sums = classification_sums(jnp.concatenate([others, own], axis=1), labels, weights)
    pairs = differs * weights[:, None]
    below = (others < own) * pairs
    for number, name in enumerate(self.versions):
      sums[name] = below[:, number].sum(), pairs[:, number].sum()
    return self.with_auxiliaries(sums, model, out, batch, key)
