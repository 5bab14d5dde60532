"""Images as sequences of pixel tokens (ImageGPT, Chen et al. 2020, "Generative Pretraining from Pixels")."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from t2x.base.errors import UserError
from t2x.base.ranges import NonNegative, Size, TunableNonNegative, TunableRate
from t2x.data import CentralCrop, Crop, CropAndResize
from t2x.data.batches import Chain
from t2x.data.images import UNLABELLED
from t2x.data.tokenizers.palette import PaletteTokenizer
from t2x.decode import Generated, Sampling, Strategy, generate
from t2x.layers import Tokens, named_key
from t2x.layers.keys import row_keys
from t2x.models import Output, TextModel
from t2x.tasks.auxiliary import Auxiliary, AuxiliaryOutput
from t2x.tasks.base import Task
from t2x.tasks.classification import Classification, check_classes, class_sums
from t2x.tasks.distillation import TeacherLoss
from t2x.tasks.losses import ClassLoss
from t2x.tasks.text import TextTask, check_causal, check_shapes, in_training

__all__ = ['NextPixels', 'PixelClassification', 'PixelLM']


@dataclasses.dataclass(frozen=True, kw_only=True)
class PreparePixels:
  """Maps an `image` of the model's size to `tokens`, the ids of its pixels row by row, with `label` and `weight`.

  Attributes:
    palette: the colours.
    fingerprint: that of the palette, for the fingerprint of the rows.
  """

  palette: PaletteTokenizer = dataclasses.field(repr=False)
  fingerprint: str

  def __call__(self, row: Mapping[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    """Returns the columns of an example; `label` is `UNLABELLED` for an image without one."""
    label = row.get('label')
    return {
      'tokens': self.palette.pixels(row['image']),
      'label': np.int32(UNLABELLED if label is None else label),
      'weight': np.float32(1.0),
    }


@dataclasses.dataclass(frozen=True, kw_only=True)
class PixelTask(TextTask):
  """A task over images whose pixels are tokens; `tokenizer` is a `Palette`. The model reads the start token and all
  pixels but the last, row by row. By default its targets are the pixels.

  Attributes:
    image_shape: height, width and channels of the images that the model reads.
    crop: part of an image that is resized to `image_shape`.
  """

  image_shape: tuple[Size, Size, Size]
  crop: Crop = CentralCrop(fraction=1.0)

  shares_preparation: ClassVar[bool] = False
  has_perplexity: ClassVar[bool] = False

  @property
  def plan(self):
    """None: pixels are prepared when they are read."""

  @property
  def num_pixels(self) -> int:
    """Number of pixels of an image."""
    return math.prod(self.image_shape[:2])

  @property
  def palette(self) -> PaletteTokenizer:
    """The fitted palette."""
    fitted = self.fitted
    if not isinstance(fitted, PaletteTokenizer):
      raise UserError(
        f'{type(self).__name__}.tokenizer has no colours: set it to @Palette(), or to the tokenizer of a run with one'
      )
    return fitted

  def tokenizer_texts(self):
    """Yields the training images, in the size that the model reads, with their texts."""
    random = np.random.default_rng(0)
    for row in self.source.load(self.train_split):
      yield self._resized(row, random)['image'], row.get('text', '')

  def is_fitted(self):
    return self.tokenizer.is_fitted(self._fingerprint)

  def fit_tokenizer(self):
    return self.tokenizer.fit(self.tokenizer_texts, source_fingerprint=self._fingerprint)

  @property
  def _fingerprint(self) -> str:
    """Identifies the images that colours are computed from."""
    return f'{self.source.fingerprint()} {self.train_split} {self.image_shape} {self.crop}'

  @property
  def _resized(self) -> CropAndResize:
    return CropAndResize(self.crop, *self.image_shape[:2])

  def transform(self, *, train):
    """Returns the transform that resizes images and looks up the colours of their pixels; the same in each epoch."""
    prepare = PreparePixels(palette=self.palette, fingerprint=self.palette.fingerprint)
    return Chain((self._resized, prepare))

  def spec(self, batch_size):
    """Returns tokens: int32 [batch, pixels]; label: int32 and weight: float32 [batch]."""
    return {
      'tokens': jax.ShapeDtypeStruct((batch_size, self.num_pixels), jnp.int32),
      'label': jax.ShapeDtypeStruct((batch_size,), jnp.int32),
      'weight': jax.ShapeDtypeStruct((batch_size,), jnp.float32),
    }

  def check_model(self, model):
    """Also raises UserError if `pieces` is set, or if a block attends to later pixels."""
    super().check_model(model)
    name = type(self).__name__
    if self.pieces is not None:
      raise UserError(f'{name}.pieces has no effect on pixels: leave it out')
    check_causal(model, self.spec(1)['tokens'].shape[1], name)

  def hidden(
    self, model: TextModel, batch: Mapping[str, jax.Array], key: jax.Array | None
  ) -> Output:
    """Returns the output of the model whose hidden vector i predicts token i."""
    tokens = batch['tokens']
    start = self.tokenizer.ids.bos_id
    inputs = jnp.pad(tokens[:, :-1], ((0, 0), (1, 0)), constant_values=start)
    return model.hidden(inputs, tokens=Tokens.row(tokens.shape[1]), key=key)

  def count(self, batch):
    return np.count_nonzero(batch['weight']) * batch['tokens'].shape[1]

  def target_weights(self, batch):
    """Returns the weights of the pixels, [batch, pixels]."""
    return jnp.broadcast_to(batch['weight'][:, None], (len(batch['weight']), self.num_pixels))

  def summarise(self, means, info=None):
    """Returns the metrics with bits per pixel."""
    metrics = super().summarise(means, info)
    return metrics | {'bits_per_pixel': metrics['loss'] / math.log(2)}

  def sampled(
    self,
    model: object,
    prompts: np.ndarray,
    allowed: np.ndarray,
    strategy: Strategy | None = None,
    seed: int = 0,
    numbers: Sequence[int] | None = None,
  ) -> np.ndarray:
    """Samples images pixel by pixel, row by row; a pixel depends on those before it only.

    Args:
      model: the model with its parameters.
      prompts: ids before the pixels, int32 [images, prompt].
      allowed: the ids that each pixel may have, bool [images, pixels, vocab].
      strategy: decoding strategy; None: the task's.
      seed: random seed.
      numbers: numbers of the images, with which samples do not depend on the batch; None: from 0.

    Returns:
      The ids of the pixels, int32 [images, pixels]; -1 in images with a probability that is NaN.
    """
    keys = row_keys(jax.random.key(seed), len(prompts) if numbers is None else numbers)
    generated = self._sampled(model, prompts, allowed, strategy or self.strategy, keys)
    return np.where(np.isnan(generated.scores), -1, np.asarray(generated.tokens)[:, 0])

  def check_sampled(self, model: nnx.Module, prompt: int, strategy: Strategy | None) -> None:
    """Raises UserError if the model cannot sample an image after a prompt of that length."""
    prompts = np.zeros((1, prompt), np.int32)
    allowed = np.ones((1, self.num_pixels, 1), bool)
    key = jax.random.key(0)
    check_shapes(
      lambda m: self._sampled(m, prompts, allowed, strategy or self.strategy, key), model
    )

  def _sampled(
    self,
    model: Any,
    prompts: np.ndarray,
    allowed: np.ndarray,
    strategy: Strategy,
    key: jax.Array,
  ) -> Generated:
    return generate(
      model,
      prompts,
      np.full(len(prompts), prompts.shape[1], np.int32),
      max_new_tokens=self.num_pixels,
      strategy=strategy,
      eos_id=None,
      pad_id=self.tokenizer.ids.pad_id,
      key=key,
      allowed=allowed,
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class PixelLM(PixelTask):
  """Predicts each pixel of an image from the pixels before it.

  Metrics: `loss` in nats per pixel, `bits_per_pixel`, accuracy.

  Attributes:
    z_loss: coefficient of logsumexp(logits)^2, added to the loss of each pixel in training only.
    strategy: decoding strategy of sampled pixels.
  """

  z_loss: TunableNonNegative = 0.0
  strategy: Strategy = Sampling()

  predicts_next: ClassVar[bool] = True
  data_fields: ClassVar[frozenset[str]] = PixelTask.data_fields | {'strategy'}

  def sums(self, model, batch, key):
    """Returns loss and accuracy over all pixels."""
    out = self.hidden(model, batch, key)
    z_loss = in_training(key, self.z_loss)
    sums = model.cross_entropy(out.x, batch['tokens'], self.weighted_targets(batch), z_loss=z_loss)
    return self.with_auxiliaries(sums, model, out, batch, key)


@dataclasses.dataclass(frozen=True, kw_only=True)
class PixelClassification(PixelTask):
  """Predicts the class of an image from the mean of the hidden vectors of its pixels, which a `SequenceClassifier` with
  `mean_tokens` computes. With `auxiliaries = {'pixels': @NextPixels()}` the model also predicts each pixel, as
  ImageGPT's fine-tuning does.

  Attributes:
    num_classes: number of classes.
    label_smoothing: label smoothing as in `cross_entropy`, in training only.
    loss: loss of the scores that the model computes. None: cross-entropy.
    distillation: the teacher's term, `Distillation` or `HardDistillation`; None without a teacher.
  """

  num_classes: Size
  label_smoothing: TunableRate = 0.0
  loss: ClassLoss | None = None
  distillation: TeacherLoss | None = None

  prompts: ClassVar[Literal['texts', 'files']] = 'files'
  outputs: ClassVar[str] = 'class logits'
  head: ClassVar[str] = 'SequenceClassifier'
  unit: ClassVar[str] = 'examples'
  learns_from_teacher: ClassVar[bool] = True
  example_metrics: ClassVar[frozenset[str]] = frozenset({'loss', 'accuracy', 'top5_accuracy'})

  # The classes and weights of images, as in `ImageClassification`; no metrics of pixels.
  class_names = Classification.class_names
  check_rows = Classification.check_rows
  target_weights = Classification.target_weights
  token_weights = Task.token_weights
  count = Task.count
  summarise = Task.summarise

  def check_model(self, model):
    """Also raises UserError if the head has another number of classes."""
    PixelTask.check_model(self, model)
    check_classes(self, model)

  def predictions(self, model, batch, key):
    out = self.hidden(model, batch, key)
    return model.head.classify(out.x, None, named_key(key, 'head')), out

  def sums(self, model, batch, key, teacher=None):
    """Returns loss, accuracy and, with more than five classes, top-5 accuracy, and the auxiliary objectives."""
    logits, out = self.predictions(model, batch, key)
    sums = class_sums(
      self, logits, batch['label'], self.weighted_targets(batch), train=key is not None
    )
    output = self.with_auxiliaries(sums, model, out, batch, key)
    return self.distilled(output, logits, out.x, teacher, batch)


@dataclasses.dataclass(frozen=True, kw_only=True)
class NextPixels(Auxiliary):
  """The loss of `PixelLM` beside that of classes: ImageGPT's joint objective L_gen + L_clf.

  Attributes:
    weight: coefficient of the loss, which is the mean over the pixels of an image, then over images.
  """

  weight: NonNegative = 1.0

  def check_model(self, model, task):
    """Raises UserError if the task is not over labelled images, or the head has no logits of pixels."""
    if not isinstance(task, PixelClassification):
      raise UserError(
        f'NextPixels stands beside @PixelClassification, not @{type(task).__name__}: leave it out'
      )
    if 'token logits' not in model.spec.outputs:
      raise UserError(
        'NextPixels needs logits of pixels: bind a SequenceClassifier with a language_head'
      )

  def __call__(self, model, out, batch, weights, key):
    """Returns the loss term, and `loss` and `accuracy` over pixels."""
    tokens = batch['tokens']
    shares = jnp.broadcast_to(weights[:, None] / tokens.shape[1], tokens.shape)
    sums = model.cross_entropy(out.x, tokens, shares)
    return AuxiliaryOutput(self.weight * sums['loss'][0], sums)
