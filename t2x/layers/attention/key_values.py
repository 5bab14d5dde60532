"""Keys and values of an attention layer, and what its cache holds of them: those of its own projections, a latent
vector per token, or values that several key heads share."""

import dataclasses
from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from t2x.base.errors import UserError
from t2x.base.ranges import Size
from t2x.layers.attention.cache import KeyValueCache
from t2x.layers.attention.projections import Heads, head_projection, rotated_keys
from t2x.layers.interfaces import Call, Norm
from t2x.layers.norms import RMSNorm, norm_over
from t2x.layers.parameters import Initializer, Linear
from t2x.layers.positions.encoding import PositionEncoding
from t2x.layers.tokens import Tokens

__all__ = ['KeyValues', 'LatentKeyValues', 'LowRankQueries', 'Queries', 'SharedValues']

Hidden = Float[Array, 'batch length d_model']
Keys = Float[Array, 'batch length kv_heads head_dim']
# What keys and what values are computed from, [batch, length, heads, features] each.
Stored = tuple[Array | None, Array]


@runtime_checkable
class KeyValues(Protocol):
  """Keys and values of an attention layer. Built as
  `KeyValues(heads, use_bias, kernel_init, rngs=rngs)` with the sizes `heads` of the layer.

  """

  @property
  def shapes(self) -> tuple[tuple[int, int] | None, tuple[int, int]]:
    """(heads, features) of the two arrays that `project` returns; None for an array that is None."""
    ...

  @property
  def rotated_dim(self) -> int | None:
    """Number of features of each query that the position encoding rotates, the first ones; None: all."""
    ...

  @property
  def cacheable(self) -> bool:
    """Whether a cache can hold `project` of earlier tokens, one vector per token."""
    ...

  def project(self, x: Hidden, call: Call) -> Stored:
    """Returns what a cache holds for the tokens of `x`; keys are rotated by `call.encoding`."""
    ...

  def expand(
    self, stored: Stored
  ) -> tuple[Keys | None, Float[Array, 'batch length kv_heads v_dim']]:
    """Returns the keys and values."""
    ...

  def tokens(self, call: Call) -> Tokens:
    """Returns the metadata of the keys of a call."""
    ...


@runtime_checkable
class Queries(Protocol):
  """Queries of an attention layer. Built as
  `Queries(heads, use_bias, kernel_init, rngs=rngs)` with the sizes `heads` of the layer."""

  def __call__(self, x: Hidden) -> Float[Array, 'batch length heads head_dim']:
    """Returns the queries before rotation."""
    ...


class ProjectedKeyValues(nnx.Module):
  """Base class of `KeyValues` with parameters, which stores one key and one value for each token of the call."""

  implements = (KeyValues,)
  cacheable = True
  rotated_dim: int | None = None
  shapes: tuple[tuple[int, int], tuple[int, int]]

  def expand(self, stored: Stored) -> Stored:
    """Returns the stored arrays."""
    return stored

  def tokens(self, call: Call) -> Tokens:
    """Returns the tokens of the call."""
    return call.tokens


class LatentKeyValues(ProjectedKeyValues):
  """Multi-head latent attention (DeepSeek-V2, https://arxiv.org/abs/2405.04434, section 2.1): keys and values are
  projections of one latent vector per token, and a cache holds this vector and one rotated key for all heads.

  With latent c = norm(x W_c) and rotated key r = rotate(x W_r), the key of head h is [r, c K_h] and its value c V_h.
  The first `rotated_dim` features of the queries are rotated, too (the published weights have them last).

  Args:
    heads: sizes of the attention layer.
    use_bias: whether the projections to the latent vector and to the rotated key have biases.
    kernel_init: initialiser of the projections.
    rank: size of the latent vector.
    rotated_dim: features of the rotated key.
    norm: builds the norm of the latent vector.
  """

  rotated_dim: int

  def __init__(
    self,
    heads: Heads,
    use_bias: bool,
    kernel_init: Initializer,
    *,
    rank: Size,
    rotated_dim: Size,
    norm: Callable[..., Norm] = RMSNorm,
    rngs: nnx.Rngs,
  ):
    if rotated_dim >= heads.head_dim:
      raise UserError(
        f'LatentKeyValues.rotated_dim = {rotated_dim} leaves no feature of a key to the latent '
        f'vector: choose less than head_dim = {heads.head_dim}'
      )
    self.rotated_dim, self.shapes = rotated_dim, ((1, rotated_dim), (1, rank))

    def down(size: int, axis: str) -> Linear:
      axes = 'embed', axis
      return Linear((heads.d_model,), (size,), axes, init=kernel_init, use_bias=use_bias, rngs=rngs)

    def up(size: int) -> Linear:
      shape = heads.num_kv_heads, size
      return head_projection(rank, shape, kernel_init, False, rngs, 'kv_heads', 'rank')

    self.latent, self.rotated = down(rank, 'rank'), down(rotated_dim, 'head_dim')
    self.norm = norm_over('rank', norm, rank, rngs)
    self.k, self.v = up(heads.head_dim - rotated_dim), up(heads.value_dim)

  def project(self, x: Hidden, call: Call) -> Stored:
    """Returns the rotated key and the normalised latent vector, each with one head."""
    return rotated_keys(self.rotated(x)[:, :, None], call), self.norm(self.latent(x))[:, :, None]

  def expand(self, stored: Stored) -> tuple[Keys, Float[Array, 'batch length kv_heads v_dim']]:
    """Returns the keys and values of all heads."""
    rotated, latent = stored
    assert rotated is not None  # `project` returns both.
    k = self.k(latent[:, :, 0])
    shared = jnp.broadcast_to(rotated, (*k.shape[:3], self.rotated_dim))
    return jnp.concatenate([shared, k], axis=-1), self.v(latent[:, :, 0])


class LowRankQueries(nnx.Module):
  """Queries norm(x W_a) W_b with a narrow projection W_a
  (DeepSeek-V2, https://arxiv.org/abs/2405.04434, section 2.1.3).

  Args:
    heads: sizes of the attention layer.
    use_bias: whether W_a has a bias.
    kernel_init: initialiser of both projections.
    rank: width between the projections.
    norm: builds the norm between them.
  """

  implements = (Queries,)

  def __init__(
    self,
    heads: Heads,
    use_bias: bool,
    kernel_init: Initializer,
    *,
    rank: Size,
    norm: Callable[..., Norm] = RMSNorm,
    rngs: nnx.Rngs,
  ):
    inputs, axes = (heads.d_model,), ('embed', 'rank')
    self.down = Linear(inputs, (rank,), axes, init=kernel_init, use_bias=use_bias, rngs=rngs)
    self.norm = norm_over('rank', norm, rank, rngs)
    self.up = head_projection(rank, heads.queries, kernel_init, False, rngs, input_axis='rank')

  def __call__(self, x):
    return self.up(self.norm(self.down(x)))


class SharedValues(ProjectedKeyValues):
  """Keys with fewer value heads: key heads h, h + n, h + 2 n, ... share value head h of n, as in differential attention
  (https://arxiv.org/abs/2410.05258), whose values are twice as wide as its keys.

  Args:
    heads: sizes of the attention layer.
    use_bias: whether the projections have biases.
    kernel_init: initialiser of the projections.
    sharing: number of key heads that share a value head.
  """

  def __init__(
    self,
    heads: Heads,
    use_bias: bool,
    kernel_init: Initializer,
    *,
    sharing: Size = 2,
    rngs: nnx.Rngs,
  ):
    num_kv_heads = heads.num_kv_heads
    if num_kv_heads % sharing:
      raise UserError(
        f'SharedValues.sharing = {sharing} does not divide the {num_kv_heads} key heads: choose a divisor'
      )
    self.sharing = sharing
    self.shapes = heads.keys, (num_kv_heads // sharing, heads.value_dim)

    self.k, self.v = (
      head_projection(heads.d_model, shape, kernel_init, use_bias, rngs, 'kv_heads')
      for shape in self.shapes
    )

  def project(self, x: Hidden, call: Call) -> Stored:
    """Returns the rotated keys, and the values without copies."""
    return rotated_keys(self.k(x), call), self.v(x)

  def expand(self, stored: Stored) -> Stored:
    """Returns the keys, and a copy of the values for each group of key heads."""
    return stored[0], jnp.tile(stored[1], (1, 1, self.sharing, 1))


def prepared(
  x: Array, call: Call, encoding: PositionEncoding, k_tokens: Tokens, cache: Any
) -> tuple[Call, Tokens, Any]:
  """Adds what the encoding of a call, which has features, prepares from the input `x` of attention to the metadata of
  its tokens.

  Returns:
    The call, the metadata of its keys, and the cache with the features of the call's tokens.

  Raises:
    UserError: the cache does not hold features.
  """
  slots, own = call.slots, call
  if cache is not None:
    if not isinstance(cache, KeyValueCache) or not cache.features or slots is None:
      raise UserError(
        f'a cache of this model does not hold what {type(encoding).__name__} computes for each token: bind it to '
        'Block.encoding, and use Stack'
      )
    earlier = dataclasses.replace(slots.tokens, features=cache.features)
    own = dataclasses.replace(call, slots=dataclasses.replace(slots, tokens=earlier))
  features = encoding.prepare(x, own)
  if cache is not None and slots is not None:
    cache = cache.with_features(features, slots.start)
  tokens, keys = (dataclasses.replace(t, features=features) for t in (call.tokens, k_tokens))
  return dataclasses.replace(call, tokens=tokens), keys, cache
