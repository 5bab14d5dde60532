"""Embeddings of token ids.

Each embedding maps inputs and per-token metadata to vectors and their metadata.
"""

import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from t2x.base.errors import UserError
from t2x.base.ranges import Natural, Size
from t2x.base.step import is_plain
from t2x.layers.building import build_context
from t2x.layers.constraints import constrain
from t2x.layers.dtypes import gather
from t2x.layers.embeddings.inputs import Input, TextEmbedding
from t2x.layers.initializers import normal, xavier_uniform
from t2x.layers.parameters import Initializer, Linear, param
from t2x.layers.products import broadcast, flatten_rows, products
from t2x.layers.tokens import Tokens

__all__ = ['FactorisedEmbedding', 'TokenEmbedding']


class TokenEmbedding(nnx.Module):
  """Embedding table of token ids, which a head can share for its logits (https://arxiv.org/abs/1608.05859).

  Args:
    d_model: width of the vectors.
    vocab_size: number of tokens. None: the vocabulary size of the task's tokenizer.
    vocab_multiple: the table, and the parameters of the head, have a multiple of this number of rows, because
      matrix products are fastest for multiples of 128 and a mesh can split only multiples of its size. The
      rows after `vocab_size` are padding: they have no logits and a gradient of 0, but count as parameters
      and in FLOPs.
    num_types: number of token types (BERT's sentences A and B); 0: no types.
    scaled: whether to multiply token vectors by sqrt(d_model) (the original Transformer, Gemma).
    init: initialiser of the tables of tokens and types.
  """

  implements = (TextEmbedding,)
  # Logical axis of the columns of the tables.
  axis = 'embed'
  num_extra = 0

  def __init__(
    self,
    d_model: int,
    *,
    vocab_size: Size | None = None,
    vocab_multiple: Size = 1,
    num_types: Natural = 0,
    scaled: bool = False,
    init: Initializer = normal(0.02),
    rngs: nnx.Rngs,
  ):
    self.vocab_size = vocab_size or _task_vocab_size(type(self).__name__)
    self.vocab_multiple, self.num_types = vocab_multiple, num_types
    self.scale, self.logit_scale = _scales(d_model, scaled)

    def table(rows: int, name: str) -> nnx.Param:
      return param(init, (rows, d_model), (name, self.axis), rngs, kind='table')

    self.table = table(round_up(self.vocab_size, vocab_multiple), 'vocab')
    self.types = table(num_types, 'types') if num_types else None

  @property
  def input(self) -> Input:
    return Input(vocab_size=self.vocab_size)

  def __call__(
    self,
    ids: Int[Array, 'batch length'],
    tokens: Tokens | None = None,
    *,
    types: Int[Array, 'batch length'] | None = None,
  ) -> tuple[Float[Array, 'batch length d_model'], Tokens]:
    """Returns the vectors of `ids` and the unchanged metadata.

    Args:
      ids: token ids.
      tokens: per-token metadata; None: `Tokens.row`.
      types: type of each token, whose vector is added; None: type 0 if the embedding has types.

    Raises:
      UserError: `types` is set, but the embedding has no types.
    """
    return self._vectors(ids, types), Tokens.row(ids.shape[1]) if tokens is None else tokens

  def _vectors(self, ids: Array, types: Array | None) -> Array:
    return _add_types(_look_up(self.table, ids) * self.scale, types, self.types)

  def attend(self, x: Float[Array, '*rest d_model']) -> Float[Array, '*rest vocab']:
    """Computes the logits x table^T in float32."""
    x = x * self.logit_scale
    return float32_logits(x, self.table[...].astype(x.dtype))[..., : self.vocab_size]


class FactorisedEmbedding(TokenEmbedding):
  """Embedding table of width factor_dim and a projection to d_model (ALBERT,
  https://arxiv.org/abs/1909.11942).

  Args:
    factor_dim: width of the tables of tokens and types.
    use_bias: whether the projection has a bias.
    projection_init: initialiser of the projection.

  Other arguments are those of `TokenEmbedding`.
  """

  axis = 'factor'

  def __init__(
    self,
    d_model: int,
    *,
    vocab_size: Size | None = None,
    vocab_multiple: Size = 1,
    factor_dim: Size,
    num_types: Natural = 0,
    scaled: bool = False,
    use_bias: bool = False,
    init: Initializer = normal(0.02),
    projection_init: Initializer = xavier_uniform(),
    rngs: nnx.Rngs,
  ):
    super().__init__(
      factor_dim,
      vocab_size=vocab_size,
      vocab_multiple=vocab_multiple,
      num_types=num_types,
      init=init,
      rngs=rngs,
    )
    self.scale, self.logit_scale = _scales(d_model, scaled)
    self.projection = Linear(
      (factor_dim,),
      (d_model,),
      ('factor', 'embed'),
      init=projection_init,
      use_bias=use_bias,
      rngs=rngs,
    )

  def _vectors(self, ids, types):
    return self.projection(_add_types(_look_up(self.table, ids), types, self.types)) * self.scale

  def attend(self, x: Float[Array, '*rest d_model']) -> Float[Array, '*rest vocab']:
    """Computes the logits in float32, with the transposed projection and table."""
    narrow = x * self.logit_scale @ self.projection.kernel[...].astype(x.dtype).T
    return float32_logits(narrow, self.table[...].astype(x.dtype))[..., : self.vocab_size]


def round_up(size: int, multiple: int) -> int:
  """Returns the smallest multiple of `multiple` that is at least `size`."""
  return -(-size // multiple) * multiple


def _scales(d_model: int, scaled: bool) -> tuple[float, float]:
  """Returns the factors of vectors and of logits; with `MuP` they depend on the width of its base."""
  ratio = build_context().scale.width_ratio
  return math.sqrt(d_model / ratio) if scaled else 1.0, 1 / ratio


def _task_vocab_size(name: str) -> int:
  size = build_context().vocab_size
  if size is None:
    raise UserError(
      f'{name}.vocab_size is not set, and no task with a tokenizer determines it: set it'
    )
  return size


def _look_up(table: nnx.Param, ids: Array) -> Array:
  """Returns rows of the table, split over devices as the table's columns are."""
  # Without this constraint, compilers were seen to replicate the rows and their gradients.
  return constrain(gather(table[...], ids), 'looked_up_batch', 'length', 'looked_up')


def _add_types(x: Array, types: Array | None, table: nnx.Param | None) -> Array:
  if table is None:
    if types is not None:
      raise UserError(
        'the batch has token types, but the embedding has no types: set its num_types'
      )
    return x
  if types is None:
    return x + broadcast(table[0], x.shape, x.dtype)
  return x + gather(table[...], types)


def float32_logits(
  x: Float[Array, '*rest d_model'], table: Float[Array, '_ _'], axis: int = 1
) -> Float[Array, '*rest vocab']:
  """Contracts the last dimension of `x` with `axis` of a table of the vocabulary, accumulated and returned in float32.

  The gradient of the logits is in float32 too. It is rounded to the compute dtype before the two products
  of the backward pass, which would otherwise both run in float32.

  Args:
    x: hidden vectors.
    table: [vocab, d_model], or [d_model, vocab] if `axis` is 0.
    axis: the dimension of `table` to contract.
  """
  return (_logits if is_plain() else _logits_with_gradient)(x, table, axis)


def _logits(x: Array, table: Array, axis: int) -> Array:
  flat = flatten_rows(x)
  contracted = ((flat.ndim - 1,), (axis,))
  y = jax.lax.dot_general(flat, table, (contracted, ((), ())), preferred_element_type=jnp.float32)
  return y.reshape(*x.shape[:-1], table.shape[1 - axis])


_logits_with_gradient = jax.custom_vjp(_logits, nondiff_argnums=(2,))


def _forward(x: Array, table: Array, axis: int) -> tuple[Array, Sequence[Array]]:
  return _logits(x, table, axis), (x, table)


def _backward(axis: int, saved: Sequence[Array], gradient: Array) -> tuple[Array, Array]:
  x, table = saved
  flat, gradient = flatten_rows(x), flatten_rows(gradient.astype(x.dtype))
  pair = (gradient, flat) if axis == 1 else (flat, gradient)
  own = products()
  return own.multiply(gradient, table, 1 - axis).reshape(x.shape), own.sum_over_rows(*pair)


_logits_with_gradient.defvjp(_forward, _backward)
