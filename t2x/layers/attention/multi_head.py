"""Multi-head self-attention and cross-attention (https://arxiv.org/abs/1706.03762), with multi-query
(https://arxiv.org/abs/1911.02150) and grouped-query attention (https://arxiv.org/abs/2305.13245)."""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from t2x.base.errors import UserError
from t2x.base.ranges import Positive, Size, TunableRate
from t2x.layers.attention.cache import InputMemory, KeyValueCache, SourceCache, source_queries
from t2x.layers.attention.checks import (
  check_cacheable,
  check_encoding,
  check_length,
  check_replaced,
  check_settings,
  check_source_parts,
)
from t2x.layers.attention.head_outputs import HeadOutputs
from t2x.layers.attention.head_projections import check_no_source, source_of
from t2x.layers.attention.kernels import (
  AttentionInputs,
  Auto,
  Dense,
  DotProduct,
  Kernel,
  Logits,
  PositionTerms,
)
from t2x.layers.attention.kernels.base import attention_mask
from t2x.layers.attention.key_values import (
  KeyValues,
  Queries,
  Stored,
  prepared,
)
from t2x.layers.attention.memory import PersistentMemory
from t2x.layers.attention.projections import (
  HeadNorms,
  Heads,
  Projection,
  QKNorm,
  biases_of,
  head_projection,
  normalized,
  output_projection,
  query_projection,
  rotated_keys,
  rotated_queries,
  with_addresses,
)
from t2x.layers.attention.scores import DotProductScores
from t2x.layers.attention.value_residual import Values
from t2x.layers.constraints import constrain
from t2x.layers.initializers import xavier_uniform
from t2x.layers.interfaces import Call, Result, Scores, SourceSequence, Sublayer
from t2x.layers.parameters import Initializer
from t2x.layers.positions.encoding import PositionEncoding, Projections
from t2x.layers.tokens import Tokens

__all__ = ['MultiHeadAttention']


class MultiHeadAttention(nnx.Module):
  """Multi-head self-attention, or cross-attention if it is built for a source (`Block.cross`, `FromSource`).

  Args:
    d_model: width of the input and output.
    num_heads: number of query heads.
    num_kv_heads: number of key-value heads, each shared by num_heads / num_kv_heads neighbouring query
      heads; 1 is multi-query attention. None: num_heads.
    head_dim: features per head. None: d_model / num_heads.
    use_bias: whether the query, key and value projections have biases, or the names of the projections with biases,
      such as ('q', 'v') in BEiT and Whisper.
    out_bias: whether the output projection has a bias.
    qk_norm: builds the norm of queries and of keys before rotation: over the features of each head
      (https://arxiv.org/abs/2010.04245), with parameters of each head (`PerHead`) or over all heads (`JointNorm`). Or
      such builders by projection, 'q', 'k' or 'v', such as one of values (Gemma 3n) or of keys only. None: no norm.
    value_dim: features per head of the values. None: head_dim.
    scores: builds the scores. Queries and keys are projected only if the scores read them.
    kernel: computes the output from the scores and values.
    scale: factor of dot products. None: 1 / sqrt(head_dim). It is divided by the square root of the
      encoding's `num_terms`.
    dropout_rate: dropout of the attention probabilities.
    queries: builds the queries instead of a projection, such as `LowRankQueries`. None: the projection.
    key_values: builds the keys and values instead of projections, and what a cache holds, such as
      `LatentKeyValues`. None: the projections.
    memory: builds keys and values without tokens, which every query sees, such as `PersistentMemory`. None: none.
    values: builds the part that transforms the layer's values, such as `ValueResidual`. None: no part.
    head_outputs: builds the part between the heads and the output projection, such as a gate. None: no part.
    kernel_init: initialiser of the query, key and value projections.
    value_init: initialiser of the value projection. None: `kernel_init`.
    out_init: initialiser of the output projection. None: `kernel_init`.
    reads_source: whether it attends to the source; `FromSource` gives it, no config.

  Raises:
    UserError: num_heads does not divide d_model and head_dim is None, num_kv_heads does not divide num_heads, the
      scores do not read `scale`, `queries` or the keys of `key_values`, or a setting is for projections that
      `key_values` replaces.
  """

  implements = (Sublayer,)

  def __init__(
    self,
    d_model: int,
    *,
    num_heads: Size,
    num_kv_heads: Size | None = None,
    head_dim: Size | None = None,
    value_dim: Size | None = None,
    use_bias: bool | Sequence[Projection] = True,
    out_bias: bool = True,
    qk_norm: QKNorm | None = None,
    scores: Callable[..., Scores] = DotProductScores,
    kernel: Kernel = Auto(),
    scale: Positive | None = None,
    dropout_rate: TunableRate = 0.0,
    queries: Callable[..., Queries] | None = None,
    key_values: Callable[..., KeyValues] | None = None,
    memory: Callable[..., PersistentMemory] | None = None,
    values: Callable[..., Values] | None = None,
    head_outputs: Callable[..., HeadOutputs] | None = None,
    kernel_init: Initializer = xavier_uniform(),
    value_init: Initializer | None = None,
    out_init: Initializer | None = None,
    reads_source: bool = False,
    rngs: nnx.Rngs,
  ):
    name, self.reads_source = type(self).__name__, reads_source
    self.heads = heads = Heads.of(self, d_model, num_heads, num_kv_heads, head_dim, value_dim)
    self.scores = heads.build(scores, rngs=rngs)
    reads = self.score_inputs
    check_settings(name, self.scores, reads, scale, queries, memory)
    shared = None if isinstance(qk_norm, Mapping) else qk_norm
    replaced = {'qk_norm': shared, 'value_init': value_init, 'values': values}
    check_replaced(name, reads, key_values, replaced)
    projected = frozenset({'v', *reads} & {'q', 'k', 'v'})
    biases = biases_of(name, use_bias, projected, key_values)
    own = projected if key_values is None else frozenset({'q'})
    norms = HeadNorms.of(name, qk_norm, own)
    self.kernel, self.dropout_rate = kernel, dropout_rate
    self.scale = heads.head_dim**-0.5 if scale is None else scale
    project = functools.partial(head_projection, d_model, rngs=rngs, axis='kv_heads')
    build_q = queries or query_projection
    q = heads.build(build_q, 'q' in biases, kernel_init, rngs=rngs) if 'q' in own else None
    self.q: Any = q
    self.k: Any = project(heads.keys, kernel_init, 'k' in biases) if 'k' in own else None
    v_init = value_init or kernel_init
    self.v: Any = project(heads.values, v_init, 'v' in biases) if 'v' in own else None
    self.key_values = key_values and heads.build(key_values, 'k' in biases, kernel_init, rngs=rngs)
    self.head_outputs = head_outputs and heads.build(head_outputs, rngs=rngs)
    outputs = (self.head_outputs and self.head_outputs.shape) or (num_heads, heads.value_dim)
    self.out = output_projection(outputs, d_model, out_init or kernel_init, out_bias, rngs)
    self.joint_norms = norms.joint
    self.q_norm, self.k_norm, self.v_norm = norms.build(heads, rngs)
    self.memory = memory and heads.build(memory, rngs=rngs)
    self.values = values and heads.build(values, rngs=rngs)

  @property
  def reads(self) -> frozenset[str]:
    own = {'pattern', 'encoding', 'encoding.features'}
    inputs = {'source', 'encoding.address'} if self.reads_source else own
    extras = frozenset() if self.values is None else {'extras'}
    return frozenset({*inputs, 'record.probabilities'}) | extras

  @property
  def max_length(self) -> int | None:
    return self.scores.max_length

  @property
  def score_inputs(self) -> frozenset[str]:
    """Arguments that the scores depend on; see `Scores.reads`."""
    return self.scores.reads

  def score(
    self,
    q: Float[Array, 'batch queries heads head_dim'] | None,
    rotated: tuple[Array | None, Array | None],
    call: Call,
    k_tokens: Tokens,
    scale: float,
  ) -> DotProduct | Logits:
    """Computes the scores from unrotated queries `q` and the pair `rotated` of queries and keys."""
    return self.scores(*rotated, call.tokens, k_tokens, scale=scale, call=call)

  def init_extras(self, x: Float[Array, 'batch length d_model']) -> dict[str, Array]:
    """Initial extras of `values`, for the first layer; see `ExtrasSublayer.init_extras`."""
    return {} if self.values is None else self.values.init_extras(x)

  def init_cache(
    self,
    batch: int,
    num_slots: int,
    dtype: DTypeLike = jnp.float32,
    source: SourceSequence | None = None,
    *,
    encoding: PositionEncoding | None = None,
  ) -> KeyValueCache | SourceCache:
    """Returns an empty cache with `num_slots` slots, or that of the source; it holds keys only if the scores read
    them, and the features of `encoding` in float32."""
    if self.reads_source:
      return self._source_cache(source_of(self, source))
    check_cacheable(self._stored_by)
    features = {} if encoding is None else encoding.features
    return KeyValueCache.empty(batch, num_slots, self._stored_by.shapes, features, dtype)

  def _source_cache(self, source: SourceSequence) -> SourceCache:
    """Returns the keys and values of a source; keys are rotated by its encoding."""
    assert source.x is not None  # Caches are computed from vectors.
    own = Call(source.tokens, encoding=source.encoding)
    return SourceCache.of(*self._stored_by.project(source.x, own))

  @property
  def _stored_by(self) -> KeyValues:
    """The part that computes keys and values: `key_values`, or the layer with its own projections."""
    return self if self.key_values is None else self.key_values

  # The interface KeyValues of the layer's own projections.
  rotated_dim: int | None = None
  cacheable: bool = True

  @property
  def shapes(self) -> tuple[tuple[int, int] | None, tuple[int, int]]:
    """Heads and features of keys and values, which a cache holds; None: the scores read no keys."""
    return None if self.k is None else self.heads.keys, self.heads.values

  def project(self, x: Float[Array, 'batch length d_model'], call: Call) -> Stored:
    """Returns the rotated keys and the values of the layer's own projections."""
    encoding = call.encoding
    if self.k is None:
      return None, self._values(x)
    if encoding is None:
      return self._keys(x), self._values(x)
    return rotated_keys(self._keys(encoding.address(x, call.tokens)), call), self._values(x)

  def expand(self, stored: Stored) -> Stored:
    """Returns the stored arrays."""
    return stored

  def tokens(self, call: Call) -> Tokens:
    """Returns the tokens of the call."""
    return call.tokens

  def __call__(
    self,
    x: Float[Array, 'batch length d_model'],
    call: Call,
    cache: Any = None,
  ) -> Result:
    """Attends from `x` to itself, to `call.source`, or to the tokens in a cache.

    Args:
      x: the input; it provides the queries.
      call: its source provides the keys and values of cross-attention, and the pattern and position encoding of
        pairs of a query and a key. If this encoding adds positions to keys, `call.encoding` adds those of queries.
      cache: a KeyValueCache, which is extended by the keys and values of `x` at `call.slots` before
        attending to it, an InputMemory, whose tokens are attended to before those of `x`, or a SourceCache
        with the keys and values of the source.

    Returns:
      The output and the new cache: the extended KeyValueCache or InputMemory, the SourceCache, or None.
    """
    self._check(x.shape[1], call, cache)
    extras: dict[str, Array] = {}
    if self.reads_source:
      inputs = self._source_inputs(x, source_of(self, call.source), call, cache)
    else:
      inputs, cache, extras = self._own_inputs(x, call, cache)
    y = self.kernel(inputs).reshape(*x.shape[:2], self.heads.num_heads, -1)
    if self.head_outputs is not None:
      y = self.head_outputs(y, x, call)
    y = self.out(constrain(y, 'batch', 'length', 'heads', None))
    recorded = {}
    if 'probabilities' in call.record:
      recorded = {'probabilities': Dense().probabilities(inputs)}
    return Result(y, cache, recorded=recorded, extras=extras)

  def _own_inputs(
    self, x: Array, call: Call, cache: KeyValueCache | InputMemory | None
  ) -> tuple[AttentionInputs, KeyValueCache | InputMemory | None, dict[str, Array]]:
    slots, source = call.slots, self._stored_by
    encoding, of_keys = call.encoding, call
    addressed = x if encoding is None else encoding.address(x, call.tokens)
    q = None if self.q is None else self._queries(addressed)
    rotated = q if encoding is None else rotated_queries(q, call, source.rotated_dim)
    if isinstance(cache, InputMemory):
      assert slots is not None  # They hold the metadata of the memory.
      x, cache = cache.extend(x)
      of_keys = dataclasses.replace(call, tokens=slots.tokens)
    k, v = source.project(x, of_keys)
    k_tokens = source.tokens(of_keys)
    if encoding is not None and encoding.features:
      call, k_tokens, cache = prepared(x, call, encoding, k_tokens, cache)
    extras: dict[str, Array] = {}
    if self.values is not None:
      v, extras = self.values(v, call)
    if isinstance(cache, KeyValueCache) and slots is not None:
      q, rotated, k, v = (_group_rows(a, len(cache.v)) for a in (q, rotated, k, v))
      tokens, pattern = slots.queries(call.tokens, call.pattern)
      call = dataclasses.replace(call, tokens=tokens, pattern=pattern)
      cache = cache.extend(k, v, slots.start)
      k, v = cache.keys_and_values()
      k_tokens = dataclasses.replace(slots.tokens, features=cache.features)
    k, v = source.expand((None if k is None else k.astype(x.dtype), v.astype(x.dtype)))
    return self._inputs(q, rotated, k, v, call, k_tokens), cache, extras

  def _source_inputs(
    self, x: Array, source: SourceSequence, call: Call, cache: SourceCache | None
  ) -> AttentionInputs:
    """Inputs of cross-attention; beams that share a row of the source become queries of that row."""
    stored, encoding = self._stored_by, source.encoding
    pairs = dataclasses.replace(call, encoding=encoding, pattern=source.pattern)
    if encoding is not None and 'address' in encoding.hooks:
      x = with_addresses(x, call)
    q = None if self.q is None else self._queries(x)
    rotated = rotated_queries(q, pairs, stored.rotated_dim)
    k, v = (self._source_cache(source) if cache is None else cache).keys_and_values()
    (q, rotated), tokens = source_queries(len(v), (q, rotated), len(x), call.tokens)
    k, v = stored.expand((None if k is None else k.astype(x.dtype), v.astype(x.dtype)))
    k_tokens = stored.tokens(Call(source.tokens)).as_source()
    return self._inputs(q, rotated, k, v, dataclasses.replace(pairs, tokens=tokens), k_tokens)

  def _queries(self, x: Array) -> Array:
    assert self.q is not None  # The scores read queries.
    q = self.q(x)
    return q if self.q_norm is None else normalized(q, self.q_norm, 'q' in self.joint_norms)

  def _keys(self, x: Array) -> Array:
    assert self.k is not None  # The scores read keys.
    k = self.k(x)
    return k if self.k_norm is None else normalized(k, self.k_norm, 'k' in self.joint_norms)

  def _values(self, x: Array) -> Array:
    v = self.v(x)
    return v if self.v_norm is None else normalized(v, self.v_norm, 'v' in self.joint_norms)

  def _inputs(
    self,
    q: Array | None,
    rotated: Array | None,
    k: Array | None,
    v: Array,
    call: Call,
    k_tokens: Tokens,
  ) -> AttentionInputs:
    """Builds the inputs of the kernel from projected queries, keys and values."""
    # Split along the length as their tokens are; a kernel that needs complete rows of keys gathers them.
    q, rotated = (_cast_and_constrain(a, v.dtype, 'heads') for a in (q, rotated))
    k, v = (_cast_and_constrain(a, v.dtype, 'kv_heads') for a in (k, v))
    encoding = call.encoding
    scale = self.scale if encoding is None else self.scale * encoding.num_terms**-0.5
    inputs = AttentionInputs(
      self.score(q, (rotated, k), call, k_tokens, scale),
      v,
      call.pattern,
      call.tokens,
      k_tokens,
      dropout_rate=self.dropout_rate,
      key=call.key,
      memory=None
      if self.memory is None
      else self.memory(v.dtype, self.k_norm, 'k' in self.joint_norms),
    )
    if encoding is not None and encoding.hooks & {'scores', 'values'}:
      terms = self._terms(encoding, rotated, k, inputs, scale)
      inputs = dataclasses.replace(inputs, terms=terms)
    return inputs.without_features()

  def _terms(
    self,
    encoding: PositionEncoding,
    q: Array | None,
    k: Array | None,
    inputs: AttentionInputs,
    scale: float,
  ) -> PositionTerms:
    """Position terms of the encoding; scores that read queries or keys are computed here."""
    if not encoding.reads_content or 'scores' not in encoding.hooks:
      return PositionTerms(encoding, scale)
    content = encoding.scores(
      q,
      k,
      inputs.q_tokens,
      inputs.k_tokens,
      scale=scale,
      project=Projections(self._queries, self._keys),
      visible=attention_mask(inputs.pattern, inputs.q_tokens, inputs.k_tokens),
    )
    return PositionTerms(encoding, scale, content)

  def _check(self, length: int, call: Call, cache: object) -> None:
    """Raises UserError if the scores or the encoding do not support this call."""
    name, encoding = type(self).__name__, call.encoding
    if self.reads_source:
      check_source_parts(name, self.scores, self.score_inputs, self.values)
      encoding = source_of(self, call.source).encoding
    elif call.source is not None:
      check_no_source(self, call)
    if isinstance(cache, InputMemory) and self.values is not None:
      raise UserError(
        f'{name}.values cannot mix the values of a memory, because the first layer has other tokens in its '
        'memory: leave it out'
      )
    if self.scores.max_length is not None:
      check_length(self.scores, length)
    if encoding is None:
      return
    check_encoding(name, encoding, self.scores, self.score_inputs, self.key_values)
    check_length(encoding, length)


def _group_rows(a: Array | None, rows: int) -> Any:
  """Reshapes [batch, length, ...] to [rows, batch / rows * length, ...]; None stays None."""
  return None if a is None else a.reshape(rows, -1, *a.shape[2:])


def _cast_and_constrain(x: Array | None, dtype: DTypeLike, heads: str) -> Any:
  return None if x is None else constrain(x.astype(dtype), 'batch', 'length', heads, None)
