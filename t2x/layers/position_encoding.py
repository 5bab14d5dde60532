"""The base class of position encodings: which hooks they have and who calls them."""

import dataclasses
from collections.abc import Callable
from typing import Any

from flax import nnx
from jaxtyping import Array, Bool, Float, Int

from t2x.layers.base import Tokens
from t2x.ranges import Size

# Hooks of a position encoding; all but `embed` are called by token mixers.
_HOOKS = frozenset({'embed', 'address', 'rotate', 'scores', 'values'})


@dataclasses.dataclass(frozen=True)
class Projections:
  """The projections of one attention layer: [..., d_model] -> [..., heads, head_dim]."""

  q: Callable[[Array], Array]
  k: Callable[[Array], Array]


class PositionEncoding(nnx.Module):
  """Base class of position encodings: a subclass overrides the hooks that it has.

  Attributes:
    hooks: names of the methods that do something. Those that a class overrides are in it.
    max_length: length of the longest sequence; None: no limit.
    reads_content: whether `scores` depends on more than the tokens (on queries, keys, projections or the
      mask). Kernels then need the whole matrix of scores.
    num_terms: number of terms of equal variance that the scores are a sum of, dot products included (TUPE
      2). The scale of all terms is divided by its square root.
  """

  hooks: frozenset[str] = frozenset()
  max_length: Size | None = None
  reads_content: bool = False
  num_terms: int = 1

  def __init_subclass__(cls, **settings: Any):
    super().__init_subclass__(**settings)
    cls.hooks = cls.hooks | (_HOOKS & vars(cls).keys())

  @property
  def mixer_hooks(self) -> frozenset[str]:
    """The hooks that take effect only in a mixer that calls them."""
    return self.hooks - {'embed'}

  @property
  def acts_in_layers(self) -> bool:
    """Whether the layers use it; else it only changes embeddings."""
    return bool(self.mixer_hooks)

  def embed(
    self, x: Float[Array, 'batch length d_model'], tokens: Tokens
  ) -> Float[Array, 'batch length d_model']:
    """Adds positions to the embedded tokens, before the first layer."""
    return x

  def address(
    self, x: Float[Array, 'batch length d_model'], tokens: Tokens
  ) -> Float[Array, 'batch length d_model']:
    """Adds positions to what queries or keys are projected from, in every layer; values have none."""
    return x

  def rotate(
    self,
    q: Float[Array, 'batch queries heads head_dim'],
    k: Float[Array, 'batch keys kv_heads head_dim'],
    q_tokens: Tokens,
    k_tokens: Tokens,
  ) -> tuple[
    Float[Array, 'batch queries heads head_dim'], Float[Array, 'batch keys kv_heads head_dim']
  ]:
    """Rotates queries and keys by their positions, in every layer."""
    return q, k

  def scores(
    self,
    q: Float[Array, 'batch queries heads head_dim'] | None,
    k: Float[Array, 'batch keys kv_heads head_dim'] | None,
    q_tokens: Tokens,
    k_tokens: Tokens,
    *,
    scale: float,
    project: Projections | None = None,
    visible: Bool[Array, '#batch 1 queries keys'] | None = None,
  ) -> Float[Array, '#batch heads queries keys']:
    """What is added to the scaled scores of every layer, in float32 or wider.

    Args:
      q: rotated queries; None unless `reads_content`.
      k: rotated keys, all that are attended to; None unless `reads_content`.
      q_tokens: tokens of the queries.
      k_tokens: tokens of the keys.
      scale: the scale of dot products, 1 / sqrt(num_terms * head_dim) by default.
      project: the layer's projections; None unless `reads_content`.
      visible: whether each query sees each key; None: all do, or `reads_content` is False.
    """
    raise NotImplementedError(f'{type(self).__name__} adds nothing to scores')

  def values(
    self,
    probabilities: Float[Array, 'batch heads queries keys'],
    q_tokens: Tokens,
    k_tokens: Tokens,
  ) -> Float[Array, 'batch queries heads head_dim']:
    """What is added to each head's weighted mean of the values."""
    raise NotImplementedError(f'{type(self).__name__} adds nothing to values')


def distances(q_tokens: Tokens, k_tokens: Tokens) -> Int[Array, '#batch queries keys']:
  """Key position - query position."""
  return k_tokens.positions[:, None, :] - q_tokens.positions[:, :, None]
