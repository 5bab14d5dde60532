"""Tails and quantiles of distributions, from scipy.special, which is imported on first use.

scipy.stats has the same functions, but importing it takes five times as long as NumPy.
"""

from typing import Any


def t_sf(x: Any, freedom: Any) -> Any:
  """Returns the upper tail of Student's t distribution."""
  from scipy import special

  return special.stdtr(freedom, -x)


def t_ppf(p: object, freedom: object) -> Any:
  """Returns the quantile p of Student's t distribution."""
  from scipy import special

  return special.stdtrit(freedom, p)


def t_isf(p: object, freedom: object) -> Any:
  """Returns the value with the upper tail p of Student's t distribution."""
  return -t_ppf(p, freedom)


def chi2_ppf(p: Any, freedom: Any) -> Any:
  """Returns the quantile p of the chi-squared distribution."""
  from scipy import special

  return 2 * special.gammaincinv(freedom / 2, p)


def f_sf(x: object, freedom: object, freedom_below: object) -> Any:
  """Returns the upper tail of the F distribution with the degrees of freedom of its numerator and denominator."""
  from scipy import special

  return special.fdtrc(freedom, freedom_below, x)


def normal_sf(x: Any) -> Any:
  """Returns the upper tail of the standard normal distribution."""
  from scipy import special

  return special.ndtr(-x)


def normal_isf(p: object) -> Any:
  """Returns the value with the upper tail p of the standard normal distribution."""
  from scipy import special

  return -special.ndtri(p)
