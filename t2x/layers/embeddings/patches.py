"""Embeddings of the patches of images, and the base class of those of grids."""

import dataclasses
import math
from collections.abc import Sequence
from typing import ClassVar

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from t2x.base.errors import UserError
from t2x.base.ranges import Natural, Size
from t2x.layers.embeddings.inputs import Embedder, Input, InputKind
from t2x.layers.initializers import lecun_normal, normal, zeros
from t2x.layers.parameters import Initializer, Linear, param
from t2x.layers.products import broadcast
from t2x.layers.tokens import Tokens

__all__ = ['PatchEmbedding']


class GridEmbedding(nnx.Module):
  """Base class of embeddings of the patches of a grid as one token each, after a class token and registers.

  Args:
    d_model: width of the tokens.
    size: sides of a patch in pixels; of a tubelet frames, height and width.
    axes: logical axes of these sides.
    channels: number of channels.
    class_token: whether to prepend a learned token to the patches.
    num_registers: number of further learned tokens, after the class token.
    use_bias: whether the projection has a bias.
    init: initialiser of the projection.
  """

  implements = (Embedder,)
  input: Input
  num_extra: int

  # The kind of the input, and the settings of the size of a patch.
  kind: ClassVar[InputKind]
  settings: ClassVar[str]

  def __init__(
    self,
    d_model: int,
    size: Sequence[int],
    axes: Sequence[str],
    *,
    channels: int,
    class_token: bool,
    num_registers: int,
    use_bias: bool,
    init: Initializer,
    rngs: nnx.Rngs,
  ):
    self.input = Input(self.kind, (*(None for _ in size), channels), 'float32')
    self.num_extra = class_token + num_registers
    self.projection = Linear(
      (*size, channels),
      (d_model,),
      (*axes, 'channels', 'embed'),
      init=init,
      use_bias=use_bias,
      kind='filter',
      rngs=rngs,
    )
    self.class_token = (
      param(zeros(), (d_model,), ('embed',), rngs, kind='vector') if class_token else None
    )
    # Equal registers would remain equal.
    shape, of_registers = (num_registers, d_model), ('registers', 'embed')
    self.registers = (
      param(normal(0.02), shape, of_registers, rngs, kind='vector') if num_registers else None
    )

  def __call__(
    self, inputs: Float[Array, 'batch *sides channels'], tokens: Tokens | None = None
  ) -> tuple[Float[Array, 'batch tokens d_model'], Tokens]:
    """Returns the vectors of the patches, row by row from the top left (of a video frame by frame), and their metadata.

    Args:
      inputs: pixels.
      tokens: metadata of the class token, the registers and the patches, to which the grid
        is added; None: `Tokens.row`.

    Raises:
      UserError: a side is not a multiple of that of a patch, or the number of channels or of `tokens` does not match.
    """
    batch, *sides, channels = inputs.shape
    kernel = self.projection.kernel[...]
    *size, own_channels, _ = kernel.shape
    name, count = type(self).__name__, len(size)
    pixels, patches = (' x '.join(map(str, shape)) for shape in (sides, size))
    if any(side % patch for side, patch in zip(sides, size, strict=True)):
      raise UserError(
        f'{self.kind}s of {pixels} pixels do not divide into patches of {patches}: '
        f'resize them or change {name}.{self.settings}'
      )
    if channels != own_channels:
      raise UserError(
        f'{self.kind}s have {channels} channels, but {name}.channels = {own_channels}: make them equal'
      )
    grid = tuple(side // patch for side, patch in zip(sides, size, strict=True))
    pairs = [n for pair in zip(grid, size, strict=True) for n in pair]
    x = inputs.astype(kernel.dtype).reshape(batch, *pairs, channels)
    order = [0, *range(1, 2 * count, 2), *range(2, 2 * count + 1, 2), 2 * count + 1]
    x = self.projection(x.transpose(order)).reshape(batch, math.prod(grid), -1)
    for extra in (self.registers, self.class_token):
      if extra is not None:
        vectors = extra[...].reshape(-1, x.shape[-1])
        first = broadcast(vectors, (batch, *vectors.shape), x.dtype)
        x = jnp.concatenate([first, x], axis=1)
    tokens = Tokens.row(x.shape[1]) if tokens is None else tokens
    if tokens.positions.shape[1] != x.shape[1]:
      article = 'an' if self.kind == 'image' else 'a'
      raise UserError(
        f'metadata of {tokens.positions.shape[1]} tokens for {article} {self.kind} of {x.shape[1]} tokens '
        f'({" x ".join(map(str, grid))} patches): pass metadata for each of its tokens'
      )
    return x, dataclasses.replace(tokens, grid=grid, num_extra=self.num_extra)


class PatchEmbedding(GridEmbedding):
  """Embeds images as one token per patch, after a class token (ViT, https://arxiv.org/abs/2010.11929).

  Args:
    patch_size: side of the square patches, in pixels.
    channels: number of channels of the images.
    num_registers: number of further learned tokens, after the class token (Darcet et al. 2023,
      https://arxiv.org/abs/2309.16588).
    init: initialiser of the projection. Its kernel is [patch, patch, channels, d_model], as that
      of a convolution with stride `patch_size` (HWIO).
  """

  kind = 'image'
  settings = 'patch_size'

  def __init__(
    self,
    d_model: int,
    *,
    patch_size: Size,
    channels: Size = 3,
    class_token: bool = True,
    num_registers: Natural = 0,
    use_bias: bool = True,
    init: Initializer = lecun_normal(),
    rngs: nnx.Rngs,
  ):
    self.patch_size = patch_size
    super().__init__(
      d_model,
      (patch_size, patch_size),
      ('patch', 'patch'),
      channels=channels,
      class_token=class_token,
      num_registers=num_registers,
      use_bias=use_bias,
      init=init,
      rngs=rngs,
    )
