"""Models that classify the pixels of an image (semantic segmentation)."""

from collections.abc import Callable
from typing import Any

from flax import nnx

from t2x.base.errors import UserError
from t2x.layers import named_key
from t2x.models.classifiers import Classifier
from t2x.models.interfaces import ClassHead, Model, Output
from t2x.models.spec import ModelSpec
from t2x.models.vision import ImageEncoder

__all__ = ['PixelClassifier']


class PixelClassifier(ImageEncoder):
  """Computes class logits for each token of the grid that the body returns, which the task interpolates to pixels.

  With `Stages.join = @AllMLP` in the body it is SegFormer (https://arxiv.org/abs/2105.15203); with patches and an
  encoder without stages, Segmenter with a linear head (https://arxiv.org/abs/2105.05633).

  Args:
    head: builds the classifier of each token.
    settings: those of `ImageEncoder`.
  """

  implements = (Model,)

  def __init__(
    self, *, head: Callable[..., ClassHead] = Classifier, rngs: nnx.Rngs, **settings: Any
  ):
    super().__init__(rngs=rngs, **settings)
    self.head = head(self.body.output_dim, rngs=rngs)

  @property
  def spec(self) -> ModelSpec:
    return ModelSpec(
      inputs={self.embedding.input.kind: self.embedding.input},
      outputs=frozenset({'class logits of a grid'}),
      patterns=tuple(self.body.patterns),
      num_classes=self.head.num_classes,
    )

  def __call__(self, images, *, key=None, record=frozenset()):
    """Returns class logits [batch, rows, columns, classes]; see `hidden`.

    Raises:
      UserError: the tokens that the body returns do not fill a grid of rows and columns.
    """
    out = self.hidden(images, key=key, record=record)
    tokens = out.tokens
    if tokens is None or tokens.grid is None or len(tokens.grid) != 2:
      raise UserError(
        'PixelClassifier needs tokens in rows and columns, but its body returns '
        f'{"none" if tokens is None else f"the grid {tokens.grid}"}: use patches of images, and a '
        'body that keeps a grid'
      )
    logits = self.head(out.x[:, tokens.num_extra :], named_key(key, 'head'))
    logits = logits.reshape(len(logits), *tokens.grid, -1)
    return Output(logits, None, out.aux, out.recorded)
