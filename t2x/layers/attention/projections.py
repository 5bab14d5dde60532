"""Settings of attention that queries, keys and values may have apart: norms of each head, and biases."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import jax
from flax import nnx
from jaxtyping import Array, Float

from t2x.base.errors import UserError
from t2x.layers.building import build_context, building
from t2x.layers.interfaces import Norm
from t2x.layers.keys import stacked
from t2x.layers.norms import LayerNorm, norm_over

__all__ = ['PerHead']

# A projection of attention.
Projection = Literal['q', 'k', 'v']
# Their number, and the features of each.
Heads = tuple[int, int]


class PerHead(nnx.Module):
  """A norm with parameters of its own for each head, for queries, keys and values (Command R+, StableLM 2).

  Args:
    head_dim: features per head.
    norm: builds the norm of one head.

  Raises:
    UserError: the norm is not one of heads.
  """

  implements = (Norm,)

  def __init__(self, head_dim: int, *, norm: Callable[..., Norm] = LayerNorm, rngs: nnx.Rngs):
    heads = build_context().heads
    if heads is None:
      raise UserError(
        'PerHead normalises the features of single heads: bind it to MultiHeadAttention.qk_norm or '
        'MultiHeadAttention.head_norms'
      )
    axis, num_heads = heads
    self.norms = stacked(lambda _, rngs: norm(head_dim, rngs=rngs), num_heads, rngs, axis)

  def __call__(
    self, x: Float[Array, '*rest heads head_dim']
  ) -> Float[Array, '*rest heads head_dim']:
    return jax.vmap(lambda norm, x: norm(x), in_axes=(0, -2), out_axes=-2)(self.norms, x)


@dataclasses.dataclass(frozen=True)
class HeadNorms:
  """Builders of the norms of an attention layer.

  Attributes:
    builders: by projection.
    joint: whether a norm is over the features of all heads together.
  """

  builders: Mapping[Projection, Callable[..., Norm]]
  joint: bool

  @classmethod
  def of(
    cls,
    name: str,
    qk_norm: Callable[..., Norm] | None,
    joint_qk_norm: Callable[..., Norm] | None,
    head_norms: Mapping[Projection, Callable[..., Norm]],
    projected: frozenset[str],
  ) -> 'HeadNorms':
    """Returns the norms of the settings of attention, and of `projected`, which the layer projects itself.

    Raises:
      UserError: several settings are for the same norm, or a norm is for what is not projected.
    """
    shared = {'qk_norm': qk_norm, 'joint_qk_norm': joint_qk_norm, 'head_norms': head_norms or None}
    used = [f'{name}.{setting}' for setting, norm in shared.items() if norm is not None]
    if len(used) > 1:
      raise UserError(f'{" and ".join(used)} are both set: set only one')
    both = qk_norm or joint_qk_norm
    builders: dict[Projection, Callable[..., Norm]] = {**head_norms}
    if both is not None:
      builders = {'q': both, 'k': both}
    if missing := sorted({*builders} - projected):
      raise UserError(
        f'{used[0]} is for {", ".join(missing)}, which {name} does not project: leave it out'
      )
    return cls(builders, joint_qk_norm is not None)

  def build(self, q: Heads, k: Heads, v: Heads, rngs: nnx.Rngs) -> list[Norm | None]:
    """Builds the norms of queries, keys and values with (heads, features per head) each."""
    return [
      self._norm('q', 'heads', *q, rngs),
      self._norm('k', 'kv_heads', *k, rngs),
      self._norm('v', 'kv_heads', *v, rngs),
    ]

  def _norm(
    self, projection: Projection, axis: str, num_heads: int, head_dim: int, rngs: nnx.Rngs
  ) -> Norm | None:
    builder = self.builders.get(projection)
    if builder is None:
      return None
    if self.joint:
      return norm_over('features', builder, num_heads * head_dim, rngs)
    with building(heads=(axis, num_heads)):
      return norm_over('head_dim', builder, head_dim, rngs)


def normalized(
  x: Float[Array, '*rest heads head_dim'], norm: Norm | None, joint: bool
) -> Float[Array, '*rest heads head_dim']:
  """Applies the norm of a projection; None: none."""
  if norm is None:
    return x
  return norm(x.reshape(*x.shape[:-2], -1)).reshape(x.shape) if joint else norm(x)


def biases_of(
  name: str,
  use_bias: bool | Sequence[Projection],
  projected: frozenset[str],
  key_values: Callable[..., Any] | None,
) -> frozenset[str]:
  """Returns the projections that have biases.

  Args:
    name: class of the attention layer, for error messages.
    use_bias: the setting of the layer.
    projected: projections that the layer has.
    key_values: builds the part that replaces the projections of keys and values; None: no such part.

  Raises:
    UserError: a bias is for a missing projection, or only for keys or only for values of `key_values`.
  """
  if isinstance(use_bias, bool):
    return frozenset('qkv' if use_bias else '')
  names = frozenset(use_bias)
  if missing := sorted(names - projected):
    raise UserError(
      f'{name}.use_bias is for {", ".join(missing)}, which {name} does not project: leave it out'
    )
  if key_values is not None and len(names & {'k', 'v'}) == 1:
    raise UserError(
      f'{name}.use_bias is for keys or values only, and {name}.key_values computes both: name both or none'
    )
  return names
