"""Absolute, rotary and relative position encodings, which layers of a body or a block share.

Sinusoidal positions are from Vaswani et al. 2017 (https://arxiv.org/abs/1706.03762), RoPE from RoFormer
(https://arxiv.org/abs/2104.09864), relative biases from T5 (https://arxiv.org/abs/1910.10683) and ALiBi
(https://arxiv.org/abs/2108.12409).
"""

import math
from collections.abc import Callable
from typing import Annotated, Literal

import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, Int

from t2x.base.errors import UserError
from t2x.base.ranges import Natural, Positive, Range, Size
from t2x.layers.dtypes import Dtypes, gather
from t2x.layers.initializers import normal
from t2x.layers.parameters import Initializer, param
from t2x.layers.positions.encoding import PositionEncoding, distances, frequencies, rotate_pairs
from t2x.layers.positions.rope_scaling import RoPEScaling
from t2x.layers.products import broadcast
from t2x.layers.tokens import rows_at

__all__ = [
  'ALiBi',
  'AddressPositions',
  'LearnedPositions',
  'NoPositions',
  'RoPE',
  'Sinusoidal',
  'T5Bias',
]


class NoPositions(PositionEncoding):
  """No position encoding. Attention with a symmetric pattern is then permutation equivariant."""

  def __init__(self, d_model: int, *, rngs: nnx.Rngs):
    pass


class Sinusoidal(PositionEncoding):
  """Fixed sines and cosines of the position, added to the embedded tokens.

  Pair j of d_model / 2 pairs has the wavelength 2 pi max_wavelength^(j / (d_model / 2 - exponent_shift)).

  Args:
    d_model: width of the tokens; even.
    interleaved: True: sine and cosine alternate (the paper). False: all sines, then all cosines
      (tensor2tensor, fairseq, Marian).
    max_wavelength: see above.
    exponent_shift: 0 divides by d_model / 2 (the paper, Marian); 1 divides by d_model / 2 - 1, so that
      the last wavelength is 2 pi `max_wavelength` (tensor2tensor, fairseq).
    offset: added to every position (in fairseq the id of the padding token plus one).

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
      raise UserError(f'Sinusoidal: d_model must be even, not {d_model}')
    self.interleaved = interleaved
    self.max_wavelength = max_wavelength
    self.exponent_shift = exponent_shift
    self.offset = offset

  def embed(self, x, tokens):
    """Adds the sinusoids to `x`; they are computed in float32 and cast to the dtype of `x`."""
    half, positions = x.shape[-1] // 2, tokens.encoded_positions
    radians = frequencies(half, half - self.exponent_shift, self.max_wavelength)
    angles = (positions + self.offset)[..., None].astype(jnp.float32) * radians[None, None]
    if self.interleaved:
      table = jnp.stack([jnp.sin(angles), jnp.cos(angles)], axis=-1)
      table = table.reshape(*positions.shape, -1)
    else:
      table = jnp.concatenate([jnp.sin(angles), jnp.cos(angles)], axis=-1)
    return x + table.astype(x.dtype)


class LearnedPositions(PositionEncoding):
  """Learned position vectors, added to the embedded tokens (BERT, GPT-2).

  Args:
    d_model: width of the tokens.
    max_length: maximum sequence length.
    init: initialiser of the table [max_length + offset, d_model].
    offset: number of rows of the table before position 0 (2 in BART).
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
    shape = max_length + offset, d_model
    self.table = param(init, shape, ('length', 'embed'), rngs, kind='table')

  def embed(self, x, tokens):
    """Adds table[positions + offset] to `x`. The vector of a traced position out of range is NaN.

    Raises:
      UserError: the sequence is longer than `max_length`, or a concrete position is out of range.
    """
    length = x.shape[1]
    if self.max_length is not None and length > self.max_length:
      raise UserError(
        f'a sequence of {length} tokens is longer than LearnedPositions.max_length = '
        f'{self.max_length}: shorten the sequences or raise max_length'
      )
    index = tokens.encoded_positions + self.offset
    rows = rows_at(self.table[...], index, 'LearnedPositions.max_length')
    return x + broadcast(rows, x.shape, x.dtype)


class AddressPositions(PositionEncoding):
  """Absolute positions added to the input of the query and key projections in every layer, not to values.

  Queries and keys are computed from x + p and values from x, as in DETR (https://arxiv.org/abs/2005.12872).
  Nothing is added to the embedded tokens.

  Args:
    d_model: width of the tokens.
    positions: builds the encoding that adds p (`Sinusoidal`, `LearnedPositions`), which all layers share.

  Raises:
    UserError: `positions` does not add vectors to its input, or has other hooks.
  """

  def __init__(
    self,
    d_model: int,
    *,
    positions: Callable[..., PositionEncoding] = Sinusoidal,
    rngs: nnx.Rngs,
  ):
    self.positions = positions(d_model, rngs=rngs)
    if self.positions.hooks != {'embed'}:
      raise UserError(
        f'AddressPositions.positions = @{type(self.positions).__name__} is not an encoding that adds '
        'vectors to tokens: use @Sinusoidal or @LearnedPositions'
      )
    self.max_length = self.positions.max_length

  def address(self, x, tokens):
    return self.positions.embed(x, tokens)


class RoPE(PositionEncoding):
  """Rotary position encoding: rotates pairs of features of queries and keys by angles proportional to the
  position.

  The score of a query and a key then depends only on their distance. Angles and rotation are computed in
  float32.

  Args:
    base: the lowest frequency is about 1 / base radians per position.
    fraction: fraction of each head's features that is rotated, starting with the first (0.25 in GPT-NeoX).
    interleaved: False: feature i is paired with i + half (Llama, GPT-NeoX). True: 2i with 2i + 1
      (the paper, GPT-J).
    scaling: reduces frequencies for longer contexts; None: no scaling.

  Raises:
    UserError: when called, if the number of rotated features of a head is odd or zero.
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

  def rotate(self, q, k, q_tokens, k_tokens):
    return (
      self._rotate(q, q_tokens.encoded_positions),
      self._rotate(k, k_tokens.encoded_positions),
    )

  def _rotate(self, x: Array, positions: Array) -> Array:
    size = round(x.shape[-1] * self.fraction)
    if size % 2 or not 0 < size <= x.shape[-1]:
      raise UserError(
        f'RoPE.fraction = {self.fraction} rotates {size} of {x.shape[-1]} features per head: the number '
        'must be even and at least 2'
      )
    radians = frequencies(size // 2, size // 2, self.base)
    if self.scaling is not None:
      radians = self.scaling(radians)
    # [batch, length, 1, size / 2]
    angles = positions[:, :, None, None].astype(jnp.float32) * radians[None, None, None]
    if size == x.shape[-1]:
      return rotate_pairs(x, angles, self.interleaved)
    rotated = rotate_pairs(x[..., :size], angles, self.interleaved)
    return jnp.concatenate([rotated, x[..., size:]], axis=-1)


class T5Bias(PositionEncoding):
  """Learned bias on the scores for each head and bucket of distances, shared by all layers.

  Half of the buckets contain one distance each. The widths of the remaining buckets grow logarithmically up
  to `max_distance`; all larger distances share the last bucket.

  Args:
    num_heads: number of heads of the attention.
    num_buckets: number of buckets.
    max_distance: distances from this on share the last bucket.
    bidirectional: True: half of the buckets are for keys after the query (encoders). False: those keys
      have distance 0 (decoders).
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
    shape = num_buckets, num_heads
    self.table = param(init, shape, axes, rngs, kind='table', keep_float32=True)

  def bucket(self, distance: Int[Array, '*shape']) -> Int[Array, '*shape']:
    """Returns the bucket of `distance` = key position - query position."""
    one_sided = self.num_buckets // 2 if self.bidirectional else self.num_buckets
    size = jnp.abs(distance) if self.bidirectional else jnp.maximum(-distance, 0)
    buckets = jnp.asarray(_t5_buckets(one_sided, self.max_distance))
    bucket = buckets[jnp.minimum(size, self.max_distance)]
    return bucket + one_sided * (distance > 0) if self.bidirectional else bucket

  def scores(self, q, k, q_tokens, k_tokens, *, scale, **context):
    bucket = self.bucket(distances(q_tokens, k_tokens))
    return jnp.moveaxis(gather(self.table[...].astype(Dtypes.softmax), bucket), -1, 1)


class ALiBi(PositionEncoding):
  """Linear bias -slope * |query position - key position| on the scores, with a fixed slope for each head.

  The slopes are factor * 2^(-max_exponent i / heads) for i = 1 .. heads. If the number of heads is not a power of
  two, they are the slopes of the next lower power, then every second slope of the next higher power (BLOOM, MPT).

  Args:
    num_heads: number of heads of the attention.
    factor: factor of all slopes; Falcon's is 1 / sqrt(head_dim), because it scales the sum of dot products and biases.
    max_exponent: the lowest slope is factor * 2^-max_exponent (`alibi_bias_max` of MPT).
  """

  def __init__(
    self,
    d_model: int,
    *,
    num_heads: Size,
    factor: Positive = 1.0,
    max_exponent: Positive = 8.0,
    rngs: nnx.Rngs,
  ):
    self.num_heads, self.factor, self.max_exponent = num_heads, factor, max_exponent

  @property
  def slopes(self) -> Float[np.ndarray, ' heads']:
    """Slope of each head."""
    below = 2 ** int(math.log2(self.num_heads))
    exponents = np.arange(1, below + 1) / below
    between = np.arange(1, 2 * below + 1, 2) / (2 * below)
    exponents = np.concatenate([exponents, between[: self.num_heads - below]])
    return (self.factor * 2.0 ** (-self.max_exponent * exponents)).astype(np.float32)

  def scores(self, q, k, q_tokens, k_tokens, *, scale, **context):
    distance = jnp.abs(distances(q_tokens, k_tokens))[:, None]
    return distance.astype(jnp.float32) * -self.slopes[None, :, None, None]


def _t5_buckets(num_buckets: int, max_distance: int) -> Int[np.ndarray, ' distances']:
  """Returns the bucket of each distance 0 .. max_distance on one side.

  The logarithm is computed in float32 as in T5's code, since rounding decides at the bounds of buckets.
  """
  exact = num_buckets // 2
  distance = np.arange(max_distance + 1)
  ratio = np.maximum(distance, 1).astype(np.float32) / np.float32(exact)
  steps = np.log(ratio) / np.float32(math.log(max_distance / exact))
  far = exact + (steps * np.float32(num_buckets - exact)).astype(np.int32)
  return np.where(distance < exact, distance, np.minimum(far, num_buckets - 1)).astype(np.int32)
