"""Attention to the vectors of the source themselves, as in recurrent and convolutional translation models."""

import dataclasses
import functools
from collections.abc import Callable, Collection
from typing import Any, Literal

import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from t2x.base.errors import UserError
from t2x.base.ranges import Size
from t2x.layers.attention.cache import SourceCache, source_queries
from t2x.layers.attention.head_projections import source_of
from t2x.layers.attention.kernels import AttentionInputs, Auto, Dense
from t2x.layers.attention.kernels.base import attention_mask
from t2x.layers.attention.projections import Heads
from t2x.layers.attention.scores import AdditiveScores, DotProductScores
from t2x.layers.dtypes import Dtypes
from t2x.layers.initializers import xavier_uniform
from t2x.layers.interfaces import Call, Result, Scores, SourceSequence, Sublayer
from t2x.layers.mixers.initial_states import LastVector
from t2x.layers.parameters import Initializer, Linear

__all__ = ['ConvS2SAttention', 'FixedVector', 'SourceAttention']


class _OneHead(nnx.Module):
  """Base class: one head, whose values are vectors of the source; subclasses define queries, keys, values and scores.

  Raises:
    UserError: when called, there is no source, or it has a position encoding.
  """

  implements = (Sublayer,)
  reads: frozenset[str] = frozenset({'source', 'record.probabilities'})
  max_length: int | None = None
  scores: Scores

  def keys_and_values(self, source: SourceSequence) -> tuple[Array, Array]:
    """Returns keys [batch, source, features] and values [batch, source, d_model]."""
    raise NotImplementedError

  def query(self, x: Float[Array, 'batch length d_model']) -> Float[Array, 'batch length features']:
    """Returns the query of each token of `x`."""
    raise NotImplementedError

  def init_cache(
    self,
    batch: int,
    num_slots: int,
    dtype: DTypeLike = jnp.float32,
    source: SourceSequence | None = None,
  ) -> SourceCache:
    """Returns the keys and values of the source."""
    k, v = self.keys_and_values(source_of(self, source))
    return SourceCache.of(k[:, :, None], v[:, :, None])

  def attend(
    self, q: Float[Array, 'batch length features'], call: Call, cache: SourceCache | None
  ) -> tuple[Result, AttentionInputs]:
    """Returns the weighted sums of values [batch, length, d_model], and the inputs of the kernel."""
    source = source_of(self, call.source)
    if source.encoding is not None:
      name = type(source.encoding).__name__
      raise UserError(
        f'{type(self).__name__} reads no positions of the source, but there is {name}: leave out '
        'EncoderDecoder.source_encoding'
      )
    memory = self.init_cache(len(q), 0, q.dtype, source) if cache is None else cache
    k, v = (a.astype(q.dtype) for a in memory.keys_and_values() if a is not None)
    heads, tokens = source_queries(len(v), q[:, :, None], len(q), call.tokens)
    pairs, k_tokens = dataclasses.replace(call, tokens=tokens), source.tokens.as_source()
    scores = self.scores(heads, k, tokens, k_tokens, scale=1.0, call=pairs)
    inputs = AttentionInputs(scores, v, source.pattern, tokens, k_tokens)
    recorded = {}
    if 'probabilities' in call.record:
      recorded = {'probabilities': Dense().probabilities(inputs)}
    y = Auto()(inputs).reshape(*q.shape[:2], -1)
    return Result(y, cache, recorded=recorded), inputs

  def __call__(
    self,
    x: Float[Array, 'batch length d_model'],
    call: Call,
    cache: SourceCache | None = None,
  ) -> Result:
    """Returns the weighted sum of the values of the source for each token of `x`."""
    return self.attend(self.query(x), call, cache)[0]


class SourceAttention(_OneHead):
  """Attention whose output is a weighted sum of the vectors of the source: without projections of values and output.

  Bahdanau et al. 2014 (https://arxiv.org/abs/1409.0473, section 3.1) with `AdditiveScores`, which are also `concat` in
  Luong et al. 2015 (https://arxiv.org/abs/1508.04025, section 3.1); their `general` is `DotProductScores` with the
  projection 'q', and `dot` without projections.

  Args:
    d_model: width of the input and of the source.
    head_dim: features of queries and keys. None: d_model.
    projections: projected arrays, of queries 'q' and keys 'k'; without projection they are the input and the source.
    scores: builds the scores of one head; they read queries and keys.
    use_bias: whether the projection of queries has a bias.
    kernel_init: initialiser of the query and key projections.
  """

  def __init__(
    self,
    d_model: int,
    *,
    head_dim: Size | None = None,
    projections: Collection[Literal['q', 'k']] = ('q', 'k'),
    scores: Callable[..., Scores] = AdditiveScores,
    use_bias: bool = False,
    kernel_init: Initializer = xavier_uniform(),
    rngs: nnx.Rngs,
  ):
    features = head_dim or d_model
    self.scores = Heads(d_model, 1, 1, features, d_model).build(scores, rngs=rngs)
    if not self.scores.reads <= {'q', 'k', 'scale'}:
      name = type(self.scores).__name__
      raise UserError(
        f'SourceAttention cannot use {name}, which score positions of one sequence: use @AdditiveScores, '
        '@BilinearScores or @DotProductScores'
      )
    linear = functools.partial(Linear, (d_model,), (features,), ('embed', 'head_dim'))
    if features != d_model and set(projections) != set('qk'):
      raise UserError(
        f'SourceAttention.head_dim = {head_dim} needs projections of queries and keys: set projections = ("q", "k")'
      )
    if use_bias and 'q' not in projections:
      raise UserError(
        'SourceAttention.use_bias has no effect without a projection of queries: leave it out, or '
        'add "q" to projections'
      )
    self.q, self.k = (
      linear(init=kernel_init, use_bias=use_bias and name == 'q', rngs=rngs)
      if name in projections
      else None
      for name in 'qk'
    )

  def keys_and_values(self, source: SourceSequence) -> tuple[Array, Array]:
    assert source.x is not None  # Caches are computed from vectors.
    return source.x if self.k is None else self.k(source.x), source.x

  def query(self, x):
    return x if self.q is None else self.q(x)


class FixedVector(_OneHead):
  """One vector of the source that every token reads, instead of attention (Cho et al. 2014,
  https://arxiv.org/abs/1406.1078, section 2.2): a uniform mean, in which all tokens of a segment have this vector.

  Args:
    d_model: width of the source.
    vector: builds the part that computes the vector: `LastVector`, or `FinalVectors` for an encoder in both directions.
  """

  reads = frozenset({'source'})

  def __init__(
    self, d_model: int, *, vector: Callable[..., LastVector] = LastVector, rngs: nnx.Rngs
  ):
    self.scores = DotProductScores(Heads(d_model, 1, 1, 1, d_model), rngs=rngs)
    self.vector = vector(d_model, rngs=rngs)

  def keys_and_values(self, source: SourceSequence) -> tuple[Array, Array]:
    assert source.x is not None  # Caches are computed from vectors.
    own = source.tokens.segments
    segments = jnp.ones((1, 1), jnp.int32) if own is None else own
    segments = jnp.broadcast_to(segments, source.x.shape[:2])
    (vectors,) = self.vector(source, segments, 1)
    return jnp.zeros_like(vectors[..., :1]), vectors

  def query(self, x):
    return jnp.zeros_like(x[..., :1])


class ConvS2SAttention(_OneHead):
  """Attention of convolutional translation models, whose values are the outputs z of the encoder plus its inputs e
  (Gehring et al. 2017, https://arxiv.org/abs/1705.03122, section 3.3, and its code in fairseq).

  The query of a token is sqrt(0.5) (x W_in + g), with the input g of the first layer of the decoder; scores are dot
  products with z, values are sqrt(0.5) (z + e), and the weighted sum of n tokens is multiplied by sqrt(n) and W_out.

  Args:
    d_model: width of the input and of the source.
    linear: builds both projections, such as `WeightNormLinear`. None: `Linear`.
    use_bias: whether both projections have biases.
    kernel_init: initialiser of both projections.
  """

  reads = _OneHead.reads | {'extras'}

  def __init__(
    self,
    d_model: int,
    *,
    linear: Callable[..., Linear] | None = None,
    use_bias: bool = True,
    kernel_init: Initializer = xavier_uniform(),
    rngs: nnx.Rngs,
  ):
    self.scores = DotProductScores(Heads(d_model, 1, 1, d_model, d_model), rngs=rngs)
    settings: dict[str, Any] = {
      'init': kernel_init,
      'use_bias': use_bias,
      'kind': 'matrix',
      'rngs': rngs,
    }
    build = functools.partial(linear or Linear, (d_model,), (d_model,), **settings)
    self.q, self.out = build(('embed', 'head_dim')), build(('head_dim', 'embed'))

  def init_extras(self, x: Float[Array, 'batch length d_model']) -> dict[str, Array]:
    """Returns the input of the first layer; see `ExtrasSublayer`."""
    return {'first_input': x}

  def keys_and_values(self, source: SourceSequence) -> tuple[Array, Array]:
    assert source.x is not None  # Caches are computed from vectors.
    return source.x, 0.5**0.5 * (source.x + source.inputs_for(self))

  def __call__(
    self,
    x: Float[Array, 'batch length d_model'],
    call: Call,
    cache: SourceCache | None = None,
  ) -> Result:
    """Attends from each token of `x` to the source."""
    q = 0.5**0.5 * (self.q(x) + call.extras['first_input'])
    result, inputs = self.attend(q, call, cache)
    mask = attention_mask(inputs.pattern, inputs.q_tokens, inputs.k_tokens)
    if mask is None:
      counts = jnp.full((1, 1, 1), inputs.k_len, Dtypes.reductions)
    else:
      counts = jnp.broadcast_to(mask, (len(inputs.v), 1, inputs.q_len, inputs.k_len)).sum(axis=-1)
      counts = counts.reshape(*x.shape[:2], 1).astype(Dtypes.reductions)
    y = self.out(result.x * jnp.sqrt(counts).astype(x.dtype))
    return dataclasses.replace(result, x=y)
