"""The residual block: a token mixer, perhaps cross-attention, and a feed-forward layer, each wired
around the residual stream (Vaswani et al. 2017, https://arxiv.org/abs/1706.03762)."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from t2x.errors import UserError
from t2x.layers import (
  MLP,
  Aux,
  Context,
  CrossMixer,
  FeedForward,
  Full,
  LayerNorm,
  Mixer,
  MultiHeadAttention,
  Norm,
  Pattern,
  PositionEncoding,
  PreNorm,
  Tokens,
  Wiring,
  dropout,
  named_key,
)
from t2x.layers.initializers import building
from t2x.ranges import TunableRate

__all__ = ['Block', 'ParallelBlock']


class Block(nnx.Module):
  """Mixer, optional cross-attention, feed-forward; each inside its own `wiring`.

  Args:
    d_model: width of the residual stream.
    mixer: builds what moves information between tokens.
    feed_forward: builds what works on each token alone.
    cross: builds the attention to a context (decoders of an encoder-decoder); None leaves it out.
    wiring: builds the way a sublayer is put around the residual stream.
    pattern: narrows the pattern that the model hands in (`Window(256)` for a local block).
  """

  def __init__(
    self,
    d_model: int,
    *,
    mixer: Callable[..., Mixer] = MultiHeadAttention,
    feed_forward: Callable[..., FeedForward] = MLP,
    cross: Callable[..., CrossMixer] | None = None,
    wiring: Callable[..., Wiring] = PreNorm,
    pattern: Pattern = Full(),
    rngs: nnx.Rngs,
  ):
    self.pattern = pattern
    with building(num_branches=2 if cross is None else 3):
      self.mixer = mixer(d_model, rngs=rngs)
      self.mixer_wiring = wiring(d_model, rngs=rngs)
      self.cross: Any = cross and cross(d_model, rngs=rngs)
      self.cross_wiring: Any = cross and wiring(d_model, rngs=rngs)
      self.feed_forward = feed_forward(d_model, rngs=rngs)
      self.feed_forward_wiring = wiring(d_model, rngs=rngs)

  @property
  def reads_context(self) -> bool:
    """Whether it has cross-attention."""
    return self.cross is not None

  @property
  def ends_with_norm(self) -> bool:
    """Whether its output is normalised."""
    return self.feed_forward_wiring.ends_with_norm

  def init_cache(self, batch: int, length: int, dtype: Any) -> dict[str, Any]:
    """An empty cache for `length` tokens; `cross` is filled by `cross_cache`."""
    return {'mixer': self.mixer.init_cache(batch, length, dtype)}

  def cross_cache(self, context: Context) -> dict[str, Any]:
    """Keys and values of the context, computed once for a whole generation."""
    return {} if self.cross is None else {'cross': self.cross.cross_cache(context)}

  def __call__(
    self,
    x: Float[Array, 'batch length d_model'],
    context: Context | None = None,
    *,
    pattern: Pattern,
    tokens: Tokens,
    encoding: PositionEncoding | None = None,
    cache: dict[str, Any] | None = None,
    key: Array | None = None,
    keep: Float[Array, 'batch 1 1'] | None = None,
  ) -> tuple[Float[Array, 'batch length d_model'], dict[str, Any] | None, Aux]:
    """Returns the new residual stream, the new cache and auxiliary losses [batch] by name.

    `keep` scales each branch by example (stochastic depth); `key` None means no dropout.

    Raises:
      UserError: cross-attention without a context, or a context without cross-attention.
    """
    old = cache or {}
    if self.reads_context and context is None and 'cross' not in old:
      raise UserError(
        'Block.cross attends to a source, and this model has none: leave Block.cross out, or bind it '
        'for the decoder of an EncoderDecoder only (decoder/Block.cross)'
      )
    if context is not None and not self.reads_context:
      raise UserError('a context is given to a Block without cross-attention: bind Block.cross')
    new = dict(old)

    def mix(h):
      return self.mixer(
        h,
        pattern=pattern & self.pattern,
        tokens=tokens,
        encoding=encoding,
        cache=old.get('mixer'),
        key=named_key(key, 'mixer'),
      )

    def cross(h):
      return self.cross(
        h,
        context,
        pattern=Full(),
        tokens=tokens,
        encoding=None,
        cache=old.get('cross'),
        key=named_key(key, 'cross'),
      )

    def feed(h):
      return self.feed_forward(h, named_key(key, 'feed_forward'))

    x, new['mixer'] = self.mixer_wiring(x, mix, named_key(key, 'mixer_wiring'), keep)
    if self.cross is not None:
      x, new['cross'] = self.cross_wiring(x, cross, named_key(key, 'cross_wiring'), keep)
    x, aux = self.feed_forward_wiring(x, feed, named_key(key, 'feed_forward_wiring'), keep)
    return x, None if cache is None else new, aux


class ParallelBlock(nnx.Module):
  """Mixer and feed-forward side by side: x + mixer(norm(x)) + feed_forward(norm(x)).

  GPT-J (https://github.com/kingoflolz/mesh-transformer-jax) and PaLM
  (https://arxiv.org/abs/2204.02311, section 2); the two share one norm.
  """

  reads_context = False
  ends_with_norm = False

  def __init__(
    self,
    d_model: int,
    *,
    mixer: Callable[..., Mixer] = MultiHeadAttention,
    feed_forward: Callable[..., FeedForward] = MLP,
    norm: Callable[..., Norm] = LayerNorm,
    dropout_rate: TunableRate = 0.0,
    pattern: Pattern = Full(),
    rngs: nnx.Rngs,
  ):
    self.pattern = pattern
    self.dropout_rate = dropout_rate
    with building(num_branches=2):
      self.norm = norm(d_model, rngs=rngs)
      self.mixer = mixer(d_model, rngs=rngs)
      self.feed_forward = feed_forward(d_model, rngs=rngs)

  def init_cache(self, batch: int, length: int, dtype: Any) -> dict[str, Any]:
    """An empty cache for `length` tokens."""
    return {'mixer': self.mixer.init_cache(batch, length, dtype)}

  def cross_cache(self, context: Context) -> dict[str, Any]:
    """Nothing: this block reads no context."""
    return {}

  def __call__(
    self,
    x: Float[Array, 'batch length d_model'],
    context: Context | None = None,
    *,
    pattern: Pattern,
    tokens: Tokens,
    encoding: PositionEncoding | None = None,
    cache: dict[str, Any] | None = None,
    key: Array | None = None,
    keep: Float[Array, 'batch 1 1'] | None = None,
  ) -> tuple[Float[Array, 'batch length d_model'], dict[str, Any] | None, Aux]:
    """As `Block`; a context is refused, since nothing here would read it."""
    if context is not None:
      raise UserError('ParallelBlock has no cross-attention: use Block in an encoder-decoder')
    h = self.norm(x)
    mixed, mixer_cache = self.mixer(
      h,
      pattern=pattern & self.pattern,
      tokens=tokens,
      encoding=encoding,
      cache=(cache or {}).get('mixer'),
      key=named_key(key, 'mixer'),
    )
    fed, aux = self.feed_forward(h, named_key(key, 'feed_forward'))
    branch = dropout(mixed + fed, self.dropout_rate, named_key(key, 'dropout'))
    if keep is not None:
      branch = branch * keep.astype(branch.dtype)
    return jnp.add(x, branch), None if cache is None else {'mixer': mixer_cache}, aux
