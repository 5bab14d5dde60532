"""Checks values against annotations, without building anything.

Numbers, strings and containers are checked exactly (an int is a valid float, a bool is not a valid int) and
against the ranges of `t2x.base.ranges`. `Callable[..., X]` is a factory of X and accepts `@Part`; a class accepts
`@Part()`. Protocols are compared by their methods and properties. A value is accepted if its annotation does
not determine its type.
"""

import collections.abc
import inspect
import typing
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from t2x.base.hyperparameters import Hyperparameter
from t2x.base.ranges import Range, Role
from t2x.config.protocols import class_of, is_protocol, protocol_misfit
from t2x.config.signature import Part
from t2x.config.type_names import UNIONS, plain_hint, with_article, words
from t2x.config.values import Reference, to_gin

__all__ = ['problem']

Find = Callable[[str], 'Part | None']
_NONE = type(None)
_SCALARS: dict[Any, tuple[type, ...]] = {
  int: (int,),
  float: (int, float),
  complex: (int, float, complex),
  str: (str,),
  bytes: (bytes,),
}


class OutOfRange(str):
  """Error message for a value of the right type outside its range."""


def problem(value: object, hint: object, find: Find) -> str | None:
  """Returns an error message to follow 'Name.param ', or None if `value` fits `hint`.

  Args:
    value: literals, containers and References; no macros.
    hint: a resolved annotation.
    find: returns the part of a reference's name, or None.
  """
  message = _type_problem(value, hint, find)
  if message is None and not isinstance(value, Reference):
    for range_ in _ranges(hint):
      if not range_.holds(value):
        text = repr(value) if isinstance(value, float) else to_gin(value)
        return OutOfRange(f'{range_}, got {text}')
  return message


def _ranges(hint: object) -> Iterator[Range]:
  """Yields the ranges of an annotation, including nested `Annotated`."""
  while typing.get_origin(hint) is typing.Annotated:
    hint, *metadata = typing.get_args(hint)
    yield from (item for item in metadata if isinstance(item, Range))


def _type_problem(value: object, hint: object, find: Find) -> str | None:
  hint = plain_hint(hint)
  origin, args = typing.get_origin(hint), typing.get_args(hint)
  if hint is Any or hint is object or hint is inspect.Parameter.empty:
    return None
  if origin in UNIONS:
    return _union_problem(value, hint, args, find)
  if isinstance(value, Reference):
    part = find(value.name)
    return None if part is None else _reference_problem(value, part, hint)
  if hint is None or hint is _NONE:
    return None if value is None else _expected_text(hint, value)
  if origin is typing.Literal:
    fits = any(value == choice and type(value) is type(choice) for choice in args)
    return None if fits else _expected_text(hint, value)
  if origin is collections.abc.Callable or hint is collections.abc.Callable:
    return _expected_text(hint, value)
  if hint is bool:
    return None if isinstance(value, bool) else _expected_text(hint, value)
  if hint in _SCALARS:
    fits = isinstance(value, _SCALARS[hint]) and not isinstance(value, bool)
    return None if fits else _expected_text(hint, value)
  return _container_problem(value, hint, origin or hint, args, find)


def _expected_text(hint: object, value: object) -> str:
  return f'must be {words(hint)}, got {to_gin(value)}'


def _union_problem(value: object, hint: object, args: tuple, find: Find) -> str | None:
  problems = [problem(value, arm, find) for arm in args]
  if None in problems:
    return None
  if out_of_range := next((text for text in problems if isinstance(text, OutOfRange)), None):
    return out_of_range
  if isinstance(value, Reference):
    # If the other form, `@Part` or `@Part()`, fits an arm, the message of this arm names it.
    other = Reference(value.scope, value.name, not value.evaluate)
    for arm, message in zip(args, problems, strict=True):
      if problem(other, arm, find) is None:
        return message
  arms = [message for arm, message in zip(args, problems, strict=True) if arm is not _NONE]
  if isinstance(value, Reference):
    # The form fits, so the only arm for such a reference names what the part lacks.
    factories = [m for arm, m in zip(args, problems, strict=True) if _is_factory(arm)]
    if not value.evaluate and len(factories) == 1:
      return factories[0]
  if len(arms) == 1 and (isinstance(value, Reference) or type(value) in (list, tuple, dict)):
    return arms[0]
  return _expected_text(hint, value)


def _is_factory(hint: object) -> bool:
  return typing.get_origin(plain_hint(hint)) is collections.abc.Callable


def _container_problem(value, hint, origin, args, find) -> str | None:
  if not isinstance(origin, type):
    return None
  if hasattr(origin, 'array_type'):
    return _expected_text(hint, value)
  if is_protocol(origin):
    return None if protocol_misfit(type(value), origin) is None else _expected_text(hint, value)
  if not isinstance(value, origin):
    return _expected_text(hint, value)
  if isinstance(value, Mapping):
    keys, items = args if len(args) == 2 else (Any, Any)
    pairs = [(k, keys) for k in value] + [(v, items) for v in value.values()]
  elif isinstance(value, (list, tuple)):
    if isinstance(value, tuple) and origin is tuple and args and args[-1] is not Ellipsis:
      if len(args) != len(value):
        return _expected_text(hint, value)
      pairs = list(zip(value, args, strict=True))
    else:
      pairs = [(item, args[0] if args else Any) for item in value]
  elif isinstance(value, str) and origin is not str and args:
    return _expected_text(hint, value)
  else:
    return None
  return next((message for pair in pairs if (message := problem(*pair, find))), None)


def _reference_problem(value: Reference, part: Part, hint: object) -> str | None:
  """Checks a reference against an annotation that is not a union."""
  factory = Reference(value.scope, value.name, False)
  built = Reference(value.scope, value.name, True)
  if typing.get_origin(hint) is collections.abc.Callable or hint is collections.abc.Callable:
    if value.evaluate:
      return _object_as_callable(part, hint, factory, built)
    return _part_as_callable(part, hint, factory, built)
  if value.evaluate:
    reason = _mismatch(part.returns, hint)
    if reason is None:
      return None
    return f'must be {words(hint)}, but {built} is {_result_text(part)}{reason}'
  if part.is_class and typing.get_origin(hint) is type:
    return None
  if not part.is_class and _is_instance(part.obj, hint):
    return None
  if _mismatch(part.returns, hint) is None:
    return f'must be an object: write {built}, not {factory}'
  return f'must be {words(hint)}, got {factory}'


def _part_as_callable(part: Part, hint: object, factory: Reference, built: Reference) -> str | None:
  """Checks `@Part` against a Callable annotation: its result must have the expected type."""
  arguments, expected = typing.get_args(hint) or (..., Any)
  reason = _mismatch(part.returns, expected)
  if reason is None:
    # Bindings may set missing arguments, but cannot remove surplus ones.
    if _accepts(part.obj, arguments, partial=True):
      return None
    return f'must be {words(hint)}, but {factory} does not accept {len(arguments)} positional argument(s)'
  if _returns_callable(part.returns) and not part.is_built_by_another:
    return f'must be {words(hint)}: write {built}, not {factory}'
  return f'must be {words(hint)}, but {factory} builds {_result_text(part)}{reason}'


def _result_text(part: Part) -> str:
  """Returns the type of the result of calling a part, in words."""
  returns = plain_hint(part.returns)
  is_class = isinstance(returns, type) and returns.__module__ != 'builtins'
  return with_article(returns.__name__) if is_class else words(returns)


def _object_as_callable(
  part: Part, hint: object, factory: Reference, built: Reference
) -> str | None:
  """Checks `@Part()` against a Callable annotation: the object must be callable."""
  arguments, expected = typing.get_args(hint) or (..., Any)
  is_typed = plain_hint(expected) is not Any and plain_hint(part.returns) is not Any
  if part.is_built_by_another or (is_typed and _mismatch(part.returns, expected) is None):
    return f'must be a part, not an object: write {factory}, not {built}'
  if not _returns_callable(part.returns):
    return f'must be a part or function: write {factory}, not {built}'
  if part.is_class and isinstance(arguments, list):
    arguments = [part.obj, *arguments]
  if part.is_class and not _accepts(part.obj.__call__, arguments):
    return f'must be {words(hint)}, but {built} does not accept {len(arguments) - 1} positional argument(s)'
  return None


def _accepts(function: Callable[..., Any], arguments: object, partial: bool = False) -> bool:
  """Returns whether a function accepts `arguments` by position; True if this cannot be determined."""
  if not isinstance(arguments, list):
    return True
  try:
    signature = inspect.signature(function)
  except (ValueError, TypeError):
    return True
  try:
    (signature.bind_partial if partial else signature.bind)(*arguments)
  except TypeError:
    return False
  return True


def _is_instance(obj: object, hint: object) -> bool:
  """Returns whether an object (a function or instance) fits the annotation."""
  origin = typing.get_origin(hint) or hint
  if origin is type or not isinstance(origin, type):
    return True
  if is_protocol(origin):
    return protocol_misfit(type(obj), origin) is None
  return isinstance(obj, origin)


def _returns_callable(returns: object) -> bool:
  """Returns whether values of this annotation are callable."""
  returns = plain_hint(returns)
  origin = typing.get_origin(returns) or returns
  if not isinstance(origin, type):
    return True
  return origin is collections.abc.Callable or '__call__' in dir(origin)


def _mismatch(actual: object, expected: object) -> str | None:
  """Compares two annotations.

  Args:
    actual: annotation of a value.
    expected: annotation that it must fit.

  Returns:
    None if it fits or if this cannot be determined, else the reason after ': ', or '' without one.
  """
  actual, expected = plain_hint(actual), plain_hint(expected)
  if Any in (actual, expected) or expected is object:
    return None
  for hint, is_actual in ((actual, True), (expected, False)):
    if typing.get_origin(hint) in UNIONS:
      arms = typing.get_args(hint)
      reasons = [_mismatch(arm, expected) if is_actual else _mismatch(actual, arm) for arm in arms]
      return None if None in reasons else ''
  actual, expected = class_of(actual), class_of(expected)
  if expected is collections.abc.Callable:
    return None if _returns_callable(actual) else ''
  if not isinstance(actual, type) or not isinstance(expected, type):
    return None
  if expected in (float, complex) and actual in (int, float):
    return None
  if expected in actual.__mro__ or (not is_protocol(expected) and issubclass(actual, expected)):
    return None
  return protocol_misfit(actual, expected) if is_protocol(expected) else ''


def is_tunable(hint: object) -> bool:
  """Returns whether an annotation is `float | Hyperparameter`, which trials vary within one program."""
  if typing.get_origin(hint) is typing.Annotated:
    return is_tunable(typing.get_args(hint)[0])
  return typing.get_origin(hint) in UNIONS and any(
    arm is Hyperparameter or is_tunable(arm) for arm in typing.get_args(hint)
  )


def has_role(hint: object, role: Role) -> bool:
  """Returns whether an annotation contains a role."""
  return typing.get_origin(hint) is typing.Annotated and role in typing.get_args(hint)[1:]


def convert(value: Any, hint: object) -> Any:
  """Converts ints to floats where the annotation is float."""
  hint = plain_hint(hint)
  origin, args = typing.get_origin(hint), typing.get_args(hint)
  if type(value) is int:
    arms = [plain_hint(arm) for arm in args] if origin in UNIONS else [hint]
    return float(value) if float in arms and int not in arms else value
  if origin in UNIONS:
    generic = [arm for arm in map(plain_hint, args) if typing.get_origin(arm) is not None]
    return convert(value, generic[0]) if len(generic) == 1 else value
  if type(value) is dict and len(args) == 2:
    return {convert(k, args[0]): convert(v, args[1]) for k, v in value.items()}
  if type(value) is tuple and origin is tuple and args and args[-1] is not Ellipsis:
    return tuple(map(convert, value, args)) if len(args) == len(value) else value
  if type(value) in (list, tuple) and args:
    return type(value)(convert(item, args[0]) for item in value)
  return value
