"""Checks that classes implement protocols: methods, their arguments, and properties; adapts classes written before a
protocol gained an argument."""

import functools
import inspect
import typing
from collections.abc import Iterator
from typing import Any

from t2x.base.widened import widening
from t2x.config.type_names import plain_hint, with_article

_MISSING = object()
_KEYWORD_ONLY, _VARIADIC = inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.VAR_POSITIONAL


def is_protocol(cls: Any) -> bool:
  """Returns whether a class is a `typing.Protocol`, not an implementation of one."""
  return getattr(cls, '_is_protocol', False)


def class_of(hint: Any) -> Any:
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
  missing = [name for name, member in members.items() if _lacks(cls, name, member)]
  if missing := [name for name in missing if _optional(members[name]) is None]:
    return f': {cls.__name__} has no {_listing(missing)}'
  for name, member in members.items():
    own = inspect.getattr_static(cls, name, _MISSING)
    if inspect.isfunction(member) and inspect.isfunction(own):
      reason = _call_misfit(own, member)
      if reason is not None:
        return f': {cls.__name__}.{name} {reason}'
  return None


def adapted(part: Any, hint: Any) -> Any:
  """Returns a value of an annotation with the arguments that its protocols have gained (see `t2x.base.widened`).

  Args:
    part: a class, a `functools.partial` of it, or any other value, which is returned as it is.
    hint: the annotation, such as `Callable[..., Scores] | None`.

  Returns:
    A subclass of the class with adapted methods, or `part` if it needs none.
  """
  if isinstance(part, functools.partial):
    inner = adapted(part.func, hint)
    return part if inner is part.func else functools.partial(inner, *part.args, **part.keywords)
  if not isinstance(part, type) or part.__module__.startswith('t2x.'):
    return part
  return _adapted_class(part, tuple(dict.fromkeys(_protocols(hint))))


@functools.cache
def _adapted_class(cls: type, protocols: tuple[type, ...]) -> type:
  methods, attributes = {}, dict[str, Any]()
  for protocol in protocols:
    if protocol_misfit(cls, protocol) is not None:
      continue
    for name, member in _members(protocol):
      own = inspect.getattr_static(cls, name, _MISSING)
      if _optional(member) and _lacks(cls, name, member):
        methods[name] = _optional(member)(own)
      elif inspect.isfunction(own) and _lacking(own, member):
        methods[name] = _adapted_method(own, member)
        gained = widening(member).attributes.items()
        attributes |= {name: value for name, value in gained if not hasattr(cls, name)}
  if not methods:
    return cls
  names = {name: getattr(cls, name) for name in ('__module__', '__qualname__', '__doc__')}
  return type(cls)(cls.__name__, (cls,), names | attributes | methods)


def _protocols(hint: Any) -> Iterator[type]:
  """Yields the protocols in an annotation, and the declared protocols of its classes."""
  hint = plain_hint(hint)
  if is_protocol(hint):
    yield hint
  elif isinstance(hint, type):
    yield from declared(hint) or ()
  for argument in typing.get_args(hint):
    if argument is not Ellipsis and not isinstance(argument, list):
      yield from _protocols(argument)


def _lacking(own: Any, required: Any) -> tuple[str, ...]:
  """Returns the arguments that a protocol's method has gained and that an implementation does not have."""
  arguments, adapt, _ = widening(required)
  parameters = inspect.signature(own).parameters
  if any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
    return ()
  lacking = tuple(name for name in arguments if name not in parameters)
  # An argument may have another name, unless its meaning depends on it.
  return () if adapt is None and _binding_error(own, required, ()) is None else lacking


def _adapted_method(own: Any, required: Any) -> Any:
  lacking, adapt = _lacking(own, required), widening(required).adapt
  if adapt is not None:
    return functools.wraps(own)(adapt(own))
  signature = inspect.signature(required)

  def without(*args, **kwargs):
    arguments = signature.bind(*args, **kwargs)
    for name in lacking:
      arguments.arguments.pop(name, None)
    return own(*arguments.args, **arguments.kwargs)

  return without


def _listing(names: list[str]) -> str:
  """Returns names as 'a, b and c'."""
  return ' and '.join([', '.join(names[:-1]), names[-1]][len(names) == 1 :])


def _lacks(cls: type, name: str, member: Any) -> bool:
  """Returns whether a class has no implementation of a member of a protocol."""
  own = inspect.getattr_static(cls, name, _MISSING)
  # A class attribute None, or an attribute of instances that is annotated in the class, can implement a property,
  # but not a method.
  if own is _MISSING and isinstance(member, property) and _is_annotated(cls, name):
    return False
  is_missing = own is _MISSING or (own is None and inspect.isfunction(member))
  return is_missing or (name == '__call__' and '__call__' not in dir(cls))


def _optional(member: Any) -> Any:
  """Returns what creates a property of a protocol that classes may lack (`t2x.base.widened.optional`), else None."""
  return widening(member.fget).adapt if isinstance(member, property) else None


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


def _call_misfit(own: Any, required: Any) -> str | None:
  """Returns how a method's arguments or return value differ from those of the protocol's method."""
  lacking, adapt = _lacking(own, required), widening(required).adapt
  # A method that is adapted has other arguments in place of the new ones, or none.
  errors = [_binding_error(own, required, without) for without in ((), lacking)]
  if None not in errors:
    by_position, by_name = _arguments(required)
    return f'cannot be called as {_call_text(by_position, by_name)}: {errors[0]}'
  returned, expected = (_return_kind(method) for method in (own, required))
  if returned and expected and returned != expected and not (lacking and adapt):
    return f'returns {returned}, not {expected}'
  return None


def _arguments(method: Any) -> tuple[list[str], list[str]]:
  """Returns the positional arguments of a method, and the arguments passed by name."""
  parameters = inspect.signature(method).parameters.values()
  by_position = [
    p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
  ]
  return by_position, [p.name for p in parameters if p.kind is _KEYWORD_ONLY]


def _binding_error(own: Any, required: Any, without: tuple[str, ...]) -> TypeError | None:
  """Returns why a method does not accept the arguments of the protocol's method, except some; None if it does."""
  by_position, by_name = ([n for n in names if n not in without] for names in _arguments(required))
  signature = inspect.signature(own)
  kinds = {p.kind for p in inspect.signature(required).parameters.values()}
  # An implementation may require some of the protocol's `*inputs`.
  bind = signature.bind_partial if _VARIADIC in kinds else signature.bind
  try:
    bind(*by_position, **dict.fromkeys(by_name))
  except TypeError as error:
    return error
  return None


def _call_text(by_position: list[str], by_name: list[str]) -> str:
  return f'({", ".join([*by_position[1:], *(f"{name}=" for name in by_name)])})'


def _return_kind(method: Any) -> str:
  """Returns the annotated kind of a return value: 'a tuple of 2', 'an array', or '' if unknown."""
  hint = (getattr(method, '__annotations__', None) or {}).get('return')
  if typing.get_origin(hint) is tuple:
    args = typing.get_args(hint)
    return '' if Ellipsis in args else f'a tuple of {len(args)}'
  return 'an array' if hasattr(hint, 'array_type') else ''
