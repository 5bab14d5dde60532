"""Autoregressive forecasts of time series by an encoder-decoder with lagged values, a calendar and sampled paths, equal
to TimeSeriesTransformerForPrediction of transformers."""

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float, Int

from t2x.base.calendar import CALENDAR_SIZES, CalendarField
from t2x.base.errors import UserError
from t2x.base.ranges import Size
from t2x.domains.series.embeddings import CalendarEmbedding, ValueEmbedding, linear_values
from t2x.domains.series.forecast_distributions import ForecastDistribution, StudentT
from t2x.domains.series.forecasting import MeanScaler, Scaler, observed_values
from t2x.layers import Initializer, Input, Linear, SourceSequence, Tokens, lecun_normal, named_key
from t2x.layers.keys import fold_in, row_keys
from t2x.models.bodies import Decoder, Encoder
from t2x.models.cache import BodyCache
from t2x.models.interfaces import Body, Model, Output
from t2x.models.spec import ModelSpec

__all__ = ['AutoregressiveForecaster']


class AutoregressiveForecaster(nnx.Module):
  """Forecasts value by value, from the values `lags` before, the calendar and the scale of the context.

  The vector of a time has the scaled values at its lags, log(1 + |loc|) and log(scale) of each channel, and the
  calendar, each field of n values as index / (n - 1) - 1/2. Lags reach before the context; only the context determines
  location and scale. Missing values (NaN) are at the location.

  Args:
    d_model: width of the residual stream.
    channels: number of channels, which are forecast jointly.
    context: number of values that the encoder reads and that are scaled by.
    horizon: number of forecast values.
    lags: distances to earlier values, from 1 on. The series of a call has `context` + max(lags) values.
    calendar: fields of the calendar.
    scaler: computes location and scale of the context.
    encoder_values: builds the embedding of the vectors of the context; that of the forecast, of which a time must not
      see the next one, is linear.
    tables: builds an embedding of the calendar, added to that of the values in place of the numbers from -1/2 to
      1/2. None: the numbers.
    encoder: builds the body of the context.
    decoder: builds the body of the forecast; its blocks need `cross`.
    distribution: distribution of each forecast value.
    init: initialiser of the projections of the decoder's inputs and to the parameters of the distribution.

  Raises:
    UserError: there are no lags, a lag is repeated, or `distribution` has no samples.
  """

  implements = (Model,)

  def __init__(
    self,
    *,
    d_model: Size,
    channels: Size,
    context: Size,
    horizon: Size,
    lags: Sequence[Size],
    calendar: Sequence[CalendarField],
    scaler: Scaler = MeanScaler(),
    encoder_values: Callable[..., ValueEmbedding] = linear_values,
    tables: Callable[..., CalendarEmbedding] | None = None,
    encoder: Callable[..., Body] = Encoder,
    decoder: Callable[..., Body] = Decoder,
    distribution: ForecastDistribution = StudentT(),
    init: Initializer = lecun_normal(),
    rngs: nnx.Rngs,
  ):
    if not lags or len(set(lags)) < len(lags):
      raise UserError(
        f'AutoregressiveForecaster.lags = {list(lags)}: must have different numbers, at least one'
      )
    if type(distribution).sample is ForecastDistribution.sample:
      raise UserError(
        f'AutoregressiveForecaster.distribution = @{type(distribution).__name__}() has no samples: use @StudentT()'
      )
    self.channels, self.context, self.horizon = channels, context, horizon
    self.lags, self.calendar = tuple(lags), tuple(calendar)
    self.scaler, self.distribution = scaler, distribution
    size = channels * (len(lags) + 2) + (len(calendar) if tables is None else 0)
    self.tables = tables and tables(d_model, calendar, rngs=rngs)
    self.encoder_values = encoder_values(d_model, size, rngs=rngs)
    self.encoder = encoder(d_model, rngs=rngs)
    self.decoder_values = linear_values(d_model, size, init=init, rngs=rngs)
    self.decoder = decoder(d_model, rngs=rngs)
    self.out = Linear(
      (self.decoder.output_dim,),
      (channels, distribution.num_parameters),
      ('embed', None, None),
      init=init,
      kind='table',
      rngs=rngs,
    )

  @property
  def past(self) -> int:
    """Number of values of the series of a call."""
    return self.context + max(self.lags)

  @property
  def spec(self) -> ModelSpec:
    length = self.past + self.horizon
    return ModelSpec(
      inputs={
        'series': Input('series', (self.past, self.channels), 'float32'),
        'calendar': Input('series', (length, len(self.calendar)), 'int32'),
        'future': Input('series', (self.horizon, self.channels), 'float32'),
      },
      outputs=frozenset({'forecast'}),
      patterns=tuple(self.decoder.patterns),
    )

  def _scaled(
    self, series: Float[Array, 'batch past channels']
  ) -> tuple[Float[Array, 'batch past channels'], Array, Array]:
    """Returns scaled values, and the location and the scale of the context."""
    values, observed = observed_values(series)
    loc, scale = self.scaler(values[:, -self.context :], observed[:, -self.context :])
    return jnp.where(observed, (values - loc) / scale, 0), loc, scale

  def _embedded(
    self, values: ValueEmbedding, lagged: Array, calendar: Array, loc: Array, scale: Array
  ) -> Float[Array, 'batch length d_model']:
    """Embeds the times of lagged values [batch, length, channels, lags] with their calendar [batch, length, fields]."""
    static = jnp.concatenate([jnp.log1p(jnp.abs(loc)), jnp.log(scale)], axis=-1)
    static = jnp.broadcast_to(static, (*calendar.shape[:2], static.shape[-1]))
    parts = [lagged.reshape(*lagged.shape[:2], -1), static]
    if self.tables is None:
      sizes = jnp.array([CALENDAR_SIZES[name] - 1 for name in self.calendar], jnp.float32)
      parts.append(calendar.astype(jnp.float32) / sizes.reshape(1, 1, -1) - 0.5)
    x = values(jnp.concatenate(parts, axis=-1).astype(self.out.kernel[...].dtype))
    return x if self.tables is None else x + self.tables(calendar).astype(x.dtype)

  def _encode(
    self, scaled: Array, calendar: Array, loc: Array, scale: Array, key: Array | None = None
  ) -> tuple[Output, SourceSequence]:
    """Returns the output of the encoder, and the source of the decoder."""
    times = slice(max(self.lags), self.past)
    lagged = jnp.stack([scaled[:, times.start - lag : times.stop - lag] for lag in self.lags], -1)
    x = self._embedded(self.encoder_values, lagged, calendar[:, times], loc, scale)
    out = self.encoder(x, key=named_key(key, 'encoder'))
    return out, SourceSequence(out.x, Tokens.row(self.context))

  def _parameters(self, x: Array, loc: Array, scale: Array) -> Array:
    raw = self.out(x).astype(jnp.float32)
    return self.distribution.parameters(raw, loc, scale)

  def __call__(
    self,
    series: Float[Array, 'batch past channels'],
    calendar: Int[Array, 'batch length fields'],
    future: Float[Array, 'batch horizon channels'],
    *,
    key: Array | None = None,
  ) -> Output:
    """Returns the parameters of `distribution` of each value of the future given all values before it, float32 [batch,
    horizon, channels, parameters]; `Output.heads` as in `Forecaster`.

    Args:
      series: values of the past; NaN for missing values.
      calendar: fields of past and future, [batch, past + horizon, fields].
      future: values of the future; the last one has no effect.
      key: random keys of dropout, one per row [batch], or one key []; None: no dropout.
    """
    past, loc, scale = self._scaled(series)
    observed: Bool[Array, 'batch horizon channels'] = ~jnp.isnan(future)
    after = jnp.where(observed, (jnp.where(observed, future, 0) - loc) / scale, 0)
    scaled = jnp.concatenate([past, after], axis=1)
    encoded, source = self._encode(scaled, calendar, loc, scale, key)
    end = self.past + self.horizon
    lagged = jnp.stack([scaled[:, self.past - lag : end - lag] for lag in self.lags], axis=-1)
    x = self._embedded(self.decoder_values, lagged, calendar[:, self.past :], loc, scale)
    out = self.decoder(x, source, key=named_key(key, 'decoder'))
    parameters = self._parameters(out.x, loc, scale)
    heads = {'loc': loc, 'scale': scale}
    return Output(parameters, None, encoded.aux + out.aux, heads=heads)

  def sample(
    self,
    series: Float[Array, 'batch past channels'],
    calendar: Int[Array, 'batch length fields'],
    *,
    num_samples: int,
    key: Array,
  ) -> Float[Array, 'batch samples horizon channels']:
    """Returns sampled paths, each value from the distribution given the sampled values before it, with a
    cache of the decoder.

    Args:
      series: values of the past; NaN for missing values.
      calendar: fields of past and future, [batch, past + horizon, fields].
      num_samples: number of paths of each row.
      key: random key [], or one per row [batch].
    """
    rows = key if key.shape else row_keys(key, len(series))
    # One key per path, so that a path does not depend on the other rows.
    keys = jax.vmap(row_keys, (0, None))(rows, num_samples).reshape(-1)
    past, loc, scale = self._scaled(series)
    _, source = self._encode(past, calendar, loc, scale)
    cache = self.decoder.init_cache(len(series), self.horizon, jnp.float32, source)
    decoder, cache = self.decoder.unstacked(cache)
    cache = cache.repeat(num_samples)
    past, loc, scale, calendar = (
      jnp.repeat(array, num_samples, axis=0) for array in (past, loc, scale, calendar)
    )
    buffer = jnp.pad(past, ((0, 0), (0, self.horizon), (0, 0)))
    distances = jnp.array(self.lags)

    def step(
      carry: tuple[Array, BodyCache], number: Array
    ) -> tuple[tuple[Array, BodyCache], Array]:
      buffer, cache = carry
      at = self.past + number
      lagged = jnp.moveaxis(buffer[:, at - distances], 1, -1)[:, None]
      x = self._embedded(self.decoder_values, lagged, calendar[:, at][:, None], loc, scale)
      positions = jnp.full((len(buffer), 1), number)
      tokens = Tokens(positions=positions, segments=jnp.ones_like(positions))
      out = decoder(x, None, tokens=tokens, cache=cache)
      parameters = self._parameters(out.x, loc, scale)
      value = jax.vmap(self.distribution.sample)(parameters, fold_in(keys, number))
      buffer = jax.lax.dynamic_update_slice_in_dim(buffer, (value - loc) / scale, at, axis=1)
      return (buffer, out.cache), value[:, 0]

    _, values = jax.lax.scan(step, (buffer, cache), jnp.arange(self.horizon))
    paths = jnp.moveaxis(values, 0, 1)
    return paths.reshape(len(series), num_samples, self.horizon, self.channels)
