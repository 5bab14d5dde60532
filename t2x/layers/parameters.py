"""Building blocks of layers: parameters with logical axes, projections and dropout."""

import functools
import inspect
import math
from collections.abc import Callable, Sequence
from typing import Any, Literal, get_args

import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from t2x.base.hyperparameters import Tunable, scalar
from t2x.layers.building import build_context
from t2x.layers.dtypes import Dtypes, with_rank
from t2x.layers.keys import NamedRngs, bernoulli, initial_value
from t2x.layers.products import linear
from t2x.layers.rules import Rule

__all__ = ['Initializer', 'Linear', 'WeightNormLinear', 'dropout', 'param']

Initializer = Callable[..., Array]
Key = Array
Kind = Literal['matrix', 'table', 'filter', 'vector', 'scalar', 'identity', 'rule']


def param(
  init: Initializer,
  shape: Sequence[int],
  axes: Sequence[str | None],
  rngs: nnx.Rngs,
  *,
  kind: Kind | None = None,
  matrix: tuple[int, int] | None = None,
  keep_float32: bool = False,
  rule: Rule | None = None,
  maximum: float | None = None,
) -> nnx.Param:
  """Creates a float32 parameter annotated with what it is; nothing else decides how it is trained.

  | kind | parameters | weight decay | Muon |
  |---|---|---|---|
  | matrix | maps hidden vectors to hidden vectors | yes | orthogonalised |
  | table | rows that are looked up: embeddings, positions, biases, projections to tokens or classes | yes | Adam |
  | filter | kernels over neighbouring tokens or pixels, maps over the length | yes | Adam |
  | vector | added to or multiplied with features: biases, norms, null keys, prompts, centroids | no | Adam |
  | scalar | a single number | no | Adam |
  | identity | starts as a neutral element, which decay would destroy: mixtures of streams or heads | no | Adam |
  | rule | no gradient, no optimizer state: `rule` moves it after each step (`t2x.layers.rules`) | no | the rule |

  Vectors per head (Transformer-XL's u and v, null keys and values, the w of additive scores) stay vectors: their
  published code has one vector or does not decay them. Class tokens and prompts are not decayed (DeiT).

  Inside `initialized` the random key of the initial value is derived from the parameter's name, elsewhere
  it is the next key of `rngs`. The leading dimensions of `stacked` are not in `axes`.

  Args:
    init: initialiser.
    shape: shape of the parameter.
    axes: logical name of each dimension, or None.
    rngs: random keys.
    kind: one of the table. None: 'matrix', which needs `matrix`.
    matrix: (inputs, outputs) of a matrix that multiplies hidden vectors, with which the initialiser is called. If
      the parameter is larger, it is several matrices, each with a key of its own. None: not such a matrix.
    keep_float32: whether a step computes with the parameter in float32 instead of casting it to the compute
      dtype (see `Dtypes`); always for kind 'rule'.
    rule: what moves a parameter of kind 'rule'.
    maximum: upper bound of each element, to which a train step clips the parameter after its update; None: no bound.

  Raises:
    ValueError: `axes` do not fit the shape, `kind` is missing or unknown, or `matrix` or `rule` does not fit it.
  """
  kind = _kind_of(shape, axes, kind, matrix, rule)
  metadata: dict[str, Any] = {}
  if isinstance(rngs, NamedRngs):
    value, metadata = rngs.draw(init, tuple(shape), tuple(axes), matrix)
  else:
    value = initial_value(init, rngs.params(), tuple(shape), matrix)
  return nnx.Param(
    value,
    axes=tuple(axes),
    kind=kind,
    matrix=matrix,
    layers=build_context().position.layers,
    keep_float32=keep_float32 or kind == 'rule',
    rule=rule,
    maximum=maximum,
    **metadata,
  )


def _kind_of(
  shape: Sequence[int],
  axes: Sequence[str | None],
  kind: Kind | None,
  matrix: tuple[int, int] | None,
  rule: Rule | None,
) -> Kind:
  """Returns the kind of a parameter; see `param`."""
  call, kinds = f'param(shape={tuple(shape)}, axes={tuple(axes)})', get_args(Kind)
  if len(axes) != len(shape):
    raise ValueError(f'{call}: axes must name each dimension of the shape')
  if kind is None and matrix is None:
    raise ValueError(f'{call} has no kind: set kind to one of {", ".join(kinds)}')
  if kind is not None and kind not in kinds:
    raise ValueError(f'{call}: kind {kind!r} must be one of {", ".join(kinds)}')
  if kind == 'matrix' and matrix is None:
    raise ValueError(f"{call} of kind 'matrix' needs matrix=(inputs, outputs)")
  if (kind == 'rule') != (rule is not None):
    raise ValueError(f"{call}: kind 'rule' and a rule need each other")
  return kind or 'matrix'


def keep_probability(rate: Tunable) -> Float[Array, '']:
  """Returns 1 - rate in float32. The rate is rounded first, so that the same elements are dropped whether
  it is a constant or an input of the step."""
  return 1.0 - jnp.asarray(scalar(rate), jnp.float32)


def dropout(
  x: Float[Array, '#batch *rest'], rate: Tunable, key: Key | None
) -> Float[Array, 'batch *rest']:
  """Zeroes elements with probability `rate` and scales the rest by 1 / (1 - rate).

  Args:
    x: the elements. What all rows share, with a first dimension of 1, is dropped for each row.
    rate: the probability.
    key: one key per row [batch], or one key [] for the whole array; None: no dropout.
  """
  if key is None or rate == 0.0:
    return x
  probability = keep_probability(rate)
  keep = bernoulli(key, probability, x.shape)
  return jnp.where(keep, x / probability.astype(x.dtype), 0)


class Linear(nnx.Module):
  """Linear projection of the last dimensions: [..., *inputs] -> [..., *outputs].

  The initialiser is called with the shape [prod(inputs), prod(outputs)], so that fan-in and fan-out do not
  depend on how the dimensions are split into heads. `kind` is that of the kernel; see `param`.
  """

  def __init__(
    self,
    inputs: Sequence[int],
    outputs: Sequence[int],
    axes: Sequence[str | None],
    *,
    init: Initializer,
    use_bias: bool = True,
    bias_init: Initializer = nnx.initializers.zeros,
    kind: Kind = 'matrix',
    rngs: nnx.Rngs,
  ):
    self.num_inputs = len(inputs)
    matrix = math.prod(inputs), math.prod(outputs)
    self.kernel = param(init, (*inputs, *outputs), axes, rngs, kind=kind, matrix=matrix)
    axes = axes[len(inputs) :]
    self.bias = param(bias_init, outputs, axes, rngs, kind='vector') if use_bias else None

  def weight(self) -> Float[Array, '...']:
    """Returns the array [*inputs, *outputs] that multiplies the input."""
    return self.kernel[...]

  def __call__(self, x: Float[Array, '...']) -> Float[Array, '...']:
    kernel, axes = self.weight().astype(x.dtype), self.kernel.get_metadata()['axes']
    bias = None if self.bias is None else self.bias[...]
    return linear(x, kernel, bias, self.num_inputs, axes)


class WeightNormLinear(Linear):
  """Linear projection with weight normalisation: the weights of each output are gain * v / |v|, with the kernel v
  (Salimans and Kingma 2016, https://arxiv.org/abs/1602.07868).

  The initial gain is |v|, so that the initial weights are those of `Linear`. The part that is built with it passes all
  arguments, which are those of `Linear`.
  """

  def __init__(
    self,
    inputs: Sequence[int],
    outputs: Sequence[int],
    axes: Sequence[str | None],
    init: Initializer,
    use_bias: bool,
    kind: Kind,
    *,
    rngs: nnx.Rngs,
  ):
    super().__init__(inputs, outputs, axes, init=init, use_bias=use_bias, kind=kind, rngs=rngs)

    def norms(key: Key, shape: tuple[int, ...], dtype: DTypeLike) -> Array:
      return self._norms().reshape(shape).astype(dtype)

    gain_axes = axes[len(inputs) :]
    self.gain = param(norms, outputs, gain_axes, rngs, kind='vector', keep_float32=True)

  def _norms(self) -> Float[Array, '...']:
    """Returns |v| of each output, [1, ..., *outputs]."""
    squares = jnp.square(self.kernel[...].astype(Dtypes.reductions))
    return jnp.sqrt(squares.sum(axis=range(self.num_inputs), keepdims=True))

  def weight(self):
    v = self.kernel[...].astype(Dtypes.reductions)
    return v * (with_rank(self.gain[...].astype(Dtypes.reductions), v.ndim) / self._norms())


def with_defaults(constructor: Callable[..., None], **defaults: object) -> Any:
  """Returns a constructor with other default values of settings, for a subclass that differs in them only."""

  @functools.wraps(constructor)
  def replaced(self, *args, **settings):
    constructor(self, *args, **{**defaults, **settings})

  result: Any = replaced
  signature = inspect.signature(constructor)
  parameters = [
    p.replace(default=defaults.get(p.name, p.default)) for p in signature.parameters.values()
  ]
  result.__signature__ = signature.replace(parameters=parameters)
  return result
