"""The equations of a traced program, for tests."""

from collections.abc import Iterator

from jax.extend.core import Jaxpr, JaxprEqn, jaxprs_in_params


def equations(jaxpr: Jaxpr) -> Iterator[JaxprEqn]:
  """Yields the equations of a program and of the programs inside them."""
  for equation in jaxpr.eqns:
    yield equation
    for inner in jaxprs_in_params(equation.params):
      yield from equations(inner)


def products(jaxpr: Jaxpr) -> list[JaxprEqn]:
  """Returns the matrix products of a program."""
  return [e for e in equations(jaxpr) if e.primitive.name == 'dot_general']
