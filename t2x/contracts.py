"""Checks of the interface contracts of a block's parts, for `t2x test-part` and tests.

A part may raise UserError for inputs that it does not support. For all others it must fulfil the contracts.
"""

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array

from t2x.errors import UserError
from t2x.layers import (
  Cache,
  Call,
  Causal,
  Full,
  Pattern,
  PositionEncoding,
  Result,
  RoPE,
  Slots,
  Source,
  Sublayer,
  Tokens,
)
from t2x.layers.cache import SharedSlots
from t2x.layers.constraints import use_layout
from t2x.models.block import initial_extras
from t2x.parallel import Activations, Mesh, batch_sharding, state_shardings
from t2x.train.params import Blueprint

BATCH = 4
PROMPTS = np.asarray([2, 4, 3, 4])  # tokens per prompt
# Absolute and relative tolerance between two equivalent computations in float32.
TOLERANCE = 2e-5


class ContractViolation(AssertionError):
  """A part violates a contract."""


@dataclasses.dataclass(frozen=True)
class Outcome:
  """The outcome of checking one contract.

  Attributes:
    contract: name of the contract.
    status: 'passed', 'refused' (the part raised UserError), 'failed' or 'not applicable'.
    detail: the error message, or the difference between the results.
  """

  contract: str
  status: str
  detail: str = ''


def perturbed(module: Any, seed: int = 1, scale: float = 0.3) -> Any:
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
  """

  def __init__(
    self,
    build: Callable[..., Sublayer],
    d_model: int = 16,
    encoding: Callable[..., PositionEncoding] | None = None,
  ):
    self.build = build
    self.d_model = d_model
    self.part: Sublayer = perturbed(build(d_model, rngs=nnx.Rngs(0)))
    self.encoding = encoding and perturbed(encoding(d_model, rngs=nnx.Rngs(2)), 3)
    self.length = min(12, self.part.max_length or 12)
    rng = np.random.default_rng(4)
    self.x = jnp.asarray(rng.normal(size=(BATCH, self.length, d_model)), jnp.float32)
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
    """Returns a call with the encoding, if the part reads it, and by default Full(), or Causal() if it refuses Full()."""
    encoding = self.encoding if 'encoding' in self.part.reads else None
    row = Tokens.row(length or self.length) if tokens is None else tokens
    return dataclasses.replace(Call(row, pattern or self.pattern, encoding), **fields)

  def __call__(self, x: Array | None = None, call: Call | None = None, cache: Any = None) -> Result:
    """Returns the result of the compiled part."""
    x = self.x if x is None else x
    return _compiled(self.part, x, self.call(length=x.shape[1]) if call is None else call, cache)


def apply(part: Any, x: Array, call: Call, cache: Any = None) -> Result:
  """Calls a part with the initial extras, as in the first layer of a stack."""
  return part(x, dataclasses.replace(call, extras=initial_extras([part], x)), cache)


_compiled = jax.jit(apply)


def _same(actual: Any, expected: Any, what: str, tolerance: float = TOLERANCE) -> None:
  """Raises ContractViolation if arrays differ by more than the tolerance times the largest expected value."""
  actual, expected = (np.asarray(a, np.float64) for a in (actual, expected))
  scale = max(np.abs(expected).max(initial=0.0), 1.0)
  difference = np.abs(actual - expected).max(initial=0.0)
  if not difference <= tolerance * scale:
    raise ContractViolation(f'{what}: the largest difference is {difference:.2g}')


def rows_are_independent(subject: Subject) -> None:
  """Checks that a change of one row changes no other row, so that accumulation and sharding are exact."""
  result = subject()
  changed = subject(subject.x.at[0].add(1.0))
  _same(changed.x[1:], result.x[1:], 'other rows after a change of the first row')
  halves = [subject(subject.x[rows]) for rows in (slice(0, 2), slice(2, None))]
  for name, values in result.aux.losses.items():
    if values.shape != (BATCH,):
      raise ContractViolation(
        f"the auxiliary loss '{name}' has shape {values.shape}, must be ({BATCH},)"
      )
    parts = [half.aux.losses[name] for half in halves]
    _same(jnp.concatenate(parts), values, f"the auxiliary loss '{name}' of two halves of the batch")
  for name, pair in result.aux.metrics.items():
    for index, which in enumerate(('sum', 'weight')):
      total = sum(half.aux.metrics[name][index] for half in halves)
      _same(total, pair[index], f"the {which} of the metric '{name}' over two halves of the batch")


def outputs_ignore_later_tokens(subject: Subject) -> None:
  """Checks that, under Causal(), a change of a token changes no earlier output."""
  call, place = subject.call(pattern=Causal()), subject.length // 2
  changed = subject(subject.x.at[:, place].add(1.0), call).x
  _same(changed[:, :place], subject(call=call).x[:, :place], 'outputs before the changed token')


def tokens_are_independent(subject: Subject) -> None:
  """Checks that a part that reads no pattern computes each token only from this token."""
  place = subject.length // 2
  changed, expected = subject(subject.x.at[:, place].add(1.0)).x, subject().x
  for side in (slice(0, place), slice(place + 1, None)):
    _same(changed[:, side], expected[:, side], "other tokens (should 'reads' include 'pattern'?)")


def padding_is_not_read(subject: Subject) -> None:
  """Checks that outputs of real tokens do not depend on the vectors or the presence of padding."""
  count = subject.length - 3
  segments = jnp.broadcast_to(jnp.arange(subject.length) < count, subject.x.shape[:2])
  call = subject.call(Tokens.row(subject.length, segments=segments.astype(jnp.int32)))
  padded = subject(call=call).x[:, :count]
  _same(
    subject(subject.x.at[:, count:].add(3.0), call).x[:, :count],
    padded,
    'outputs after a change of padding',
  )
  _same(padded, subject(subject.x[:, :count]).x, 'a row with padding against one without')


def packed_rows_equal_separate_rows(subject: Subject) -> None:
  """Checks that packed examples equal the same examples in separate rows, under each supported pattern."""
  first = subject.length // 2
  rest = subject.length - first
  positions = jnp.concatenate([jnp.arange(first), jnp.arange(rest)])[None]
  segments = jnp.repeat(
    jnp.asarray([1, 2]), jnp.asarray([first, rest]), total_repeat_length=first + rest
  )
  tokens = Tokens(positions, segments[None])
  for pattern in {subject.pattern, Causal()}:
    packed = subject(call=subject.call(tokens, pattern)).x
    for part in (slice(0, first), slice(first, None)):
      x = subject.x[:, part]
      separate = subject(x, subject.call(pattern=pattern, length=x.shape[1])).x
      _same(packed[:, part], separate, f'a packed row against separate rows under {pattern}')


def decoding_equals_the_forward_pass(subject: Subject) -> None:
  """Checks that decoding token by token with a cache equals the forward pass of the full row."""
  expected = subject(call=subject.call(pattern=Causal())).x
  cache = subject.part.init_cache(BATCH, subject.length + 2, jnp.float32)
  slots = Slots.empty(BATCH, subject.length + 2)
  half = subject.length // 2
  for start, stop in ((0, half), *((i, i + 1) for i in range(half, subject.length))):
    positions = jnp.broadcast_to(jnp.arange(start, stop), (BATCH, stop - start))
    tokens = Tokens(positions, jnp.ones_like(positions))
    slots = slots.extend(tokens)
    call = subject.call(tokens, Causal(), slots=slots)
    result = subject(subject.x[:, start:stop], call, cache)
    cache = result.cache
    _same(result.x, expected[:, start:stop], f'tokens {start} to {stop - 1} with a cache')


def prompts_of_different_lengths_decode(subject: Subject) -> None:
  """Checks that right-padded prompts decode as separate ones."""
  expected = subject(call=subject.call(pattern=Causal())).x
  cache, slots = _cached_prompts(subject, 2)
  last = np.arange(BATCH), PROMPTS
  step, *_ = _next_token(subject, subject.x[last], PROMPTS, cache, slots)
  _same(step, expected[last], 'the first token after each prompt')


def copies_follow_their_parents(subject: Subject) -> None:
  """Checks that sequences that replace others of their row, as in beam search, decode as separate rows,
  with a row of slots per sequence and, if the cache supports it, with shared slots."""
  copies, steps, width = 3, 3, int(PROMPTS.max())
  rng = np.random.default_rng(5)
  added = rng.normal(size=(steps, BATCH * copies, subject.d_model)).astype(np.float32)
  parents = np.asarray([[1, 2, 0], [0, 0, 1], [2, 2, 2], [0, 1, 2]])
  taken = jnp.asarray((np.arange(BATCH)[:, None] * copies + parents).reshape(-1))
  cache, slots = _cached_prompts(subject, copies * steps)
  states = {'a row of slots per copy': (cache and cache.repeat(copies), slots.repeat(copies))}
  shared = cache and cache.share(copies, width + copies * steps)
  if shared is not None:
    states['shared slots'] = shared, SharedSlots.of(slots, copies, width + copies * steps)
  for name, (cache, slots) in states.items():
    rows = np.pad(np.repeat(subject.x[:, :width], copies, axis=0), ((0, 0), (0, steps), (0, 0)))
    for step, x in enumerate(added):
      positions = np.repeat(PROMPTS, copies) + step
      rows[np.arange(len(rows)), positions] = x
      y, cache, slots = _next_token(subject, x, positions, cache, slots)
      call = subject.call(pattern=Causal(), length=rows.shape[1])
      expected = subject(jnp.asarray(rows), call).x[np.arange(len(rows)), positions]
      _same(y, expected, f'token {step} of each copy, with {name}')
      cache, slots, rows = cache and cache.take(taken), slots.take(taken), rows[taken]


def _cached_prompts(subject: Subject, added: int) -> tuple[Cache | None, Slots]:
  """Returns the cache of right-padded prompts of `PROMPTS` tokens, with `added` free slots."""
  width = int(PROMPTS.max())
  cache = subject.part.init_cache(BATCH, width + added, jnp.float32)
  segments = jnp.asarray(np.arange(width) < PROMPTS[:, None], jnp.int32)
  tokens = Tokens(jnp.broadcast_to(jnp.arange(width), segments.shape), segments)
  slots = Slots.empty(BATCH, width + added).extend(tokens)
  call = subject.call(tokens, Causal(), slots=slots)
  return subject(subject.x[:, :width], call, cache).cache, slots


def _next_token(
  subject: Subject, x: Any, positions: np.ndarray, cache: Cache | None, slots: Slots
) -> tuple[Array, Cache | None, Slots]:
  """Returns the outputs [batch, d_model] for one more token `x` of each row, the new cache and slots."""
  tokens = Tokens(jnp.asarray(positions)[:, None], jnp.ones((len(x), 1), jnp.int32))
  slots = slots.extend(tokens)
  call = subject.call(tokens, Causal(), slots=slots)
  result = subject(jnp.asarray(x)[:, None], call, cache)
  return result.x[:, 0], result.cache, slots


def gradients_are_finite(subject: Subject) -> None:
  """Checks that gradients of the parameters and the input are finite, also for rows with padding."""
  segments = jnp.broadcast_to(jnp.arange(subject.length) < subject.length - 3, subject.x.shape[:2])
  padded = Tokens.row(subject.length, segments=segments.astype(jnp.int32))
  for tokens in (None, padded):
    call = subject.call(tokens)

    def loss(part, x, call=call):
      result = apply(part, x, call)
      return jnp.square(result.x).mean() + sum(map(jnp.mean, result.aux.losses.values()))

    gradients = jax.jit(jax.grad(loss, (0, 1)))(subject.part, subject.x)
    for path, gradient in jax.tree.leaves_with_path(gradients):
      if not jnp.isfinite(gradient).all():
        raise ContractViolation(f'the gradient of {jax.tree_util.keystr(path)} is not finite')


def bfloat16_is_close(subject: Subject) -> None:
  """Checks that the output in bfloat16 has this dtype and is close to the output in float32."""
  exact = subject().x

  def rounded(leaf):
    return (
      leaf.astype(jnp.bfloat16) if jnp.issubdtype(jnp.result_type(leaf), jnp.floating) else leaf
    )

  part = jax.tree.map(rounded, subject.part)
  call = jax.tree.map(rounded, subject.call())
  result = _compiled(part, subject.x.astype(jnp.bfloat16), call)
  if result.x.dtype != jnp.bfloat16:
    raise ContractViolation(
      f'the output for a bfloat16 input is {result.x.dtype}, must be bfloat16'
    )
  _same(result.x, exact, 'bfloat16 against float32', 0.06)


def undeclared_inputs_are_not_read(subject: Subject) -> None:
  """Checks that inputs that `reads` does not name have no effect or raise UserError."""
  undeclared = {
    'pattern': subject.call(pattern=Causal()),
    'encoding': subject.call(encoding=RoPE(subject.d_model, rngs=nnx.Rngs(0))),
    'source': subject.call(source=Source(2.0 * subject.x, Tokens.row(subject.length))),
  }
  for name, call in undeclared.items():
    if name not in subject.part.reads:
      try:
        result = subject(call=call)
      except UserError:
        continue
      _same(
        result.x, subject().x, f"outputs after a change of '{name}', which 'reads' does not name"
      )


def rematerialisation_changes_nothing(subject: Subject) -> None:
  """Checks that rematerialisation changes neither values nor gradients, with dropout."""
  call = subject.call(key=jax.random.key(7), step=jnp.int32(7))

  def output(part, x):
    return apply(part, x, call).x

  results = []
  for function in (output, jax.checkpoint(output)):
    loss = jax.value_and_grad(lambda part, f=function: jnp.square(f(part, subject.x)).mean())
    results.append(jax.tree.leaves(jax.jit(loss)(subject.part)))
  for expected, actual in zip(*results, strict=True):
    _same(actual, expected, 'with rematerialisation', 1e-4)


def devices_change_nothing(subject: Subject) -> None:
  """Checks that a mesh of all devices of this process computes the output of a single device."""
  for settings in (Mesh(), Mesh(data=-1) if len(jax.devices()) % 2 else Mesh(data=-1, tensor=2)):
    mesh = settings.build()
    infos = Blueprint(jax.eval_shape(lambda: subject.part)).infos
    shardings = state_shardings(mesh, settings.rules, infos, subject.part)
    part = jax.device_put(subject.part, shardings)
    x = jax.device_put(jnp.tile(subject.x, (len(jax.devices()), 1, 1)), batch_sharding(mesh))
    layout = Activations.of(mesh, settings)

    def split(part, x, call, layout=layout):
      with use_layout(layout):
        return apply(part, x, call).x

    y = jax.jit(split)(part, x, subject.call())
    _same(y[:BATCH], subject().x, f'on {len(jax.devices())} devices')


# Name -> check, and predicate of the parts that it applies to.
CONTRACTS: dict[str, tuple[Callable[[Subject], None], Callable[[Subject], bool]]] = {
  'rows are independent': (rows_are_independent, lambda subject: True),
  'tokens are independent': (tokens_are_independent, lambda subject: not subject.mixes),
  'outputs ignore later tokens': (outputs_ignore_later_tokens, lambda subject: subject.mixes),
  'padding is not read': (padding_is_not_read, lambda subject: True),
  'packed rows equal separate rows': (packed_rows_equal_separate_rows, lambda subject: True),
  'decoding equals the forward pass': (decoding_equals_the_forward_pass, lambda subject: True),
  'prompts of different lengths decode': (
    prompts_of_different_lengths_decode,
    lambda subject: subject.length >= 5,
  ),
  'copies follow their parents': (
    copies_follow_their_parents,
    lambda subject: subject.length >= 7,
  ),
  'gradients are finite': (gradients_are_finite, lambda subject: True),
  'bfloat16 is close': (bfloat16_is_close, lambda subject: True),
  'undeclared inputs are not read': (undeclared_inputs_are_not_read, lambda subject: True),
  'rematerialisation changes nothing': (rematerialisation_changes_nothing, lambda subject: True),
  'devices change nothing': (devices_change_nothing, lambda subject: len(jax.devices()) > 1),
}


def check_part(subject: Subject) -> Iterator[Outcome]:
  """Checks all contracts that apply to a part."""
  for name, (check, applies) in CONTRACTS.items():
    if not applies(subject):
      yield Outcome(name, 'not applicable')
      continue
    try:
      check(subject)
    except ContractViolation as error:
      yield Outcome(name, 'failed', str(error))
    except UserError as error:
      yield Outcome(name, 'refused', str(error))
    else:
      yield Outcome(name, 'passed')
