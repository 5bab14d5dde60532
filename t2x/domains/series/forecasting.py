"""Direct forecasts of time series: each channel of a series is a row of its own (PatchTST,
https://arxiv.org/abs/2211.14730; DLinear, https://arxiv.org/abs/2205.13504)."""

import dataclasses
from collections.abc import Callable
from typing import Protocol, runtime_checkable

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float

from t2x.base.errors import UserError
from t2x.base.ranges import Positive, Size, TunableRate
from t2x.domains.series.embeddings import SeriesPatches
from t2x.domains.series.forecast_distributions import ForecastDistribution, PointForecast
from t2x.layers import Initializer, Input, Linear, dropout, lecun_normal, named_key
from t2x.layers.keys import repeated_keys
from t2x.models.bodies import Encoder
from t2x.models.interfaces import Body, Model, Output
from t2x.models.spec import ModelSpec

__all__ = [
  'Decomposition',
  'Forecaster',
  'MeanScaler',
  'PatchNetwork',
  'Scaler',
  'SeriesNetwork',
  'StandardScaler',
]


@runtime_checkable
class Scaler(Protocol):
  """Computes location and scale of the values of a context."""

  def __call__(
    self,
    values: Float[Array, 'batch context channels'],
    observed: Bool[Array, 'batch context channels'],
  ) -> tuple[Float[Array, 'batch 1 channels'], Float[Array, 'batch 1 channels']]:
    """Returns location and scale; missing values have no effect."""
    ...


@dataclasses.dataclass(frozen=True, kw_only=True)
class StandardScaler(Scaler):
  """Mean, and standard deviation sqrt(variance + epsilon): reversible instance normalisation (Kim et al. 2022,
  https://openreview.net/forum?id=cGDAkQo1C0p) without its affine parameters.

  Attributes:
    epsilon: added to the variance.
  """

  epsilon: Positive = 1e-5

  def __call__(self, values, observed):
    count = jnp.maximum(observed.sum(axis=1, keepdims=True), 1)
    loc = jnp.where(observed, values, 0).sum(axis=1, keepdims=True) / count
    squares = jnp.where(observed, jnp.square(values - loc), 0).sum(axis=1, keepdims=True)
    return loc, jnp.sqrt(squares / count + self.epsilon)


@dataclasses.dataclass(frozen=True, kw_only=True)
class MeanScaler(Scaler):
  """Location 0, and the mean of absolute values as the scale (DeepAR, https://arxiv.org/abs/1704.04110).

  Attributes:
    minimum: minimum scale.
    default: scale of a context without values.
  """

  minimum: Positive = 1e-10
  default: Positive = 1.0

  def __call__(self, values, observed):
    count = observed.sum(axis=1, keepdims=True)
    total = jnp.abs(jnp.where(observed, values, 0)).sum(axis=1, keepdims=True)
    scale = jnp.where(count > 0, total / jnp.maximum(count, 1), self.default)
    return jnp.zeros_like(scale), jnp.maximum(scale, self.minimum)


def observed_values(
  series: Float[Array, 'batch length channels'],
) -> tuple[Float[Array, 'batch length channels'], Bool[Array, 'batch length channels']]:
  """Returns float32 values with 0 in place of NaN, and which are not NaN."""
  observed = ~jnp.isnan(series)
  return jnp.where(observed, series, 0).astype(jnp.float32), observed


@runtime_checkable
class SeriesNetwork(Protocol):
  """Computes features of the context of one channel. Built as `SeriesNetwork(context, rngs=rngs)`."""

  @property
  def output_dim(self) -> int:
    """Number of features."""
    ...

  def __call__(self, x: Float[Array, 'rows context'], key: Array | None = None) -> Output:
    """Returns the features [rows, output_dim] of scaled values; `key` is that of dropout."""
    ...


class PatchNetwork(nnx.Module):
  """Encodes patches of a channel as tokens, and returns the vectors of all of them as one (PatchTST).

  Args:
    context: number of values.
    d_model: width of the residual stream.
    embedding: builds the embedding of patches.
    body: builds the encoder.
  """

  implements = (SeriesNetwork,)
  output_dim: int

  def __init__(
    self,
    context: int,
    *,
    d_model: Size,
    embedding: Callable[..., SeriesPatches] = SeriesPatches,
    body: Callable[..., Body] = Encoder,
    rngs: nnx.Rngs,
  ):
    self.embedding = embedding(d_model, rngs=rngs)
    self.body = body(d_model, rngs=rngs)
    self.output_dim = self.embedding.num_patches(context) * self.body.output_dim

  def __call__(self, x, key=None):
    embedded, tokens = self.embedding(x)
    out = self.body(embedded, tokens=tokens, key=named_key(key, 'body'))
    return dataclasses.replace(out, x=out.x.reshape(len(x), -1))


class Decomposition(nnx.Module):
  """Splits the values of a channel into their moving average (trend) and the rest, both of which are features: with the
  linear head of `Forecaster`, DLinear (https://arxiv.org/abs/2205.13504).

  Args:
    context: number of values.
    window: number of values of the moving average, odd; the first and the last value are repeated at the ends.

  Raises:
    UserError: `window` is even.
  """

  implements = (SeriesNetwork,)
  output_dim: int

  def __init__(self, context: int, *, window: Size = 25, rngs: nnx.Rngs):
    if window % 2 == 0:
      raise UserError(f'Decomposition.window = {window}: must be odd')
    self.window, self.output_dim = window, 2 * context

  def __call__(self, x, key=None):
    around = self.window // 2
    padded = jnp.pad(x, ((0, 0), (around, around)), mode='edge')
    columns = jnp.arange(x.shape[1])[:, None] + jnp.arange(self.window)[None]
    trend = padded[:, columns].mean(axis=-1)
    return Output(jnp.concatenate([x - trend, trend], axis=-1))


class Forecaster(nnx.Module):
  """Forecasts the values after a context, each channel from its own values with
  shared parameters (channel independence).

  The values of the context are scaled by `scaler`, missing values (NaN) are at its location, and forecasts are scaled
  back. Missing values have no effect on location and scale.

  Args:
    context: number of values of the context.
    horizon: number of forecast values.
    scaler: computes location and scale of the context.
    network: builds the network of the context of one channel.
    distribution: distribution of each forecast value.
    dropout_rate: dropout rate on the features.
    init: initialiser of the linear layer from features to forecasts.
  """

  implements = (Model,)

  def __init__(
    self,
    *,
    context: Size,
    horizon: Size,
    scaler: Scaler = StandardScaler(),
    network: Callable[..., SeriesNetwork] = PatchNetwork,
    distribution: ForecastDistribution = PointForecast(),
    dropout_rate: TunableRate = 0.0,
    init: Initializer = lecun_normal(),
    rngs: nnx.Rngs,
  ):
    self.context, self.horizon = context, horizon
    self.scaler, self.distribution, self.dropout_rate = scaler, distribution, dropout_rate
    self.network = network(context, rngs=rngs)
    self.out = Linear(
      (self.network.output_dim,),
      (horizon, distribution.num_parameters),
      ('embed', None, None),
      init=init,
      kind='table',
      rngs=rngs,
    )

  @property
  def spec(self) -> ModelSpec:
    return ModelSpec(
      inputs={'series': Input('series', (self.context, None), 'float32')},
      outputs=frozenset({'forecast'}),
      patterns=(),
    )

  def __call__(
    self,
    series: Float[Array, 'batch context channels'],
    *,
    key: Array | None = None,
  ) -> Output:
    """Returns the parameters of `distribution`, float32 [batch, horizon, channels, parameters].

    `Output.heads` has the location and the scale of the context by the names 'loc' and 'scale', [batch, 1, channels].

    Args:
      series: values; NaN for missing values.
      key: random keys of dropout, one per row [batch], or one key []; None: no dropout.
    """
    values, observed = observed_values(series)
    loc, scale = self.scaler(values, observed)
    scaled = jnp.where(observed, (values - loc) / scale, 0)
    batch, _, channels = scaled.shape
    rows = scaled.transpose(0, 2, 1).reshape(batch * channels, -1)
    keys = repeated_keys(key, channels)
    out = self.network(rows.astype(self.out.kernel[...].dtype), named_key(keys, 'network'))
    features = dropout(out.x, self.dropout_rate, named_key(keys, 'dropout'))
    raw = self.out(features).astype(jnp.float32)
    raw = raw.reshape(batch, channels, self.horizon, -1).transpose(0, 2, 1, 3)
    parameters = self.distribution.parameters(raw, loc, scale)
    return Output(parameters, None, out.aux, out.recorded, heads={'loc': loc, 'scale': scale})
