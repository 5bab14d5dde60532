"""The generation loop: prompts in one pass, then a token per step from the model's cache.

The model is a `DecodingModel`: a prefix that one of its attention patterns reads is the prompt, and no
sequence is longer than its `spec.max_length`.

It is an argument of the compiled function. That is compiled again for another batch size, padded
prompt width, limit, strategy or model structure; not for other prompts, lengths, keys or weights.
Prompt widths are padded to 1, 2, 4, 8, 16, 32 and multiples of 32.
"""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec
from jaxtyping import Array, Int

from t2x.decode.sampling import Greedy
from t2x.decode.strategy import Generated, Request, Strategy
from t2x.errors import UserError
from t2x.layers import Tokens
from t2x.models import DecodingModel


def generate(
  model: DecodingModel,
  prompts: Int[Array | np.ndarray, 'batch prompt'],
  prompt_lengths: Int[Array | np.ndarray, ' batch'],
  *,
  max_new_tokens: int | None = None,
  max_length: int | None = None,
  strategy: Strategy = Greedy(),
  eos_id: int | None,
  pad_id: int,
  num_return: int = 1,
  key: Array | None = None,
  cache_dtype: Any = None,
  **cache_inputs: Any,
) -> Generated:
  """Continues each prompt until `eos_id` or its limit.

  Args:
    model: a language model or an encoder-decoder, which gets its source through `cache_inputs`.
    prompts: ids, padded on the right; for an encoder-decoder the token that starts a target.
    prompt_lengths: tokens of each prompt, at least 1.
    max_new_tokens: the most tokens to generate, the end token included.
    max_length: the most tokens of prompt and continuation together. With both, the first to be
      reached ends a sequence; one of them must be given. The result has room for
      min(max_new_tokens, max_length - 1) tokens.
    strategy: Greedy, Sampling or Beam.
    eos_id: the token that ends a sequence, where `strategy.eos_ids` names none; None: only the limit.
    pad_id: what fills a result behind its end.
    num_return: sequences for each prompt.
    key: a `jax.random.key`; the same key gives the same sequences.
    cache_dtype: handed to `init_cache` as `dtype` when it is not None.
    cache_inputs: further arguments of `init_cache` (an encoder-decoder's source), as arrays.

  Raises:
    UserError: limits, lengths or counts that cannot be met.
  """
  prompts, lengths = np.asarray(prompts), np.asarray(prompt_lengths)
  known_positions = model.spec.max_length
  limits = _limits(prompts, lengths, max_new_tokens, max_length, known_positions)
  _check(strategy, num_return, key)
  prompts = _pad(prompts, pad_id, known_positions)
  spread, gathered = spread_over(model, len(prompts))
  # Every prompt has a token, so `max_length` leaves room for one less.
  room = min(n for n in (max_new_tokens, max_length and max_length - 1) if n is not None)
  generated = _run(
    model,
    spread(np.asarray(prompts, np.int32)),
    spread(np.asarray(lengths, np.int32)),
    spread(np.asarray(limits, np.int32)),
    key if strategy.random else None,
    jax.tree.map(spread, cache_inputs),
    num_slots=prompts.shape[1] + room,
    max_new_tokens=room,
    strategy=strategy,
    num_return=num_return,
    eos_ids=tuple(strategy.eos_ids) or (() if eos_id is None else (eos_id,)),
    pad_id=pad_id,
    cache_dtype=cache_dtype,
  )
  return gathered(generated)


def _check(strategy, num_return, key):
  if num_return < 1:
    raise UserError(f'num_return = {num_return} is below 1')
  strategy.copies(num_return)
  if strategy.random and key is None:
    raise UserError(f'{strategy} draws at random: generate needs a key')


def _limits(prompts, lengths, max_new_tokens, max_length, known_positions):
  """The most tokens to generate for each prompt, or an error that says what does not fit."""
  if len(lengths) == 0 or lengths.min() < 1 or lengths.max() > prompts.shape[1]:
    raise UserError(
      f'prompt lengths {lengths.tolist()} of prompts {prompts.shape}: there must be at least one '
      'prompt, and each has at least one token and no more than its row'
    )
  if max_new_tokens is None and max_length is None:
    raise UserError('generate needs max_new_tokens or max_length')
  if max_new_tokens is not None and max_new_tokens < 1:
    raise UserError(f'max_new_tokens = {max_new_tokens} is below 1')
  if max_length is not None and max_length <= lengths.max():
    raise UserError(
      f'max_length = {max_length} leaves no room behind a prompt of {lengths.max()} tokens'
    )
  by_length = np.full_like(lengths, max_new_tokens) if max_length is None else max_length - lengths
  limits = by_length if max_new_tokens is None else np.minimum(by_length, max_new_tokens)
  # The last token generated is never fed, so it needs no position.
  needed = int((lengths + limits).max()) - 1
  if known_positions is not None and needed > known_positions:
    raise UserError(
      f'a prompt of {lengths[(lengths + limits).argmax()]} tokens and {limits.max()} new ones need '
      f'{needed} positions, and the model knows {known_positions}: shorten the prompt or '
      f'max_new_tokens'
    )
  return limits


def spread_over(model, batch):
  """Two functions: to where the model is, and back.

  The first puts arrays [batch, ...], the same on every process, on the model's mesh: rows are
  spread over the axes that split batches, where they divide; else every device works on all of
  them. The second gives every process the whole of arrays of which it holds a part.
  """
  mesh = next((leaf.sharding.mesh for leaf in jax.tree.leaves(model) if _has_mesh(leaf)), None)
  if mesh is None:
    return jnp.asarray, lambda arrays: arrays
  axes = [axis for axis in ('data', 'fsdp') if axis in mesh.shape]
  divides = batch % math.prod(mesh.shape[axis] for axis in axes) == 0
  whole = NamedSharding(mesh, PartitionSpec())
  by_row = NamedSharding(mesh, PartitionSpec(tuple(axes))) if divides else whole

  def spread(array):
    array = np.asarray(array)
    # Token metadata that is the same for all rows has a batch of 1.
    sharding = by_row if len(array) == batch else whole
    return jax.make_array_from_callback(array.shape, sharding, lambda index: array[index])

  def gathered(arrays):
    if all(leaf.is_fully_addressable for leaf in jax.tree.leaves(arrays)):
      return arrays
    return jax.jit(lambda x: x, out_shardings=whole)(arrays)

  return spread, gathered


def _has_mesh(leaf):
  return isinstance(getattr(leaf, 'sharding', None), NamedSharding)


def _pad(prompts, pad_id, known_positions):
  """Prompts padded to one of few widths, so that few are compiled for."""
  width = prompts.shape[1]
  padded = 1 << (width - 1).bit_length() if width <= 32 else -(-width // 32) * 32
  padded = min(padded, known_positions or padded)
  added = max(padded - width, 0)
  return np.pad(prompts, ((0, 0), (0, added)), constant_values=pad_id)[:, :padded]


@functools.partial(
  jax.jit,
  static_argnames=(
    'num_slots',
    'max_new_tokens',
    'strategy',
    'num_return',
    'eos_ids',
    'pad_id',
    'cache_dtype',
  ),
)
def _run(
  model,
  prompts,
  lengths,
  limits,
  key,
  cache_inputs,
  *,
  num_slots,
  max_new_tokens,
  strategy,
  num_return,
  eos_ids,
  pad_id,
  cache_dtype,
):
  batch = len(prompts)
  copies = strategy.copies(num_return)
  request = Request(
    _right_aligned(prompts, lengths),
    lengths,
    limits,
    key,
    num_return,
    max_new_tokens,
    eos_ids,
    pad_id,
  )
  dtype = {} if cache_dtype is None else {'dtype': cache_dtype}
  cache = model.init_cache(batch, num_slots, **cache_inputs, **dtype)
  logits, cache = _prefill(model, prompts, lengths, cache)
  # The loop slices neither stacked parameters nor stacked caches.
  model, cache = model.unstacked(cache)
  cache = cache.repeat(copies) if copies > 1 else cache
  logits = jnp.broadcast_to(logits, (batch, copies, logits.shape[-1]))
  state, _ = strategy.advance(strategy.start(request), logits, jnp.int32(0), request)

  def unfinished(carry):
    step, state, _ = carry
    return (step < max_new_tokens) & jnp.any(state.live)

  def one_token(carry):
    step, state, cache = carry
    # Sequences that are done are fed too, at a position that stays within their limit.
    position = lengths + jnp.minimum(step, limits - 1) - 1
    positions = jnp.repeat(position, copies)[:, None]
    tokens = Tokens(positions=positions, segments=jnp.ones_like(positions))
    logits, cache = model.decode(state.last.reshape(-1, 1), tokens, cache)
    logits = logits.reshape(batch, copies, -1)
    state, parents = strategy.advance(state, logits, step, request)
    return step + 1, state, _follow(cache, parents)

  _, state, _ = jax.lax.while_loop(unfinished, one_token, (jnp.int32(1), state, cache))
  return strategy.finish(state, request)


def _right_aligned(prompts, lengths):
  """Prompts with their padding before them."""
  return jax.vmap(jnp.roll)(prompts, prompts.shape[1] - lengths)


def _prefill(model, prompts, lengths, cache):
  """Logits [batch, 1, vocab] behind each prompt, and the cache that holds the prompts.

  Padding takes slots too, as padding (segment 0).
  """
  segments = (jnp.arange(prompts.shape[1]) < lengths[:, None]).astype(jnp.int32)
  # The prompt is the prefix of a prefix language model.
  has_prefix = any('marks.prefix' in pattern.reads for pattern in model.spec.patterns)
  marks = {'prefix': segments.astype(bool)} if has_prefix else {}
  tokens = Tokens.row(prompts.shape[1], segments=segments, marks=marks)
  return model.decode(prompts, tokens, cache, last=lengths - 1)


def _follow(cache, parents):
  """The cache of each sequence's parent: beams that go on take theirs along."""
  if parents is None:
    return cache
  batch, copies = parents.shape
  return cache.take((jnp.arange(batch)[:, None] * copies + parents).reshape(-1))
