"""The scan of a reversible stack and its gradient, by inversion of each sublayer (Gomez et al. 2017,
https://arxiv.org/abs/1707.04585, algorithm 1)."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr, Jaxpr, jaxpr_as_fun
from jaxtyping import Array

from t2x.layers.arrays import Leaf
from t2x.layers.dtypes import add_sums, rounded_sums, zero_sums

Pair = tuple[Array, Array]


@dataclasses.dataclass(frozen=True)
class Branch:
  """The traced program of a sublayer, without the residual connection.

  Attributes:
    place: index of its block in the repeating group.
    program: computes the outputs from the leaves of the block, the stream, and the number, the keys and the drop
      rates of the repeat.
    enclosed: indices of the arrays that the program encloses.
    outputs: tree of its outputs: the branch, losses and metrics.
  """

  place: int
  program: Jaxpr
  enclosed: tuple[int, ...]
  outputs: jax.tree_util.PyTreeDef

  def __call__(
    self, leaves: Sequence[Array], h: Array, own: object, arrays: Sequence[Leaf]
  ) -> tuple[Array, Any, Any]:
    """Returns the branch, the losses and the metrics.

    Args:
      leaves: parameters of the block.
      h: the stream that the sublayer reads.
      own: number, random keys and drop rates of the repeat.
      arrays: all arrays that programs enclose.
    """
    constants = [arrays[i] for i in self.enclosed]
    program = jaxpr_as_fun(ClosedJaxpr(self.program, constants))
    return jax.tree.unflatten(self.outputs, program(*leaves, h, *jax.tree.leaves(own)))


def traced_branch(
  branch: Callable[..., Any], inputs: Sequence[Any], place: int, arrays: list[Any]
) -> Branch:
  """Traces a sublayer, and appends the arrays that it encloses to `arrays`.

  A function with its own derivative has to take the arrays that it encloses as arguments: parameters of position
  encodings, the source, hyperparameters, token metadata.

  Args:
    branch: function of `inputs` that returns the branch, losses and metrics.
    inputs: shapes of the block, the stream, and the number, the keys and the drop rates of the repeat.
    place: index of the block in the repeating group.
    arrays: arrays that other branches enclose.
  """
  traced, shapes = jax.make_jaxpr(branch, return_shape=True)(*inputs)
  places = {id(array): i for i, array in enumerate(arrays)}
  for array in traced.consts:
    if id(array) not in places:
      places[id(array)] = len(arrays)
      arrays.append(array)
  enclosed = tuple(places[id(array)] for array in traced.consts)
  return Branch(place, traced.jaxpr, enclosed, jax.tree.structure(shapes))


def reversible_scan(
  branches: Sequence[Branch],
  pair: Pair,
  leaves: list[list[Array]],
  arrays: Sequence[Any],
  per_repeat: object,
) -> tuple[Pair, Any, Any]:
  """Applies (a, b) -> (b, a + branch(b)) for each branch of each repeat.

  The gradient is computed from the last pair and the arguments only. Metrics have no gradient.

  Args:
    branches: sublayers of one repeat.
    pair: the streams before the first sublayer.
    leaves: parameters of the blocks of a repeat, [groups, ...]; the repeats of a group share them.
    arrays: arrays that the branches enclose.
    per_repeat: number, keys and drop rates of each repeat, [groups, repeats of a group, ...].

  Returns:
    The streams after the last sublayer, and the losses and metrics of each branch, [groups, repeats of a group, ...].
  """
  traced = {i: array for i, array in enumerate(arrays) if isinstance(array, jax.core.Tracer)}
  constants = {i: array for i, array in enumerate(arrays) if i not in traced}
  trained = [i for i, array in traced.items() if jnp.issubdtype(array.dtype, jnp.floating)]
  others = {i: array for i, array in traced.items() if i not in trained}
  scan = _with_gradient(_Scan(tuple(branches), tuple(trained), constants))
  return scan(pair, leaves, [arrays[i] for i in trained], (others, per_repeat))


def _with_gradient(scan: '_Scan') -> Callable[..., tuple[Pair, Any, Any]]:
  """Returns `scan.forward` with the derivative `scan.backward`."""

  def forward(pair, leaves, floats, fixed):
    outputs = scan.forward(pair, leaves, floats, fixed)
    return outputs, (outputs[0], leaves, floats, fixed)

  function = jax.custom_vjp(scan.forward)
  function.defvjp(forward, scan.backward)
  return function


@dataclasses.dataclass(frozen=True)
class _Scan:
  """Forward and backward passes of `reversible_scan`.

  Attributes:
    branches: sublayers of one repeat.
    trained: indices of the enclosed arrays that may have a gradient.
    constants: enclosed arrays by index that are constants of the program.
  """

  branches: tuple[Branch, ...]
  trained: tuple[int, ...]
  constants: dict[int, Any]

  def _arrays(self, floats: Sequence[Array], others: dict[int, Array]) -> list[Any]:
    arrays = self.constants | others | dict(zip(self.trained, floats, strict=True))
    return [arrays[i] for i in range(len(arrays))]

  def forward(self, pair, leaves, floats, fixed):
    """Returns the last pair, and the losses and metrics of the branches."""
    others, per_repeat = fixed
    arrays = self._arrays(floats, others)

    def group(pair, inputs):
      leaves, per_repeat = inputs

      def repeat(pair, own):
        losses, metrics = [], []
        for branch in self.branches:
          a, b = pair
          y, *aux = branch(leaves[branch.place], b, own, arrays)
          pair = b, a + y
          losses.append(aux[0])
          metrics.append(aux[1])
        return pair, (losses, metrics)

      return _scan(repeat, pair, per_repeat)

    pair, (losses, metrics) = jax.lax.scan(group, pair, (leaves, per_repeat))
    return pair, losses, metrics

  def backward(self, saved, cotangents):
    """Returns the gradients of `forward` with respect to its arguments."""
    last, leaves, floats, fixed = saved
    others, per_repeat = fixed
    d_last, d_losses, _ = cotangents

    def group(carry, inputs):
      leaves, per_repeat, d_losses = inputs

      def repeat(carry, inputs):
        return self._backward_repeat(carry, leaves, floats, others, *inputs), None

      zeros = zero_sums(leaves)
      (*carry, d_leaves), _ = _scan(repeat, (*carry, zeros), (per_repeat, d_losses), reverse=True)
      return tuple(carry), rounded_sums(d_leaves, leaves)

    carry = last, d_last, zero_sums(floats)
    inputs = leaves, per_repeat, d_losses
    (_, d_pair, d_floats), d_leaves = jax.lax.scan(group, carry, inputs, reverse=True)
    return d_pair, d_leaves, rounded_sums(d_floats, floats), None

  def _backward_repeat(self, carry, leaves, floats, others, own, d_losses):
    """Inverts the branches of a repeat and adds their gradients."""
    pair, d_pair, d_floats, d_leaves = carry
    d_leaves = list(d_leaves)
    for branch, d_loss in zip(reversed(self.branches), reversed(d_losses), strict=True):

      def differentiated(leaves, h, floats, branch=branch):
        y, losses, _ = branch(leaves, h, own, self._arrays(floats, others))
        return y, losses

      (b, sum_), (d_b, d_sum) = pair, d_pair
      (y, _), pullback = jax.vjp(differentiated, leaves[branch.place], b, floats)
      d_own, d_h, further = pullback((d_sum, d_loss))
      pair, d_pair = (sum_ - y, b), (d_sum, d_b + d_h)
      d_leaves[branch.place] = add_sums(d_leaves[branch.place], d_own)
      d_floats = add_sums(d_floats, further)
    return pair, d_pair, d_floats, d_leaves


def _scan(function, carry, inputs, reverse=False):
  """Scans the repeats of a group; a single one is not a loop."""
  is_single = len(jax.tree.leaves(inputs)[0]) == 1
  return jax.lax.scan(function, carry, inputs, reverse=reverse, unroll=is_single or 1)
