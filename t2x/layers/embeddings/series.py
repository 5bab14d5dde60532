"""Embeddings of time series: patches of one channel (PatchTST, https://arxiv.org/abs/2211.14730)."""

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from t2x.base.errors import UserError
from t2x.base.ranges import Size
from t2x.layers.embeddings.inputs import Embedder, Input
from t2x.layers.initializers import lecun_normal
from t2x.layers.parameters import Initializer, Linear
from t2x.layers.tokens import Tokens

__all__ = ['SeriesPatches']


class SeriesPatches(nnx.Module):
  """Embeds patches of consecutive values of one channel by a linear layer. The last patch ends with the last value; values before
  the first whole patch are not read.

  Args:
    d_model: width of the tokens.
    patch_length: number of values of a patch.
    stride: number of values from one patch to the next; less than `patch_length` for overlapping patches.
    init: initialiser of the kernel.

  Raises:
    UserError: when called, the series is shorter than a patch.
  """

  implements = (Embedder,)
  input: Input = Input('series', (None,), 'float32')
  num_extra = 0

  def __init__(
    self,
    d_model: int,
    *,
    patch_length: Size,
    stride: Size,
    init: Initializer = lecun_normal(),
    rngs: nnx.Rngs,
  ):
    self.patch_length, self.stride = patch_length, stride
    self.projection = Linear((patch_length,), (d_model,), ('patch', 'embed'), init=init, rngs=rngs)

  def num_patches(self, length: int) -> int:
    """Returns the number of patches of a series.

    Raises:
      UserError: it is shorter than a patch.
    """
    if length < self.patch_length:
      raise UserError(
        f'a series of {length} values is shorter than SeriesPatches.patch_length = {self.patch_length}'
      )
    return (length - self.patch_length) // self.stride + 1

  def __call__(
    self, series: Float[Array, 'batch values'], tokens: Tokens | None = None
  ) -> tuple[Float[Array, 'batch length d_model'], Tokens]:
    """Returns the vectors of the patches and their metadata; the values have no metadata of their own."""
    length = series.shape[1]
    number = self.num_patches(length)
    first = length - self.patch_length - self.stride * (number - 1)
    columns = (
      first + self.stride * jnp.arange(number)[:, None] + jnp.arange(self.patch_length)[None]
    )
    x = self.projection(series.astype(self.projection.kernel[...].dtype)[:, columns])
    return x, Tokens.row(number)
