"""Patch merging between the stages of a hierarchical vision transformer."""

from collections.abc import Callable

from flax import nnx
from jaxtyping import Array, Float

from t2x.base.errors import UserError
from t2x.layers.initializers import truncated_normal
from t2x.layers.interfaces import Call, Merge, Norm, Result
from t2x.layers.norms import LayerNorm, norm_over
from t2x.layers.parameters import Initializer, Linear
from t2x.layers.tokens import Tokens

__all__ = ['PatchMerging']


class PatchMerging(nnx.Module):
  """Merges 2 x 2 neighbouring tokens of a grid into one token of twice the width, by concatenation, a norm
  and a projection without bias (Swin Transformer, https://arxiv.org/abs/2103.14030, section 3.1).

  Args:
    d_model: width of the input.
    norm: builds the norm of the concatenated vectors, of width 4 d_model.
    init: initialiser of the projection.
  """

  implements = (Merge,)
  num_merged = 4
  keeps_tokens = False
  output_dim: int

  def __init__(
    self,
    d_model: int,
    *,
    norm: Callable[..., Norm] = LayerNorm,
    init: Initializer = truncated_normal(0.02),
    rngs: nnx.Rngs,
  ):
    self.output_dim = 2 * d_model
    self.norm = norm_over('merged', norm, 4 * d_model, rngs)
    self.projection = Linear(
      (4 * d_model,), (2 * d_model,), ('merged', 'embed'), init=init, use_bias=False, rngs=rngs
    )

  def __call__(self, x: Float[Array, 'batch length d_model'], call: Call) -> Result:
    """Returns the merged vectors, row by row from the top left, and their metadata.

    Raises:
      UserError: the tokens do not fill a grid with even sides, or have metadata that cannot be merged.
    """
    rows, columns = _grid(call.tokens)
    batch, _, width = x.shape
    x = x.reshape(batch, rows // 2, 2, columns // 2, 2, width)
    # The column within a group of four comes before the row, as in the published weights.
    x = x.transpose(0, 1, 3, 4, 2, 5).reshape(batch, rows * columns // 4, 4 * width)
    x = self.projection(self.norm(x))
    return Result(x, tokens=Tokens.row(x.shape[1], grid=(rows // 2, columns // 2)))


def _grid(tokens: Tokens) -> tuple[int, int]:
  """Returns the rows and columns of the tokens' grid; raises UserError if it cannot be merged."""
  if tokens.grid is None or len(tokens.grid) != 2:
    raise UserError(
      f'PatchMerging merges the patches of an image, but the tokens have the grid {tokens.grid}: use an '
      'embedding that sets rows and columns, such as @PatchEmbedding'
    )
  if tokens.num_extra:
    raise UserError(
      f'PatchMerging supports only tokens of a grid, but {tokens.num_extra} precede it (class tokens): set '
      'PatchEmbedding.class_token = False and pool with @mean_tokens'
    )
  fields = ('segments', 'coords', 'order', 'encoded')
  names = [name for name in fields if getattr(tokens, name) is not None] + sorted(tokens.marks)
  if names:
    raise UserError(
      f'PatchMerging cannot merge the metadata {", ".join(names)} of tokens: use a task without it'
    )
  rows, columns = tokens.grid
  if rows % 2 or columns % 2:
    raise UserError(
      f'PatchMerging merges 2 x 2 tokens, which do not divide a grid of {rows} x {columns}: change '
      'the image size or PatchEmbedding.patch_size'
    )
  return rows, columns
