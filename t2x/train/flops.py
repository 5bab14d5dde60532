"""Model FLOPs of training, counted in the traced forward pass.

3 x the contractions (matrix products and convolutions, 2 FLOPs per multiply-add) of the forward loss: once
forward and twice backward. The program that is counted is the same for every kernel, remat policy and
mesh: it is traced with dense attention and whole logits. Elementwise work is left out, as in PaLM
(https://arxiv.org/abs/2204.02311, appendix B), whose 6 N + 12 L d T is the special case of a dense
decoder.
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

# The name under which the counted program holds attention that sees no later token.
_CAUSAL = 'causal_attention'


@dataclasses.dataclass(frozen=True)
class Flops:
  """FLOPs of training on one token, of the source and the target together.

  Attributes:
    full: attention counted over all pairs of tokens.
    causal: attention under a causal pattern counted half, the other half being masked.
  """

  full: float
  causal: float


def row_lengths(task: Task, model: nnx.Module) -> dict[str, int]:
  """Tokens in a row of the model, by top-level part: the source's side first, '' where all alike."""
  spec = task.spec(1)
  if task.inputs == 'a source and a target':
    return {'encoder': spec['source'].shape[1], 'decoder': spec['target'].shape[1]}
  if task.inputs == 'images':
    embedded, _ = jax.eval_shape(lambda model, x: model.embedding(x), model, spec['image'])
    return {'': embedded.shape[1]}
  rows = [one.shape[1] for one in spec.values() if len(one.shape) == 2]
  return {'': max(rows, default=1)}


def flops_per_token(task: Task, model: nnx.Module) -> Flops:
  """Counts the FLOPs of training.

  Args:
    task: gives the loss and the shapes of a row.
    model: the model or its shapes.
  """
  # Traced with one row, whose tokens are the row lengths of all sides.
  jaxpr = jax.make_jaxpr(lambda model, batch: task.sums(model, batch, None))(
    _plain(model), task.spec(1)
  )
  full, causal = _multiply_adds(jaxpr.jaxpr)
  tokens = sum(row_lengths(task, model).values())
  return Flops(3 * 2 * full / tokens, 3 * 2 * (full - causal / 2) / tokens)


@dataclasses.dataclass(frozen=True)
class _Counted(Kernel):
  """Dense attention, in the traced program under a name that says whether it is causal."""

  def supports(self, inputs: AttentionInputs) -> str | None:
    return None

  def attend(self, inputs: AttentionInputs) -> jax.Array:
    if inputs.q_len != inputs.k_len or not inputs.pattern.is_causal(inputs.q_len):
      return Dense()(inputs)

    def causal_attention(inputs):
      return Dense()(inputs)

    causal_attention.__name__ = _CAUSAL
    return jax.jit(causal_attention)(inputs)


def _plain(model: nnx.Module) -> nnx.Module:
  """A copy of the model whose kernels are dense, and whose head computes all logits at once."""
  copy = jax.tree.map(lambda leaf: leaf, model)
  for _, module in nnx.iter_modules(copy):
    if isinstance(module, LogitHead):
      module.chunk = None
    for name, value in list(vars(module).items()):
      if isinstance(value, Kernel):
        setattr(module, name, _Counted())
  return copy


def _multiply_adds(jaxpr: Any) -> tuple[int, int]:
  """Multiply-adds of all contractions, and of those inside causal attention.

  A scan counts as often as it runs, a conditional as its largest branch, and a loop whose length is known
  at run time only counts once.
  """
  total = causal = 0
  for equation in jaxpr.eqns:
    total += _contraction(equation)
    inside = [_multiply_adds(inner) for inner in _inner(equation)]
    if equation.primitive.name == 'cond':
      inside = [max(inside)]
    times = equation.params['length'] if equation.primitive.name == 'scan' else 1
    below = times * sum(one for one, _ in inside)
    total += below
    is_causal = equation.params.get('name') == _CAUSAL
    causal += below if is_causal else times * sum(one for _, one in inside)
  return total, causal


def _contraction(equation: Any) -> int:
  """Multiply-adds of one equation; 0 where it is no contraction."""
  out = math.prod(equation.outvars[0].aval.shape) if equation.outvars else 0
  if equation.primitive.name == 'dot_general':
    (contracted, _), _ = equation.params['dimension_numbers']
    return out * math.prod(equation.invars[0].aval.shape[axis] for axis in contracted)
  if equation.primitive.name == 'conv_general_dilated':
    kernel = equation.invars[1].aval.shape
    outputs = equation.params['dimension_numbers'].rhs_spec[0]
    # Each output channel reads the kernel's own input channels, whatever the number of groups.
    return out * math.prod(kernel) // kernel[outputs]
  return 0


def _inner(equation: Any) -> Iterator[Any]:
  """The programs that an equation holds."""
  for value in equation.params.values():
    for one in value if isinstance(value, (list, tuple)) else [value]:
      inner = getattr(one, 'jaxpr', one)
      if hasattr(inner, 'eqns'):
        yield inner
