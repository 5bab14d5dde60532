"""Texts that describe images and other sources: captioning, reading of text in images, recognition."""

import abc
import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from t2x.base.errors import UserError
from t2x.base.ranges import Finite, Natural, Positive, Size, TunableNonNegative, TunableRate
from t2x.data import ImageFit, Tokenizer
from t2x.data.images import fix_statistics, normalise, random_crop
from t2x.data.sources.image_folder import read_image
from t2x.decode import Beam, Strategy
from t2x.layers import InputKind, Tokens
from t2x.models import Inputs
from t2x.tasks.encoder_decoder import generated_targets, padded_side, sides_spec, teacher_forced
from t2x.tasks.text import TextTask, answers, check_shapes, in_training

__all__ = ['Captions', 'ImageModality', 'Modality']


class Modality(abc.ABC):
  """Prepares sources of one kind; a frozen dataclass, equal if its settings are equal."""

  kind: ClassVar[InputKind]

  @abc.abstractmethod
  def spec(self, batch_size: int) -> dict[str, jax.ShapeDtypeStruct]:
    """Returns the shapes of the columns: 'source', and others whose names begin with 'source_'."""

  @abc.abstractmethod
  def prepare(self, source: object, random: np.random.Generator | None) -> dict[str, np.ndarray]:
    """Returns the columns of a source; with `random`, which draws its augmentation, for training."""

  @abc.abstractmethod
  def tokens(self, batch: Mapping[str, Any]) -> Tokens | None:
    """Returns the metadata of a batch of sources; None without padding."""

  @abc.abstractmethod
  def read(self, path: Path) -> Any:
    """Returns the source in a file. Raises OSError or UserError."""

  def opened(self, path: str) -> Any:
    """Returns the source in a file. Raises UserError if it cannot be read."""
    try:
      return self.read(Path(path))
    except OSError as error:
      raise UserError(f'{path} cannot be read: {error.strerror}') from error


@dataclasses.dataclass(frozen=True, kw_only=True)
class ImageModality(Modality):
  """Images of one shape, normalised.

  Attributes:
    shape: height, width and channels.
    mean: subtracted from the pixels, which are scaled to 0..1; a number, or a number per channel.
    std: divisor of the centred pixels; a number, or a number per channel.
    fit: fits images of other sizes to `shape`; None: all images have that shape.
    crop_padding: padding in pixels on each side before a random crop, in training only; 0: no crops.
  """

  shape: tuple[Size, Size, Size]
  mean: Finite | Sequence[Finite] = 0.5
  std: Positive | Sequence[Positive] = 0.5
  fit: ImageFit | None = None
  crop_padding: Natural = 0

  kind: ClassVar[InputKind] = 'image'

  def __post_init__(self):
    fix_statistics(self, 'shape')

  def spec(self, batch_size):
    return {'source': jax.ShapeDtypeStruct((batch_size, *self.shape), jnp.float32)}

  def prepare(self, source, random):
    image = np.asarray(source)
    if self.fit is not None:
      image = self.fit(image, *self.shape[:2])
    if image.shape != self.shape:
      raise UserError(
        f'an image is {image.shape}, but ImageModality.shape = {self.shape}: resize it, or set ImageModality.fit'
      )
    if random is not None and self.crop_padding:
      image = random_crop(image, self.crop_padding, random)
    return {'source': normalise(image, self.mean, self.std)}

  def tokens(self, batch):
    return None

  def read(self, path):
    return read_image(path, self.shape[-1])


@dataclasses.dataclass(frozen=True, kw_only=True)
class PrepareCaption:
  """Prepares a source and tokenises its target.

  Attributes:
    modality: prepares the source.
    tokenizer: encodes the target.
    fingerprint: that of the tokenizer, for the fingerprint of the rows.
    length: tokens of the target.
    train: whether the source is augmented.
  """

  modality: Modality
  tokenizer: Tokenizer = dataclasses.field(repr=False)
  fingerprint: str
  length: int
  train: bool

  # The task whose setting limits the length.
  task: ClassVar[str] = 'Captions'

  def __call__(self, row: Mapping[str, Any], rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Returns the columns of the source, and `target` and `target_segments` int32 [length]."""
    ids = self.target_ids(row)
    if len(ids) > self.length:
      raise UserError(
        f'a target has {len(ids)} tokens, but {self.task}.target_length = {self.length}: raise it'
      )
    target = np.full(self.length, self.tokenizer.pad_id, np.int32)
    target[: len(ids)] = ids
    segments = (np.arange(self.length) < len(ids)).astype(np.int32)
    columns = self.modality.prepare(row['source'], rng if self.train else None)
    return {**columns, 'target': target, 'target_segments': segments}

  def target_ids(self, row: Mapping[str, Any]) -> list[int]:
    """Returns the ids to predict, with eos."""
    return [*self.tokenizer.target.encode(row['target']), self.tokenizer.eos_id]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Captions(TextTask):
  """Predicts the `target` text of an example from its `source`, such as an image; each row is one example.

  Prompts of `generate` are paths of files, or sources as in the examples.

  Attributes:
    modality: prepares sources, and sets which kind of input the model reads.
    target_length: maximum number of target tokens, including eos.
    label_smoothing: label smoothing as in `cross_entropy`, in training only.
    z_loss: coefficient of logsumexp(logits)^2, added to the loss of each token in training only.
    strategy: decoding strategy of `generate` if the caller sets none.
  """

  modality: Modality
  target_length: Size
  label_smoothing: TunableRate = 0.1
  z_loss: TunableNonNegative = 0.0
  strategy: Strategy = Beam(width=4)

  answers_prompts: ClassVar[bool] = True
  is_causal: ClassVar[bool] = True
  target_segments: ClassVar[str] = 'target_segments'
  data_fields: ClassVar[frozenset[str]] = TextTask.data_fields | {'strategy'}
  text_fields: ClassVar[tuple[str, ...]] = ('target',)
  prompts: ClassVar[Literal['texts', 'files']] = 'files'

  @property
  def inputs(self) -> Inputs:  # type: ignore[override]
    """The source, of the kind of the modality, and the target."""
    return {'source': self.modality.kind, 'target': 'ids'}

  @property
  def plan(self):
    """None: sources are prepared when they are read."""

  def transform(self, *, train):
    return PrepareCaption(
      modality=self.modality,
      tokenizer=self.fitted,
      fingerprint=self.fitted.fingerprint,
      length=self.target_length,
      train=train,
    )

  def spec(self, batch_size):
    """Returns the columns of the modality and of the target: int32 [batch, target_length]."""
    return self.modality.spec(batch_size) | sides_spec(batch_size, {'target': self.target_length})

  def sums(self, model, batch, key):
    """Returns loss and accuracy over the target tokens, including eos."""
    sides = self.modality.tokens(batch), padded_side(batch, 'target')
    out = teacher_forced(model, batch, *sides, self.tokenizer.ids.start_id, key)
    smoothing, z_loss = in_training(key, self.label_smoothing), in_training(key, self.z_loss)
    weights = self.weighted_targets(batch)
    sums = model.cross_entropy(out.x, batch['target'], weights, smoothing=smoothing, z_loss=z_loss)
    return self.with_auxiliaries(sums, model, out, batch, key)

  def check_prompt(self, prompt):
    """Raises UserError if a prompt is no file of a source."""
    self.modality.opened(prompt)

  @property
  def answer_length(self) -> int:
    """Maximum number of generated tokens, including eos."""
    return self.target_length

  def prompt_of(self, example: Mapping[str, Any]) -> Any:
    """Returns the prompt of `generate` for an example: the example."""
    return example

  def fits(self, example: Mapping[str, Any]) -> bool:
    """Returns True: no example is dropped."""
    return True

  def first_ids(self, example: Mapping[str, Any]) -> Sequence[int]:
    """Returns the ids after the start token that the decoder gets for a source, in training and in generation."""
    return self.fitted.before

  def generate(self, model, prompts, *, strategy, max_new_tokens, num_return=1, seed=0):
    """Generates the target of each source.

    Args:
      model: the model with its parameters.
      prompts: paths of files, sources, or examples with a `source`.
      strategy: decoding strategy.
      max_new_tokens: maximum number of tokens.
      num_return: targets per source.
      seed: random seed of sampling.
    """
    examples = [self._example(prompt) for prompt in prompts]
    prepared = [self.modality.prepare(example['source'], None) for example in examples]
    columns = {name: np.stack([row[name] for row in prepared]) for name in prepared[0]}
    first = [self.first_ids(example) for example in examples]
    settings = {'strategy': strategy, 'max_new_tokens': max_new_tokens, 'num_return': num_return}
    return answers(self._generate(model, columns, first, seed, **settings), self.fitted)

  def check_generate(self, model: nnx.Module, strategy: Strategy, batch_size: int) -> None:
    """Raises UserError if the model cannot generate for a batch of sources; see `Translation`."""
    columns = {name: np.zeros(s.shape, s.dtype) for name, s in self.spec(batch_size).items()}
    settings = {'strategy': strategy, 'max_new_tokens': self.answer_length}
    first = [[self.fitted.pad_id] * self.num_first] * batch_size
    check_shapes(lambda m: self._generate(m, columns, first, **settings), model)

  @property
  def num_first(self) -> int:
    """Number of `first_ids`."""
    return len(self.fitted.before)

  def _generate(self, model, columns, first, seed=0, **settings):
    source, tokens = columns['source'], self.modality.tokens(columns)
    return generated_targets(self.fitted, model, source, tokens, seed, first=first, **settings)

  def _example(self, prompt: object) -> Mapping[str, Any]:
    """Returns an example without its target."""
    if isinstance(prompt, str):
      return {'source': self.modality.opened(prompt)}
    return prompt if isinstance(prompt, Mapping) else {'source': prompt}
