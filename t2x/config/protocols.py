"""Whether a class has what a protocol asks for: its methods, their arguments, its properties."""

import inspect
import typing
from collections.abc import Iterator
from typing import Any

_MISSING = object()
_KEYWORD_ONLY = inspect.Parameter.KEYWORD_ONLY


def is_protocol(cls: Any) -> bool:
  """Whether a class is a `typing.Protocol` and not an implementation of one."""
  return getattr(cls, '_is_protocol', False)


def class_of(hint: Any) -> Any:
  """The class of the values of an annotation, where it is one class."""
  if hint is None:
    return type(None)
  origin = typing.get_origin(hint) or hint
  if origin is typing.Literal:
    return type(typing.get_args(hint)[0])
  # jaxtyping: Float[Array, '...'] is an Array.
  return getattr(origin, 'array_type', origin)


def protocol_misfit(given: type, wanted: type) -> str | None:
  """Why a class does not implement a protocol, after ': '; None where it does."""
  for name, member in _members(wanted):
    own = inspect.getattr_static(given, name, _MISSING)
    # A property may be given as the class attribute None, a method may not.
    is_missing = own is _MISSING or (own is None and inspect.isfunction(member))
    if is_missing or (name == '__call__' and '__call__' not in dir(given)):
      return f': {given.__name__} has no {name}'
    if inspect.isfunction(member) and inspect.isfunction(own):
      reason = _call_misfit(own, member)
      if reason is not None:
        return f': {given.__name__}.{name} {reason}'
  return None


def _members(protocol: type) -> Iterator[tuple[str, Any]]:
  """The methods and properties that a protocol and its bases define."""
  for base in protocol.__mro__:
    for name, value in vars(base).items() if is_protocol(base) else ():
      is_public = name == '__call__' or not name.startswith('_')
      if is_public and (inspect.isfunction(value) or isinstance(value, property)):
        yield name, value


def _call_misfit(own: Any, wanted: Any) -> str | None:
  """Why a method cannot be called as the protocol's is, or returns another kind of value."""
  parameters = list(inspect.signature(wanted).parameters.values())
  by_position = [
    p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
  ]
  by_name = [p.name for p in parameters if p.kind is _KEYWORD_ONLY]
  signature = inspect.signature(own)
  try:
    signature.bind(*by_position, **dict.fromkeys(by_name))
  except TypeError as error:
    return f'cannot be called as {_shown(by_position, by_name)}: {error}'
  returned, expected = (_returned(one) for one in (own, wanted))
  if returned and expected and returned != expected:
    return f'returns {returned}, not {expected}'
  return None


def _shown(by_position: list[str], by_name: list[str]) -> str:
  return f'({", ".join([*by_position[1:], *(f"{name}=" for name in by_name)])})'


def _returned(method: Any) -> str:
  """The kind of what a method returns by its annotation: 'a tuple of 2', 'an array'; '' if unknown."""
  hint = (getattr(method, '__annotations__', None) or {}).get('return')
  if typing.get_origin(hint) is tuple:
    args = typing.get_args(hint)
    return '' if Ellipsis in args else f'a tuple of {len(args)}'
  return 'an array' if hasattr(hint, 'array_type') else ''
