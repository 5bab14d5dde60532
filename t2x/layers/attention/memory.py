"""Learned keys and values without tokens (Sukhbaatar et al. 2019, "Augmenting Self-attention with Persistent Memory",
https://arxiv.org/abs/1907.01470)."""

from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from t2x.base.ranges import Size
from t2x.layers.attention.projections import Heads, normalized
from t2x.layers.initializers import normal
from t2x.layers.interfaces import Norm
from t2x.layers.parameters import Initializer, param

__all__ = ['PersistentMemory']


class PersistentMemory(nnx.Module):
  """Learned keys and values of each head that every query sees beside those of tokens, in one softmax.

  They have no position: no pattern, segment or position encoding applies to them, and no cache holds
  them. A norm of keys applies. They are the memory key-values of x-transformers (`attn_num_mem_kv`); only
  dense attention supports them.

  Args:
    heads: sizes of the attention layer.
    num: number of keys.
    init: initialiser of keys and values.
  """

  def __init__(
    self,
    heads: Heads,
    *,
    num: Size,
    init: Initializer = normal(1.0),
    rngs: nnx.Rngs,
  ):
    axes = None, 'kv_heads', 'head_dim'
    self.k = param(init, (num, *heads.keys), axes, rngs, kind='vector')
    self.v = param(init, (num, *heads.values), axes, rngs, kind='vector')

  def __call__(
    self, dtype: DTypeLike, norm: Norm | None, joint: bool
  ) -> tuple[Float[Array, 'n kv_heads head_dim'], Float[Array, 'n kv_heads v_dim']]:
    """Returns keys, after the norm of keys (see `normalized`), and values."""
    k = normalized(self.k[...][None], norm, joint)[0]
    return k.astype(dtype), self.v[...].astype(dtype)
