"""Nystrom approximation of softmax attention (Nystromformer: Xiong et al. 2021, https://arxiv.org/abs/2102.03902)."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float

from t2x.base.errors import UserError
from t2x.base.ranges import Size
from t2x.layers.attention.head_projections import HeadFeatures, Hidden, WholeRow
from t2x.layers.attention.kernels.base import softmax_dtype
from t2x.layers.dtypes import exact_einsum
from t2x.layers.group_convolution import convolution
from t2x.layers.initializers import lecun_normal
from t2x.layers.interfaces import Call
from t2x.layers.parameters import Initializer, param
from t2x.layers.patterns.algebra import Full

__all__ = ['NystromAttention']


class NystromAttention(WholeRow):
  """Self-attention softmax(q k~') softmax(q~ k~')^+ softmax(q~ k') v with landmarks q~ and k~, in time and memory
  linear in the length.

  The landmarks are the means of the queries and keys of `num_landmarks` segments of equal size of the tokens
  of a row, without padding. (Where the number of tokens is not a multiple of `num_landmarks`, sizes differ by
  one; a row with fewer tokens has a landmark per token.) The pseudo-inverse is computed by iteration. A
  convolution of the values along the length is added, with one filter per head. Each token attends to all
  tokens of its row; see `WholeRow`.

  Args:
    num_landmarks: number of landmarks; at most the length of a row.
    num_iterations: number of iterations of the pseudo-inverse.
    conv_size: number of taps of the convolution, an odd number. None: no convolution.
    conv_init: initialiser of the filters [conv_size, num_heads], called with that shape.
    settings: those of `HeadProjections`.

  Raises:
    UserError: see `WholeRow`; conv_size is even; when called, the pattern is not Full() or a row has fewer slots
      than num_landmarks.
  """

  patterns = (Full(),)
  uses_rows = 'averages all tokens of a row at once'

  def __init__(
    self,
    d_model: int,
    *,
    num_landmarks: Size = 64,
    num_iterations: Size = 6,
    conv_size: Size | None = 65,
    conv_init: Initializer = lecun_normal(),
    rngs: nnx.Rngs,
    **settings: Any,
  ):
    if conv_size is not None and conv_size % 2 == 0:
      raise UserError(f'NystromAttention.conv_size = {conv_size} must be odd, to have a centre')
    super().__init__(d_model, rngs=rngs, **settings)
    self.num_landmarks = num_landmarks
    self.num_iterations = num_iterations
    self.conv = (
      None
      if conv_size is None
      else param(conv_init, (conv_size, self.num_heads), ('taps', 'heads'), rngs, kind='filter')
    )

  def mix(self, x: Hidden, call: Call, is_causal: bool) -> HeadFeatures:
    """Attends from `x` to itself through the landmarks."""
    if x.shape[1] < self.num_landmarks:
      raise UserError(
        f'a row of {x.shape[1]} tokens is shorter than NystromAttention.num_landmarks = '
        f'{self.num_landmarks}: use fewer landmarks, or MultiHeadAttention'
      )
    q, k, v = self.project(x)
    is_token = jnp.ones((1, x.shape[1]), bool)
    if call.tokens.segments is not None:
      is_token = call.tokens.segments != 0
      v = jnp.where(is_token[..., None, None], v, 0)
    means, is_landmark = self._segment_means(is_token, q.dtype)
    means = jnp.broadcast_to(means, (len(x), *means.shape[1:]))
    q, k = (a * self.head_dim**-0.25 for a in (q, k))
    q_landmarks, k_landmarks = (jnp.einsum('bnm,bnhd->bmhd', means, a) for a in (q, k))
    to_landmarks = _attention(q, k_landmarks, is_landmark)
    between = _attention(q_landmarks, k_landmarks, is_landmark)
    # Rows and columns of absent landmarks are zero, as those of the pseudo-inverse then are.
    between = jnp.where(is_landmark[:, None, :, None], between, 0)
    inverse = pseudo_inverse(between, self.num_iterations).astype(v.dtype)
    summary = jnp.einsum('bhmn,bnhd->bhmd', _attention(q_landmarks, k, is_token).astype(v.dtype), v)
    y = jnp.einsum('bhnm,bhmd->bnhd', to_landmarks.astype(v.dtype), inverse @ summary)
    if self.conv is not None:
      y = y + _convolution(v, self.conv[...].astype(v.dtype))
    return y

  def _segment_means(
    self, is_token: Bool[Array, '#batch length'], dtype: DTypeLike
  ) -> tuple[Float[Array, '#batch length landmarks'], Bool[Array, '#batch landmarks']]:
    """Returns the weight of each token in each landmark, and whether a landmark has tokens."""
    rank = jnp.cumsum(is_token, axis=1) - 1
    count = jnp.maximum(is_token.sum(axis=1, keepdims=True), 1)
    segment = jnp.where(count > self.num_landmarks, rank * self.num_landmarks // count, rank)
    member = (segment[..., None] == jnp.arange(self.num_landmarks)[None, None]) & is_token[
      ..., None
    ]
    sizes = member.sum(axis=1)
    return (member / jnp.maximum(sizes, 1)[:, None]).astype(dtype), sizes > 0


def pseudo_inverse(
  a: Float[Array, '*batch landmarks landmarks'], num_iterations: int
) -> Float[Array, '*batch landmarks landmarks']:
  """Approximates the Moore-Penrose inverse of matrices whose rows are probabilities or zero.

  The iteration z <- z (13 - a z (15 - a z (7 - a z))) / 4 starts at a' divided by the norms of a (equation 11).
  """
  eye = jnp.broadcast_to(jnp.eye(a.shape[-1], dtype=a.dtype), a.shape)
  # The largest column sum of a matrix of probabilities is at least 1; that of zeros must not divide.
  norm = jnp.maximum(a.sum(axis=-2).max(axis=-1), 1)
  product = functools.partial(exact_einsum, '...nk,...km->...nm')
  z = a.swapaxes(-1, -2) / norm[..., None, None]
  for _ in range(num_iterations):
    az = product(a, z)
    z = 0.25 * product(z, 13 * eye - product(az, 15 * eye - product(az, 7 * eye - az)))
  return z


def _attention(
  q: Float[Array, 'batch queries heads head_dim'],
  k: Float[Array, 'batch keys heads head_dim'],
  is_visible: Bool[Array, '#batch keys'],
) -> Float[Array, 'batch heads queries keys']:
  """Returns the attention probabilities, in float32 or wider."""
  scores = jnp.einsum('bqhd,bkhd->bhqk', q, k, preferred_element_type=softmax_dtype(q))
  return jax.nn.softmax(jnp.where(is_visible[:, None, None], scores, jnp.finfo(scores.dtype).min))


def _convolution(v: HeadFeatures, filters: Float[Array, 'taps heads']) -> HeadFeatures:
  """Convolves the values of each head along the length with its filter."""
  kernel = jnp.repeat(filters, v.shape[3], axis=1)[:, None]
  y = convolution(v.reshape(*v.shape[:2], -1), kernel, around=len(filters) // 2, axis='heads')
  return y.reshape(v.shape)
