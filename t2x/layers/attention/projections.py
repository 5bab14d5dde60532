"""Projections of attention to queries, keys and values: their sizes, biases, norms of each head, and rotation by the
position encoding of a call."""

import dataclasses
import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, cast

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from t2x.base.errors import UserError
from t2x.layers.building import given, unwrap_partial
from t2x.layers.interfaces import Call, Norm
from t2x.layers.keys import stacked
from t2x.layers.norms import LayerNorm, RMSNorm, norm_over
from t2x.layers.parameters import Initializer, Linear

__all__ = ['JointNorm', 'PerHead']

# A projection of attention.
Projection = Literal['q', 'k', 'v']


@dataclasses.dataclass(frozen=True)
class Heads:
  """Sizes of an attention layer, from which its parts are built.

  Attributes:
    d_model: width of the input and output.
    num_heads: number of query heads.
    num_kv_heads: number of key-value heads.
    head_dim: features per query and key.
    value_dim: features per value.
  """

  d_model: int
  num_heads: int
  num_kv_heads: int
  head_dim: int
  value_dim: int

  @classmethod
  def of(
    cls,
    part: object,
    d_model: int,
    num_heads: int,
    num_kv_heads: int | None = None,
    head_dim: int | None = None,
    value_dim: int | None = None,
  ) -> 'Heads':
    """Returns the sizes of the settings of a part: num_kv_heads is num_heads if it is None, head_dim is
    d_model / num_heads, and value_dim is head_dim.

    Raises:
      UserError: num_heads does not divide d_model and head_dim is None, or num_kv_heads does not divide num_heads.
    """
    name, num_kv_heads = type(part).__name__, num_heads if num_kv_heads is None else num_kv_heads
    if head_dim is None and d_model % num_heads:
      raise UserError(
        f'{name}.num_heads = {num_heads} does not divide d_model = {d_model}: choose a divisor or set '
        f'{name}.head_dim'
      )
    head_dim = head_dim or d_model // num_heads
    if num_kv_heads < 1 or num_heads % num_kv_heads:
      raise UserError(
        f'{name}.num_kv_heads = {num_kv_heads} does not divide num_heads = {num_heads}'
      )
    return cls(d_model, num_heads, num_kv_heads, head_dim, value_dim or head_dim)

  @property
  def queries(self) -> tuple[int, int]:
    """Number of query heads, and features of each."""
    return self.num_heads, self.head_dim

  @property
  def keys(self) -> tuple[int, int]:
    """Number of key heads, and features of each."""
    return self.num_kv_heads, self.head_dim

  @property
  def values(self) -> tuple[int, int]:
    """Number of value heads, and features of each."""
    return self.num_kv_heads, self.value_dim

  def build(self, part: Callable[..., Any], *arguments: Any, rngs: nnx.Rngs) -> Any:
    """Builds a part of attention, `part(heads, *arguments, rngs=rngs)`.

    Raises:
      UserError: the constructor has the arguments of an older version.
    """
    cls = unwrap_partial(part)
    if isinstance(cls, type):
      _check_constructor(cls, 1 + len(arguments))
    return part(self, *arguments, rngs=rngs)


@functools.cache
def _check_constructor(cls: type, number: int) -> None:
  """Raises UserError if a class needs more than `number` positional arguments, as parts did before `Heads`."""
  parameters = [*inspect.signature(getattr(cls, '__init__')).parameters.values()][1:]  # noqa: B009
  by_position = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
  needed = [p.name for p in parameters if p.kind in by_position and p.default is p.empty]
  if len(needed) > number:
    new = ', '.join(['heads', 'use_bias', 'kernel_init'][:number])
    raise UserError(
      f'{cls.__name__}.__init__(self, {", ".join(needed)}, ...) has the sizes of an older version: write '
      f'__init__(self, {new}, ...) and read heads.num_heads, heads.head_dim and the other sizes of Heads'
    )


def head_projection(
  inputs: int,
  heads: tuple[int, int],
  init: Initializer,
  use_bias: bool,
  rngs: nnx.Rngs,
  axis: str = 'heads',
  input_axis: str = 'embed',
) -> Linear:
  """Returns a projection of `inputs` features to `heads`, (number of heads, features of each)."""
  axes = (input_axis, axis, 'head_dim')
  return Linear((inputs,), heads, axes, init=init, use_bias=use_bias, rngs=rngs)


def output_projection(
  heads: tuple[int, int], d_model: int, init: Initializer, use_bias: bool, rngs: nnx.Rngs
) -> Linear:
  """Returns the projection of all heads to d_model features."""
  axes = ('heads', 'head_dim', 'embed')
  return Linear(heads, (d_model,), axes, init=init, use_bias=use_bias, rngs=rngs)


def query_projection(
  heads: Heads, use_bias: bool, kernel_init: Initializer, *, rngs: nnx.Rngs
) -> Linear:
  """Returns the projection to queries, as `Queries` is built."""
  return head_projection(heads.d_model, heads.queries, kernel_init, use_bias, rngs)


class PerHead(nnx.Module):
  """A norm with separate parameters for each head, for queries, keys and values (Command R+, StableLM 2).

  Args:
    head_dim: features per head.
    norm: builds the norm of one head.
    normed_heads: logical axis and number of the heads.

  Raises:
    UserError: it is not built as a norm of attention heads.
  """

  implements = (Norm,)

  def __init__(
    self,
    head_dim: int,
    *,
    norm: Callable[..., Norm] = LayerNorm,
    normed_heads: tuple[str, int] | None = None,
    rngs: nnx.Rngs,
  ):
    if normed_heads is None:
      raise UserError(
        'PerHead normalises the features of single heads: bind it to MultiHeadAttention.qk_norm'
      )
    axis, num_heads = normed_heads
    self.norms = stacked(lambda _, rngs: norm(head_dim, rngs=rngs), num_heads, rngs, axis)

  def __call__(
    self, x: Float[Array, '*rest heads head_dim']
  ) -> Float[Array, '*rest heads head_dim']:
    return jax.vmap(lambda norm, x: norm(x), in_axes=(0, -2), out_axes=-2)(self.norms, x)


class JointNorm(nnx.Module):
  """A norm over the features of all heads together, for queries, keys and values (OLMo 2,
  https://arxiv.org/abs/2501.00656). In attention its parameters are those of the norm itself.

  Args:
    num_features: features of all heads.
    norm: builds the norm.
  """

  implements = (Norm,)

  def __init__(self, num_features: int, *, norm: Callable[..., Norm] = RMSNorm, rngs: nnx.Rngs):
    self.norm = norm_over('features', norm, num_features, rngs)

  def __call__(
    self, x: Float[Array, '*rest heads head_dim']
  ) -> Float[Array, '*rest heads head_dim']:
    return normalized(x, self.norm, joint=True)


# Builds a norm, or such builders by projection.
QKNorm = Callable[..., Norm] | Mapping[Projection, Callable[..., Norm]]


@dataclasses.dataclass(frozen=True)
class HeadNorms:
  """Builders of the norms of an attention layer.

  Attributes:
    builders: by projection.
  """

  builders: Mapping[Projection, Callable[..., Norm]]

  @classmethod
  def of(cls, name: str, qk_norm: QKNorm | None, projected: frozenset[str]) -> 'HeadNorms':
    """Returns the norms of the setting `qk_norm` of attention, for `projected`, which the layer projects itself.

    Raises:
      UserError: a norm is for a projection that the layer does not have.
    """
    builders: dict[Projection, Callable[..., Norm]]
    if isinstance(qk_norm, Mapping):
      builders = {**qk_norm}
    else:
      builders = {} if qk_norm is None else {'q': qk_norm, 'k': qk_norm}
    if missing := sorted({*builders} - projected):
      raise UserError(
        f'{name}.qk_norm is for {", ".join(missing)}, which {name} does not project: leave it out'
      )
    return cls(builders)

  @property
  def joint(self) -> frozenset[str]:
    """The projections with a norm over all heads together."""
    return frozenset(name for name, build in self.builders.items() if _is_joint(build))

  def build(self, heads: Heads, rngs: nnx.Rngs) -> list[Norm | None]:
    """Builds the norms of queries, keys and values."""
    return [
      self._norm('q', 'heads', *heads.queries, rngs),
      self._norm('k', 'kv_heads', *heads.keys, rngs),
      self._norm('v', 'kv_heads', *heads.values, rngs),
    ]

  def _norm(
    self, projection: Projection, axis: str, num_heads: int, head_dim: int, rngs: nnx.Rngs
  ) -> Norm | None:
    builder = self.builders.get(projection)
    if builder is None:
      return None
    if _is_joint(builder):
      joint = cast(JointNorm, builder(num_heads * head_dim, rngs=rngs))
      return joint.norm
    own = given(builder, normed_heads=(axis, num_heads))
    return norm_over('head_dim', own, head_dim, rngs)


def _is_joint(build: Callable[..., Norm]) -> bool:
  return unwrap_partial(build) is JointNorm


def normalized(
  x: Float[Array, '*rest heads head_dim'], norm: Norm | None, joint: bool
) -> Float[Array, '*rest heads head_dim']:
  """Applies the norm of a projection; None: none."""
  if norm is None:
    return x
  return norm(x.reshape(*x.shape[:-2], -1)).reshape(x.shape) if joint else norm(x)


def with_addresses(x: Array, call: Call) -> Array:
  """Returns the input of the query and key projections: `x` after the hook `address` of the encoding."""
  return x if call.encoding is None else call.encoding.address(x, call.tokens)


def rotated_queries(q: Array | None, call: Call, size: int | None) -> Array | None:
  """Returns queries, or None, whose first `size` features (None: all) are rotated by the encoding of the call."""
  encoding = call.encoding
  if q is None or encoding is None or 'rotate' not in encoding.hooks:
    return q
  first = q if size is None else q[..., :size]
  first = encoding.rotate(first, first, call.tokens, call.tokens)[0]
  return first if size is None else jnp.concatenate([first, q[..., size:]], axis=-1)


def rotated_keys(k: Array, call: Call) -> Array:
  """Returns keys rotated by the encoding of the call."""
  encoding = call.encoding
  if encoding is None or 'rotate' not in encoding.hooks:
    return k
  return encoding.rotate(k, k, call.tokens, call.tokens)[1]


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
