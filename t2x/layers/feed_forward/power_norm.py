"""PowerNorm (Shen et al. 2020, https://arxiv.org/abs/2003.07845): running mean squares of each feature in the forward
pass, and a running correction of the gradient in the backward pass."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from t2x.base.errors import UserError
from t2x.base.ranges import Epsilon, Rate, Size
from t2x.base.step import is_plain
from t2x.layers.caches import Cache
from t2x.layers.dtypes import Dtypes, with_rank
from t2x.layers.feed_forward.mlp import FeedForward
from t2x.layers.initializers import ones, zeros
from t2x.layers.interfaces import Call, Result
from t2x.layers.parameters import param
from t2x.layers.rules import Rule

__all__ = ['PowerNorm', 'PowerNormRule']


@dataclasses.dataclass(frozen=True, kw_only=True)
class PowerNormRule(Rule):
  """Moves the running averages of `PowerNorm` (algorithm 2 of the paper).

  Attributes:
    decay: share of an average that stays in a step (alpha in the paper).
    epsilon: added to mean squares.
  """

  decay: Rate = 0.9
  epsilon: Epsilon = 1e-5

  def __call__(self, value, statistic):
    square, slope, _ = value
    squares, products, number = statistic
    count, share = jnp.maximum(number, 1), jnp.where(number > 0, 1 - self.decay, 0)
    # Mean of the squared outputs z; the second line is the paper's update of nu.
    gamma = squares / count / (square + self.epsilon)
    slope = slope * (1 - share * gamma) + share * products / count
    return jnp.stack([square + share * (squares / count - square), slope, jnp.zeros_like(slope)])


class PowerNorm(FeedForward):
  """PowerNorm: scale * z + bias with z = y / sqrt(m + epsilon), where m is a running mean of y^2 over tokens and y is x
  divided by its root mean square over each group of features.

  The gradient of y is (g - n z) / sqrt(m + epsilon) with the gradient g of z and a running mean n of g z. Both
  means, of each feature, are those before the step: no output depends on other tokens or rows, and micro-batches and
  devices change nothing. A rule moves them once per step, by sums over all tokens of the step without padding.
  Evaluation uses them as they are. The authors' code uses the mean square of the batch in the first 10,000 steps,
  and later in the gradient, where a token depends on later ones; here it starts from m = 1, which the groups make
  its mean over features.

  It is a sublayer, as it reads which tokens are padding: with the wiring `Plain` it follows a residual connection
  (`SublayerBlock`), and in `Sequential` it precedes a sublayer.

  Args:
    d_model: width of the input.
    num_groups: number of groups of features; the number of heads in the authors' code.
    averages: moves the running means; its epsilon is that of the formulas above.

  Raises:
    UserError: num_groups does not divide d_model.
  """

  def __init__(
    self,
    d_model: int,
    *,
    num_groups: Size = 1,
    averages: PowerNormRule = PowerNormRule(),
    rngs: nnx.Rngs,
  ):
    if d_model % num_groups:
      raise UserError(
        f'PowerNorm.num_groups = {num_groups} does not divide d_model = {d_model}: choose a divisor'
      )
    self.num_groups, self.epsilon = num_groups, averages.epsilon
    vector = functools.partial(param, rngs=rngs, kind='vector', keep_float32=True)
    self.scale = vector(ones(), (d_model,), ('embed',))
    self.bias = vector(zeros(), (d_model,), ('embed',))
    # m, n, and a row for the number of tokens in the statistic.
    self.means = param(_initial, (3, d_model), (None, 'embed'), rngs, kind='rule', rule=averages)

  def __call__(
    self, x: Float[Array, 'batch length d_model'], call: Call, cache: Cache | None = None
  ) -> Result:
    groups = x.astype(Dtypes.reductions).reshape(*x.shape[:2], self.num_groups, -1)
    square = jnp.square(groups).mean(axis=-1, keepdims=True)
    y = (groups * jax.lax.rsqrt(square + self.epsilon)).reshape(x.shape)
    segments, means = call.tokens.segments, self.means[...].astype(y.dtype)
    present = jnp.ones((1, 1)) if segments is None else segments != 0
    present = jnp.broadcast_to(present[..., None], (*x.shape[:2], 1)).astype(y.dtype)
    if is_plain():
      z = y * _factor(jax.lax.stop_gradient(means), self.epsilon)
    else:
      z = _normalized(y, means, present, self.epsilon)
    scale, bias = (with_rank(a[...].astype(z.dtype), z.ndim) for a in (self.scale, self.bias))
    return Result((z * scale + bias).astype(x.dtype))


def _factor(means: Float[Array, '3 d_model'], epsilon: float) -> Float[Array, '1 1 d_model']:
  return jax.lax.rsqrt(means[0] + epsilon)[None, None]


@functools.partial(jax.custom_vjp, nondiff_argnums=(3,))
def _normalized(y: Array, means: Array, present: Array, epsilon: float) -> Array:
  """Returns z; its gradient is that of the paper, and the statistic of `PowerNormRule` for `means`."""
  return y * _factor(means, epsilon)


def _forward(y: Array, means: Array, present: Array, epsilon: float) -> tuple[Array, Any]:
  z = _normalized(y, means, present, epsilon)
  return z, (y, z, means, present)


def _backward(epsilon: float, saved: tuple[Array, ...], g: Array) -> tuple[Array, Array, Array]:
  y, z, means, present = saved
  slope = present * (g - means[1][None, None] * z) * _factor(means, epsilon)
  sums = [(present * a).sum(axis=(0, 1)) for a in (y * y, g * z, jnp.ones_like(y))]
  return slope, jnp.stack(sums), jnp.zeros_like(present)


_normalized.defvjp(_forward, _backward)


def _initial(key: Array, shape: tuple[int, ...], dtype: DTypeLike = jnp.float32) -> Array:
  return jnp.zeros(shape, dtype).at[0].set(1)
