"""Cells of recurrent networks, with the equations of PyTorch, and the loop over time that all of them share.

A step computes the new state from the projected input z, the product r of the output h before it with a matrix, and the
state before it. Only the product is inside the loop: the projection of the inputs, and the gradient of the matrix, are
one product each for all steps.
"""

import functools
import operator
from collections.abc import Callable
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from flax import nnx
from jax.lax import optimization_barrier
from jaxtyping import Array, Bool, Float

from t2x.base.errors import UserError
from t2x.base.ranges import Natural, Size, TunableRate
from t2x.base.step import is_plain
from t2x.layers.composites import replace_parts
from t2x.layers.dtypes import add_sums, rounded_sums, zero_sums
from t2x.layers.initializers import xavier_uniform, zeros
from t2x.layers.interfaces import Norm
from t2x.layers.keys import named_key
from t2x.layers.norms import norm_over
from t2x.layers.parameters import Initializer, Linear, dropout, param
from t2x.layers.products import products

__all__ = ['ElmanCell', 'GRUCell', 'LSTMCell', 'StackedCells']

Vectors = Float[Array, 'batch state_dim']
State = tuple[Vectors, ...]
Gates = Float[Array, 'batch gates state_dim']


class Cell(nnx.Module):
  """Base class of recurrent cells; subclasses define `num_vectors`, `num_gates` and `update`.

  Attributes:
    num_vectors: number of vectors of the state; the first is the output h.
    num_gates: number of vectors that the input and h are projected to.

  Args:
    d_model: width of the input.
    state_dim: width of each vector of the state. None: d_model.
    fed_dim: width of a further input, which depends on earlier steps.
    use_bias: whether the projection of the input has a bias.
    kernel_init: initialiser of both projections.
  """

  num_vectors: ClassVar[int]
  num_gates: ClassVar[int]

  def __init__(
    self,
    d_model: int,
    *,
    state_dim: Size | None = None,
    fed_dim: Natural = 0,
    use_bias: bool = True,
    kernel_init: Initializer = xavier_uniform(),
    rngs: nnx.Rngs,
  ):
    self.fed_dim, self.state_dim = fed_dim, state_dim or d_model
    shape = (self.num_gates, self.state_dim), ('embed', 'gates', 'mlp')
    settings: dict[str, Any] = {'init': kernel_init, 'rngs': rngs}
    self.inputs = Linear((d_model,), *shape, use_bias=use_bias, **settings)
    self.state = Linear((fed_dim + self.state_dim,), *shape, use_bias=False, **settings)

  def project(self, x: Float[Array, '*rest d_model']) -> Float[Array, '*rest gates state_dim']:
    """Returns the part of the gates that depends on the input, for all steps at once."""
    return self.inputs(x)

  def update(self, z: Gates, r: Gates, state: State) -> State:
    """Returns the state after a step.

    Args:
      z: projected input.
      r: product of h before the step.
      state: state before the step, whose dtype is that of the result.
    """
    raise NotImplementedError

  def advance(self, z: Gates, r: Gates, state: State) -> tuple[State, Any]:
    """Returns the result of `update`, and what `pull` reads of it."""
    return self.update(z, r, state), r

  def pull(
    self, z: Gates, saved: Array | tuple[Array, ...], state: State, gradients: State
  ) -> tuple[Any, ...]:
    """Returns the gradients of the cell, of z, r and the state before a step, from those of the state after it."""

    def update(cell: Cell, *inputs: Any) -> State:
      return cell.update(*inputs)

    return jax.vjp(update, self, z, saved, state)[1](gradients)

  def __call__(
    self, projected: Gates, fed: Vectors, state: State, key: Array | None = None
  ) -> State:
    """Returns the state after a step with a further input `fed`; a single cell has no dropout that needs `key`."""
    kernel, z = self.state.kernel[...].astype(projected.dtype), projected
    fed, h = (a.astype(projected.dtype) for a in (fed, state[0]))
    if self.fed_dim:
      z = z + products().project(fed, kernel[: self.fed_dim], 1)
    return self.update(z, products().project(h, kernel[self.fed_dim :], 1), state)


class ElmanCell(Cell):
  """Simple recurrence h = tanh(W x + U h + b) (Elman 1990). For the arguments see `Cell`."""

  num_vectors, num_gates = 1, 1

  def update(self, z: Gates, r: Gates, state: State) -> State:
    return (jnp.tanh((z + r)[:, 0].astype(state[0].dtype)),)


class GRUCell(Cell):
  """Gated recurrent unit (Cho et al. 2014, https://arxiv.org/abs/1406.1078), whose reset gate multiplies the product:
  h = (1 - u) n + u h with n = tanh(W x + b + reset * (U h + c)). For the arguments see `Cell`."""

  num_vectors, num_gates = 1, 3

  def __init__(self, d_model: int, *, rngs: nnx.Rngs, **settings: Any):
    super().__init__(d_model, rngs=rngs, **settings)
    self.reset_bias = param(zeros(), (self.state_dim,), ('mlp',), rngs, kind='vector')

  def update(self, z: Gates, r: Gates, state: State) -> State:
    (h,) = state
    z, r = z.astype(h.dtype), r.astype(h.dtype)
    gates = _sigmoid((z + r)[:, :2])
    reset, keep = gates[:, 0], gates[:, 1]
    n = jnp.tanh(z[:, 2] + reset * (r[:, 2] + self.reset_bias[...].astype(h.dtype)[None]))
    return ((1 - keep) * n + keep * h,)


class LSTMCell(Cell):
  """Long short-term memory (Hochreiter and Schmidhuber 1997) with a forget gate.

  Args:
    norm: builds norms of W x and U h over all gates, and of c before the output (Ba et al. 2016,
      https://arxiv.org/abs/1607.06450, section 5); their biases are those of the gates. None: no norms.
    settings: those of `Cell`.
  """

  num_vectors, num_gates = 2, 4

  def __init__(
    self,
    d_model: int,
    *,
    norm: Callable[..., Norm] | None = None,
    rngs: nnx.Rngs,
    **settings: Any,
  ):
    super().__init__(d_model, rngs=rngs, **{'use_bias': norm is None, **settings})
    gates = self.num_gates * self.state_dim
    self.input_norm, self.state_norm, self.output_norm = (
      norm and norm_over('mlp', norm, size, rngs) for size in (gates, gates, self.state_dim)
    )

  def project(self, x: Float[Array, '*rest d_model']) -> Float[Array, '*rest gates state_dim']:
    return _normed(self.input_norm, self.inputs(x))

  def update(self, z: Gates, r: Gates, state: State) -> State:
    return self._parts(z, r, state)[0]

  def _parts(self, z: Gates, r: Gates, state: State) -> tuple[State, tuple[Gates, Vectors]]:
    """Returns the state after a step, and the gates with the factor of the output gate."""
    _, c = state
    before = (z + _normed(self.state_norm, r)).astype(c.dtype)
    # One tanh for all gates, which XLA computes fastest over an array without slices.
    factor = jnp.asarray([0.5, 0.5, 1.0, 0.5], c.dtype)[None, :, None]
    gates = _once(_once(jnp.tanh(factor * before)) * factor + (1 - factor))
    i, f, g, o = jnp.moveaxis(gates, 1, 0)
    c = _once(f * c + i * g)
    t = _once(jnp.tanh(c if self.output_norm is None else self.output_norm(c)))
    return (o * t, c), (gates, t)

  def advance(self, z: Gates, r: Gates, state: State) -> tuple[State, Any]:
    new, parts = self._parts(z, r, state)
    return new, parts if self.state_norm is None else r

  def pull(
    self, z: Gates, saved: Array | tuple[Array, ...], state: State, gradients: State
  ) -> tuple[Any, ...]:
    if self.state_norm is not None:
      return super().pull(z, saved, state, gradients)
    gates, t = saved
    i, f, g, o = jnp.moveaxis(gates, 1, 0)
    dh, dc = _once(gradients[0]), gradients[1]
    dc = _once(dc + dh * o * (1 - t * t))
    # Factors of the derivatives s (1 - s) and 1 - g^2 of the gates, which are computed without slices.
    factors = _once(
      jnp.stack(optimization_barrier([dc * g, dc * state[1], dc * i, dh * t]), axis=1)
    )
    is_g = jnp.asarray([0.0, 0.0, 1.0, 0.0], gates.dtype)[None, :, None]
    dz = _once(factors * (gates + is_g * (1 - gates) - gates * gates)).astype(z.dtype)
    return jax.tree.map(jnp.zeros_like, self), dz, dz, (jnp.zeros_like(dh), dc * f)


class StackedCells(nnx.Module):
  """Several cells in one step of a decoder: each reads the output of the one below, and the lowest the token and what
  is fed back. The state has the vectors of the highest cell first.

  Args:
    d_model: width of the input and of each vector of the state.
    num_layers: number of cells.
    cell: builds each cell.
    fed_dim: width of the further input of the lowest cell.
    dropout_rate: dropout of the output of a cell as the input of the next, with a mask for each step.

  Raises:
    UserError: there is dropout, but only one cell.
  """

  def __init__(
    self,
    d_model: int,
    *,
    num_layers: Size,
    cell: Callable[..., Cell] = LSTMCell,
    fed_dim: Natural = 0,
    dropout_rate: TunableRate = 0.0,
    rngs: nnx.Rngs,
  ):
    if num_layers == 1 and dropout_rate != 0.0:
      raise UserError(
        'StackedCells.dropout_rate has no effect on one cell: leave it out, or set num_layers'
      )
    self.dropout_rate = dropout_rate
    sizes = [fed_dim, *[0] * (num_layers - 1)]
    self.cells = nnx.List([cell(d_model, fed_dim=size, rngs=rngs) for size in sizes])
    self.num_vectors = sum(cell.num_vectors for cell in self.cells)

  def project(self, x: Float[Array, '*rest d_model']) -> Float[Array, '*rest gates state_dim']:
    return self.cells[0].project(x)

  def __call__(
    self, projected: Gates, fed: Vectors, state: State, key: Array | None = None
  ) -> State:
    new: State = ()
    for number, cell in enumerate(self.cells):
      rest, own = state[: -cell.num_vectors], state[-cell.num_vectors :]
      if new:
        below = dropout(new[0], self.dropout_rate, named_key(key, f'cells.{number}'))
        projected = cell.project(below.astype(projected.dtype))
      new, state = cell(projected, fed, own) + new, rest
    return new


def _normed(norm: Norm | None, gates: Array) -> Array:
  """Normalises gates [..., gates, state_dim] over both dimensions."""
  return gates if norm is None else norm(gates.reshape(*gates.shape[:-2], -1)).reshape(gates.shape)


def _sigmoid(x: Array) -> Array:
  """The logistic function, as a tanh, which is faster on a CPU."""
  return 0.5 * _once(jnp.tanh(0.5 * x)) + 0.5


def _once(x: Array) -> Array:
  """Returns `x`, computed once: XLA's CPU backend would compute it again for each operation that reads it."""
  return optimization_barrier(x)


Steps = dict[str, Any]


def run(
  cell: Cell,
  x: Float[Array, 'batch length d_model'],
  state: State,
  *,
  starts: Bool[Array, 'batch length'] | None = None,
  is_token: Bool[Array, 'batch length'] | None = None,
  first: tuple[Float[Array, 'batch length state_dim'], ...] | None = None,
  factor: Vectors | None = None,
  reverse: bool = False,
  num_outputs: int = 1,
) -> tuple[tuple[Float[Array, 'batch length state_dim'], ...], State]:
  """Applies a cell to a sequence.

  Args:
    cell: the cell, without a further input.
    x: the inputs.
    state: state before the first step.
    starts: whether a token begins with a new state; None: none does.
    is_token: whether a token changes the state; None: all do.
    first: the vectors of new states; None: zeros.
    factor: factor of h in the product (dropout); None: 1.
    reverse: whether the last token is the first step.
    num_outputs: number of vectors of the state that are returned.

  Returns:
    The vectors after each step in the dtype of `x`, and the state after the last step.
  """
  z = cell.project(jnp.moveaxis(x, 1, 0))
  optional = {'starts': starts, 'is_token': is_token, 'first': first}
  steps: Steps = {'z': z} | {
    name: jax.tree.map(lambda a: jnp.moveaxis(a, 1, 0)[..., *[None] * (3 - a.ndim)], value)
    for name, value in optional.items()
    if value is not None
  }
  kernel = cell.state.kernel[...].astype(x.dtype)
  loop = _forward_loop if is_plain() else _loop
  state, outputs = loop(
    (reverse, num_outputs),
    replace_parts(cell, inputs=None, state=None),
    kernel,
    state,
    steps,
    factor,
  )[:2]
  return tuple(jnp.moveaxis(a.astype(x.dtype), 0, 1) for a in outputs), state


def _begin(state: State, step: Steps) -> State:
  """Returns the state that a step continues."""
  if 'starts' not in step:
    return state
  first = step.get('first', tuple(map(jnp.zeros_like, state)))
  return _where(step['starts'], first, state)


def _where(condition: Bool[Array, 'batch 1'], a: State, b: State) -> State:
  """Returns the vectors of the state `a` where the condition holds, and of `b` elsewhere."""
  return tuple(jnp.where(condition, *pair) for pair in zip(a, b, strict=True))


# Whether the last step is the first, and the number of vectors of the state that are outputs.
Static = tuple[bool, int]


def _forward_loop(
  static: Static, cell: Cell, kernel: Array, state: State, steps: Steps, factor: Vectors | None
) -> tuple[State, tuple[Array, ...], tuple[Array, ...], Any]:
  """Returns the last state, and of each step the outputs, the state that it continues and what `Cell.pull` reads."""
  reverse, num_outputs = static

  def step(state: State, step: Steps) -> tuple[State, Any]:
    state = _begin(state, step)
    h = state[0] if factor is None else state[0] * factor
    r = products().project(h.astype(kernel.dtype), kernel, 1)
    new, parts = cell.advance(step['z'], r, state)
    if 'is_token' in step:
      new = _where(step['is_token'], new, state)
    return new, (new[:num_outputs], state, parts)

  state, (outputs, before, parts) = jax.lax.scan(step, state, steps, reverse=reverse)
  return state, outputs, before, parts


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _loop(static: Static, *inputs: Any) -> tuple[State, tuple[Array, ...]]:
  return _forward_loop(static, *inputs)[:2]


def _forward(static: Static, *inputs: Any) -> tuple[Any, Any]:
  *outputs, before, parts = _forward_loop(static, *inputs)
  return tuple(outputs), (inputs, before, parts)


def _backward(static: Static, saved: Any, gradients: Any) -> tuple[Any, ...]:
  (cell, kernel, state, steps, factor), before, parts = saved
  last, outputs = gradients
  # Transposed once for all steps: [gates, state_dim, inputs].
  transposed = optimization_barrier(jnp.moveaxis(kernel, 0, -1))

  def step(carry: Any, inputs: Any) -> tuple[Any, Any]:
    after, dcell = carry
    step, before, parts, added = inputs
    after = (*map(operator.add, after, added), *after[len(added) :])
    zeros = tuple(map(jnp.zeros_like, after))
    own = _where(step['is_token'], after, zeros) if 'is_token' in step else after
    more, dz, dr, state = cell.pull(step['z'], parts, before, own)
    dh = products().project(dr.astype(kernel.dtype), transposed, 2).astype(state[0].dtype)
    state = (state[0] + (dh if factor is None else dh * factor), *state[1:])
    if 'is_token' in step:
      state = tuple(map(operator.add, state, _where(step['is_token'], zeros, after)))
    outputs = {'z': dz}
    if 'starts' in step:
      new, state = (_where(step['starts'], *pair) for pair in ((state, zeros), (zeros, state)))
      if 'first' in step:
        outputs['first'] = new
    return (state, add_sums(dcell, more)), (outputs, dr)

  carry = last, zero_sums(cell)
  inputs = steps, before, parts, outputs
  (state, dcell), (dsteps, dr) = jax.lax.scan(step, carry, inputs, reverse=not static[0])
  # The gradient of the matrix, for all steps at once.
  rows = before[0] if factor is None else before[0] * factor.astype(before[0].dtype)[None]
  rows, dr = (a.reshape(-1, *a.shape[2:]).astype(kernel.dtype) for a in (rows, dr))
  _, pull = jax.vjp(lambda kernel: products().project(rows, kernel, 1), kernel)
  (dkernel,) = pull(dr)
  dsteps |= {name: None for name in steps if name not in dsteps}
  return rounded_sums(dcell, cell), dkernel, state, dsteps, None


_loop.defvjp(_forward, _backward)
