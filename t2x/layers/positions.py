"""Position encodings: added to embedded tokens, rotated into queries and keys, or added to scores.

One object serves all layers of a body, or one block. Vaswani et al. 2017 (https://arxiv.org/abs/1706.03762) for
sinusoids, RoFormer (https://arxiv.org/abs/2104.09864), T5 (https://arxiv.org/abs/1910.10683), ALiBi
(https://arxiv.org/abs/2108.12409).
"""

import math
from typing import Annotated, Any, Literal

import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, Int

from t2x.errors import UserError
from t2x.layers.base import Initializer, Tokens, param, rows_at
from t2x.layers.dtypes import Dtypes, broadcast, gather
from t2x.layers.initializers import normal
from t2x.layers.position_encoding import PositionEncoding, distances
from t2x.layers.rope_scaling import RoPEScaling
from t2x.ranges import Natural, Positive, Range, Size


class NoPositions(PositionEncoding):
  """No positions: attention with a symmetric pattern then sees a set, not a sequence."""

  def __init__(self, d_model: int, *, rngs: nnx.Rngs):
    pass


class Sinusoidal(PositionEncoding):
  """Sines and cosines of the position, added to the tokens; nothing is learnt.

  Pair j of the d_model / 2 has wavelength 2 pi max_wavelength^(j / (d_model / 2 - exponent_shift)).

  Args:
    d_model: width of the tokens; even.
    interleaved: True: sine and cosine alternate (the paper). False: all sines, then all cosines
      (tensor2tensor, fairseq, Marian).
    max_wavelength: see above.
    exponent_shift: 0 divides by d_model / 2 (the paper, Marian); 1 divides by d_model / 2 - 1, so that
      the last wavelength is `max_wavelength` itself (tensor2tensor, fairseq).
    offset: added to every position (fairseq counts from the id of its padding on, plus one).

  Raises:
    UserError: d_model is odd.
  """

  def __init__(
    self,
    d_model: int,
    *,
    interleaved: bool = False,
    max_wavelength: Positive = 10000.0,
    exponent_shift: Literal[0, 1] = 0,
    offset: Natural = 0,
    rngs: nnx.Rngs,
  ):
    if d_model % 2:
      raise UserError(f'Sinusoidal needs an even d_model, not {d_model}')
    self.interleaved = interleaved
    self.max_wavelength = max_wavelength
    self.exponent_shift = exponent_shift
    self.offset = offset

  def embed(
    self, x: Float[Array, 'batch length d_model'], tokens: Tokens
  ) -> Float[Array, 'batch length d_model']:
    """x + sinusoids, computed in float32 and added in the type of x."""
    half, positions = x.shape[-1] // 2, tokens.positions
    frequencies = _frequencies(half, half - self.exponent_shift, self.max_wavelength)
    angles = (positions + self.offset)[..., None].astype(jnp.float32) * frequencies[None, None]
    if self.interleaved:
      table = jnp.stack([jnp.sin(angles), jnp.cos(angles)], axis=-1)
      table = table.reshape(*positions.shape, -1)
    else:
      table = jnp.concatenate([jnp.sin(angles), jnp.cos(angles)], axis=-1)
    return x + table.astype(x.dtype)


class LearnedPositions(PositionEncoding):
  """A learned vector for each position, added to the tokens (BERT, GPT-2).

  Args:
    d_model: width of the tokens.
    max_length: longest sequence.
    init: initialiser of the table.
    offset: rows of the table before position 0 (BART has 2); the table has max_length + offset.
  """

  def __init__(
    self,
    d_model: int,
    *,
    max_length: Size,
    init: Initializer = normal(0.02),
    offset: Natural = 0,
    rngs: nnx.Rngs,
  ):
    self.max_length = max_length
    self.offset = offset
    self.table = param(init, (max_length + offset, d_model), ('length', 'embed'), rngs)

  def embed(
    self, x: Float[Array, 'batch length d_model'], tokens: Tokens
  ) -> Float[Array, 'batch length d_model']:
    """x + table[positions + offset].

    Raises:
      UserError: the sequence is longer than `max_length`, or a position is beyond the table. (A
        position that is known at run time only makes its vector NaN.)
    """
    length = x.shape[1]
    if self.max_length is not None and length > self.max_length:
      raise UserError(
        f'a sequence of {length} tokens is longer than LearnedPositions.max_length = '
        f'{self.max_length}: shorten the sequences or raise max_length'
      )
    index = tokens.positions + self.offset
    rows = rows_at(self.table[...], index, 'LearnedPositions.max_length')
    return x + broadcast(rows, x.shape, x.dtype)


class RoPE(PositionEncoding):
  """Rotates pairs of features of queries and keys by angles that grow with the position.

  The score of a query and a key then depends on their distance alone. Angles and rotation are
  computed in float32.

  Args:
    d_model: not used; every encoding is built alike.
    base: the slowest pair turns by about 1 / base a position.
    fraction: part of each head that is rotated, from its first features on (GPT-NeoX 0.25).
    interleaved: False: feature i is paired with i + half (Llama, GPT-NeoX). True: 2i with 2i + 1
      (the paper, GPT-J).
    scaling: slows the frequencies down for longer texts; None leaves them.

  Raises:
    UserError: when called, if the rotated part of a head is odd or empty.
  """

  def __init__(
    self,
    d_model: int,
    *,
    base: Positive = 10000.0,
    fraction: Annotated[float, Range('0 < x <= 1')] = 1.0,
    interleaved: bool = False,
    scaling: RoPEScaling | None = None,
    rngs: nnx.Rngs,
  ):
    self.base = base
    self.fraction = fraction
    self.interleaved = interleaved
    self.scaling = scaling

  def rotate(
    self,
    q: Float[Array, 'batch queries heads head_dim'],
    k: Float[Array, 'batch keys kv_heads head_dim'],
    q_tokens: Tokens,
    k_tokens: Tokens,
  ) -> tuple[
    Float[Array, 'batch queries heads head_dim'], Float[Array, 'batch keys kv_heads head_dim']
  ]:
    """The rotated queries and keys, in their own types."""
    return self._turn(q, q_tokens.positions), self._turn(k, k_tokens.positions)

  def _turn(self, x: Array, positions: Array) -> Array:
    size = round(x.shape[-1] * self.fraction)
    if size % 2 or not 0 < size <= x.shape[-1]:
      raise UserError(
        f'RoPE.fraction = {self.fraction} rotates {size} of {x.shape[-1]} features of a head: '
        'the number must be even and above 0'
      )
    frequencies = _frequencies(size // 2, size // 2, self.base)
    if self.scaling is not None:
      frequencies = self.scaling(frequencies)
    # [batch, length, 1, size / 2]
    angles = positions[:, :, None, None].astype(jnp.float32) * frequencies[None, None, None]
    sin, cos = jnp.sin(angles), jnp.cos(angles)
    turned = x[..., :size].astype(jnp.float32)
    if self.interleaved:
      a, b = turned[..., ::2], turned[..., 1::2]
      turned = jnp.stack([a * cos - b * sin, b * cos + a * sin], axis=-1)
      turned = turned.reshape(*x.shape[:-1], size)
    else:
      a, b = turned[..., : size // 2], turned[..., size // 2 :]
      turned = jnp.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)
    return jnp.concatenate([turned.astype(x.dtype), x[..., size:]], axis=-1)


class T5Bias(PositionEncoding):
  """A learned bias on scores for each head and bucket of distances, shared by all layers.

  Half of the buckets hold one distance each, the others grow with the logarithm of the distance up to
  `max_distance`; all beyond share the last one.

  Args:
    d_model: not used; every encoding is built alike.
    num_heads: heads of the attention.
    num_buckets: rows of the table.
    max_distance: distances from there on share the last bucket.
    bidirectional: True: half of the buckets for keys after the query (encoders). False: those keys
      count as distance 0 (decoders).
    init: initialiser of the table [num_buckets, num_heads].
  """

  def __init__(
    self,
    d_model: int,
    *,
    num_heads: Size,
    bidirectional: bool,
    num_buckets: Size = 32,
    max_distance: Size = 128,
    init: Initializer = normal(0.02),
    rngs: nnx.Rngs,
  ):
    if num_buckets < 4 or (bidirectional and num_buckets % 2) or max_distance <= num_buckets:
      raise UserError(
        f'T5Bias.num_buckets = {num_buckets} must be at least 4, even when bidirectional, and '
        f'less than max_distance = {max_distance}'
      )
    self.num_buckets = num_buckets
    self.max_distance = max_distance
    self.bidirectional = bidirectional
    axes = ('buckets', 'heads')
    self.table = param(init, (num_buckets, num_heads), axes, rngs, keep_float32=True)

  def bucket(self, distance: Int[Array, '*shape']) -> Int[Array, '*shape']:
    """The bucket of `distance` = key position - query position."""
    one_sided = self.num_buckets // 2 if self.bidirectional else self.num_buckets
    size = jnp.abs(distance) if self.bidirectional else jnp.maximum(-distance, 0)
    buckets = jnp.asarray(_t5_buckets(one_sided, self.max_distance))
    bucket = buckets[jnp.minimum(size, self.max_distance)]
    return bucket + one_sided * (distance > 0) if self.bidirectional else bucket

  def scores(
    self, q: Any, k: Any, q_tokens: Tokens, k_tokens: Tokens, *, scale: float, **context: Any
  ) -> Float[Array, '#batch heads queries keys']:
    """The table's entries for each pair, in float32."""
    bucket = self.bucket(distances(q_tokens, k_tokens))
    return jnp.moveaxis(gather(self.table[...].astype(Dtypes.softmax), bucket), -1, 1)


class ALiBi(PositionEncoding):
  """-slope * |query - key| on scores, a fixed slope for each head; nothing is learnt.

  Slopes are 2^(-8 i / heads) for i = 1 .. heads; for a number of heads that is no power of two,
  those of the power below, then every other one of the power above (as BLOOM and MPT do).

  Args:
    d_model: not used; every encoding is built alike.
    num_heads: heads of the attention.
  """

  def __init__(self, d_model: int, *, num_heads: int, rngs: nnx.Rngs):
    self.num_heads = num_heads

  @property
  def slopes(self) -> Float[np.ndarray, ' heads']:
    """The slope of each head."""
    below = 2 ** int(math.log2(self.num_heads))
    slopes = 2.0 ** (-8.0 * np.arange(1, below + 1) / below)
    between = 2.0 ** (-4.0 * np.arange(1, 2 * below + 1, 2) / below)
    return np.concatenate([slopes, between[: self.num_heads - below]]).astype(np.float32)

  def scores(
    self, q: Any, k: Any, q_tokens: Tokens, k_tokens: Tokens, *, scale: float, **context: Any
  ) -> Float[Array, '#batch heads queries keys']:
    """The bias for each pair, in float32."""
    distance = jnp.abs(distances(q_tokens, k_tokens))[:, None]
    return distance.astype(jnp.float32) * -self.slopes[None, :, None, None]


def _frequencies(num: int, divisor: int, base: float) -> Float[np.ndarray, ' num']:
  """base^(-j / divisor) for j = 0 .. num - 1, rounded to float32 once."""
  return (float(base) ** (-np.arange(num) / max(divisor, 1))).astype(np.float32)


def _t5_buckets(num_buckets: int, max_distance: int) -> Int[np.ndarray, ' distances']:
  """The bucket of each distance 0 .. max_distance on one side.

  The logarithm is taken in float32, as T5's own code does: at a border the rounding decides.
  """
  exact = num_buckets // 2
  distance = np.arange(max_distance + 1)
  ratio = np.maximum(distance, 1).astype(np.float32) / np.float32(exact)
  steps = np.log(ratio) / np.float32(math.log(max_distance / exact))
  far = exact + (steps * np.float32(num_buckets - exact)).astype(np.int32)
  return np.where(distance < exact, distance, np.minimum(far, num_buckets - 1)).astype(np.int32)
