"""A text and the pixels of its image in one row of tokens (the second stage of DALL-E, https://arxiv.org/abs/2102.12092)."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from t2x.base.errors import UserError
from t2x.base.ranges import Rate, Size, TunableNonNegative
from t2x.data.batches import Chain
from t2x.data.tokenizers.palette import PaletteTokenizer
from t2x.decode import Sampling, Strategy
from t2x.domains.pixels.tasks import PixelTask
from t2x.layers.constraints import constrain
from t2x.models.losses import Sums
from t2x.tasks.text import in_training

__all__ = ['TextToImage']


def text_row(palette: PaletteTokenizer, text: str, length: int) -> np.ndarray:
  """Returns the ids of a text and its end, padded to `length`. Raises UserError for longer texts."""
  ids = [*palette.encode(text), palette.eos_id]
  if len(ids) > length:
    raise UserError(
      f'a text has {len(ids)} tokens, but TextToImage.text_length = {length}: raise it'
    )
  return np.array([*ids, *[palette.pad_id] * (length - len(ids))], np.int32)


@dataclasses.dataclass(frozen=True, kw_only=True)
class PrepareTextAndPixels:
  """Maps an `image` of the model's size and its `text` to `tokens` and `weight`.

  Attributes:
    palette: the colours, with the tokenizer of texts.
    fingerprint: that of the palette, for the fingerprint of the rows.
    length: tokens of the text.
  """

  palette: PaletteTokenizer = dataclasses.field(repr=False)
  fingerprint: str
  length: int

  def __call__(self, row: Mapping[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    """Returns the columns of an example."""
    text = text_row(self.palette, row['text'], self.length)
    tokens = np.concatenate([text, self.palette.pixels(row['image'])])
    return {'tokens': tokens, 'weight': np.float32(1.0)}


@dataclasses.dataclass(frozen=True, kw_only=True)
class TextToImage(PixelTask):
  """Predicts the tokens of a text and then the pixels of its image; the row is causal. `tokenizer` is a `Palette` with
  `text`, and examples have an `image` and a `text`.

  The loss is (1 - text_weight) * the mean over pixels + text_weight * the mean over tokens of texts. Padding of a text
  is no target, but the pixels after it attend to it: with learned positions each position has its own padding vector,
  as in DALL-E. Metrics: those of pixels as in `PixelLM`; `text_loss` and `text_accuracy`.

  Attributes:
    text_length: tokens of a text, including its end.
    text_weight: weight of the loss of texts.
    z_loss: coefficient of logsumexp(logits)^2, added to the loss of each token in training only.
    strategy: decoding strategy of sampled pixels.
  """

  text_length: Size
  text_weight: Rate = 0.125
  z_loss: TunableNonNegative = 0.0
  strategy: Strategy = Sampling()

  predicts_next: ClassVar[bool] = True
  data_fields: ClassVar[frozenset[str]] = PixelTask.data_fields | {'strategy'}

  text_fields: ClassVar[tuple[str, ...]] = ('text',)

  def transform(self, *, train):
    """Returns the transform that resizes images and encodes texts and pixels; the same in each epoch."""
    palette = self.palette
    prepare = PrepareTextAndPixels(
      palette=palette, fingerprint=palette.fingerprint, length=self.text_length
    )
    return Chain((self._resized, prepare))

  @property
  def palette(self):
    """The fitted palette, with a tokenizer of texts."""
    palette = super().palette
    if palette.text is None:
      raise UserError(
        'TextToImage.tokenizer has no tokenizer of texts: set Palette.text, such as @Bytes()'
      )
    return palette

  def spec(self, batch_size):
    """Returns tokens: int32 [batch, text_length + pixels]; weight: float32 [batch]."""
    length = self.text_length + self.num_pixels
    return {
      'tokens': jax.ShapeDtypeStruct((batch_size, length), jnp.int32),
      'weight': jax.ShapeDtypeStruct((batch_size,), jnp.float32),
    }

  def text_weights(self, batch: Mapping[str, jax.Array]) -> jax.Array:
    """Returns the weights of the tokens of texts, [batch, text_length]; 0 for padding."""
    present = batch['tokens'][:, : self.text_length] != self.tokenizer.ids.pad_id
    rows = batch['weight'] * batch.get('loss_weight', 1.0)
    return present.astype(jnp.float32) * rows[:, None]

  def weights(self, batch):
    """Returns the weights of the loss terms of pixels and of texts."""
    return super().weights(batch) | {'text': self.text_weights(batch).sum()}

  def sums(self, model, batch, key):
    """Returns loss and accuracy over pixels, and those over texts."""
    out, length, tokens = self.hidden(model, batch, key), self.text_length, batch['tokens']

    def of(part: slice, weights: jax.Array) -> Sums:
      # Parts of a row have other lengths than the mesh splits.
      x = constrain(out.x[:, part], 'batch', None, 'embed')
      z_loss = in_training(key, self.z_loss)
      return model.cross_entropy(x, tokens[:, part], weights, z_loss=z_loss, axes=('batch', None))

    pixels = of(slice(length, None), self.weighted_targets(batch))
    text = of(slice(length), self.text_weights(batch))
    metrics = pixels | {f'text_{name}': sums for name, sums in text.items()}
    output = self.with_auxiliaries(metrics, model, out, batch, key)
    return dataclasses.replace(
      output,
      coefficient=1.0 - self.text_weight,
      further=output.further | {'text': self.text_weight * text['loss'][0]},
    )

  def images(
    self,
    model: object,
    texts: Sequence[str],
    strategy: Strategy | None = None,
    seed: int = 0,
    numbers: Sequence[int] | None = None,
  ) -> np.ndarray:
    """Returns an image of each text, uint8 [texts, height, width, channels].

    Args:
      model: the model with its parameters.
      texts: the texts.
      strategy: decoding strategy; None: the task's.
      seed: random seed.
      numbers: numbers of the images, with which samples do not depend on the batch; None: from 0.
    """
    palette = self.palette
    rows = np.stack([text_row(palette, text, self.text_length) for text in texts])
    prompts = np.pad(rows, ((0, 0), (1, 0)), constant_values=palette.bos_id)
    colours = np.arange(palette.vocab_size) >= palette.first
    allowed = np.broadcast_to(colours, (len(texts), self.num_pixels, len(colours)))
    ids = self.sampled(model, prompts, allowed, strategy, seed, numbers)
    return palette.image(ids, *self.image_shape[:2])
