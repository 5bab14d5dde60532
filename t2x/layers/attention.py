"""Multi-head attention to the sequence itself or to another (https://arxiv.org/abs/1706.03762), with
shared key-value heads (https://arxiv.org/abs/1911.02150, https://arxiv.org/abs/2305.13245), and
the cache it decodes with."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from t2x.errors import UserError
from t2x.layers.base import Context, Initializer, Linear, Tokens
from t2x.layers.constraints import constrain
from t2x.layers.initializers import xavier_uniform
from t2x.layers.interfaces import Norm, Scores
from t2x.layers.kernels import AttentionInputs, Auto, DotProduct, Kernel, Logits, PositionTerms
from t2x.layers.kernels.base import placed
from t2x.layers.patterns import Pattern, attention_mask
from t2x.layers.position_encoding import PositionEncoding, Projections
from t2x.layers.scores import DotProductScores
from t2x.ranges import Positive, Size, TunableRate

__all__ = ['AttentionCache', 'CrossCache', 'MultiHeadAttention']


# The fields of the caches are not annotated with shapes: a stack puts its layers before the batch, and
# tree functions put other things than arrays into them.


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class AttentionCache:
  """Keys and values of what was read so far; the slot of a token is its position.

  Attributes:
    k: keys, already rotated, [batch, slots, kv_heads, head_dim]; None for a mixer without keys.
    v: values, of the same shape; of another mixer, whatever it reads of a token: [batch, slots, ...].
    segments: segment of the token in each slot, int [batch, slots]; 0: the slot is empty.
    prefix: bool [batch, slots]: does the pattern `Prefix()` let everybody see the token?
  """

  k: Any
  v: Any
  segments: Any
  prefix: Any

  @staticmethod
  def empty(k: Array | None, v: Array) -> 'AttentionCache':
    """A cache of these zeros, with nothing written."""
    segments = jnp.zeros(v.shape[:2], jnp.int32)
    return AttentionCache(k, v, segments, segments.astype(bool))

  @property
  def tokens(self) -> Tokens:
    """What is known of the slots."""
    return Tokens(None, self.segments, self.prefix)

  def write(self, k: Array | None, v: Array, tokens: Tokens) -> 'AttentionCache':
    """The cache with new keys and values at the slots of their positions, padding left out."""
    batch, length = v.shape[:2]
    num_slots = self.v.shape[1]
    ones = jnp.ones((1, length), jnp.int32)
    segments = ones if tokens.segments is None else tokens.segments
    prefix = jnp.zeros_like(ones) if tokens.prefix is None else tokens.prefix
    # A slot out of range is not written: `drop` below.
    slots = jnp.where(segments == 0, num_slots, tokens.index(length))
    slots = jnp.broadcast_to(slots, (batch, length))
    rows = jnp.arange(batch)[:, None]

    def put(old, new):
      new = jnp.broadcast_to(new.astype(old.dtype), (batch, length, *old.shape[2:]))
      return old.at[rows, slots].set(new, mode='drop')

    return AttentionCache(
      None if k is None else put(self.k, k),
      put(self.v, v),
      put(self.segments, segments),
      put(self.prefix, prefix),
    )


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class CrossCache:
  """Keys and values of a context, and what is known of its tokens.

  Attributes:
    k: keys [batch, source, kv_heads, head_dim].
    v: values, of the same shape.
    positions: as in `Tokens`, [batch, source] or None; so are the next two.
    segments: see `Tokens`.
    prefix: see `Tokens`.
  """

  k: Any
  v: Any
  positions: Any = None
  segments: Any = None
  prefix: Any = None

  @property
  def tokens(self) -> Tokens:
    """What is known of the context's tokens."""
    return Tokens(self.positions, self.segments, self.prefix)


class MultiHeadAttention(nnx.Module):
  """Attention by `num_heads` heads: to `x` itself, or to a context where one is given.

  Args:
    d_model: width of the input and output.
    num_heads: query heads.
    num_kv_heads: key-value heads, each shared by num_heads / num_kv_heads neighbouring query heads;
      1 is multi-query attention. None: as many as query heads.
    head_dim: features of a head. None: d_model / num_heads.
    use_bias: biases on queries, keys and values.
    out_bias: a bias on the output.
    qk_norm: builds a norm over the features of a head, put on queries and keys before they are rotated
      (https://arxiv.org/abs/2010.04245). None: no norm.
    joint_qk_norm: builds a norm over the features of all heads together instead (OLMo 2,
      https://arxiv.org/abs/2501.00656). None: no norm.
    scores: builds the scores. Queries and keys are projected only if the scores read them.
    kernel: computes the output from the scores and values.
    scale: multiplies dot products. None: 1 / sqrt(head_dim). It is divided by the square root of the
      encoding's `num_terms`.
    dropout_rate: dropout of the attention probabilities.
    kernel_init: initialiser of the query, key and value projections.
    out_init: initialiser of the output projection. None: as `kernel_init`.

  Raises:
    UserError: num_heads does not divide d_model and no head_dim is given, or num_kv_heads does not
      divide num_heads, both norms are given, or there is a scale that the scores do not read.
  """

  def __init__(
    self,
    d_model: int,
    *,
    num_heads: Size,
    num_kv_heads: Size | None = None,
    head_dim: Size | None = None,
    use_bias: bool = True,
    out_bias: bool = True,
    qk_norm: Callable[..., Norm] | None = None,
    joint_qk_norm: Callable[..., Norm] | None = None,
    scores: Callable[..., Scores] = DotProductScores,
    kernel: Kernel = Auto(),
    scale: Positive | None = None,
    dropout_rate: TunableRate = 0.0,
    kernel_init: Initializer = xavier_uniform(),
    out_init: Initializer | None = None,
    rngs: nnx.Rngs,
  ):
    name = type(self).__name__
    num_kv_heads = num_heads if num_kv_heads is None else num_kv_heads
    _check_heads(name, d_model, num_heads, num_kv_heads, head_dim)
    head_dim = head_dim or d_model // num_heads
    self.scores = scores(num_heads, head_dim, rngs=rngs)
    reads = self.score_inputs
    if scale is not None and 'scale' not in reads:
      raise UserError(f'{name}.scale is not read by {type(self.scores).__name__}: leave it out')
    if qk_norm is not None and joint_qk_norm is not None:
      raise UserError(f'{name}.qk_norm and {name}.joint_qk_norm are both set: leave one out')
    self.num_heads = num_heads
    self.num_kv_heads = num_kv_heads
    self.head_dim = head_dim
    self.kernel = kernel
    self.scale = head_dim**-0.5 if scale is None else scale
    self.dropout_rate = dropout_rate

    def project(heads: int, name: str) -> Linear:
      axes = ('embed', name, 'head_dim')
      shape = (heads, head_dim)
      return Linear((d_model,), shape, axes, init=kernel_init, use_bias=use_bias, rngs=rngs)

    self.q = project(num_heads, 'heads') if 'q' in reads else None
    self.k = project(num_kv_heads, 'kv_heads') if 'k' in reads else None
    self.v = project(num_kv_heads, 'kv_heads')
    self.out = Linear(
      (num_heads, head_dim),
      (d_model,),
      ('heads', 'head_dim', 'embed'),
      init=out_init or kernel_init,
      use_bias=out_bias,
      rngs=rngs,
    )
    self.has_joint_norm = joint_qk_norm is not None

    def norm(projection: Linear | None, heads: int) -> Norm | None:
      build, size = (joint_qk_norm, heads * head_dim) if joint_qk_norm else (qk_norm, head_dim)
      return None if projection is None or build is None else build(size, rngs=rngs)

    self.q_norm = norm(self.q, num_heads)
    self.k_norm = norm(self.k, num_kv_heads)

  @property
  def score_inputs(self) -> frozenset[str]:
    """What the scores read; see `Scores.reads`."""
    return self.scores.reads

  def score(
    self,
    q: Float[Array, 'batch queries heads head_dim'] | None,
    rotated: tuple[Array | None, Array | None],
    q_tokens: Tokens,
    k_tokens: Tokens,
    scale: float,
  ) -> DotProduct | Logits:
    """The scores, from queries before rotation and from rotated queries and keys."""
    return self.scores(*rotated, q_tokens, k_tokens, scale=scale)

  def init_cache(self, batch: int, length: int, dtype: Any = jnp.float32) -> AttentionCache:
    """An empty cache with `length` slots."""
    _check_length(self.scores, length)
    zeros = jnp.zeros((batch, length, self.num_kv_heads, self.head_dim), dtype)
    return AttentionCache.empty(None if self.k is None else zeros, zeros)

  def cross_cache(self, context: Context) -> CrossCache:
    """Keys and values of a context, computed once for a whole generation."""
    k, v = self._keys_and_values(context.x, context.tokens)

    # Every leaf of a cache has the batch, so that rows can be picked out of it.
    def full(a):
      return None if a is None else jnp.broadcast_to(a, context.x.shape[:2])

    tokens = context.tokens
    return CrossCache(k, v, full(tokens.positions), full(tokens.segments), full(tokens.prefix))

  def __call__(
    self,
    x: Float[Array, 'batch length d_model'],
    context: Context | None = None,
    *,
    pattern: Pattern,
    tokens: Tokens = Tokens(),
    encoding: PositionEncoding | None = None,
    cache: AttentionCache | CrossCache | None = None,
    key: Array | None = None,
  ) -> tuple[Float[Array, 'batch length d_model'], AttentionCache | CrossCache | None]:
    """Attends from `x` to itself, to a context, or to what a cache holds.

    Args:
      context: what is attended to; None: `x` itself. Not looked at when `cache` is a CrossCache.
      pattern: who may see whom, by position.
      tokens: positions and segments of `x`; tokens of segment 0 are not written to the cache.
      encoding: rotates queries and keys, adds to scores; None in cross-attention.
      cache: an AttentionCache is extended by `x` at its positions (slots beyond its length are
        not written) and then attended to; a CrossCache replaces the context.
      key: for dropout; None: none.

    Returns:
      The output, and the cache: the new one, the CrossCache as it was, or None.
    """
    is_cross = context is not None or isinstance(cache, CrossCache)
    self._check(x.shape[1], encoding, is_cross)
    if isinstance(cache, CrossCache):
      k, v, k_tokens = cache.k, cache.v, cache.tokens
    else:
      source = Context(x, tokens) if context is None else context.elsewhere()
      k_tokens = source.tokens
      k, v = self._keys_and_values(source.x, k_tokens, encoding)
    q = None if self.q is None else self._queries(_addressed(x, tokens, encoding))
    rotated_q = q
    if encoding is not None and 'rotate' in encoding.hooks:
      assert q is not None and k is not None  # `_check` requires them.
      rotated_q, k = encoding.rotate(q, k, tokens, k_tokens)
    if isinstance(cache, AttentionCache):
      cache = cache.write(k, v, tokens)
      k, v = cache.k, cache.v
      k_tokens = cache.tokens
    # Queries stay where their tokens are; every one may look at any key.
    q, rotated_q = (_constrained(a, x.dtype, 'length', 'heads') for a in (q, rotated_q))
    k = _constrained(k, x.dtype, None, 'kv_heads')
    v = constrain(v.astype(x.dtype), 'batch', None, 'kv_heads', None)
    q_places, k_places = placed(tokens, x.shape[1]), placed(k_tokens, v.shape[1])
    scale = self.scale if encoding is None else self.scale * encoding.num_terms**-0.5
    inputs = AttentionInputs(
      self.score(q, (rotated_q, k), q_places, k_places, scale),
      v,
      pattern,
      tokens,
      k_tokens,
      dropout_rate=self.dropout_rate,
      key=key,
    )
    if encoding is not None and encoding.hooks & {'scores', 'values'}:
      terms = self._terms(encoding, rotated_q, k, inputs, scale)
      inputs = dataclasses.replace(inputs, terms=terms)
    y = self.kernel(inputs)
    return self.out(constrain(y, 'batch', 'length', 'heads', None)), cache

  def _queries(self, x: Array) -> Array:
    assert self.q is not None  # The scores read queries.
    return self._normed(self.q(x), self.q_norm)

  def _keys(self, x: Array) -> Array:
    assert self.k is not None  # The scores read keys.
    return self._normed(self.k(x), self.k_norm)

  def _normed(self, x: Array, norm: Norm | None) -> Array:
    if norm is None:
      return x
    if not self.has_joint_norm:
      return norm(x)
    return norm(x.reshape(*x.shape[:-2], -1)).reshape(x.shape)

  def _keys_and_values(
    self, x: Array, tokens: Tokens, encoding: PositionEncoding | None = None
  ) -> tuple[Array | None, Array]:
    k = None if self.k is None else self._keys(_addressed(x, tokens, encoding))
    return k, self.v(x)

  def _terms(
    self,
    encoding: PositionEncoding,
    q: Array | None,
    k: Array | None,
    inputs: AttentionInputs,
    scale: float,
  ) -> PositionTerms:
    """What the encoding adds; its scores are computed here if they read queries or keys."""
    if not encoding.reads_content or 'scores' not in encoding.hooks:
      return PositionTerms(encoding, scale)
    tokens, lengths = (inputs.q_tokens, inputs.k_tokens), (inputs.q_len, inputs.k_len)
    content = encoding.scores(
      q,
      k,
      *map(placed, tokens, lengths),
      scale=scale,
      project=Projections(self._queries, self._keys),
      visible=attention_mask(inputs.pattern, *tokens, *lengths),
    )
    return PositionTerms(encoding, scale, content)

  def _check(self, length: int, encoding: PositionEncoding | None, is_cross: bool) -> None:
    """Raises where the scores or the encoding cannot be used for this call."""
    name, scores = type(self).__name__, type(self.scores).__name__
    if is_cross and 'positions' in self.score_inputs:
      raise UserError(
        f'{name} has no scores for a context, since those of {scores} are scores of positions: use '
        'MultiHeadAttention with DotProductScores for cross-attention'
      )
    _check_length(self.scores, length)
    if encoding is None:
      return
    if is_cross:
      raise ValueError('positions of two sequences do not compare: cross-attention has no encoding')
    _check_length(encoding, length)
    unread = encoding.mixer_hooks & {'address', 'rotate'}
    if encoding.reads_content:
      unread = unread | encoding.mixer_hooks & {'scores'}
    if unread and not {'q', 'k'} <= self.score_inputs:
      raise UserError(
        f'{type(encoding).__name__} works on queries and keys ({", ".join(sorted(unread))}), which '
        f'{scores} in {name} does not read: use another encoding, or scores that read both'
      )


def _addressed(x: Array, tokens: Tokens, encoding: PositionEncoding | None) -> Array:
  """What queries or keys are projected from."""
  if encoding is None or 'address' not in encoding.hooks:
    return x
  return encoding.address(x, placed(tokens, x.shape[1]))


def _constrained(x: Array | None, dtype: Any, length: str | None, heads: str) -> Array | None:
  return None if x is None else constrain(x.astype(dtype), 'batch', length, heads, None)


def _check_length(part: Scores | PositionEncoding, length: int) -> None:
  if part.max_length is not None and length > part.max_length:
    raise UserError(
      f'a row of {length} tokens is longer than the {part.max_length} positions of '
      f'{type(part).__name__}: shorten the rows or make it longer'
    )


def _check_heads(
  name: str, d_model: int, num_heads: int, num_kv_heads: int, head_dim: int | None
) -> None:
  if head_dim is None and d_model % num_heads:
    raise UserError(
      f'{name}.num_heads = {num_heads} does not divide d_model = {d_model}: choose '
      f'another or set {name}.head_dim'
    )
  if num_kv_heads < 1 or num_heads % num_kv_heads:
    raise UserError(f'{name}.num_kv_heads = {num_kv_heads} does not divide num_heads = {num_heads}')
