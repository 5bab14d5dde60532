"""Sequences of parts over a grid: a stem, a residual branch, and the block that begins a stage (ResNet,
https://arxiv.org/abs/1512.03385)."""

import dataclasses
import functools
import operator
from collections.abc import Callable, Mapping
from typing import Annotated, Any

import jax
from flax import nnx
from jaxtyping import Array, Float

from t2x.base.errors import UserError
from t2x.base.ranges import NonEmpty, Size
from t2x.layers.attention.head_projections import check_no_source
from t2x.layers.caches import Cache, WithoutCache
from t2x.layers.composites import set_part
from t2x.layers.embeddings.inputs import Embedder, Input
from t2x.layers.interfaces import Call, Merge, Result, Sublayer
from t2x.layers.keys import named_key
from t2x.layers.tokens import Tokens
from t2x.layers.vision.grids import check_full

__all__ = ['GridBranch', 'GridStem', 'ResidualMerge']


class _Sequence(nnx.Module):
  """Base class of parts that apply named `Merge`s in sequence, which are attributes.

  Attributes:
    names: names of the parts.
  """

  names: tuple[str, ...]
  num_merged: int
  output_dim: int

  def _build(self, width: int, parts: Mapping[str, Callable[..., Merge]], rngs: nnx.Rngs) -> None:
    self.names = tuple(parts)
    for name, build in parts.items():
      part = build(width, rngs=rngs)
      set_part(self, name, part)
      width = part.output_dim
    self.output_dim = width
    self.num_merged = functools.reduce(operator.mul, (part.num_merged for part in self._parts), 1)

  @property
  def _parts(self) -> list[Any]:
    return [vars(self)[name] for name in self.names]

  def _apply(self, x: Array, call: Call) -> Result:
    result = Result(x)
    for name, part in zip(self.names, self._parts, strict=True):
      new = part(result.x, dataclasses.replace(call, key=named_key(call.key, name)))
      tokens = new.tokens or call.tokens
      result = dataclasses.replace(new, tokens=tokens, aux=result.aux + new.aux)
      call = dataclasses.replace(call, tokens=tokens)
    return result


class GridBranch(WithoutCache, _Sequence):
  """Parts over a grid in sequence, as a sublayer: a bottleneck of three convolutions in a residual connection.

  Args:
    d_model: width of the input and output.
    parts: builders of the parts by name, in the order of application.

  Raises:
    UserError: a name is taken, or the parts change the grid or do not return to the width d_model; when called, the
      tokens do not fill a grid, the pattern is not Full(), or there is a source.
  """

  no_cache = (
    'cannot decode token by token, because a token depends on later ones: use it in an Encoder'
  )

  implements = (Sublayer,)
  reads = frozenset({'pattern'})
  max_length: int | None = None

  def __init__(
    self,
    d_model: int,
    *,
    parts: Annotated[Mapping[str, Callable[..., Merge]], NonEmpty],
    rngs: nnx.Rngs,
  ):
    self._build(d_model, parts, rngs)
    if self.output_dim != d_model or self.num_merged > 1:
      raise UserError(
        f'GridBranch.parts return {self.output_dim} features of a {self.num_merged}th of the tokens for a residual '
        f'stream of {d_model}: begin the stage with @ResidualMerge, whose shortcut does the same'
      )

  def __call__(
    self, x: Float[Array, 'batch length d_model'], call: Call, cache: Cache | None = None
  ) -> Result:
    """Applies the parts to the grid of each row."""
    check_no_source(self, call)
    check_full(self, call)
    return dataclasses.replace(self._apply(x, call), tokens=None)


class ResidualMerge(_Sequence):
  """Residual block that changes the width or the grid: activation(shortcut(x) + branch(x)).

  Args:
    d_model: width of the input.
    parts: builders of the parts of the branch by name, in the order of application.
    shortcut: builds the part beside them.
    activation: activation of the sum.

  Raises:
    UserError: a name is taken, or branch and shortcut differ in width or in the number of tokens.
  """

  implements = (Merge,)
  keeps_tokens = False

  def __init__(
    self,
    d_model: int,
    *,
    parts: Annotated[Mapping[str, Callable[..., Merge]], NonEmpty],
    shortcut: Callable[..., Merge],
    activation: Callable[[Array], Array] = jax.nn.relu,
    rngs: nnx.Rngs,
  ):
    self.activation = activation
    self._build(d_model, parts, rngs)
    self.shortcut = shortcut(d_model, rngs=rngs)
    sizes = [(part.output_dim, part.num_merged) for part in (self, self.shortcut)]
    if sizes[0] != sizes[1]:
      raise UserError(
        'ResidualMerge adds {} features of a {}th of the tokens to {} of a {}th: give shortcut and parts the same '
        'width and stride'.format(*sizes[0], *sizes[1])
      )

  def __call__(self, x: Float[Array, 'batch length d_model'], call: Call) -> Result:
    """Returns the sum, and the metadata of its tokens."""
    branch = self._apply(x, call)
    beside = self.shortcut(x, dataclasses.replace(call, key=named_key(call.key, 'shortcut')))
    y = self.activation(beside.x + branch.x)
    return dataclasses.replace(branch, x=y, aux=branch.aux + beside.aux)


class GridStem(_Sequence):
  """Embeds images by a sequence of parts over the grid of pixels, such as a convolution and a pooling.

  Args:
    d_model: width of the tokens, which is that of the last part.
    parts: builders of the parts by name, in the order of application.
    channels: number of channels of the images.

  Raises:
    UserError: a name is taken, or the width of the last part is not d_model; when called, images have another number
      of channels.
  """

  implements = (Embedder,)
  input: Input
  num_extra = 0

  def __init__(
    self,
    d_model: int,
    *,
    parts: Annotated[Mapping[str, Callable[..., Merge]], NonEmpty],
    channels: Size = 3,
    rngs: nnx.Rngs,
  ):
    self._build(channels, parts, rngs)
    self.input = Input('image', (None, None, channels), 'float32')
    if self.output_dim != d_model:
      raise UserError(
        f'GridStem.parts return vectors of {self.output_dim}, but d_model = {d_model}: set the width of the last part'
      )

  def __call__(
    self, images: Float[Array, 'batch height width channels'], tokens: Tokens | None = None
  ) -> tuple[Float[Array, 'batch length d_model'], Tokens]:
    """Returns the vectors of the grid, row by row from the top left, and their metadata."""
    batch, height, width, channels = images.shape
    if channels != self.input.shape[-1]:
      raise UserError(
        f'images of {channels} channels, but GridStem.channels = {self.input.shape[-1]}: make them equal'
      )
    row = Tokens.row(height * width, grid=(height, width))
    result = self._apply(images.reshape(batch, height * width, channels), Call(row))
    assert result.tokens is not None
    return result.x, result.tokens
