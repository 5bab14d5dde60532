"""Contrastive pre-training: a text against versions of itself with shuffled order or replaced words."""

import dataclasses
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from t2x.base.errors import UserError
from t2x.base.ranges import NonEmpty, Size, Text
from t2x.data import Noise, ReplaceTokens, SentenceRows, ShuffleTokens, Tokenizer
from t2x.data.plans import padded
from t2x.data.tokenizers.base import Located
from t2x.layers import named_key
from t2x.models.losses import classification_sums
from t2x.tasks.base import Task, TaskOutput
from t2x.tasks.contrastive import MASKED
from t2x.tasks.text import TextTask, hidden_of

__all__ = ['VersionContrast']


@dataclasses.dataclass(frozen=True, kw_only=True)
class AddVersions:
  """Adds corrupted versions to a text, and the special ids of a single text to all.

  Attributes:
    tokenizer: that of the text.
    noise: the corruption of each version.
    length: tokens per version.
  """

  tokenizer: Tokenizer = dataclasses.field(repr=False)
  noise: tuple[Noise, ...]
  length: int

  def __call__(self, row: Mapping[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    """Returns `tokens` and `segments`, int32 [length], and `versions` and `versions_segments`, int32 [versions, length]."""
    text = np.asarray(row['tokens'], np.int32)[np.asarray(row['segments']) != 0]
    ids, segments = self._padded(text)
    versions = [self._padded(noise(text, self.tokenizer, rng)) for noise in self.noise]
    names = ('versions', 'versions_segments')
    stacked = (np.stack(arrays) for arrays in zip(*versions, strict=True))
    return {'tokens': ids, 'segments': segments, **dict(zip(names, stacked, strict=True))}

  def _padded(self, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    ids = self.tokenizer.join(Located(ids, np.zeros((len(ids), 2), np.int64))).ids
    return padded(ids, self.length), padded(np.ones(len(ids)), self.length)


@dataclasses.dataclass(frozen=True, kw_only=True)
class VersionContrast(TextTask):
  """Finds a text among versions of itself, by one score of each.

  The loss is the cross-entropy of a softmax over the scores of the text and of its versions. A version that equals the
  text does not count, nor does a text without other versions. `accuracy` is the fraction of texts with the highest
  score; the metric of each version is the fraction of texts with a higher score than it. Equal scores are wrong.

  `ReplacedTokenDetection` contrasts single tokens instead.

  Attributes:
    length: tokens of a text, including special ones.
    versions: corruptions by name, by default shuffled order and replaced words.
  """

  length: Size
  versions: Annotated[Mapping[Text, Noise], NonEmpty] = dataclasses.field(
    default_factory=lambda: {'shuffled': ShuffleTokens(), 'replaced': ReplaceTokens()}
  )

  outputs: ClassVar[str] = 'class logits'
  head: ClassVar[str] = 'SequenceClassifier'
  best_metric: ClassVar[str] = 'accuracy'
  best_mode: ClassVar[Literal['min', 'max']] = 'max'
  data_fields: ClassVar[frozenset[str]] = TextTask.data_fields | {'versions'}

  def __post_init__(self):
    for name in ('auxiliaries', 'pieces'):
      if getattr(self, name):
        raise UserError(f'VersionContrast has no use for {name}: leave out VersionContrast.{name}')

  @property
  def plan(self):
    """Rows of consecutive sentences of a document."""
    return SentenceRows(length=self.length)

  def transform(self, *, train):
    """Returns the transform that adds versions; those of evaluation are fixed."""
    return AddVersions(
      tokenizer=self.fitted, noise=tuple(self.versions.values()), length=self.length
    )

  def spec(self, batch_size):
    """Returns tokens and segments: int32 [batch, length]; those of the versions: int32 [batch, versions, length]."""
    text = jax.ShapeDtypeStruct((batch_size, self.length), jnp.int32)
    versions = jax.ShapeDtypeStruct((batch_size, len(self.versions), self.length), jnp.int32)
    names = ('tokens', 'segments'), ('versions', 'versions_segments')
    return dict.fromkeys(names[0], text) | dict.fromkeys(names[1], versions)

  def check_model(self, model):
    """Also raises UserError if the head does not compute one score."""
    super().check_model(model)
    if model.spec.num_classes != 1:
      raise UserError(
        f'VersionContrast needs one score of each text, but the head of @{type(model).__name__} has '
        f'{model.spec.num_classes} classes: set num_classes of its classifier to 1'
      )

  def target_weights(self, batch):
    return self._differs(batch).any(axis=1).astype(jnp.float32)

  def _differs(self, batch: Mapping[str, Array]) -> Bool[Array, 'batch versions']:
    """Returns whether a version differs from its text."""
    return (batch['versions'] != batch['tokens'][:, None]).any(axis=2)

  def scores(
    self, model: Any, batch: Mapping[str, Array], key: Array | None
  ) -> tuple[Float[Array, 'batch versions'], Any]:
    """Returns the scores of the versions, the text itself last, and the auxiliary losses of the model."""
    count = len(self.versions) + 1
    rows = {
      name: jnp.concatenate([batch[versions], batch[name][:, None]], axis=1).reshape(
        -1, self.length
      )
      for name, versions in (('tokens', 'versions'), ('segments', 'versions_segments'))
    }
    if key is not None:
      keys = [named_key(key, f'task.version.{number}') for number in range(count)]
      key = jnp.stack(keys, axis=1).reshape(-1)
    out = hidden_of(model, rows | {'types': jnp.zeros_like(rows['tokens'])}, key)
    logits = model.head.classify(out.x, rows['segments'], named_key(key, 'head'))
    return logits[:, 0].astype(jnp.float32).reshape(-1, count), out.aux

  def sums(self, model, batch, key):
    """Returns loss, accuracy and the metric of each version over the texts that have other versions."""
    scores, aux = self.scores(model, batch, key)
    differs, weights = self._differs(batch), self.weighted_targets(batch)
    others = jnp.where(differs, scores[:, :-1], MASKED)
    labels = jnp.full(len(scores), len(self.versions))
    sums = classification_sums(jnp.concatenate([others, scores[:, -1:]], axis=1), labels, weights)
    pairs = differs * weights[:, None]
    below = (others < scores[:, -1:]) * pairs
    for number, name in enumerate(self.versions):
      sums[name] = below[:, number].sum(), pairs[:, number].sum()
    return TaskOutput(sums, aux)

  def summarise(self, means, info=None):
    """Returns the metrics without perplexity."""
    return Task.summarise(self, means, info)
