"""Model FLOPs of training, counted in the traced forward pass.

The count is 3 x the multiply-adds of the loss (2 FLOPs each): 1 x for the forward and 2 x for the backward pass. Those
are the contractions (matrix products and convolutions) and the sums over tokens that parts mark with
`t2x.layers.counting.token_sums`; other elementwise operations are not counted. Of experts the chosen ones of each token
count, whatever their number of slots. The loss is traced with dense attention
and unchunked logits, so the count does not depend on kernels, remat policy or mesh.

Attention counts the pairs of query and key that its pattern shows: under Causal() n (n + 1) / 2 of n^2, in a window
those of the window. Segments and marks are ignored. The count with all pairs is reported beside it; for a dense
decoder it is 6 N + 12 L d T, as in PaLM (https://arxiv.org/abs/2204.02311, appendix B).

Model FLOPs utilisation (MFU, ibid.) is the model FLOPs of the train steps of a second, divided by the peak of the
devices. All positions of a batch count, padding included; recomputation does not.
"""

import dataclasses
import math
from collections.abc import Callable, Iterator
from typing import cast

import jax
import jax.numpy as jnp
from flax import nnx
from jax.core import ShapedArray
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn

from t2x.base.step import in_step
from t2x.layers import AttentionInputs, Dense, Kernel
from t2x.layers.counting import PAIRS, TOKEN_SUMS, share_of
from t2x.models import LogitHead
from t2x.tasks import Task
from t2x.train.experiment import row_lengths

# What the number is, for the pages that print it.
CONVENTION = 'attention counts the pairs that its pattern shows'
# Name of the function of attention in the counted program, before the share of the pairs that its pattern shows.
_ATTENTION = 'counted_attention_'


@dataclasses.dataclass(frozen=True)
class Flops:
  """FLOPs of training per token; source and target tokens count alike.

  Attributes:
    visible: with attention over the pairs that its pattern shows.
    full: with attention over all pairs of tokens.
  """

  visible: float
  full: float


def flops_per_token(task: Task, model: nnx.Module) -> Flops:
  """Counts the FLOPs of training per token.

  Args:
    task: defines the loss and the shapes of a row.
    model: the model or its shapes.
  """
  # Traced with one row, whose number of tokens is the sum of the row lengths.
  dense = with_kernels(model, lambda kernel: _CountedDense())
  for _, module in nnx.iter_modules(dense):
    if isinstance(module, LogitHead):
      module.chunk = None  # All logits at once.
  # Grouped products as one operation, and no operations for one CPU.
  with in_step(target='tpu'):
    jaxpr = jax.make_jaxpr(lambda model, batch: task.sums(model, batch, None))(dense, task.spec(1))
  count = _multiply_adds(jaxpr.jaxpr)
  tokens = sum(row_lengths(task, model).values())
  # Pairs that no attention follows are all visible.
  return Flops(6 * (count.visible + count.pairs) / tokens, 6 * count.full / tokens)


@dataclasses.dataclass(frozen=True)
class _CountedDense(Kernel):
  """Dense attention, traced as a function whose name ends with the share of the pairs that the pattern shows."""

  def supports(self, inputs: AttentionInputs) -> str | None:
    return None

  def attend(self, inputs: AttentionInputs) -> jax.Array:
    def attention(inputs):
      return Dense()(inputs)

    # Keys that are not the tokens of the queries (blocks of tokens) have the same share.
    share = inputs.pattern.visible(inputs.q_len) / inputs.q_len**2
    attention.__name__ = f'{_ATTENTION}{share!r}'
    return jax.jit(attention)(inputs)


def with_kernels(model: nnx.Module, replace: Callable[[Kernel], Kernel]) -> nnx.Module:
  """Returns a copy of the model in which `replace` gives the kernel of each attention."""
  copy = jax.tree.map(lambda leaf: leaf, model)
  for _, module in nnx.iter_modules(copy):
    for name, value in list(vars(module).items()):
      if isinstance(value, Kernel):
        setattr(module, name, replace(value))
  return copy


@dataclasses.dataclass
class _Count:
  """Multiply-adds.

  Attributes:
    full: all multiply-adds.
    visible: multiply-adds to report, with the visible pairs of queries and keys only.
    pairs: multiply-adds over pairs of queries and keys, until the enclosing attention provides the visible fraction.
  """

  full: float = 0
  visible: float = 0
  pairs: float = 0


def _multiply_adds(jaxpr: Jaxpr | ClosedJaxpr, scope: str = '') -> _Count:
  """Counts the multiply-adds of a program.

  A scan counts once per iteration, a conditional as its largest branch, and a while loop once.

  Args:
    jaxpr: the program.
    scope: the named scopes around it.
  """
  total = _Count()
  for equation in jaxpr.eqns:
    inside = f'{scope}/{equation.source_info.name_stack}'
    counts = [_multiply_adds(inner, inside) for inner in _inner_jaxprs(equation)]
    if equation.primitive.name == 'cond':
      counts = [max(counts, key=lambda count: count.full)]
    own = _of_equation(equation, inside) * share_of(inside)
    times = equation.params['length'] if equation.primitive.name == 'scan' else 1
    full, visible, pairs = (
      times * sum(getattr(count, name) for count in counts) for name in ('full', 'visible', 'pairs')
    )
    total.full += own + full
    if PAIRS in inside:
      pairs += own
    else:
      visible += own
    total.visible += visible
    total.pairs += pairs
    name = str(equation.params.get('name', ''))
    if name.startswith(_ATTENTION):
      total.visible += float(name.removeprefix(_ATTENTION)) * total.pairs
      total.pairs = 0
  return total


def _of_equation(equation: JaxprEqn, scope: str) -> int:
  """Returns the multiply-adds of an equation without those of programs inside it."""
  name, params = equation.primitive.name, equation.params
  shapes = [getattr(variable.aval, 'shape', ()) for variable in equation.invars]
  if not equation.outvars:
    return 0
  out = cast(ShapedArray, equation.outvars[0].aval)
  if name == 'dot_general':
    (contracted, _), _ = params['dimension_numbers']
    return math.prod(out.shape) * math.prod(shapes[0][axis] for axis in contracted)
  if name == 'ragged_dot_general':
    return grouped_multiply_adds(equation)
  if name == 'conv_general_dilated':
    outputs = params['dimension_numbers'].rhs_spec[0]
    # With feature groups, the kernel has only the input channels that each output channel reads.
    return math.prod(out.shape) * math.prod(shapes[1]) // shapes[1][outputs]
  if name == 'mul' and TOKEN_SUMS in scope and jnp.issubdtype(out.dtype, jnp.floating):
    return math.prod(out.shape)
  return 0


def grouped_multiply_adds(equation: JaxprEqn) -> int:
  """Returns the multiply-adds of a grouped product (`jax.lax.ragged_dot`): one matrix per row."""
  numbers = equation.params['ragged_dot_dimension_numbers']
  (_, contracted), (_, batch) = numbers.dot_dimension_numbers
  used = {*contracted, *batch, *numbers.rhs_group_dimensions}
  rows, matrices = (cast(ShapedArray, variable.aval).shape for variable in equation.invars[:2])
  return math.prod(rows) * math.prod(n for i, n in enumerate(matrices) if i not in used)


def _inner_jaxprs(equation: JaxprEqn) -> Iterator[Jaxpr]:
  for value in equation.params.values():
    for item in value if isinstance(value, (list, tuple)) else [value]:
      inner = getattr(item, 'jaxpr', item)
      if hasattr(inner, 'eqns'):
        yield cast(Jaxpr, inner)


# Peak FLOPs per second of dense bfloat16 products, without sparsity, by `jax.Device.device_kind`. NVIDIA's data
# sheets list twice these numbers for 2:4 sparsity. Parts of a GPU (MIG) have other names, which are not listed.
PEAK_FLOPS = {
  # https://cloud.google.com/tpu/docs/v4, v5e, v5p, v6e: per chip, which is one device.
  'TPU v4': 275e12,
  'TPU v5 lite': 197e12,
  'TPU v5e': 197e12,
  'TPU v5': 459e12,
  'TPU v5p': 459e12,
  'TPU v6 lite': 918e12,
  'TPU v6e': 918e12,
  # https://www.nvidia.com/en-us/data-center/a100
  'NVIDIA A100-SXM4-40GB': 312e12,
  'NVIDIA A100-SXM4-80GB': 312e12,
  'NVIDIA A100-PCIE-40GB': 312e12,
  'NVIDIA A100 80GB PCIe': 312e12,
  # https://www.nvidia.com/en-us/data-center/h100 and h200
  'NVIDIA H100 80GB HBM3': 989e12,
  'NVIDIA H100 PCIe': 756e12,
  'NVIDIA H100 NVL': 835e12,
  'NVIDIA GH200 480GB': 989e12,
  'NVIDIA H200': 989e12,
  'NVIDIA H200 NVL': 835e12,
  # https://www.nvidia.com/en-us/data-center/hgx and gb200-nvl72
  'NVIDIA B200': 2250e12,
  'NVIDIA GB200': 2500e12,
  # https://www.nvidia.com/en-us/data-center/l4 and l40s
  'NVIDIA L4': 121e12,
  'NVIDIA L40S': 362e12,
}
