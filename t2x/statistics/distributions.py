"""Tails and quantiles of distributions, from scipy.special, which is imported on first use.

scipy.stats has the same functions, but importing it takes five times as long as NumPy.
"""

from typing import Any

import numpy as np

# Results have the shape of the broadcast arguments.
Values = np.ndarray | float


def t_sf(x: Values, freedom: Values) -> Any:
  """Returns the upper tail of Student's t distribution."""
  from scipy import special

  return special.stdtr(freedom, -x)


def t_ppf(p: Values, freedom: Values) -> Any:
  """Returns the quantile p of Student's t distribution."""
  from scipy import special

  return special.stdtrit(freedom, p)


def t_isf(p: Values, freedom: Values) -> Any:
  """Returns the value with the upper tail p of Student's t distribution."""
  return -t_ppf(p, freedom)


def chi2_ppf(p: Values, freedom: Values) -> Any:
  """Returns the quantile p of the chi-squared distribution."""
  from scipy import special

  return 2 * special.gammaincinv(freedom / 2, p)


def f_sf(x: Values, freedom: Values, freedom_below: Values) -> Any:
  """Returns the upper tail of the F distribution with the degrees of freedom of its numerator and denominator."""
  from scipy import special

  return special.fdtrc(freedom, freedom_below, x)


def normal_sf(x: Values) -> Any:
  """Returns the upper tail of the standard normal distribution."""
  from scipy import special

  return special.ndtr(-x)


def normal_isf(p: Values) -> Any:
  """Returns the value with the upper tail p of the standard normal distribution."""
  from scipy import special

  return -special.ndtri(p)
