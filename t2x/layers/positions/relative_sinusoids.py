"""Sinusoids of relative distances in the scores: Transformer-XL (Dai et al. 2019,
https://arxiv.org/abs/1901.02860) and Shaw's scores with fixed sinusoids."""

from typing import Any

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float, Int

from t2x.base.errors import UserError
from t2x.base.ranges import Positive, Size
from t2x.layers.counting import pair_products
from t2x.layers.initializers import xavier_uniform, zeros
from t2x.layers.parameters import Initializer, Linear, param
from t2x.layers.positions.encoding import PositionEncoding, frequencies
from t2x.layers.tokens import Tokens

__all__ = ['FunnelPositions', 'RelativeSinusoids', 'XLPositions']


class RelativeSinusoids(PositionEncoding):
  """Adds q_i r_{i-j}' to the scores, for fixed sinusoids r of the distance i - j with head_dim features.

  These are Shaw's scores with sinusoids instead of learned vectors, and Transformer-XL's without learned
  parameters (TENER has further terms, https://arxiv.org/abs/1911.04474).

  Args:
    max_wavelength: the longest wavelength is about 2 pi `max_wavelength` positions.

  Raises:
    UserError: when called, if heads have an odd number of features.
  """

  reads_content = True

  def __init__(self, d_model: int, *, max_wavelength: Positive = 10000.0, rngs: nnx.Rngs):
    self.max_wavelength = max_wavelength

  def scores(self, q, k, q_tokens, k_tokens, *, scale, **context):
    return scale * products_with_sinusoids(
      q, q_tokens.encoded_positions, k_tokens.encoded_positions, self.max_wavelength
    )


class XLPositions(PositionEncoding):
  """Relative positions of Transformer-XL: scores (q_i + u) k_j' + (q_i + v) (W r_{i-j})', where r is a sinusoid
  of the distance with d_model features.

  As `Block.encoding` each layer has its own W, u and v (the paper shares u and v, XLNet does not); as the
  encoding of a body all layers share them. The cost of the second term grows with d_model instead of head_dim,
  because it is computed exactly for all distances, without a table of distances.

  Args:
    d_model: width of the sinusoids; even.
    num_heads: number of heads of the attention.
    head_dim: features per head. None: d_model / num_heads.
    max_wavelength: the longest wavelength is about 2 pi `max_wavelength` positions.
    kernel_init: initialiser of W [d_model, num_heads, head_dim].
    bias_init: initialiser of u and v [num_heads, head_dim].

  Raises:
    UserError: d_model is odd, or num_heads does not divide d_model and head_dim is None; when called, if the
      heads of the attention have other sizes.
  """

  reads_content = True

  def __init__(
    self,
    d_model: int,
    *,
    num_heads: Size,
    head_dim: Size | None = None,
    max_wavelength: Positive = 10000.0,
    kernel_init: Initializer = xavier_uniform(),
    bias_init: Initializer = zeros(),
    rngs: nnx.Rngs,
  ):
    if d_model % 2 or (head_dim is None and d_model % num_heads):
      raise UserError(
        f'XLPositions: d_model = {d_model} must be even, and a multiple of num_heads = {num_heads} '
        'unless head_dim is set'
      )
    self.max_wavelength = max_wavelength
    shape, axes = (num_heads, head_dim or d_model // num_heads), ('embed', 'heads', 'head_dim')
    self.r = Linear((d_model,), shape, axes, init=kernel_init, use_bias=False, rngs=rngs)
    self.content_bias = param(bias_init, shape, axes[1:], rngs, kind='vector')
    self.position_bias = param(bias_init, shape, axes[1:], rngs, kind='vector')

  def scores(self, q, k, q_tokens, k_tokens, *, scale, **context):
    heads, kv_heads = q.shape[2], k.shape[2]
    if self.content_bias.shape != q.shape[2:]:
      raise UserError(
        f'XLPositions has {self.content_bias.shape[0]} heads of {self.content_bias.shape[1]} features, but '
        f'the attention has {heads} heads of {q.shape[3]} features: make them equal'
      )
    dtype = jnp.promote_types(q.dtype, jnp.float32)
    u = self.content_bias[...].astype(k.dtype).reshape(kv_heads, heads // kv_heads, -1)
    content = jnp.einsum('ngd,bknd->bngk', u, k, preferred_element_type=dtype)
    content = content.reshape(len(k), heads, 1, -1)
    return scale * (content + self.pairs(q, q_tokens, k_tokens))

  def pairs(
    self, q: Float[Array, 'batch queries heads head_dim'], q_tokens: Tokens, k_tokens: Tokens
  ) -> Float[Array, 'batch heads queries keys']:
    """Returns the terms of queries and the metadata of keys, before the scale."""
    # (q + v) (W r)' = ((q + v) W') r'
    q = q + self.position_bias[...].astype(q.dtype)[None, None]
    in_sinusoids = jnp.einsum('bqhd,mhd->bqhm', q, self.r.kernel[...].astype(q.dtype))
    return products_with_sinusoids(
      in_sinusoids, q_tokens.encoded_positions, k_tokens.encoded_positions, self.max_wavelength
    )


class FunnelPositions(XLPositions):
  """Relative positions of the Funnel-Transformer: those of Transformer-XL, and terms (q_i + w) s' of the relation of
  two tokens, where s is one vector if both are in the same text of a pair and another otherwise
  (https://arxiv.org/abs/2006.03236, appendix A.2). Pairs with the first token (the class token) have neither term.

  Args:
    separate_first: whether pairs with the first token have neither term, as with `Funnel.separate_first`.
    second: mark of the tokens of the second text of a pair; None: all tokens are of one text.
    settings: those of `XLPositions`.

  Raises:
    UserError: see `XLPositions`; when called, the tokens do not have the mark `second`.
  """

  def __init__(
    self,
    d_model: int,
    *,
    num_heads: Size,
    head_dim: Size | None = None,
    separate_first: bool = True,
    second: str | None = None,
    bias_init: Initializer = zeros(),
    rngs: nnx.Rngs,
    **settings: Any,
  ):
    sizes: dict[str, Any] = {'num_heads': num_heads, 'head_dim': head_dim, 'bias_init': bias_init}
    super().__init__(d_model, **sizes, rngs=rngs, **settings)
    self.separate_first, self.second = separate_first, second
    shape, axes = self.position_bias.shape, ('heads', 'head_dim')
    self.type_bias = param(bias_init, shape, axes, rngs, kind='vector')
    # For tokens of the same text, and of another.
    count = 1 if second is None else 2
    self.types = param(bias_init, (count, *shape), (None, *axes), rngs, kind='vector')

  def pairs(self, q, q_tokens, k_tokens):
    y = super().pairs(q, q_tokens, k_tokens)
    q = q + self.type_bias[...].astype(q.dtype)[None, None]
    terms = jnp.einsum('bqhd,thd->tbhq', q, self.types[...].astype(q.dtype))[..., None]
    is_same = True if self.second is None else self._are_same(self.second, q_tokens, k_tokens)
    y += jnp.where(is_same, terms[0], terms[-1])
    if not self.separate_first:
      return y
    is_first = (q_tokens.positions == 0)[:, :, None] | (k_tokens.positions == 0)[:, None]
    return jnp.where(is_first[:, None], 0, y)

  @staticmethod
  def _are_same(
    second: str, q_tokens: Tokens, k_tokens: Tokens
  ) -> Bool[Array, '#batch 1 queries keys']:
    if second not in q_tokens.marks or second not in k_tokens.marks:
      raise UserError(
        f"FunnelPositions.second = '{second}' is not a mark of the tokens: use a task that marks it, or None"
      )
    q, k = (tokens.marks[second] for tokens in (q_tokens, k_tokens))
    return (q[:, :, None] == k[:, None])[:, None]


def products_with_sinusoids(
  x: Float[Array, 'batch queries heads features'],
  q_positions: Int[Array, '#batch queries'],
  k_positions: Int[Array, '#batch keys'],
  max_wavelength: float,
) -> Float[Array, 'batch heads queries keys']:
  """Returns x_i r_{i-j}' in float32 or wider, where r holds the sines of the distance, then the cosines.

  By the addition theorems it is the product of a vector that depends on i and one that depends on j, so that
  no array of pairs has features, and distances are not limited.

  Raises:
    UserError: the number of features is odd.
  """
  batch, _, _, features = x.shape
  if features % 2:
    raise UserError(f'sinusoids need an even number of features, not {features}')
  half = features // 2
  x = x.astype(jnp.promote_types(x.dtype, jnp.float32))
  radians = frequencies(half, half, max_wavelength).astype(x.dtype)
  q_angles = q_positions[:, :, None, None].astype(x.dtype) * radians[None, None, None]
  k_angles = k_positions[:, :, None].astype(x.dtype) * radians[None, None]
  sin, cos, (a, b) = jnp.sin(q_angles), jnp.cos(q_angles), jnp.split(x, 2, axis=-1)
  # a sin(i - j) + b cos(i - j) = (a sin i + b cos i) cos j + (b sin i - a cos i) sin j
  x = jnp.concatenate([a * sin + b * cos, b * sin - a * cos], axis=-1)
  keys = jnp.concatenate([jnp.cos(k_angles), jnp.sin(k_angles)], axis=-1)
  keys = jnp.broadcast_to(keys, (batch, *keys.shape[1:]))
  with pair_products():
    return jnp.einsum('bqhm,bkm->bhqk', x, keys)
