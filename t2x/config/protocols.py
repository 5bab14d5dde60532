"""Checks that classes implement protocols: methods, their arguments, and properties."""

import inspect
import typing
from collections.abc import Callable, Iterator
from typing import Any

from t2x.config.type_names import with_article

_MISSING = object()
_CALL = 'call'
_KEYWORD_ONLY, _VARIADIC = inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.VAR_POSITIONAL


def is_protocol(cls: object) -> bool:
  """Returns whether a class is a `typing.Protocol`, not an implementation of one."""
  return getattr(cls, '_is_protocol', False)


def class_of(hint: object) -> Any:
  """Returns the class of the values of an annotation, or the annotation if it is not one class."""
  if hint is None:
    return type(None)
  origin = typing.get_origin(hint) or hint
  if origin is typing.Literal:
    return type(typing.get_args(hint)[0])
  # jaxtyping: Float[Array, '...'] is an Array.
  return getattr(origin, 'array_type', origin)


def declared(cls: type) -> tuple[Any, ...] | None:
  """Returns the protocols that a class declares, which it and no others implements; None for a class of the user's
  without a declaration, which is matched by its methods.

  Declared are base classes that are protocols, and the entries of the class attribute `implements`, because Flax's
  metaclass does not allow a module to derive from a protocol. All classes of t2x declare.
  """
  bases = tuple(base for base in cls.__mro__ if base is not typing.Protocol and is_protocol(base))
  implements = getattr(cls, 'implements', None)
  if implements is None and not bases and not cls.__module__.startswith('t2x.'):
    return None
  return (*(implements or ()), *bases)


def protocol_misfit(cls: type, protocol: type) -> str | None:
  """Returns why a class does not implement a protocol, after ': '; None if it does."""
  implements = getattr(cls, 'implements', ())
  if not isinstance(implements, tuple) or not all(map(is_protocol, implements)):
    example = f'({protocol.__name__},)'
    return f': {cls.__name__}.implements must be a tuple of interfaces, such as {example}'
  declaration = declared(cls)
  if declaration is not None and not any(protocol in base.__mro__ for base in declaration):
    names = ' and '.join(with_article(base.__name__) for base in declaration)
    return f': {cls.__name__} is {names}' if names else ''
  members = dict(_members(protocol))
  if missing := [name for name, member in members.items() if _lacks(cls, name, member)]:
    return f': {cls.__name__} has no {_listing(missing)}'
  for name, member in members.items():
    own = inspect.getattr_static(cls, name, _MISSING)
    if inspect.isfunction(member) and inspect.isfunction(own):
      reason = _call_misfit(own, member)
      if reason is not None:
        return f': {cls.__name__}.{name} {reason}'
  return None


def _listing(names: list[str]) -> str:
  """Returns names as 'a, b and c'."""
  *others, last = names
  return f'{", ".join(others)} and {last}' if others else last


def _lacks(cls: type, name: str, member: object) -> bool:
  """Returns whether a class has no implementation of a member of a protocol."""
  own = inspect.getattr_static(cls, name, _MISSING)
  # A class attribute None, or an attribute of instances that is annotated in the class, can implement a property,
  # but not a method.
  if own is _MISSING and isinstance(member, property) and _is_annotated(cls, name):
    return False
  is_missing = own is _MISSING or (own is None and inspect.isfunction(member))
  return is_missing or (name == '__call__' and '__call__' not in dir(cls))


def _is_annotated(cls: type, name: str) -> bool:
  """Returns whether a class or one of its bases annotates an attribute."""
  return any(name in inspect.get_annotations(base) for base in cls.__mro__)


def _members(protocol: type) -> Iterator[tuple[str, Any]]:
  """Yields the public methods and properties of a protocol and its bases."""
  for base in protocol.__mro__:
    for name, value in vars(base).items() if is_protocol(base) else ():
      is_public = name == '__call__' or not name.startswith('_')
      if is_public and (inspect.isfunction(value) or isinstance(value, property)):
        yield name, value


def _call_misfit(own: Callable[..., Any], required: Callable[..., Any]) -> str | None:
  """Returns how a method's arguments or return value differ from those of the protocol's method."""
  by_position, by_name = _arguments(required)
  signature, kinds = inspect.signature(own), {p.kind for p in _parameters(required)}
  # An implementation may require some of the protocol's `*inputs`.
  bind = signature.bind_partial if _VARIADIC in kinds else signature.bind
  call = f'cannot be called as {_call_text(by_position, by_name)}'
  try:
    bound = bind(*by_position, **dict.fromkeys(by_name))
  except TypeError as error:
    return f'{call}: {error}'
  # Arguments may have other names, but not `call`: earlier interfaces had one of its fields in its place.
  for name, value in bound.arguments.items():
    if value == _CALL and name.lstrip('_') not in (_CALL, ''):
      return f"{call}: its argument '{name}' must be named '{_CALL}'"
  returned, expected = (_return_kind(method) for method in (own, required))
  if returned and expected and returned != expected:
    return f'returns {returned}, not {expected}'
  return None


def _parameters(method: Callable[..., Any]) -> list[inspect.Parameter]:
  return list(inspect.signature(method).parameters.values())


def _arguments(method: Callable[..., Any]) -> tuple[list[str], list[str]]:
  """Returns the positional arguments of a method, and the arguments passed by name."""
  parameters = _parameters(method)
  by_position = [
    p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
  ]
  return by_position, [p.name for p in parameters if p.kind is _KEYWORD_ONLY]


def _call_text(by_position: list[str], by_name: list[str]) -> str:
  return f'({", ".join([*by_position[1:], *(f"{name}=" for name in by_name)])})'


def _return_kind(method: Callable[..., Any]) -> str:
  """Returns the annotated kind of a return value: 'a tuple of 2', 'an array', or '' if unknown."""
  hint = (getattr(method, '__annotations__', None) or {}).get('return')
  if typing.get_origin(hint) is tuple:
    args = typing.get_args(hint)
    return '' if Ellipsis in args else f'a tuple of {len(args)}'
  return 'an array' if hasattr(hint, 'array_type') else ''
