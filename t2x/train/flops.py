"""Model FLOPs of training, counted in the traced forward pass.

The count is 3 x the contractions (matrix products and convolutions, 2 FLOPs per multiply-add) of
the loss: 1 x for the forward and 2 x for the backward pass. The loss is traced with dense attention and unchunked
logits, so the count does not depend on kernels, remat policy or mesh. Elementwise operations are not counted, as in
PaLM (https://arxiv.org/abs/2204.02311, appendix B), whose 6 N + 12 L d T is the special case of a dense decoder.
"""

import dataclasses
import math
from collections.abc import Iterator
from typing import Any

import jax
from flax import nnx

from t2x.layers import AttentionInputs, Dense, Kernel
from t2x.models import LogitHead
from t2x.tasks import Task

# Name of the function of causal attention in the counted program.
_CAUSAL = 'causal_attention'


@dataclasses.dataclass(frozen=True)
class Flops:
  """FLOPs of training per token; source and target tokens count alike.

  Attributes:
    full: with attention over all pairs of tokens.
    causal: with attention under a causal pattern counted half, because half of the pairs are masked.
  """

  full: float
  causal: float


def row_lengths(task: Task, model: nnx.Module) -> dict[str, int]:
  """Returns the tokens per row by top-level part, source first; '' is all parts of a one-sided model."""
  spec = task.spec(1)
  if task.inputs == 'a source and a target':
    return {'encoder': spec['source'].shape[1], 'decoder': spec['target'].shape[1]}
  if task.inputs == 'images':
    embedded, _ = jax.eval_shape(lambda model, x: model.embedding(x), model, spec['image'])
    return {'': embedded.shape[1]}
  rows = [field.shape[1] for field in spec.values() if len(field.shape) == 2]
  return {'': max(rows, default=1)}


def flops_per_token(task: Task, model: nnx.Module) -> Flops:
  """Counts the FLOPs of training per token.

  Args:
    task: defines the loss and the shapes of a row.
    model: the model or its shapes.
  """
  # Traced with one row, whose number of tokens is the sum of the row lengths.
  jaxpr = jax.make_jaxpr(lambda model, batch: task.sums(model, batch, None))(
    _with_dense_kernels(model), task.spec(1)
  )
  full, causal = _multiply_adds(jaxpr.jaxpr)
  tokens = sum(row_lengths(task, model).values())
  return Flops(3 * 2 * full / tokens, 3 * 2 * (full - causal / 2) / tokens)


@dataclasses.dataclass(frozen=True)
class _CountedDense(Kernel):
  """Dense attention; if it is causal, traced as a function named `_CAUSAL`."""

  def supports(self, inputs: AttentionInputs) -> str | None:
    return None

  def attend(self, inputs: AttentionInputs) -> jax.Array:
    if inputs.q_len != inputs.k_len or not inputs.pattern.is_causal(inputs.q_len):
      return Dense()(inputs)

    def causal_attention(inputs):
      return Dense()(inputs)

    causal_attention.__name__ = _CAUSAL
    return jax.jit(causal_attention)(inputs)


def _with_dense_kernels(model: nnx.Module) -> nnx.Module:
  """Returns a copy of the model with dense kernels, and with a head that computes all logits at once."""
  copy = jax.tree.map(lambda leaf: leaf, model)
  for _, module in nnx.iter_modules(copy):
    if isinstance(module, LogitHead):
      module.chunk = None
    for name, value in list(vars(module).items()):
      if isinstance(value, Kernel):
        setattr(module, name, _CountedDense())
  return copy


def _multiply_adds(jaxpr: Any) -> tuple[int, int]:
  """Counts the multiply-adds of all contractions, and of those inside causal attention.

  A scan counts once per iteration, a conditional as its largest branch, and a while loop once.
  """
  total = causal = 0
  for equation in jaxpr.eqns:
    total += _contraction(equation)
    counts = [_multiply_adds(inner) for inner in _inner_jaxprs(equation)]
    if equation.primitive.name == 'cond':
      counts = [max(counts)]
    times = equation.params['length'] if equation.primitive.name == 'scan' else 1
    inner_total = times * sum(count for count, _ in counts)
    total += inner_total
    is_causal = equation.params.get('name') == _CAUSAL
    causal += inner_total if is_causal else times * sum(count for _, count in counts)
  return total, causal


def _contraction(equation: Any) -> int:
  """Returns the multiply-adds of an equation; 0 if it is not a contraction."""
  out = math.prod(equation.outvars[0].aval.shape) if equation.outvars else 0
  if equation.primitive.name == 'dot_general':
    (contracted, _), _ = equation.params['dimension_numbers']
    return out * math.prod(equation.invars[0].aval.shape[axis] for axis in contracted)
  if equation.primitive.name == 'conv_general_dilated':
    kernel = equation.invars[1].aval.shape
    outputs = equation.params['dimension_numbers'].rhs_spec[0]
    # With feature groups, the kernel has only the input channels that each output channel reads.
    return out * math.prod(kernel) // kernel[outputs]
  return 0


def _inner_jaxprs(equation: Any) -> Iterator[Any]:
  for value in equation.params.values():
    for item in value if isinstance(value, (list, tuple)) else [value]:
      inner = getattr(item, 'jaxpr', item)
      if hasattr(inner, 'eqns'):
        yield inner
