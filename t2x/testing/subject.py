"""A part with random parameters and inputs, whose contracts are checked."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array

from t2x.base.errors import UserError
from t2x.layers import (
  Cache,
  Call,
  Causal,
  Full,
  Pattern,
  PositionEncoding,
  Result,
  Slots,
  SourceSequence,
  Sublayer,
  Tokens,
)
from t2x.layers.composites import initial_extras
from t2x.layers.keys import row_keys
from t2x.layers.positions.encoding import held_features

BATCH = 4
PROMPTS = np.asarray([2, 4, 3, 4])  # tokens per prompt
# Relative tolerance between two equivalent computations in float32.
TOLERANCE = 2e-5
# Gradients below this share of the largest gradient of a part are compared with this share.
SMALL = 0.01


class ContractViolation(AssertionError):
  """A part violates a contract."""


def perturbed(module: object, seed: int = 1, scale: float = 0.3) -> Any:
  """Returns the module with noise N(0, scale) added to its parameters, as initial zeros hide errors."""
  rng = np.random.default_rng(seed)
  return jax.tree.map(
    lambda leaf: leaf + jnp.asarray(scale * rng.normal(size=leaf.shape), leaf.dtype), module
  )


class Subject:
  """A part with random parameters and inputs.

  Args:
    build: builds the part: `build(d_model, rngs=rngs)`.
    d_model: width of the input.
    encoding: builds a position encoding for the layers: `encoding(d_model, rngs=rngs)`; None: no positions.
    grid: grid that the tokens of a row fill; None: a row of text.
  """

  def __init__(
    self,
    build: Callable[..., Sublayer],
    d_model: int = 16,
    encoding: Callable[..., PositionEncoding] | None = None,
    grid: tuple[int, ...] | None = None,
  ):
    self.build = build
    self.grid = grid
    self.d_model = d_model
    self.part: Sublayer = perturbed(build(d_model, rngs=nnx.Rngs(0)))
    self.encoding = encoding and perturbed(encoding(d_model, rngs=nnx.Rngs(2)), 3)
    longest = 12 if grid is None else math.prod(grid)
    self.length = min(longest, self.part.max_length or longest)
    rng = np.random.default_rng(4)
    self.x = jnp.asarray(rng.normal(size=(BATCH, self.length, d_model)), jnp.float32)
    self.source: SourceSequence | None = None
    if 'source' in self.part.reads:
      x = jnp.asarray(rng.normal(size=(BATCH, 7, d_model)), jnp.float32)
      self.source = SourceSequence(x, Tokens.row(7), inputs=jnp.roll(x, 1, axis=0))
    try:
      jax.eval_shape(lambda x: apply(self.part, x, self.call(pattern=Full())).x, self.x)
      self.pattern: Pattern = Full()
    except UserError:
      self.pattern = Causal()

  @property
  def mixes(self) -> bool:
    """Whether the part reads a pattern, as parts that mix tokens must."""
    return 'pattern' in self.part.reads

  def call(
    self,
    tokens: Tokens | None = None,
    pattern: Pattern | None = None,
    length: int | None = None,
    **fields: Any,
  ) -> Call:
    """Returns a call with the encoding, if the part reads it, and Full(), or Causal() if Full() is refused."""
    encoding = self.encoding if 'encoding' in self.part.reads else None
    # A part of a row has no grid.
    grid = self.grid if length in (None, self.length) else None
    row = Tokens.row(length or self.length, grid=grid) if tokens is None else tokens
    call = Call(row, pattern or self.pattern, encoding, self.source)
    return dataclasses.replace(call, **fields)

  def source_of(self, function: Callable[[Array], Array]) -> SourceSequence | None:
    """Returns the source with a function applied to its vectors and inputs; None for a part that reads none."""
    if self.source is None:
      return None
    x, inputs = function(self.source.x), function(self.source.inputs)  # type: ignore[arg-type]
    return SourceSequence(x, Tokens.row(x.shape[1]), inputs=inputs)

  def packed_sources(self) -> tuple[SourceSequence | None, list[SourceSequence | None]]:
    """Returns the source as that of two examples, of 4 and 3 tokens, in each row, and those of the examples."""
    pieces = [self.source_of(lambda a: a[:, :4]), self.source_of(lambda a: a[:, 4:7])]
    if self.source is None:
      return None, pieces
    packed = Tokens(jnp.arange(7)[None], jnp.asarray([[1] * 4 + [2] * 3]))
    return dataclasses.replace(self.source, tokens=packed), pieces

  def training_call(self, rows: slice = slice(None)) -> Call:
    """Returns the call of a train step, with random keys, for some rows of the batch."""
    source, key = self.source_of(lambda a: a[rows]), row_keys(jax.random.key(7), BATCH)[rows]
    return self.call(key=key, step=jnp.int32(7), source=source)

  def init_cache(self, num_slots: int, part: Any = None) -> Cache | None:
    """Returns an empty cache of the part, or of another with the same settings."""
    part = self.part if part is None else part
    held = held_features(part, self.encoding if 'encoding' in part.reads else None)
    return part.init_cache(BATCH, num_slots, jnp.float32, self.source, **held)

  def __call__(
    self, x: Array | None = None, call: Call | None = None, cache: object = None
  ) -> Result:
    """Returns the result of the compiled part."""
    x = self.x if x is None else x
    return compiled(self.part, x, self.call(length=x.shape[1]) if call is None else call, cache)


def apply(part: Any, x: Array, call: Call, cache: Any = None) -> Result:
  """Calls a part with the initial extras, as in the first layer of a stack."""
  return part(x, dataclasses.replace(call, extras=initial_extras([part], x)), cache)


compiled = jax.jit(apply)


def value_and_gradients(part: object, x: Array, call: Call) -> tuple[Array, Any]:
  """Returns the output, and the gradients of a loss with respect to the parameters and the input."""

  def loss(part, x):
    result = apply(part, x, call)
    auxiliary = sum(map(jnp.mean, result.aux.losses.values()))
    return jnp.square(result.x).mean() + auxiliary, result.x

  (_, y), gradients = jax.value_and_grad(loss, (0, 1), has_aux=True)(part, x)
  return y, gradients


def same(
  actual: object, expected: object, what: str, tolerance: float = TOLERANCE, floor: float = 0.0
) -> None:
  """Raises ContractViolation if arrays differ by more than the tolerance times the largest expected value.

  Args:
    actual: an array.
    expected: an array.
    what: what is compared, for the message.
    tolerance: the largest relative difference.
    floor: lower bound of the value that differences are relative to.
  """
  actual, expected = (np.asarray(a, np.float64) for a in (actual, expected))
  scale = max(np.abs(expected).max(initial=0.0), floor)
  difference = np.abs(actual - expected).max(initial=0.0)
  if not difference <= tolerance * scale:
    raise ContractViolation(
      f'{what}: the largest difference is {difference:.2g}, the largest value {scale:.2g}'
    )


def same_gradients(actual: object, expected: object, what: str, tolerance: float) -> None:
  """Compares trees of gradients as `same` does; tolerances of nearly zero ones are relative to the largest."""
  floor = SMALL * max(float(jnp.abs(leaf).max()) for leaf in jax.tree.leaves(expected))
  pairs = zip(jax.tree.leaves(actual), jax.tree.leaves_with_path(expected), strict=True)
  for leaf, (path, other) in pairs:
    name = jax.tree_util.keystr(path)
    same(leaf, other, f'the gradient of {name}, {what}', tolerance, floor)


def cached_prompts(subject: Subject, added: int) -> tuple[Cache | None, Slots]:
  """Returns the cache of right-padded prompts of `PROMPTS` tokens, with `added` free slots."""
  width = int(PROMPTS.max())
  cache = subject.init_cache(width + added)
  segments = jnp.asarray(np.arange(width) < PROMPTS[:, None], jnp.int32)
  tokens = Tokens(jnp.broadcast_to(jnp.arange(width), segments.shape), segments)
  slots = Slots.empty(BATCH, width + added).extend(tokens)
  call = subject.call(tokens, Causal(), slots=slots)
  return cast(Cache | None, subject(subject.x[:, :width], call, cache).cache), slots


def next_token(
  subject: Subject, x: Array | np.ndarray, positions: np.ndarray, cache: Cache | None, slots: Slots
) -> tuple[Array, Cache | None, Slots]:
  """Returns the outputs [batch, d_model] for one more token `x` of each row, the new cache and slots."""
  tokens = Tokens(jnp.asarray(positions)[:, None], jnp.ones((len(x), 1), jnp.int32))
  slots = slots.extend(tokens)
  call = subject.call(tokens, Causal(), slots=slots)
  result = subject(jnp.asarray(x)[:, None], call, cache)
  return result.x[:, 0], cast(Cache | None, result.cache), slots
