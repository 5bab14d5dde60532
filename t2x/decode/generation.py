"""The generation loop: one forward pass over the prompts, then one per token with the model's cache.

The model is a `DecodingModel`. If one of its attention patterns reads a prefix, the prefix is the prompt.
Sequences are limited to its `spec.max_length`.

The compiled function takes the model as an argument. It is recompiled for another batch size, padded
prompt width, limit, strategy or model structure, but not for other prompts, lengths, keys or weights.
Prompt widths are padded to 1, 2, 4, 8, 16, 32 and multiples of 32.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Int

from t2x.base.errors import UserError
from t2x.decode.sampling import Greedy
from t2x.decode.strategy import Generated, Request, Strategy
from t2x.layers import Tokens
from t2x.layers.dtypes import working_dtype
from t2x.layers.marks import Marks
from t2x.layers.patterns.algebra import mark_names
from t2x.models import DecodingModel
from t2x.parallel.placed import Placed, module_of, runs_model, spread_over, whole_rows

__all__ = ['generate']


def generate(
  model: DecodingModel | Placed,
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
  cache_dtype: DTypeLike | None = None,
  marks: Marks = Marks(),
  allowed: Bool[Array | np.ndarray, 'batch new ids'] | None = None,
  **cache_inputs: Any,
) -> Generated:
  """Continues each prompt until `eos_id` or its limit.

  Args:
    model: a language model or an encoder-decoder, whose source is passed in `cache_inputs`.
    prompts: token ids, padded on the right; for an encoder-decoder, the start token of the target.
    prompt_lengths: number of tokens of each prompt, at least 1.
    max_new_tokens: maximum number of generated tokens, including the end token.
    max_length: maximum number of tokens of prompt and continuation. At least one of the two limits is
      required; with both, the lower applies. The result is min(max_new_tokens, max_length - 1) wide.
    strategy: Greedy, Sampling, Beam or DiverseBeam.
    eos_id: the end token if `strategy.eos_ids` is empty; None: sequences end only at the limit.
    pad_id: fills the result after the end token.
    num_return: number of sequences per prompt.
    key: a `jax.random.key`, or one per prompt [batch]; the same key gives the same sequences.
    cache_dtype: dtype of keys and values in the cache; None: that in which the model computes.
    marks: marks of prompts and generated tokens, besides 'prefix', that patterns of the model read.
    allowed: ids that each step may choose, at least one, after all processors; not those beyond its width. None: all.
    cache_inputs: additional arguments of `init_cache` (an encoder-decoder's source), as arrays.

  Raises:
    UserError: invalid limits, lengths or counts, or `marks` lacks a mark that a pattern reads.
  """
  model = whole_rows(model)
  prompts, lengths = np.asarray(prompts), np.asarray(prompt_lengths)
  spec = module_of(model).spec
  limits = _limits(prompts, lengths, max_new_tokens, max_length, spec.max_length)
  _check(strategy, num_return, key, spec, marks)
  room = _room(max_new_tokens, max_length, allowed, len(prompts))
  prompts = _pad(prompts, pad_id, spec.max_length)
  spread, gather = spread_over(model, len(prompts))
  generated = _run(
    model,
    *(spread(np.asarray(array, np.int32)) for array in (prompts, lengths, limits)),
    _spread_keys(key, spread) if strategy.random else None,
    jax.tree.map(spread, cache_inputs),
    None if allowed is None else spread(np.asarray(allowed, bool)),
    max_new_tokens=room,
    strategy=strategy,
    num_return=num_return,
    eos_ids=tuple(strategy.eos_ids) or (() if eos_id is None else (eos_id,)),
    pad_id=pad_id,
    cache_dtype=cache_dtype,
    marks=marks,
  )
  return gather(generated)


def _spread_keys(key, spread):
  """Returns a key, or a key per prompt, whose rows are on the devices of the prompts."""
  return jax.random.wrap_key_data(spread(jax.random.key_data(key))) if key.shape else key


def _check(strategy, num_return, key, spec, marks):
  if num_return < 1:
    raise UserError(f'num_return = {num_return} must be at least 1')
  strategy.copies(num_return)
  if strategy.random and key is None:
    raise UserError(f'{strategy} is random: generate requires a key')
  _check_marks(spec, marks)


def _room(max_new_tokens, max_length, allowed, batch):
  """Returns the maximum number of generated tokens; a prompt has at least one token. Raises UserError."""
  room = min(n for n in (max_new_tokens, max_length and max_length - 1) if n is not None)
  if allowed is not None and (allowed.shape[:2] != (batch, room) or not allowed.any(-1).all()):
    raise UserError(
      f'allowed has shape {allowed.shape}: it must be ({batch}, {room}, ids), with at least one token for each step'
    )
  return room


def _check_marks(spec, marks):
  for pattern in spec.patterns:
    for name in mark_names(pattern):
      if name != 'prefix' and name not in marks.names:
        raise UserError(
          f"the pattern {pattern} reads the mark '{name}', which generation cannot compute: generate with the task "
          'whose `marks` set it, or use another pattern'
        )


def _limits(prompts, lengths, max_new_tokens, max_length, max_positions):
  """Returns the maximum number of generated tokens of each prompt. Raises UserError."""
  if len(lengths) == 0 or lengths.min() < 1 or lengths.max() > prompts.shape[1]:
    raise UserError(
      f'invalid prompt lengths {lengths.tolist()} for prompts of shape {prompts.shape}: at least one '
      'prompt is required, and lengths must be from 1 to the width of the prompts'
    )
  if max_new_tokens is None and max_length is None:
    raise UserError('generate requires max_new_tokens or max_length')
  if max_new_tokens is not None and max_new_tokens < 1:
    raise UserError(f'max_new_tokens = {max_new_tokens} must be at least 1')
  if max_length is not None and max_length <= lengths.max():
    raise UserError(
      f'max_length = {max_length} must be greater than the longest prompt, {lengths.max()} tokens'
    )
  by_length = np.full_like(lengths, max_new_tokens) if max_length is None else max_length - lengths
  limits = by_length if max_new_tokens is None else np.minimum(by_length, max_new_tokens)
  # The last generated token is not fed to the model, so it requires no position.
  longest = (lengths + limits).argmax()
  needed = int(lengths[longest] + limits[longest]) - 1
  if max_positions is not None and needed > max_positions:
    raise UserError(
      f'a prompt of {lengths[longest]} tokens and {limits[longest]} new tokens '
      f'require {needed} positions, the model has {max_positions}: '
      + ('decrease max_length' if max_length else 'shorten the prompt or decrease max_new_tokens')
    )
  return limits


def _pad(prompts, pad_id, max_positions):
  """Pads prompts to one of a few widths, to limit compilations."""
  width = prompts.shape[1]
  padded = 1 << (width - 1).bit_length() if width <= 32 else -(-width // 32) * 32
  padded = min(padded, max_positions or padded)
  added = max(padded - width, 0)
  return np.pad(prompts, ((0, 0), (0, added)), constant_values=pad_id)[:, :padded]


@functools.partial(
  jax.jit,
  static_argnames=(
    'max_new_tokens',
    'strategy',
    'num_return',
    'eos_ids',
    'pad_id',
    'cache_dtype',
    'marks',
  ),
)
@runs_model
def _run(
  model,
  prompts,
  lengths,
  limits,
  key,
  cache_inputs,
  allowed,
  *,
  max_new_tokens,
  strategy,
  num_return,
  eos_ids,
  pad_id,
  cache_dtype,
  marks,
):
  batch = len(prompts)
  copies = strategy.copies(num_return)
  settings = lengths, limits, key, num_return, max_new_tokens, eos_ids, pad_id, allowed
  request = Request(_right_aligned(prompts, lengths), *settings)
  dtype = working_dtype(model) if cache_dtype is None else cache_dtype
  cache = model.init_cache(batch, prompts.shape[1] + max_new_tokens, **cache_inputs, dtype=dtype)
  logits, cache = _prefill(model, prompts, lengths, cache, marks)
  # Avoids slicing stacked parameters and caches in the loop.
  model, cache = model.unstacked(cache)
  logits = jnp.broadcast_to(logits, (batch, copies, logits.shape[-1]))
  state, parents = strategy.advance(strategy.start(request), logits, jnp.int32(0), request)
  cache = _copied(cache, copies, prompts.shape[1] + copies * max_new_tokens, parents)
  # The token before the last one of each sequence, on which marks depend.
  before = jnp.repeat(jnp.take_along_axis(prompts, lengths[:, None] - 1, axis=1), copies, axis=1)

  def unfinished(carry):
    return (carry[0] < max_new_tokens) & jnp.any(carry[1].live)

  def one_token(carry):
    step, state, before, squeezed = carry
    # Finished sequences are fed too, at a position within their limit.
    position = lengths + jnp.minimum(step, limits - 1) - 1
    positions = jnp.repeat(position, copies)[:, None]
    last = state.last
    own = marks(last.reshape(-1, 1), before.reshape(-1, 1))
    tokens = Tokens(positions=positions, segments=jnp.ones_like(positions), marks=own)
    logits, extended = model.decode(last.reshape(-1, 1), tokens, _unsqueezed(squeezed, cache))
    logits = logits.reshape(batch, copies, -1)
    state, parents = strategy.advance(state, logits, step, request)
    before = last if parents is None else jnp.take_along_axis(last, parents, axis=1)
    return step + 1, state, before, _squeezed(_reorder(extended, parents))

  carry = jnp.int32(1), state, before, _squeezed(cache)
  _, state, *_ = jax.lax.while_loop(unfinished, one_token, carry)
  return strategy.finish(state, request)


def _right_aligned(prompts, lengths):
  """Moves the padding of prompts from the right to the left."""
  return jax.vmap(jnp.roll)(prompts, prompts.shape[1] - lengths)


def _prefill(model, prompts, lengths, cache, marks):
  """Returns logits [batch, 1, vocab] after each prompt, and the cache of the prompts.

  Padding occupies cache slots too, with segment 0.
  """
  segments = (jnp.arange(prompts.shape[1]) < lengths[:, None]).astype(jnp.int32)
  # The prompt is the prefix of a prefix language model.
  prefix = {'prefix': segments.astype(bool)} if model.spec.reads_prefix else {}
  own = prefix | marks.of_rows(prompts, segments)
  tokens = Tokens.row(prompts.shape[1], segments=segments, marks=own)
  return model.decode(prompts, tokens, cache, last=lengths - 1)


def _copied(cache, copies, num_slots, parents):
  """Returns the cache of `copies` sequences per row, which share `num_slots` slots if they are reordered."""
  if copies == 1:
    return cache
  shared = None if parents is None else cache.share(copies, num_slots)
  return cache.repeat(copies) if shared is None else shared


def _squeezed(cache):
  """Returns the arrays of the cache of one sequence without the dimension of the batch.

  XLA's CPU backend drops this dimension in attention products. A loop that carries it writes and copies each array
  twice per token, with the dimension and without.
  """

  def squeezed(array):
    return array.reshape(array.shape[1:]) if array.ndim > 2 and len(array) == 1 else array

  return jax.tree.map(squeezed, cache)


def _unsqueezed(squeezed, cache):
  """Returns arrays in the shapes of those of `cache`."""
  return jax.tree.map(lambda array, whole: array.reshape(whole.shape), squeezed, cache)


def _reorder(cache, parents):
  """Reorders the cache: each beam gets the cache of the beam that it extends."""
  if parents is None or parents.shape[1] == 1:
    return cache
  batch, copies = parents.shape
  return cache.take((jnp.arange(batch)[:, None] * copies + parents).reshape(-1))
