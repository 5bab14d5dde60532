"""Convolutional stem of an audio encoder (Whisper, https://arxiv.org/abs/2212.04356)."""

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from t2x.base.errors import UserError
from t2x.base.ranges import Size
from t2x.layers.embeddings.inputs import Embedder, Input
from t2x.layers.feed_forward.activations import gelu_exact
from t2x.layers.initializers import lecun_normal
from t2x.layers.parameters import Initializer, Linear
from t2x.layers.products import broadcast
from t2x.layers.tokens import RowLayout, Tokens

__all__ = ['AudioStem']


class AudioStem(nnx.Module):
  """Embeds frames of features by two convolutions, of which the second returns one token for each `stride` frames.

  Token i is centred on frame i * stride, and is padding if that frame is. Padded frames are zeros for both
  convolutions, as those beyond the row are. Sinusoids of the positions are the body's: `Encoder.encoding`.

  Args:
    d_model: width of the tokens.
    num_features: number of features of a frame (mel bands).
    kernel_size: number of frames of both kernels; odd.
    stride: stride of the second convolution.
    activation: activation after each convolution.
    init: initialiser of the kernels.

  Raises:
    UserError: kernel_size is even; when called, rows hold several segments or another number of features.
  """

  implements = (Embedder,)
  input: Input
  num_extra = 0

  def __init__(
    self,
    d_model: int,
    *,
    num_features: Size = 80,
    kernel_size: Size = 3,
    stride: Size = 2,
    activation: Callable[[Array], Array] = gelu_exact,
    init: Initializer = lecun_normal(),
    rngs: nnx.Rngs,
  ):
    if kernel_size % 2 == 0:
      raise UserError(f'AudioStem.kernel_size = {kernel_size}: must be odd')
    self.input = Input('audio', (None, num_features), 'float32')
    self.stride, self.activation = stride, activation

    def convolution(width: int, axes: tuple[str, ...]) -> Linear:
      return Linear((kernel_size, width), (d_model,), axes, init=init, kind='filter', rngs=rngs)

    self.first = convolution(num_features, ('taps', 'channels', 'mlp'))
    self.second = convolution(d_model, ('taps', 'mlp', 'embed'))

  def __call__(
    self, frames: Float[Array, 'batch frames features'], tokens: Tokens | None = None
  ) -> tuple[Float[Array, 'batch length d_model'], Tokens]:
    """Returns the vectors of ceil(frames / stride) tokens and their metadata.

    Args:
      frames: features, such as the logarithms of a mel spectrogram.
      tokens: metadata of the frames: one segment, padded on the right; None: no padding.
    """
    tokens = Tokens.row(frames.shape[1]) if tokens is None else tokens
    self._check(frames, tokens)
    segments = tokens.segments
    x = frames.astype(self.first.kernel[...].dtype)
    for part, stride in ((self.first, 1), (self.second, self.stride)):
      if segments is not None:
        x = jnp.where(segments[..., None] > 0, x, 0)
      x = self.activation(_convolved(part, x, stride))
    kept = jax.tree.map(lambda array: array[:, :: self.stride], (segments, dict(tokens.marks)))
    row = Tokens.row(x.shape[1], segments=kept[0], right_padded=tokens.right_padded)
    return x, dataclasses.replace(row, marks=kept[1])

  def _check(self, frames: Array, tokens: Tokens) -> None:
    one_segment = tokens.segments is None or tokens.right_padded
    if tokens.layout is not RowLayout.CONTIGUOUS or not one_segment or tokens.encoded is not None:
      raise UserError(
        'AudioStem needs rows of one recording, but these rows hold several: use a task with one example per row'
      )
    shape, num_features = frames.shape, self.input.shape[-1]
    if shape[-1] != num_features or tokens.positions.shape[1] != shape[1]:
      raise UserError(
        f'frames of shape {shape} with metadata of {tokens.positions.shape[1]} frames, but AudioStem.num_features = '
        f'{num_features}: make them equal'
      )


def _convolved(part: Linear, x: Array, stride: int) -> Array:
  """Returns the convolution with zeros around the row, [batch, ceil(frames / stride), d_model]."""
  kernel = part.kernel[...].astype(x.dtype)
  around = len(kernel) // 2
  numbers = ('NWC', 'WIO', 'NWC')
  y = jax.lax.conv_general_dilated(
    x, kernel, (stride,), [(around, around)], dimension_numbers=numbers
  )
  assert part.bias is not None
  return y + broadcast(part.bias[...], y.shape, y.dtype)
