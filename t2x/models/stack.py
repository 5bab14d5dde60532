"""A repeating pattern of blocks, its parameters stacked and scanned over the repeats.

`[dense, local]` repeats as in GPT-3, one shared group as in ALBERT
(https://arxiv.org/abs/1909.11942), stochastic depth as in https://arxiv.org/abs/1603.09382.
"""

from collections.abc import Callable, Sequence
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float

from t2x.errors import UserError
from t2x.hyperparameters import scalar
from t2x.layers import Aux, Context, Pattern, PositionEncoding, Tokens, named_key, stacked
from t2x.layers.constraints import constrain
from t2x.layers.initializers import building
from t2x.models.block import Block
from t2x.models.interfaces import Layer, add_aux
from t2x.ranges import NonEmpty, Size, TunableRate

__all__ = ['Stack']

_POLICIES = jax.checkpoint_policies
# What the backward pass finds saved instead of computing it again, by name.
REMAT_POLICIES = {
  'full': _POLICIES.nothing_saveable,
  'dots': _POLICIES.dots_saveable,
  'dots_no_batch': _POLICIES.dots_with_no_batch_dims_saveable,
}


class Stack(nnx.Module):
  """`num_layers` layers made of `blocks` in turn: blocks[0], blocks[1], ..., blocks[0], ...

  Args:
    d_model: width of the residual stream.
    num_layers: layers in all; a multiple of the number of `blocks`.
    blocks: builders of the layers of one repeat.
    num_groups: how many sets of parameters the repeats share, neighbours together (ALBERT's
      `num_hidden_groups`; 1 is one set for all). None: each repeat has its own.
    unroll: repeats put into one iteration of the scan. 1 compiles fastest; `num_layers` runs
      fastest on a CPU.
    remat: None saves every activation; 'full', 'dots' and 'dots_no_batch' name what is saved.
    stochastic_depth: probability of dropping the last layer; it grows linearly from 0 at the first.

  Raises:
    UserError: counts that do not divide, an unknown `remat`.
  """

  def __init__(
    self,
    d_model: int,
    *,
    num_layers: Size,
    blocks: Annotated[Sequence[Callable[..., Layer]], NonEmpty] = (Block,),
    num_groups: Size | None = None,
    unroll: Size = 1,
    remat: str | None = None,
    stochastic_depth: TunableRate = 0.0,
    rngs: nnx.Rngs,
  ):
    if num_layers % len(blocks):
      raise UserError(
        f'Stack.num_layers = {num_layers} is no multiple of the {len(blocks)} Stack.blocks'
      )
    self.num_repeats = num_layers // len(blocks)
    num_groups = num_groups or self.num_repeats
    if self.num_repeats % num_groups:
      raise UserError(
        f'Stack.num_groups = {num_groups} does not divide {self.num_repeats} repeats of the blocks'
      )
    if remat is not None and remat not in REMAT_POLICIES:
      raise UserError(f"Stack.remat = '{remat}' is none of {', '.join(REMAT_POLICIES)} or None")
    self.num_layers = num_layers
    self.num_groups = num_groups
    self.unroll = unroll
    self.remat = remat
    self.stochastic_depth = stochastic_depth

    def repeat(keys):
      return nnx.List([block(d_model, rngs=keys) for block in blocks])

    with building(num_layers=num_layers):
      self.blocks = stacked(repeat, num_groups, rngs)

  def init_cache(self, batch: int, length: int, dtype: Any) -> list[Any]:
    """Empty caches: a list over `blocks`, each leaf stacked over the repeats: [repeats, batch, ...]."""

    def stack(leaf):
      return jnp.broadcast_to(leaf, (self.num_repeats, *leaf.shape))

    # Caches are shaped by static attributes alone, so the stacked blocks can make them.
    return [jax.tree.map(stack, block.init_cache(batch, length, dtype)) for block in self.blocks]

  def patterns(self, pattern: Pattern) -> list[Pattern]:
    """The pattern of each block inside a body with `pattern`."""
    return [pattern & block.pattern for block in self.blocks]

  def layers_of(self, block: int) -> tuple[tuple[int, ...], ...]:
    """The layers that use each set of parameters of `blocks[block]`."""
    shared = self.num_repeats // self.num_groups
    layers = [repeat * len(self.blocks) + block for repeat in range(self.num_repeats)]
    return tuple(
      tuple(layers[group * shared : (group + 1) * shared]) for group in range(self.num_groups)
    )

  @property
  def ends_with_norm(self) -> bool:
    """Whether the last block's output is normalised."""
    return self.blocks[-1].ends_with_norm

  def _check_context(self) -> None:
    """Raises UserError where no block would read a context."""
    if not any(block.reads_context for block in self.blocks):
      raise UserError(
        'no block of this stack has cross-attention, so that the source would be ignored: bind '
        'Block.cross (for the decoder only: decoder/Block.cross = @MultiHeadAttention)'
      )

  def cross_cache(self, context: Context) -> list[Any]:
    """The context's keys and values for every layer, stacked as in `init_cache`.

    Raises:
      UserError: no block reads a context.
    """
    self._check_context()
    per_repeat = self.num_repeats // self.num_groups

    def one(block):
      return jax.tree.map(
        lambda leaf: jnp.repeat(leaf, per_repeat, axis=0),
        jax.lax.map(lambda b: b.cross_cache(context), block),
      )

    return [one(block) for block in self.blocks]

  def __call__(
    self,
    x: Float[Array, 'batch length d_model'],
    context: Context | None = None,
    *,
    pattern: Pattern,
    tokens: Tokens,
    encoding: PositionEncoding | None = None,
    cache: list[Any] | None = None,
    key: Array | None = None,
  ) -> tuple[Float[Array, 'batch length d_model'], list[Any] | None, Aux]:
    """Runs all layers. Returns the stream, the caches and auxiliary losses [batch] by name, summed
    over layers.

    Raises:
      UserError: a context that no block reads, or what a block refuses.
    """
    if context is not None:
      self._check_context()

    def repeat(blocks, x, per_repeat):
      caches, keys, rates = per_repeat
      new_caches: list[Any] = []
      total: Aux = {}
      for i, block in enumerate(blocks):
        block_key, keep = self._randomness(x, keys, rates, i)
        x, new_cache, aux = block(
          x,
          context if block.reads_context else None,
          pattern=pattern,
          tokens=tokens,
          encoding=encoding,
          cache=None if caches is None else caches[i],
          key=block_key,
          keep=keep,
        )
        x = constrain(x, 'batch', 'length', 'embed')
        new_caches.append(new_cache)
        total = add_aux(total, aux)
      return x, (None if caches is None else new_caches, total)

    if self.remat is not None:
      repeat = jax.checkpoint(repeat, policy=REMAT_POLICIES[self.remat], prevent_cse=False)
    per_repeat = self._per_repeat(cache, key)
    if self.num_groups == self.num_repeats:
      x, (cache, aux) = jax.lax.scan(
        lambda x, inputs: repeat(inputs[0], x, inputs[1]),
        x,
        (self.blocks, per_repeat),
        unroll=self.unroll,
      )
    else:
      x, (cache, aux) = self._scan_groups(repeat, x, per_repeat)
    return x, cache, jax.tree.map(lambda a: a.sum(axis=0), aux)

  def _scan_groups(self, repeat, x, per_repeat):
    """The same parameters for neighbouring repeats: a scan over groups of a scan inside."""

    length = self.num_repeats // self.num_groups

    def group(x, inputs):
      blocks, inside = inputs
      return jax.lax.scan(
        lambda x, one: repeat(blocks, x, one), x, inside, length=length, unroll=self.unroll
      )

    grouped = jax.tree.map(lambda a: a.reshape(self.num_groups, -1, *a.shape[1:]), per_repeat)
    x, (cache, aux) = jax.lax.scan(group, x, (self.blocks, grouped))
    return x, jax.tree.map(lambda a: a.reshape(-1, *a.shape[2:]), (cache, aux))

  def _per_repeat(self, cache, key):
    """What differs between repeats beside parameters: caches, keys, drop rates [repeats, blocks]."""
    if key is None:
      return cache, None, None
    # By index: the keys of a repeat do not depend on the number of repeats.
    keys = jax.vmap(jax.random.fold_in, (None, 0))(key, jnp.arange(self.num_repeats))
    depth = np.linspace(0.0, 1.0, self.num_layers, dtype=np.float32).reshape(self.num_repeats, -1)
    return cache, keys, jnp.asarray(scalar(self.stochastic_depth) * depth)

  def _randomness(self, x, key, rates, index):
    """The key of block `index` of a repeat, and its stochastic-depth multiplier [batch, 1, 1]."""
    if key is None:
      return None, None
    block_key = named_key(key, f'blocks.{index}')
    if self.stochastic_depth == 0.0:
      return block_key, None
    depth_key = named_key(key, f'stochastic_depth.{index}')
    kept = jax.random.bernoulli(depth_key, 1.0 - rates[index], (x.shape[0], 1, 1))
    return block_key, kept / (1.0 - rates[index])
