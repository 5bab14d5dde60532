"""What a part takes: its parameters with annotations and defaults, read once without building it."""

import dataclasses
import inspect
import sys
import typing
from collections.abc import Mapping
from typing import Any

# No default; also an annotation that is absent or cannot be resolved is `Any`.
MISSING: Any = inspect.Parameter.empty

# Parameters that only the part that builds another can give.
GIVEN = frozenset({'rngs'})


@dataclasses.dataclass(frozen=True)
class Parameter:
  """One parameter. `positional`: it can be given by position; `nameable`: by name."""

  name: str
  hint: Any
  default: Any
  positional: bool
  nameable: bool

  @property
  def required(self) -> bool:
    return self.default is MISSING


@dataclasses.dataclass(frozen=True, eq=False)
class Part:
  """Something that a config can name.

  Attributes:
    name: the name it was registered under.
    obj: the class, function or callable object.
    parameters: by name, in the order of the signature.
    open: it takes any keyword (`**kwargs`).
    returns: the annotation of what calling it gives; the class itself for a class.
  """

  name: str
  obj: Any
  parameters: Mapping[str, Parameter]
  open: bool
  returns: Any

  @property
  def is_class(self) -> bool:
    return isinstance(self.obj, type)

  @property
  def is_built_by_another(self) -> bool:
    """A module: its positional parameters and rngs come from the part that holds it."""
    return self.is_class and not GIVEN.isdisjoint(self.parameters)

  def given_by_builder(self, name: str) -> bool:
    """Whether config must not bind this parameter of the factory `@Name`."""
    parameter = self.parameters.get(name)
    if parameter is None or not self.is_class or dataclasses.is_dataclass(self.obj):
      return name in GIVEN
    return name in GIVEN or (parameter.positional and parameter.required)


def describe(obj: Any, name: str) -> Part:
  """Reads the signature and the annotations of a part; what cannot be read is left open."""
  function = _function(obj)
  if function is None:
    return Part(name, obj, {}, False, obj)
  try:
    signature = inspect.signature(function)
  except (ValueError, TypeError):
    return Part(name, obj, {}, True, obj if isinstance(obj, type) else Any)
  hints = _hints(obj, function)
  found = list(signature.parameters.values())
  if isinstance(obj, type):
    found = found[1:] if found and found[0].kind in _BY_POSITION else found
  parameters = {
    p.name: Parameter(
      p.name, hints.get(p.name, Any), p.default, p.kind in _BY_POSITION, p.kind in _BY_NAME
    )
    for p in found
    if p.kind in _BY_POSITION or p.kind in _BY_NAME
  }
  is_open = any(p.kind is p.VAR_KEYWORD for p in found)
  returns = obj if isinstance(obj, type) else hints.get('return', Any)
  return Part(name, obj, parameters, is_open, returns)


_BY_POSITION = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_BY_NAME = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


def _function(obj: Any) -> Any:
  """What the signature is read from (flax's metaclass hides that of a class); None: no parameters."""
  if not isinstance(obj, type):
    return obj
  # typing.Protocol puts an empty initializer of its own into classes without one.
  init, new = getattr(obj, '__init__'), getattr(obj, '__new__')  # noqa: B009
  if init is not object.__init__ and 'no_init' not in init.__name__:
    return init
  return None if new is object.__new__ else new


def _hints(obj: Any, function: Any) -> dict[str, Any]:
  """Annotations by parameter, strings resolved; `Any` for each that cannot be."""
  if isinstance(obj, type) and dataclasses.is_dataclass(obj):
    hints = {}
    for base in reversed(obj.__mro__):
      names = vars(sys.modules.get(base.__module__, typing))
      own = inspect.get_annotations(base)
      hints.update({name: _resolve(hint, names) for name, hint in own.items()})
    return hints
  plain = inspect.unwrap(function)
  if not inspect.isroutine(plain):
    plain = type(plain).__call__
  names = getattr(plain, '__globals__', {})
  annotations = getattr(plain, '__annotations__', None) or {}
  return {name: _resolve(hint, names) for name, hint in annotations.items()}


def _resolve(hint: Any, names: Mapping[str, Any]) -> Any:
  def holder():
    pass

  holder.__annotations__ = {'hint': hint}
  try:
    resolved = typing.get_type_hints(holder, dict(names), include_extras=True)['hint']
  except Exception:
    # An annotation may be any expression; what does not evaluate is not checked.
    return Any
  return resolved.type if isinstance(resolved, dataclasses.InitVar) else resolved
