"""Grouped products (`jax.lax.ragged_dot`) in the plan: one matrix per row, beside dense products of the same rows."""

import jax
import jax.numpy as jnp
import pytest
from jax.interpreters import partial_eval

from t2x.plan import hlo
from t2x.plan.arrays import Array
from t2x.plan.shards import grouped_spec
from t2x.plan.trace import Walker

TOKENS, WIDTH, HIDDEN, GROUPS, STEPS = 64, 16, 32, 4, 3
SIZES = jnp.asarray([10, 30, 0, 24])


def grouped(x, kernels):
  return jax.lax.ragged_dot(x, kernels, SIZES)


def dense(x, kernels):
  return x @ kernels[0]


def in_a_loop(product):
  """The loss after some steps of a residual layer."""

  def loss(x, up, down):
    def step(x, _):
      return x + product(jnp.sin(product(x, up)), down), None

    return jnp.square(jax.lax.scan(step, x, None, length=STEPS)[0]).sum()

  return loss


ARGUMENTS = [
  jax.ShapeDtypeStruct(shape, jnp.float32)
  for shape in ((TOKENS, WIDTH), (GROUPS, WIDTH, HIDDEN), (GROUPS, HIDDEN, WIDTH))
]


def traced(product):
  closed = jax.make_jaxpr(jax.value_and_grad(in_a_loop(product), (1, 2)))(*ARGUMENTS)
  jaxpr, _ = partial_eval.dce_jaxpr(
    closed.jaxpr, [True] * len(closed.jaxpr.outvars), instantiate=True
  )
  inputs = [Array(a.shape, 4, ((),) * len(a.shape), i == 0) for i, a in enumerate(ARGUMENTS)]
  return Walker({}, {}).walk(jaxpr, inputs, owned=True)[1]


def compiled(product):
  step = jax.jit(jax.value_and_grad(in_a_loop(product), (1, 2)))
  return step.lower(*ARGUMENTS).compile()


def test_a_grouped_product_costs_what_a_dense_one_of_the_same_rows_costs():
  """Tokens x inputs x outputs x 2, in the forward pass and for both gradients."""
  found = traced(grouped)
  assert found.flops == traced(dense).flops
  # The gradient for the first input is not computed.
  products = 6 * STEPS * 2 * TOKENS * WIDTH * HIDDEN
  assert found.flops == products


def test_the_program_of_a_cpu_computes_every_group():
  found = traced(grouped)
  flops = hlo.Program(compiled(grouped).as_text()).flops()
  assert (flops, found.repeated) == (GROUPS * found.flops, (GROUPS - 1) * found.flops)
  assert traced(dense).repeated == 0


def test_memory_beside_a_dense_product_is_that_of_the_matrices_of_all_groups():
  """Gradients of all matrices; saved activations are those of the dense product."""
  one, all_groups = traced(dense), traced(grouped)
  assert all_groups.saved == one.saved
  # A CPU masks the rows of each group.
  assert sum(all_groups.peak.values()) < compiled(grouped).memory_analysis().temp_size_in_bytes


@pytest.mark.parametrize(
  ('lhs', 'rhs', 'contracted', 'groups', 'expected'),
  [
    # Forward: rows over data, hidden features over tensor.
    ((('data',), ()), ((), (), ('tensor',)), ((1,), (1,)), (0,), ((('data',), ('tensor',)), ())),
    # Gradient of the rows: a sum over the hidden features.
    ((('data',), ('tensor',)), ((), (), ('tensor',)), ((1,), (2,)), (0,), ((('data',), ()), ('tensor',))),
    # Gradient of the matrices: a sum over the rows of each group.
    ((('data',), ()), (('data',), ('tensor',)), ((0,), (0,)), (), (((), (), ('tensor',)), ('data',))),
  ],
)  # fmt: skip
def test_devices_that_split_rows_and_features_split_the_product(
  lhs, rhs, contracted, groups, expected
):
  numbers = jax.lax.RaggedDotDimensionNumbers((contracted, ((), ())), (0,), groups)
  assert grouped_spec(lhs, rhs, numbers) == expected
