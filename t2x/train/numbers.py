"""Numbers of a config as inputs of what is compiled, so that trials which differ in a learning rate, a
weight decay, a label smoothing or a dropout rate share one program.

A `Number` stands in the parts where the float would stand. Arithmetic with other numbers stays on the
host, in float64, as it would with the float itself; where an array is met, what has been computed so
far becomes an input of the function that is being traced.
"""

import contextlib
import contextvars
import operator
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from t2x.errors import in_a_line

__all__ = ['Fixed', 'Inputs', 'Number', 'blamed']

Values = Mapping[str, float]


class Fixed(TypeError):
  """A number was needed where only a constant will do: its trials cannot share a program."""


@contextlib.contextmanager
def blamed(numbers: Collection[str]) -> Iterator[None]:
  """Where numbers stand in for constants, they may be why something fails meanwhile: raises Fixed."""
  try:
    yield
  except Exception as error:
    if not numbers or isinstance(error, Fixed):
      raise
    raise Fixed(in_a_line(error)) from error


class Inputs:
  """What the numbers that a traced function met have become: entries of one vector.

  Its functions take the vector as an argument and trace under `with inputs.given(vector)`.
  """

  # More distinct expressions than any config has.
  SIZE = 128

  def __init__(self):
    self._met: dict[str, Number] = {}

  @contextlib.contextmanager
  def given(self, vector: Any) -> Iterator[None]:
    """Numbers that are met meanwhile are read from `vector` [SIZE]; () where there are none."""
    token = _GIVEN.set((self, vector))
    try:
      yield
    finally:
      _GIVEN.reset(token)

  def vector(self, values: Values) -> np.ndarray:
    """The argument of functions that have been traced, for a trial's values; float32 [SIZE]."""
    found = np.zeros(self.SIZE, np.float32)
    for index, number in enumerate(self._met.values()):
      found[index] = number.compute(values)
    return found

  def index(self, number: 'Number') -> int:
    """The number's place in the vector."""
    self._met.setdefault(number.text, number)
    index = list(self._met).index(number.text)
    if index >= self.SIZE:
      raise Fixed(f'more than {self.SIZE} expressions of the numbers that trials differ in')
    return index


_GIVEN: contextvars.ContextVar[tuple[Inputs, Any] | None] = contextvars.ContextVar(
  'numbers', default=None
)


class Number:
  """A float that differs between trials, never zero: what a zero leaves out stays left out.

  What would need its value raises `Fixed`: an order, a branch on what is computed of it. But `==` says
  whether it is the same number, so to every float it is unequal.

  Args:
    text: what it is, 'PreNorm.dropout_rate' or '(1.0 - PreNorm.dropout_rate)'; equal texts are equal.
    compute: its value, given those of a trial by name.
  """

  # Arrays of NumPy leave arithmetic with it to it.
  __array_ufunc__ = None

  def __init__(self, text: str, compute: Callable[[Values], float] | None = None):
    self.text, self.is_given = text, compute is None
    self.compute = compute or (lambda values: values[text])

  def __repr__(self) -> str:
    return self.text

  def __format__(self, spec: str) -> str:
    return self.text

  def __hash__(self) -> int:
    return hash(self.text)

  def __eq__(self, other: object) -> bool:
    # Never Fixed: jit compares the static fields of modules so, with those of programs before.
    return isinstance(other, Number) and self.text == other.text

  def __bool__(self) -> bool:
    return self.is_given or self._refuse()

  def __float__(self) -> float:
    raise Fixed(f'{self} differs between the trials: it cannot be a constant here')

  def _refuse(self, *_: Any) -> Any:
    return self.__float__()

  __int__ = __index__ = __round__ = __lt__ = __le__ = __gt__ = __ge__ = _refuse

  def __jax_array__(self) -> jax.Array:
    return self._array(jnp.float32)

  def _array(self, dtype: Any) -> jax.Array:
    given = _GIVEN.get()
    if given is None:
      raise Fixed(f'{self} is met outside of what is traced for the trials')
    inputs, vector = given
    # As a Python number would, it takes the type of what it meets.
    dtype = dtype if jnp.issubdtype(dtype, jnp.floating) else jnp.float32
    return vector[inputs.index(self)].astype(jax.dtypes.canonicalize_dtype(dtype))

  def _with(self, other: Any, symbol: str, function: Callable, swapped: bool = False) -> Any:
    if isinstance(other, (int, float, Number)) and not isinstance(other, bool):
      pair = (other, self) if swapped else (self, other)
      text = f'({pair[0]!r} {symbol} {pair[1]!r})'
      return Number(text, lambda values: function(*(_value(one, values) for one in pair)))
    array = self._array(other.dtype)
    return function(other, array) if swapped else function(array, other)

  def __add__(self, other: Any) -> Any:
    return self._with(other, '+', operator.add)

  def __radd__(self, other: Any) -> Any:
    return self._with(other, '+', operator.add, swapped=True)

  def __sub__(self, other: Any) -> Any:
    return self._with(other, '-', operator.sub)

  def __rsub__(self, other: Any) -> Any:
    return self._with(other, '-', operator.sub, swapped=True)

  def __mul__(self, other: Any) -> Any:
    return self._with(other, '*', operator.mul)

  def __rmul__(self, other: Any) -> Any:
    return self._with(other, '*', operator.mul, swapped=True)

  def __truediv__(self, other: Any) -> Any:
    return self._with(other, '/', operator.truediv)

  def __rtruediv__(self, other: Any) -> Any:
    return self._with(other, '/', operator.truediv, swapped=True)

  def __pow__(self, other: Any) -> Any:
    return self._with(other, '**', operator.pow)

  def __rpow__(self, other: Any) -> Any:
    return self._with(other, '**', operator.pow, swapped=True)

  def __neg__(self) -> 'Number':
    return self._with(-1.0, '*', operator.mul)

  def __abs__(self) -> 'Number':
    return Number(f'abs({self})', lambda values: abs(self.compute(values)))


def _value(one: Any, values: Values) -> float:
  return one.compute(values) if isinstance(one, Number) else float(one)
