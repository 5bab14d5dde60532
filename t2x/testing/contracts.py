"""Checks of the interface contracts of a block's parts, for `t2x test-part` and tests.

A part may raise UserError for inputs that it does not support. For all others it must fulfil the contracts.
"""

import dataclasses
import functools
import inspect
import re
import typing
from collections.abc import Callable, Iterator
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array

from t2x.base.errors import UserError
from t2x.base.step import in_step
from t2x.layers import Cache, Call, Causal, Ordered, RoPE, Slots, SourceSequence, Tokens
from t2x.layers.attention.cache import SharedSlots
from t2x.layers.building import unwrap_partial
from t2x.layers.constraints import constrain
from t2x.parallel import Activations, Mesh, as_tuple, batch_sharding, state_shardings
from t2x.testing.subject import (
  BATCH,
  PROMPTS,
  SMALL,
  ContractViolation,
  Subject,
  apply,
  cached_prompts,
  compiled,
  next_token,
  same,
  same_gradients,
  value_and_gradients,
)
from t2x.train.params import Blueprint

# Relative tolerance between gradients of two equivalent programs in float32.
GRADIENT_TOLERANCE = 1e-4
# Number of tokens of gradients in bfloat16, and the tolerance relative to their norm.
TIME = 1024
SUM_TOLERANCE = 0.1


@dataclasses.dataclass(frozen=True)
class Outcome:
  """The outcome of checking one contract.

  Attributes:
    contract: name of the contract.
    status: 'passed', 'refused' (the part raised UserError), 'failed' or 'not applicable'.
    detail: the error message, the difference between the results, or why the contract does not apply.
  """

  contract: str
  status: str
  detail: str = ''


def rows_are_independent(subject: Subject) -> None:
  """Checks that rows are independent, also with dropout, so that accumulation and sharding are exact."""
  result, split = subject(call=subject.training_call()), (slice(0, 2), slice(2, None))
  changed = subject(subject.x.at[0].add(1.0), subject.training_call())
  same(changed.x[1:], result.x[1:], 'other rows after a change of the first row')
  halves = [subject(subject.x[rows], subject.training_call(rows)) for rows in split]
  same(jnp.concatenate([half.x for half in halves]), result.x, 'two halves of the batch')
  for name, values in result.aux.losses.items():
    if values.shape != (BATCH,):
      raise ContractViolation(
        f"the auxiliary loss '{name}' has shape {values.shape}, must be ({BATCH},)"
      )
    parts = [half.aux.losses[name] for half in halves]
    same(jnp.concatenate(parts), values, f"the auxiliary loss '{name}' of two halves of the batch")
  for name, pair in result.aux.metrics.items():
    for index, which in enumerate(('sum', 'weight')):
      total = sum(half.aux.metrics[name][index] for half in halves)
      same(total, pair[index], f"the {which} of the metric '{name}' over two halves of the batch")


def outputs_ignore_later_tokens(subject: Subject) -> None:
  """Checks that, under Causal(), a change of a token changes no earlier output."""
  call, place = subject.call(pattern=Causal()), subject.length // 2
  changed = subject(subject.x.at[:, place].add(1.0), call).x
  same(changed[:, :place], subject(call=call).x[:, :place], 'outputs before the changed token')


def outputs_ignore_tokens_later_in_the_order(subject: Subject) -> None:
  """Checks that, under Ordered(), a change of a token changes no output of tokens before it in `Tokens.order`."""
  order = jnp.asarray(np.random.default_rng(8).permutation(subject.length))[None]
  call = subject.call(Tokens.row(subject.length, order=order), Ordered())
  place = subject.length // 2
  earlier = np.flatnonzero(order[0] < order[0, place])
  changed = subject(subject.x.at[:, place].add(1.0), call).x
  same(changed[:, earlier], subject(call=call).x[:, earlier], 'outputs earlier in the order')


def tokens_are_independent(subject: Subject) -> None:
  """Checks that a part that reads no pattern computes each token only from this token."""
  place = subject.length // 2
  changed, expected = subject(subject.x.at[:, place].add(1.0)).x, subject().x
  for side in (slice(0, place), slice(place + 1, None)):
    same(changed[:, side], expected[:, side], "other tokens (should 'reads' include 'pattern'?)")


def padding_is_not_read(subject: Subject) -> None:
  """Checks that outputs of real tokens do not depend on the vectors or the presence of padding."""
  count = subject.length - 3
  segments = jnp.broadcast_to(jnp.arange(subject.length) < count, subject.x.shape[:2])
  call = subject.call(Tokens.row(subject.length, segments=segments.astype(jnp.int32)))
  padded = subject(call=call).x[:, :count]
  same(
    subject(subject.x.at[:, count:].add(3.0), call).x[:, :count],
    padded,
    'outputs after a change of padding',
  )
  same(padded, subject(subject.x[:, :count]).x, 'a row with padding against one without')


def packed_rows_equal_separate_rows(subject: Subject) -> None:
  """Checks that packed examples equal the same examples in separate rows, under each supported pattern."""
  first, rest = subject.length // 2, subject.length - subject.length // 2
  positions = jnp.concatenate([jnp.arange(first), jnp.arange(rest)])[None]
  segments = jnp.repeat(
    jnp.asarray([1, 2]), jnp.asarray([first, rest]), total_repeat_length=first + rest
  )
  tokens = Tokens(positions, segments[None])
  of_both, sources = subject.packed_sources()
  for pattern in {subject.pattern, Causal()}:
    packed = subject(call=subject.call(tokens, pattern, source=of_both)).x
    for part, source in zip((slice(0, first), slice(first, None)), sources, strict=True):
      x = subject.x[:, part]
      separate = subject(x, subject.call(pattern=pattern, length=x.shape[1], source=source)).x
      same(packed[:, part], separate, f'a packed row against separate rows under {pattern}')


def decoding_equals_the_forward_pass(subject: Subject) -> None:
  """Checks that decoding token by token with a cache equals the forward pass of the full row."""
  expected = subject(call=subject.call(pattern=Causal())).x
  cache = subject.init_cache(subject.length + 2)
  slots = Slots.empty(BATCH, subject.length + 2)
  half = subject.length // 2
  for start, stop in ((0, half), *((i, i + 1) for i in range(half, subject.length))):
    positions = jnp.broadcast_to(jnp.arange(start, stop), (BATCH, stop - start))
    tokens = Tokens(positions, jnp.ones_like(positions))
    slots = slots.extend(tokens)
    call = subject.call(tokens, Causal(), slots=slots)
    result = subject(subject.x[:, start:stop], call, cache)
    cache = cast(Cache | None, result.cache)
    same(result.x, expected[:, start:stop], f'tokens {start} to {stop - 1} with a cache')


def prompts_of_different_lengths_decode(subject: Subject) -> None:
  """Checks that right-padded prompts decode as separate ones."""
  expected = subject(call=subject.call(pattern=Causal())).x
  cache, slots = cached_prompts(subject, 2)
  last = np.arange(BATCH), PROMPTS
  step, *_ = next_token(subject, subject.x[last], PROMPTS, cache, slots)
  same(step, expected[last], 'the first token after each prompt')


def copies_follow_their_parents(subject: Subject) -> None:
  """Checks that sequences that replace others of their row, as in beam search, decode as separate rows,
  with a row of slots per sequence and, if the cache supports it, with shared slots."""
  copies, steps, width = 3, 3, int(PROMPTS.max())
  rng = np.random.default_rng(5)
  added = rng.normal(size=(steps, BATCH * copies, subject.d_model)).astype(np.float32)
  parents = np.asarray([[1, 2, 0], [0, 0, 1], [2, 2, 2], [0, 1, 2]])
  taken = jnp.asarray((np.arange(BATCH)[:, None] * copies + parents).reshape(-1))
  cache, slots = cached_prompts(subject, copies * steps)
  states = {'a row of slots per copy': (cache and cache.repeat(copies), slots.repeat(copies))}
  shared = cache and cache.share(copies, width + copies * steps)
  if shared is not None:
    states['shared slots'] = shared, SharedSlots.of(slots, copies, width + copies * steps)
  for name, (cache, slots) in states.items():
    rows = np.pad(np.repeat(subject.x[:, :width], copies, axis=0), ((0, 0), (0, steps), (0, 0)))
    for step, x in enumerate(added):
      positions = np.repeat(PROMPTS, copies) + step
      rows[np.arange(len(rows)), positions] = x
      y, cache, slots = next_token(subject, x, positions, cache, slots)
      own = subject.source_of(lambda a: jnp.repeat(a, copies, axis=0))
      call = subject.call(pattern=Causal(), length=rows.shape[1], source=own)
      expected = subject(jnp.asarray(rows), call).x[np.arange(len(rows)), positions]
      same(y, expected, f'token {step} of each copy, with {name}')
      cache, slots, rows = cache and cache.take(taken), slots.take(taken), rows[taken]


def gradients_are_finite(subject: Subject) -> None:
  """Checks that gradients of the parameters and the input are finite, also for rows with padding."""
  segments = jnp.broadcast_to(jnp.arange(subject.length) < subject.length - 3, subject.x.shape[:2])
  padded = Tokens.row(subject.length, segments=segments.astype(jnp.int32))
  for tokens in (None, padded) if subject.grid is None else (None,):
    _, gradients = jax.jit(value_and_gradients)(subject.part, subject.x, subject.call(tokens))
    for path, gradient in jax.tree.leaves_with_path(gradients):
      if not jnp.isfinite(gradient).all():
        raise ContractViolation(f'the gradient of {jax.tree_util.keystr(path)} is not finite')


def bfloat16_is_close(subject: Subject) -> None:
  """Checks that the output in bfloat16 has this dtype and is close to the output in float32."""
  exact = subject().x
  result = compiled(*_rounded((subject.part, subject.x, subject.call())))
  if result.x.dtype != jnp.bfloat16:
    raise ContractViolation(
      f'the output for a bfloat16 input is {result.x.dtype}, must be bfloat16'
    )
  same(result.x, exact, 'bfloat16 against float32', 0.06)


def _rounded(tree: object) -> Any:
  """Returns a tree with its floating-point arrays in bfloat16."""
  return jax.tree.map(
    lambda leaf: (
      leaf.astype(jnp.bfloat16) if jnp.issubdtype(jnp.result_type(leaf), jnp.floating) else leaf
    ),
    tree,
  )


def bfloat16_sums_over_time_are_close(subject: Subject) -> None:
  """Checks gradients in bfloat16 of a part with a loop at `TIME` tokens against those in float32 of the same numbers: a
  sum over time that is rounded at each step is wrong by tens of percent."""
  x, call, _ = _of_time(subject)
  narrow = _rounded((subject.part, x, call))
  wide = jax.tree.map(
    lambda leaf: leaf.astype(jnp.float32) if jnp.result_type(leaf) == jnp.bfloat16 else leaf, narrow
  )
  result, exact = (jax.jit(_time_gradients)(*arguments) for arguments in (narrow, wide))
  norms = [np.linalg.norm(np.float64(leaf)) for leaf in jax.tree.leaves(exact)]
  pairs = zip(jax.tree.leaves(result), jax.tree.leaves_with_path(exact), norms, strict=True)
  for leaf, (path, other), norm in pairs:
    error = np.linalg.norm(np.float64(leaf) - np.float64(other))
    if not error <= SUM_TOLERANCE * max(norm, SMALL * max(norms)):
      raise ContractViolation(
        f'the gradient of {jax.tree_util.keystr(path)} in bfloat16 over {x.shape[1]} tokens: the norm of the error is '
        f'{error:.2g}, of the gradient {norm:.2g} (see t2x.layers.dtypes.float32_sums)'
      )


def _has_loop(subject: Subject) -> bool:
  """Whether the gradients of a part at `TIME` tokens are computed by a loop."""
  if subject.grid is not None:
    return False
  x, call, supported = _of_time(subject)
  if not supported:
    return False
  program = str(jax.make_jaxpr(_time_gradients)(subject.part, x, call))
  return any(loop in program for loop in (' = scan[', ' = while['))


def _of_time(subject: Subject) -> tuple[Array, Call, bool]:
  """Returns the input and the call of a part at `TIME` tokens, or its maximum, and whether it supports them."""
  length = min(TIME, subject.part.max_length or TIME)
  x = jnp.asarray(np.random.default_rng(9).normal(size=(1, length, subject.d_model)), jnp.float32)
  for pattern in (Causal(), subject.pattern):
    call = subject.call(pattern=pattern, length=length, source=subject.source_of(lambda a: a[:1]))
    try:
      jax.eval_shape(_output, subject.part, x, call)
    except UserError:
      continue
    return x, call, True
  return x, call, False


def _output(part: object, x: Array, call: Call) -> Array:
  return apply(part, x, call).x


def _time_gradients(part: object, x: Array, call: Call) -> Any:
  """Returns the gradients of a loss whose terms of all tokens have the same direction, so that they do not cancel."""

  def loss(part, x):
    result = apply(part, x, call)
    weights = jnp.linspace(0.5, 1.5, x.shape[-1])[None, None]
    auxiliary = sum(jnp.sum(a, dtype=jnp.float32) for a in result.aux.losses.values())
    return (result.x.astype(jnp.float32) * weights).sum() + auxiliary

  return jax.grad(loss, (0, 1))(part, x)


def undeclared_inputs_are_not_read(subject: Subject) -> None:
  """Checks that inputs that `reads` does not name have no effect or raise UserError."""
  undeclared = {
    'pattern': subject.call(pattern=Causal()),
    'encoding': subject.call(encoding=RoPE(subject.d_model, rngs=nnx.Rngs(0))),
    'source': subject.call(source=SourceSequence(2.0 * subject.x, Tokens.row(subject.length))),
  }
  for name, call in undeclared.items():
    if name not in subject.part.reads:
      try:
        result = subject(call=call)
      except UserError:
        continue
      same(
        result.x, subject().x, f"outputs after a change of '{name}', which 'reads' does not name"
      )


def rematerialisation_changes_nothing(subject: Subject) -> None:
  """Checks that rematerialisation changes neither values nor gradients, with dropout."""
  call = subject.training_call()

  def output(part, x):
    return apply(part, x, call).x

  def loss(function):
    return jax.value_and_grad(lambda part: jnp.square(function(part, subject.x)).mean())

  value, gradients = jax.jit(loss(output))(subject.part)
  again, recomputed = jax.jit(loss(jax.checkpoint(output)))(subject.part)
  same(again, value, 'with rematerialisation')
  same_gradients(recomputed, gradients, 'with rematerialisation', GRADIENT_TOLERANCE)


def devices_change_nothing(subject: Subject) -> None:
  """Checks that all devices of this process compute the output and the gradients of one device, on each kind of mesh
  that the part accepts."""
  count = len(jax.devices())
  rows = np.random.default_rng(6).normal(size=(BATCH * count, subject.length, subject.d_model))
  source = subject.source_of(lambda a: jnp.tile(a, (count, 1, 1)))
  x, call = jnp.asarray(rows, jnp.float32), subject.call(source=source)
  y, gradients = jax.jit(value_and_gradients)(subject.part, x, call)
  for number, mesh in enumerate(_meshes(subject)):
    try:
      split_y, split_gradients = _on_mesh(mesh, subject.part, x, call)
    except UserError:
      if number:
        continue
      raise
    sizes = {axis: size for axis, size in mesh.sizes(count).items() if size > 1}
    where = f'on {" x ".join(f"{axis} {size}" for axis, size in sizes.items())} devices'
    same(split_y, y, where)
    same_gradients(split_gradients, gradients, where, GRADIENT_TOLERANCE)


def _meshes(subject: Subject) -> Iterator[Mesh]:
  """Yields a mesh with the axis data, and one for each other axis that may split the part."""
  yield Mesh()
  infos = Blueprint(jax.eval_shape(lambda: subject.part)).infos.values()
  names = {name for info in infos for name in info.all_axes if name is not None}
  axes = {axis for name in names for axis in as_tuple(Mesh().rules.get(name))}
  if len(jax.devices()) % 2 == 0:
    for axis in sorted(axes | ({'context'} if subject.mixes else set())):
      sizes: dict[str, Any] = {axis: 2}
      yield Mesh(**sizes)


def _on_mesh(settings: Mesh, part: object, x: Array, call: Call) -> tuple[Array, Any]:
  """Returns the output and the gradients on the devices of a mesh, in the layout of a body."""
  mesh = settings.build()
  infos = Blueprint(jax.eval_shape(lambda: part)).infos
  part = jax.device_put(part, state_shardings(mesh, settings.rules, infos, part))
  x = jax.device_put(x, batch_sharding(mesh))

  def split(part, x, call, layout=Activations.of(mesh, settings)):
    with in_step(layout=layout):
      return value_and_gradients(part, constrain(x, 'batch', 'length', 'embed'), call)

  return jax.jit(split)(part, x, call)


def settings_change_something(subject: Subject) -> None:
  """Checks that changing each number or switch changes the initial parameters or a traced program, or is refused."""
  build = subject.build
  own = list(_programs(subject, build))
  dropped = []
  for name, values in _other_values(build).items():
    is_read = []
    for value in values:
      try:
        programs = _programs(subject, functools.partial(build, **{name: value}))
        is_read.append(any(a != b for a, b in zip(programs, own, strict=True)))
      except (UserError, TypeError, ValueError, ArithmeticError):
        continue  # Not a value of this setting.
      if is_read[-1]:
        break
    if is_read and not any(is_read):
      dropped.append(name)
  if dropped:
    raise ContractViolation(f'{", ".join(dropped)} changed nothing')


def _other_values(build: Callable[..., object]) -> dict[str, tuple[Any, ...]]:
  """Returns values other than its own for each setting of a part that is a number or a switch."""
  bound = build.keywords if isinstance(build, functools.partial) else {}
  part = unwrap_partial(build)
  function = part.__init__ if inspect.isclass(part) else part
  try:
    hints = typing.get_type_hints(function)
  except NameError:  # A type that is imported for type checkers only.
    hints = {}
  result: dict[str, tuple[Any, ...]] = {}
  for name, parameter in inspect.signature(function).parameters.items():
    value = bound.get(name, parameter.default)
    if isinstance(value, bool):
      result[name] = (not value,)
    elif isinstance(value, (int, float)):
      values = (value + 1, 2 * value, value / 2 if isinstance(value, float) else value // 2)
      result[name] = tuple(other for other in values if other != value)
    elif value is None and parameter.kind is parameter.KEYWORD_ONLY:
      kinds = set(typing.get_args(hints.get(name)))
      result[name] = (1, 2, 4, 8) if int in kinds else (0.5, 2.0) if float in kinds else ()
  return result


def _programs(subject: Subject, build: Callable[..., Any]) -> Iterator[str]:
  """Yields the text of the programs that initialise and call a part, with constants, or the error of a refused call."""

  def new():
    return build(subject.d_model, rngs=nnx.Rngs(0))

  def decode(part, x):
    cache = subject.init_cache(subject.length, part)
    tokens = Tokens.row(subject.length, segments=jnp.ones((BATCH, subject.length), jnp.int32))
    slots = Slots.empty(BATCH, subject.length).extend(tokens)
    return apply(part, x, subject.call(tokens, Causal(), slots=slots), cache)

  calls = subject.call(), subject.call(pattern=Causal()), subject.training_call()
  part = jax.eval_shape(new)
  yield _text(new)
  programs: list[tuple[Any, ...]] = [*((apply, call) for call in calls), (decode,)]
  for function, *arguments in programs:
    try:
      yield _text(function, part, subject.x, *arguments)
    except UserError as error:
      yield str(error)


def _text(function: Callable[..., Any], *arguments: object) -> str:
  program = jax.make_jaxpr(function)(*arguments)
  constants = [np.asarray(constant).tobytes().hex() for constant in program.consts]
  # Functions are printed with their addresses.
  return re.sub(' at 0x[0-9a-f]+', '', '\n'.join([str(program), *constants]))


@dataclasses.dataclass(frozen=True)
class Contract:
  """A contract of the interfaces.

  Attributes:
    check: raises ContractViolation if a part violates it.
    applies: whether it applies to a part.
    otherwise: reason why it does not apply to other parts.
    advice: frequent cause of a violation and its remedy, or ''.
  """

  check: Callable[[Subject], None]
  applies: Callable[[Subject], bool] = lambda subject: True
  otherwise: str = ''
  advice: str = ''


CONTRACTS = {
  'rows are independent': Contract(rows_are_independent),
  'tokens are independent': Contract(
    tokens_are_independent, lambda subject: not subject.mixes, 'the part reads the pattern'
  ),
  'outputs ignore later tokens': Contract(
    outputs_ignore_later_tokens, lambda subject: subject.mixes, 'the part reads no pattern'
  ),
  'outputs ignore tokens later in the order': Contract(outputs_ignore_tokens_later_in_the_order),
  'padding is not read': Contract(padding_is_not_read),
  'packed rows equal separate rows': Contract(packed_rows_equal_separate_rows),
  'decoding equals the forward pass': Contract(
    decoding_equals_the_forward_pass,
    advice='if an encoding causes it, use the positions of q_tokens, not indices',
  ),
  'prompts of different lengths decode': Contract(
    prompts_of_different_lengths_decode,
    lambda subject: subject.length >= 5,
    'rows have fewer than 5 tokens',
  ),
  'copies follow their parents': Contract(
    copies_follow_their_parents,
    lambda subject: subject.length >= 7,
    'rows have fewer than 7 tokens',
  ),
  'gradients are finite': Contract(gradients_are_finite),
  'bfloat16 is close': Contract(bfloat16_is_close),
  'sums over time in bfloat16 are close': Contract(
    bfloat16_sums_over_time_are_close, _has_loop, 'its gradients have no loop over time'
  ),
  'undeclared inputs are not read': Contract(undeclared_inputs_are_not_read),
  'rematerialisation changes nothing': Contract(rematerialisation_changes_nothing),
  'settings change something': Contract(settings_change_something),
  'devices change nothing': Contract(
    devices_change_nothing,
    lambda subject: len(jax.devices()) > 1,
    'one device: JAX_NUM_CPU_DEVICES=8',
  ),
}


def check_part(subject: Subject) -> Iterator[Outcome]:
  """Checks all contracts that apply to a part."""
  for name, contract in CONTRACTS.items():
    if not contract.applies(subject):
      yield Outcome(name, 'not applicable', contract.otherwise)
      continue
    try:
      contract.check(subject)
    except ContractViolation as error:
      advice = f'; {contract.advice}' if contract.advice else ''
      yield Outcome(name, 'failed', f'{error}{advice}')
    except UserError as error:
      yield Outcome(name, 'refused', str(error))
    else:
      yield Outcome(name, 'passed')
