"""Whether a value fits an annotation, without building anything.

Numbers, strings and containers are checked exactly (an int is a float; a bool is no int), and against
the ranges of `t2x.ranges`. `Callable[..., X]` is a factory of X and takes `@Part`; a class takes
`@Part()`; protocols are compared by their methods and properties. What an annotation leaves open is
accepted.
"""

import collections.abc
import inspect
import typing
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from t2x.config.protocols import class_of, is_protocol, protocol_misfit
from t2x.config.signature import Part
from t2x.config.type_names import UNIONS, plain_hint, with_article, words
from t2x.config.values import Reference, to_gin
from t2x.hyperparameters import Hyperparameter
from t2x.ranges import Range

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
  """A problem of a value whose type fits."""


def problem(value: Any, hint: Any, find: Find) -> str | None:
  """What is wrong with `value` for `hint`, to be put after 'Name.param '; None when it fits.

  Args:
    value: literals, containers and References; no macros.
    hint: a resolved annotation.
    find: the part that a reference's name means, None when it means none.
  """
  found = _type_problem(value, hint, find)
  if found is None and not isinstance(value, Reference):
    for range_ in _ranges(hint):
      if not range_.holds(value):
        text = repr(value) if isinstance(value, float) else to_gin(value)
        return OutOfRange(f'{range_}, got {text}')
  return found


def _ranges(hint: Any) -> Iterator[Range]:
  """The ranges that an annotation states, those of nested `Annotated` included."""
  while typing.get_origin(hint) is typing.Annotated:
    yield from (one for one in hint.__metadata__ if isinstance(one, Range))
    hint = hint.__origin__


def _type_problem(value: Any, hint: Any, find: Find) -> str | None:
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
    return None if value is None else _wants(hint, value)
  if origin is typing.Literal:
    fits = any(value == one and type(value) is type(one) for one in args)
    return None if fits else _wants(hint, value)
  if origin is collections.abc.Callable or hint is collections.abc.Callable:
    return _wants(hint, value)
  if hint is bool:
    return None if isinstance(value, bool) else _wants(hint, value)
  if hint in _SCALARS:
    fits = isinstance(value, _SCALARS[hint]) and not isinstance(value, bool)
    return None if fits else _wants(hint, value)
  return _container_problem(value, hint, origin or hint, args, find)


def _wants(hint: Any, value: Any) -> str:
  return f'must be {words(hint)}, got {to_gin(value)}'


def _union_problem(value: Any, hint: Any, args: tuple, find: Find) -> str | None:
  problems = [problem(value, arm, find) for arm in args]
  if None in problems:
    return None
  if outside := next((one for one in problems if isinstance(one, OutOfRange)), None):
    return outside
  if isinstance(value, Reference):
    # Say which form to write where one arm takes the part in the other form.
    other = Reference(value.scope, value.name, not value.evaluate)
    for arm, found in zip(args, problems, strict=True):
      if problem(other, arm, find) is None:
        return found
  arms = [found for arm, found in zip(args, problems, strict=True) if arm is not _NONE]
  if len(arms) == 1 and (isinstance(value, Reference) or type(value) in (list, tuple, dict)):
    return arms[0]
  return _wants(hint, value)


def _container_problem(value, hint, origin, args, find) -> str | None:
  if not isinstance(origin, type):
    return None
  if hasattr(origin, 'array_type'):
    return _wants(hint, value)
  if is_protocol(origin):
    return None if protocol_misfit(type(value), origin) is None else _wants(hint, value)
  if not isinstance(value, origin):
    return _wants(hint, value)
  if isinstance(value, Mapping):
    keys, items = args if len(args) == 2 else (Any, Any)
    pairs = [(k, keys) for k in value] + [(v, items) for v in value.values()]
  elif isinstance(value, (list, tuple)):
    if isinstance(value, tuple) and origin is tuple and args and args[-1] is not Ellipsis:
      if len(args) != len(value):
        return _wants(hint, value)
      pairs = list(zip(value, args, strict=True))
    else:
      pairs = [(item, args[0] if args else Any) for item in value]
  elif isinstance(value, str) and origin is not str and args:
    return _wants(hint, value)
  else:
    return None
  return next((found for one in pairs if (found := problem(*one, find))), None)


def _reference_problem(value: Reference, part: Part, hint: Any) -> str | None:
  """A reference against an annotation that is no union."""
  factory = Reference(value.scope, value.name, False)
  made = Reference(value.scope, value.name, True)
  if typing.get_origin(hint) is collections.abc.Callable or hint is collections.abc.Callable:
    if value.evaluate:
      return _object_as_callable(part, hint, factory, made)
    return _part_as_callable(part, hint, factory, made)
  if value.evaluate:
    reason = _misfit(part.returns, hint)
    if reason is None:
      return None
    return f'must be {words(hint)}, but {made} is {_built(part)}{reason}'
  if part.is_class and typing.get_origin(hint) is type:
    return None
  if not part.is_class and _is_instance(part.obj, hint):
    return None
  if _misfit(part.returns, hint) is None:
    return f'takes an object: write {made}, not {factory}'
  return f'must be {words(hint)}, got {factory}'


def _part_as_callable(part: Part, hint: Any, factory: Reference, made: Reference) -> str | None:
  """`@Part` where something to call is expected: calling it must give what is expected."""
  arguments, wanted = typing.get_args(hint) or (..., Any)
  reason = _misfit(part.returns, wanted)
  if reason is None:
    # What is missing may be bound; what is too much cannot be taken away.
    if _takes(part.obj, arguments, partial=True):
      return None
    return f'must be {words(hint)}, but {factory} does not take {len(arguments)} by position'
  if _gives_callable(part.returns) and not part.is_built_by_another:
    return f'must be {words(hint)}: write {made}, not {factory}'
  return f'must be {words(hint)}, but {factory} builds {_built(part)}{reason}'


def _built(part: Part) -> str:
  """What calling a part gives."""
  returns = plain_hint(part.returns)
  is_class = isinstance(returns, type) and returns.__module__ != 'builtins'
  return with_article(returns.__name__) if is_class else words(returns)


def _object_as_callable(part: Part, hint: Any, factory: Reference, made: Reference) -> str | None:
  """`@Part()` where something to call is expected: the object itself must be callable."""
  arguments, wanted = typing.get_args(hint) or (..., Any)
  known = plain_hint(wanted) is not Any and plain_hint(part.returns) is not Any
  if part.is_built_by_another or (known and _misfit(part.returns, wanted) is None):
    return f'takes the part itself: write {factory}, not {made}'
  if not _gives_callable(part.returns):
    return f'takes a part or function: write {factory}, not {made}'
  if part.is_class and isinstance(arguments, list):
    arguments = [part.obj, *arguments]
  if part.is_class and not _takes(part.obj.__call__, arguments):
    return f'must be {words(hint)}, but {made} does not take {len(arguments) - 1} by position'
  return None


def _takes(function: Any, arguments: Any, partial: bool = False) -> bool:
  """Whether a call with as many positional arguments is possible; in doubt, yes."""
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


def _is_instance(obj: Any, hint: Any) -> bool:
  """Whether the named object itself (a function, an instance) is what the annotation asks for."""
  origin = typing.get_origin(hint) or hint
  if origin is type or not isinstance(origin, type):
    return True
  if is_protocol(origin):
    return protocol_misfit(type(obj), origin) is None
  return isinstance(obj, origin)


def _gives_callable(returns: Any) -> bool:
  """Whether an object of this annotation can itself be called."""
  returns = plain_hint(returns)
  origin = typing.get_origin(returns) or returns
  if not isinstance(origin, type):
    return True
  return origin is collections.abc.Callable or '__call__' in dir(origin)


def _misfit(given: Any, wanted: Any) -> str | None:
  """Why what is annotated `given` does not fit `wanted`, after ': ', '' without a reason; None: it fits.

  In doubt it fits.
  """
  given, wanted = plain_hint(given), plain_hint(wanted)
  if Any in (given, wanted) or wanted is object:
    return None
  for hint, arms_of_given in ((given, True), (wanted, False)):
    if typing.get_origin(hint) in UNIONS:
      arms = typing.get_args(hint)
      reasons = [_misfit(arm, wanted) if arms_of_given else _misfit(given, arm) for arm in arms]
      return None if None in reasons else ''
  given, wanted = class_of(given), class_of(wanted)
  if wanted is collections.abc.Callable:
    return None if _gives_callable(given) else ''
  if not isinstance(given, type) or not isinstance(wanted, type):
    return None
  if wanted in (float, complex) and given in (int, float):
    return None
  if wanted in given.__mro__ or (not is_protocol(wanted) and issubclass(given, wanted)):
    return None
  return protocol_misfit(given, wanted) if is_protocol(wanted) else ''


def is_tunable(hint: Any) -> bool:
  """Whether trials may vary a parameter within one program: `float | Hyperparameter`."""
  if typing.get_origin(hint) is typing.Annotated:
    return is_tunable(hint.__origin__)
  return typing.get_origin(hint) in UNIONS and any(
    arm is Hyperparameter or is_tunable(arm) for arm in typing.get_args(hint)
  )


def convert(value: Any, hint: Any) -> Any:
  """The value with each int that stands for a float made a float."""
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
