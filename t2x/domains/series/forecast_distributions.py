"""Forecasts of a value: a number, quantiles, or Student's t-distribution."""

import abc
import dataclasses
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from t2x.base.errors import UserError
from t2x.base.ranges import InnerFraction

__all__ = ['ForecastDistribution', 'PointForecast', 'Quantiles', 'StudentT']


class ForecastDistribution(abc.ABC):
  """Base class of distributions of a forecast value. A model computes their parameters in units of the values.

  Attributes:
    num_parameters: number of parameters.
  """

  @property
  @abc.abstractmethod
  def num_parameters(self) -> int: ...

  @abc.abstractmethod
  def parameters(
    self,
    raw: Float[Array, '*rest parameters'],
    loc: Float[Array, '*#rest'],
    scale: Float[Array, '*#rest'],
  ) -> Float[Array, '*rest parameters']:
    """Returns parameters in units of the values.

    Args:
      raw: outputs of a linear layer, for values that are scaled as (value - loc) / scale.
      loc: location of the values.
      scale: scale of the values.
    """

  @abc.abstractmethod
  def loss(
    self,
    parameters: Float[Array, '*rest parameters'],
    values: Float[Array, '*rest'],
    scale: Float[Array, '*#rest'],
  ) -> Float[Array, '*rest']:
    """Returns the loss of each value.

    Args:
      parameters: parameters in units of the values.
      values: the values.
      scale: scale in units of which errors are.
    """

  @abc.abstractmethod
  def centre(self, parameters: Float[Array, '*rest parameters']) -> Float[Array, '*rest']:
    """Returns the forecast as one number: the mean, or the quantile in the middle."""

  @abc.abstractmethod
  def quantiles(
    self, parameters: Float[np.ndarray, '*rest parameters'], levels: Sequence[float]
  ) -> Float[np.ndarray, '*rest levels']:
    """Returns quantiles at levels between 0 and 1."""

  def check_levels(self, levels: Sequence[float]) -> None:  # noqa: B027
    """Raises UserError if quantiles at these levels are unknown."""

  def sample(
    self, parameters: Float[Array, '*rest parameters'], key: Array
  ) -> Float[Array, '*rest']:
    """Returns a sample of each value.

    Raises:
      UserError: the parameters do not determine a distribution.
    """
    raise UserError(f'{type(self).__name__} has no samples: use @StudentT()')


@dataclasses.dataclass(frozen=True, kw_only=True)
class PointForecast(ForecastDistribution):
  """One number, whose loss is the squared error in units of the scale. All quantiles are that number."""

  num_parameters = 1

  def parameters(self, raw, loc, scale):
    return raw * scale[..., None] + loc[..., None]

  def loss(self, parameters, values, scale):
    return jnp.square((parameters[..., 0] - values) / scale)

  def centre(self, parameters):
    return parameters[..., 0]

  def quantiles(self, parameters, levels):
    return np.repeat(parameters, len(levels), axis=-1)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Quantiles(ForecastDistribution):
  """Quantiles, whose loss is the mean of 2 |(value < quantile) - level| |value - quantile| over levels, in units of the
  scale (Koenker and Bassett 1978). Quantiles are sorted when they are read, since outputs may cross.

  Attributes:
    levels: levels between 0 and 1, increasing.

  Raises:
    UserError: the levels do not increase.
  """

  levels: tuple[InnerFraction, ...] = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)

  def __post_init__(self):
    if not self.levels or list(self.levels) != sorted(set(self.levels)):
      raise UserError(f'Quantiles.levels = {list(self.levels)}: must increase')

  @property
  def num_parameters(self):
    return len(self.levels)

  def parameters(self, raw, loc, scale):
    return raw * scale[..., None] + loc[..., None]

  def loss(self, parameters, values, scale):
    errors = (values[..., None] - parameters) / scale[..., None]
    levels = jnp.asarray(self.levels, errors.dtype)
    levels = levels.reshape(*[1] * (errors.ndim - 1), -1)
    return 2 * jnp.maximum(levels * errors, (levels - 1) * errors).mean(axis=-1)

  def centre(self, parameters):
    return parameters[..., len(self.levels) // 2]

  def quantiles(self, parameters, levels):
    return np.sort(parameters, axis=-1)[..., [self.levels.index(level) for level in levels]]

  def check_levels(self, levels):
    unknown = [level for level in levels if level not in self.levels]
    if unknown:
      raise UserError(
        f'the model has no quantile of level {unknown[0]}: add it to Quantiles.levels = {list(self.levels)}'
      )


@dataclasses.dataclass(frozen=True, kw_only=True)
class StudentT(ForecastDistribution):
  """Student's t-distribution with degrees of freedom above 2, location and scale; the loss is -log p(value), as in
  DeepAR's successors (GluonTS, https://arxiv.org/abs/1906.05264)."""

  num_parameters = 3

  def parameters(self, raw, loc, scale):
    freedom = 2.0 + _squareplus(raw[..., 0])
    own = jnp.maximum(_squareplus(raw[..., 2]), jnp.finfo(raw.dtype).eps)
    return jnp.stack([freedom, raw[..., 1] * scale + loc, own * scale], axis=-1)

  def loss(self, parameters, values, scale):
    freedom, loc, own = (parameters[..., i] for i in range(3))
    half, z = (freedom + 1) / 2, (values - loc) / own
    gammas = jax.lax.lgamma(half) - jax.lax.lgamma(freedom / 2)
    normaliser = jnp.log(own) + 0.5 * jnp.log(freedom * jnp.pi) - gammas
    return normaliser + half * jnp.log1p(z * z / freedom)

  def centre(self, parameters):
    return parameters[..., 1]

  def quantiles(self, parameters, levels):
    from scipy.special import stdtrit

    freedom, loc, own = np.moveaxis(parameters[..., None, :].astype(np.float64), -1, 0)
    return (loc + own * stdtrit(freedom, np.asarray(levels))).astype(np.float32)

  def sample(self, parameters, key):
    freedom, loc, own = (parameters[..., i] for i in range(3))
    return loc + own * jax.random.t(key, freedom)


def _squareplus(x: Float[Array, '*rest']) -> Float[Array, '*rest']:
  """Returns (x + sqrt(x^2 + 4)) / 2 (https://arxiv.org/abs/2112.11687)."""
  return (x + jnp.sqrt(jnp.square(x) + 4.0)) / 2.0
