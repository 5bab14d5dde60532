"""Signatures of parts: parameters with annotations and defaults, read without building the part."""

import dataclasses
import inspect
import sys
import typing
from collections.abc import Callable, Mapping
from typing import Any

# Default of a parameter that has none.
MISSING: object = inspect.Parameter.empty

# Parameters that only the enclosing part can pass, not a config.
BUILDER_ARGUMENTS = frozenset({'normed_heads', 'reads_source', 'rngs'})


@dataclasses.dataclass(frozen=True)
class Parameter:
  """A parameter.

  Attributes:
    name: the name.
    hint: the annotation; `Any` if it is absent or cannot be resolved.
    default: the default, or `MISSING`.
    positional: whether it can be passed by position.
    nameable: whether it can be passed by keyword.
  """

  name: str
  hint: object
  default: object
  positional: bool
  nameable: bool

  @property
  def required(self) -> bool:
    return self.default is MISSING


@dataclasses.dataclass(frozen=True, eq=False)
class Part:
  """A class, function or callable object that configs can name.

  Attributes:
    name: the registered name.
    obj: the class, function or callable object.
    parameters: the parameters by name, in the order of the signature.
    open: whether it accepts any keyword argument (`**kwargs`).
    returns: the return annotation; for a class, the class.
  """

  name: str
  obj: Any
  parameters: Mapping[str, Parameter]
  open: bool
  returns: object

  @property
  def is_class(self) -> bool:
    return isinstance(self.obj, type)

  @property
  def is_built_by_another(self) -> bool:
    """Whether the enclosing part passes its positional parameters and rngs, as for modules."""
    return self.is_class and not BUILDER_ARGUMENTS.isdisjoint(self.parameters)

  def is_builder_argument(self, name: str) -> bool:
    """Returns whether the enclosing part passes this parameter of the factory `@Name`."""
    parameter = self.parameters.get(name)
    if parameter is None or not self.is_class or dataclasses.is_dataclass(self.obj):
      return name in BUILDER_ARGUMENTS
    return name in BUILDER_ARGUMENTS or (parameter.positional and parameter.required)


def describe(obj: object, name: str) -> Part:
  """Reads the signature and annotations of a part; without a signature, any keyword is accepted.

  A constructor with `**settings` also has the settings of the constructor of its base class, to which it passes them.
  """
  function = _function(obj)
  if function is None:
    return Part(name, obj, {}, False, obj)
  try:
    signature = inspect.signature(function)
  except (ValueError, TypeError):
    return Part(name, obj, {}, True, obj if isinstance(obj, type) else Any)
  hints = _hints(obj, function)
  arguments = list(signature.parameters.values())
  if isinstance(obj, type):
    arguments = arguments[1:] if arguments and arguments[0].kind in _BY_POSITION else arguments
  parameters = {
    p.name: Parameter(
      p.name,
      hints.get(p.name, Any),
      MISSING if p.name in BUILDER_ARGUMENTS else p.default,
      p.kind in _BY_POSITION,
      p.kind in _BY_NAME,
    )
    for p in arguments
    if p.kind in _BY_POSITION or p.kind in _BY_NAME
  }
  is_open = any(p.kind is p.VAR_KEYWORD for p in arguments)
  base = _base_with_constructor(obj) if is_open else None
  if base is not None:
    inherited = describe(base, name)
    parameters = {**inherited.parameters, **parameters}
    is_open = inherited.open
  returns = obj if isinstance(obj, type) else hints.get('return', Any)
  return Part(name, obj, parameters, is_open, returns)


_BY_POSITION = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_BY_NAME = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


def _function(obj: object) -> Any:
  """Returns the function whose signature a part has; None if it has no parameters.

  For a class this is its constructor, because Flax's metaclass hides the signature of the class.
  """
  if not isinstance(obj, type):
    return obj
  # typing.Protocol adds an empty `__init__` to classes without one.
  init, new = getattr(obj, '__init__'), getattr(obj, '__new__')  # noqa: B009
  if init is not object.__init__ and 'no_init' not in init.__name__:
    return init
  return None if new is object.__new__ else new


def _base_with_constructor(obj: object) -> type | None:
  """Returns the base class whose constructor `super().__init__` calls in a class; None if it has no parameters."""
  owners = [cls for cls in getattr(obj, '__mro__', ()) if '__init__' in vars(cls)]
  return next((cls for cls in owners[1:] if _function(cls) is not None), None)


def _hints(obj: object, function: Callable[..., Any]) -> dict[str, Any]:
  """Returns the resolved annotations by parameter; `Any` if one cannot be resolved."""
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


def _resolve(hint: object, names: Mapping[str, Any]) -> Any:
  def annotated():
    pass

  annotated.__annotations__ = {'hint': hint}
  try:
    resolved = typing.get_type_hints(annotated, dict(names), include_extras=True)['hint']
  except Exception:
    # An annotation may be any expression. One that cannot be evaluated is not checked.
    return Any
  return resolved.type if isinstance(resolved, dataclasses.InitVar) else resolved
