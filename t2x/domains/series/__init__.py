"""Time series: sources, windows, embeddings, forecasters, and scores of forecasts."""

from typing import TYPE_CHECKING

from t2x.base.names import exports

if TYPE_CHECKING:
  from t2x.domains.series.autoregressive_forecasting import *
  from t2x.domains.series.embeddings import *
  from t2x.domains.series.forecast import *
  from t2x.domains.series.forecast_distributions import *
  from t2x.domains.series.forecast_scores import *
  from t2x.domains.series.forecasting import *
  from t2x.domains.series.sources import *
  from t2x.domains.series.windows import *
else:
  __getattr__, __dir__ = exports(__name__)
