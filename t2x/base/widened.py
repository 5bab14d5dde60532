"""Arguments and properties that an interface has gained, so that parts written before keep working in configs."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar

Method = TypeVar('Method', bound=Callable[..., Any])
_NO_ATTRIBUTES: Mapping[str, Any] = MappingProxyType({})


class Widening(NamedTuple):
  """Change of a method of an interface.

  Attributes:
    arguments: names of the arguments that implementations written before it lack.
    adapt: maps such an implementation to a method with the interface's arguments; None: it is called without them.
    attributes: class attributes that the interface gained with them, by name, with the values for such classes.
  """

  arguments: tuple[str, ...]
  adapt: Callable[[Callable[..., Any]], Callable[..., Any]] | None
  attributes: Mapping[str, Any] = _NO_ATTRIBUTES


def widened(
  *arguments: str,
  adapt: Callable[[Callable[..., Any]], Callable[..., Any]] | None = None,
  attributes: Mapping[str, Any] = _NO_ATTRIBUTES,
) -> Callable[[Method], Method]:
  """Marks a method of a protocol that has gained arguments.

  A user's implementation without these names in its signature still fits the protocol, and `t2x.config` replaces its
  class by a subclass with the adapted method where a config binds it. An argument that implementations may leave out
  needs its name only:

      class HeadOutputs(Protocol):
        @widened('call')
        def __call__(self, y, x, call): ...

  If the arguments or the result have another meaning, `adapt` converts them. Its condition is the same: the name of
  the new argument is absent. `Merge` returned a pair for `(x, tokens)` before it returned a Result for `(x, call)`:

      def from_tokens(merge):
        def of_call(self, x, call):
          y, tokens = merge(self, x, call.tokens)
          return Result(y, tokens=tokens)
        return of_call

      class Merge(Protocol):
        @widened('call', adapt=from_tokens, attributes={'keeps_tokens': False})
        def __call__(self, x, call): ...

  Args:
    arguments: names of the new arguments.
    adapt: see `Widening`.
    attributes: see `Widening`.
  """

  def mark(method: Method) -> Method:
    setattr(method, '__widening__', Widening(arguments, adapt, attributes))  # noqa: B010
    return method

  return mark


def optional(default: Any) -> Callable[[Method], Method]:
  """Marks the getter of a property that a protocol has gained: classes without it get one that returns `default`."""

  def adapt(absent: Any) -> Any:
    return property(lambda self: default)

  return widened(adapt=adapt)


def widening(method: Any) -> Widening:
  """Returns the change of a method of a protocol; without arguments if it is unchanged."""
  return getattr(method, '__widening__', Widening((), None))
