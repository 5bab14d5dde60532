"""Base class of position encodings and the hooks that models and token mixers call."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Bool, Float, Int

from t2x.base.ranges import Size
from t2x.layers.tokens import Tokens

__all__ = ['PositionEncoding', 'Projections']

# Hooks of a position encoding. Models call `embed`, token mixers call all other hooks.
_HOOKS = frozenset({'embed', 'address', 'rotate', 'scores', 'values'})


@dataclasses.dataclass(frozen=True)
class Projections:
  """Query and key projections of an attention layer: [..., d_model] -> [..., heads, head_dim]."""

  q: Callable[[Array], Array]
  k: Callable[[Array], Array]


class PositionEncoding(nnx.Module):
  """Base class of position encodings; a subclass overrides the hooks that it uses.

  Built as `PositionEncoding(d_model, *, settings, rngs)`; encodings that do not act on vectors of this width ignore it.

  Attributes:
    hooks: names of the hooks that have an effect. Every hook that a subclass overrides is added.
    max_length: maximum sequence length; None: no limit.
    reads_content: whether `scores` depends on queries, keys, projections or the mask, not only on the token
      metadata. Kernels then need the full matrix of scores.
    num_terms: number of terms of equal variance in the scores, including dot products (2 in TUPE). The
      scale of all terms is divided by its square root.
    features: shapes, without batch and length, of the arrays that `prepare` returns; only with `reads_content`.
  """

  hooks: frozenset[str] = frozenset()
  features: Mapping[str, tuple[int, ...]] = {}
  max_length: Size | None = None
  reads_content: bool = False
  num_terms: int = 1

  def __init_subclass__(cls, **settings: bool):
    super().__init_subclass__(**settings)
    cls.hooks = cls.hooks | (_HOOKS & vars(cls).keys())

  @property
  def mixer_hooks(self) -> frozenset[str]:
    """Hooks that token mixers call."""
    return self.hooks - {'embed'}

  @property
  def acts_in_layers(self) -> bool:
    """True if the encoding has an effect in the layers, not only on the embeddings."""
    return bool(self.mixer_hooks)

  def embed(
    self, x: Float[Array, 'batch length d_model'], tokens: Tokens
  ) -> Float[Array, 'batch length d_model']:
    """Adds positions to the embedded tokens, before the first layer."""
    return x

  def address(
    self, x: Float[Array, 'batch length d_model'], tokens: Tokens
  ) -> Float[Array, 'batch length d_model']:
    """Adds positions to the input of the query and key projections, but not of values, in every layer."""
    return x

  def prepare(
    self, x: Float[Array, 'batch length d_model'], call: Any
  ) -> dict[str, Float[Array, 'batch length *features']]:
    """Returns an array per token for each of `features`, once per layer and call, before the scores of any pair.

    The hook `scores` finds them in `Tokens.features`. A cache holds those of earlier tokens: they are in
    `call.slots.tokens.features`, without those of the tokens of `x`.

    Args:
      x: input of the attention layer.
      call: its `Call`, such as its tokens and the number of its layer.
    """
    return {}

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
    """Returns the terms that are added to the scaled scores of every layer, in float32 or wider.

    Args:
      q: rotated queries; None unless `reads_content`.
      k: rotated keys, including cached keys; None unless `reads_content`.
      q_tokens: metadata of the queries.
      k_tokens: metadata of the keys.
      scale: scale of dot products, 1 / sqrt(num_terms * head_dim) by default.
      project: projections of the layer; None unless `reads_content`.
      visible: whether each query sees each key; None: every query sees every key, or `reads_content` is
        False.
    """
    raise NotImplementedError(f'{type(self).__name__} does not implement the hook scores')

  def values(
    self,
    probabilities: Float[Array, 'batch heads queries keys'],
    q_tokens: Tokens,
    k_tokens: Tokens,
  ) -> Float[Array, 'batch queries heads head_dim']:
    """Returns the vectors that are added to each head's weighted mean of the values."""
    raise NotImplementedError(f'{type(self).__name__} does not implement the hook values')


def held_features(part: Any, encoding: PositionEncoding | None) -> dict[str, PositionEncoding]:
  """Returns the further argument of `init_cache` of a sublayer whose cache holds the features of an encoding: it names
  'encoding.features' in `reads`."""
  if encoding is None or not encoding.features or 'encoding.features' not in part.reads:
    return {}
  return {'encoding': encoding}


def distances(q_tokens: Tokens, k_tokens: Tokens) -> Int[Array, '#batch queries keys']:
  """Returns key position - query position for each pair."""
  return k_tokens.encoded_positions[:, None, :] - q_tokens.encoded_positions[:, :, None]


def frequencies(num: int, divisor: int, base: float) -> Float[np.ndarray, ' num']:
  """Returns base^(-j / divisor) for j = 0 .. num - 1, computed in float64 and rounded to float32."""
  return (float(base) ** (-np.arange(num) / max(divisor, 1))).astype(np.float32)


def rotate_pairs(
  x: Float[Array, 'batch length heads features'],
  angles: Float[Array, '#batch length 1 pairs'],
  interleaved: bool = False,
) -> Float[Array, 'batch length heads features']:
  """Rotates pairs of features by angles, in float32.

  Args:
    x: queries or keys.
    angles: in radians, one per pair.
    interleaved: False: feature i is paired with i + half. True: 2i with 2i + 1.
  """
  half, values = angles.shape[-1], x.astype(jnp.float32)
  sin, cos = jnp.sin(angles), jnp.cos(angles)
  if interleaved:
    a, b = values[..., ::2], values[..., 1::2]
    rotated = jnp.stack([a * cos - b * sin, b * cos + a * sin], axis=-1).reshape(x.shape)
  else:
    a, b = values[..., :half], values[..., half:]
    rotated = jnp.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)
  return rotated.astype(x.dtype)
