"""Calls of one part of a block, with and without a cache."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from t2x.layers import Cache, Call, Causal, Full, Slots, Tokens


def moved(module, scale=0.4, seed=1):
  """The module with noise added to its parameters: initial zeros and equal values would hide errors."""
  rng = np.random.default_rng(seed)
  return jax.tree.map(
    lambda leaf: leaf + jnp.asarray(scale * rng.normal(size=leaf.shape), leaf.dtype), module
  )


def double(leaf):
  """A parameter in float64."""
  return np.asarray(leaf[...], np.float64)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class State:
  """The cache of a part and the tokens in its slots."""

  cache: Cache
  slots: Slots


def empty(part, batch, num_slots, marks=('prefix',), **settings):
  """The state of a part before the first call."""
  return State(part.init_cache(batch, num_slots, **settings), Slots.empty(batch, num_slots, marks))


def applied(part, x, *, tokens=None, pattern=Full(), state=None, cache=None, **fields):
  """The output, and the new state or cache (None without one).

  Args:
    part: a sublayer or a block.
    x: its input.
    tokens: of x.
    pattern: who may see whom.
    state: what `empty` or an earlier call gave.
    cache: one that needs no slots.
    fields: further fields of `Call`.
  """
  tokens = Tokens.row(x.shape[1]) if tokens is None else tokens
  if state is None:
    result = part(x, Call(tokens, pattern, **fields), cache)
    return result.x, result.cache
  slots = state.slots.extend(tokens)
  result = part(x, Call(tokens, pattern, slots=slots, **fields), state.cache)
  return result.x, State(result.cache, slots)


def check_decoding(model):
  """Checks that a language model decodes a prompt and two tokens, with layers one by one, as it reads the rows."""
  ids = jnp.asarray([[1, 2, 3, 4, 5], [5, 3, 4, 2, 1]])
  decode = jax.jit(lambda model, *inputs: model.decode(*inputs))
  whole = jax.jit(lambda model: model(ids).x)(model)
  logits, cache = decode(model, ids[:, :3], Tokens.row(3), model.init_cache(2, 8))
  np.testing.assert_allclose(logits, whole[:, :3], rtol=1e-4, atol=2e-5)
  model, cache = model.unstacked(cache)
  for i in (3, 4):
    logits, cache = decode(model, ids[:, i : i + 1], Tokens(jnp.full((2, 1), i)), cache)
    np.testing.assert_allclose(logits[:, 0], whole[:, i], rtol=1e-4, atol=2e-5)


def gradient_bytes(part, width, length, pattern=Causal()):
  """Temporary memory of the compiled gradient of a call with one row."""

  def loss(x):
    return (applied(part, x, pattern=pattern)[0] ** 2).sum()

  compiled = jax.jit(jax.grad(loss)).lower(jnp.zeros((1, length, width))).compile()
  return compiled.memory_analysis().temp_size_in_bytes


def growth(parts, width, pattern):
  """Ratios of FLOPs and of temporary memory of the gradient of parts by length, from the compiled programs."""

  def loss(part, x):
    return (applied(part, x, pattern=pattern)[0] ** 2).sum()

  costs = []
  for length, part in parts.items():
    x = jax.ShapeDtypeStruct((1, length, width), jnp.float32)
    compiled = jax.jit(jax.grad(loss, (0, 1))).lower(part, x).compile()
    costs.append((compiled.cost_analysis()['flops'], compiled.memory_analysis().temp_size_in_bytes))
  return [after / before for before, after in zip(*costs, strict=True)]
