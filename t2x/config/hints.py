"""Whether a value fits an annotation, without building anything.

Numbers, strings and containers are checked exactly (an int is a float; a bool is no int).
`Callable[..., X]` is a factory of X and wants `@Part`; a class wants `@Part()`; protocols are
compared by the methods they name. What an annotation leaves open is accepted.
"""

import collections.abc
import inspect
import re
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any

from t2x.config.signature import Part
from t2x.config.values import Reference, to_gin

__all__ = ['convert', 'problem', 'show_hint']

Find = Callable[[str], 'Part | None']
_NONE = type(None)
_SCALARS: dict[Any, tuple[type, ...]] = {
  int: (int,),
  float: (int, float),
  complex: (int, float, complex),
  str: (str,),
  bytes: (bytes,),
}


def problem(value: Any, hint: Any, find: Find) -> str | None:
  """What is wrong with `value` for `hint`, to be put after 'Name.param '; None when it fits.

  Args:
    value: literals, containers and References; no macros.
    hint: a resolved annotation.
    find: the part that a reference's name means, None when it means none.
  """
  hint = _plain(hint)
  origin, args = typing.get_origin(hint), typing.get_args(hint)
  if hint is Any or hint is object or hint is inspect.Parameter.empty:
    return None
  if origin in (typing.Union, types.UnionType):
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
    return f'wants a factory or function such as @Name, got {to_gin(value)}'
  if hint is bool:
    return None if isinstance(value, bool) else _wants(hint, value)
  if hint in _SCALARS:
    fits = isinstance(value, _SCALARS[hint]) and not isinstance(value, bool)
    return None if fits else _wants(hint, value)
  return _container_problem(value, hint, origin or hint, args, find)


def _plain(hint: Any) -> Any:
  """Without Annotated, NewType, type aliases and type variables."""
  while True:
    if typing.get_origin(hint) in (typing.Annotated, typing.Final, typing.ClassVar):
      hint = typing.get_args(hint)[0]
    elif hasattr(hint, '__supertype__'):
      hint = hint.__supertype__
    elif type(hint).__name__ == 'TypeAliasType':
      hint = hint.__value__
    elif isinstance(hint, typing.TypeVar):
      hint = hint.__bound__ or Any
    elif isinstance(hint, (str, typing.ForwardRef)):
      return Any
    else:
      return hint


def show_hint(hint: Any) -> str:
  """An annotation as one would write it, without module names."""
  if hint is None or hint is _NONE:
    return 'None'
  text = hint.__qualname__ if isinstance(hint, type) and not typing.get_args(hint) else str(hint)
  text = re.sub(r'\b(?:\w+\.)+(?=\w)', '', text)
  return re.sub(r'^Optional\[(.*)\]$', r'\1 | None', text)


def _wants(hint: Any, value: Any) -> str:
  return f'wants {show_hint(hint)}, got {to_gin(value)}'


def _union_problem(value: Any, hint: Any, args: tuple, find: Find) -> str | None:
  problems = [problem(value, arm, find) for arm in args]
  if None in problems:
    return None
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
  if _is_protocol(origin):
    return None if _fits_class(type(value), origin) else _wants(hint, value)
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
    if _assignable(part.returns, hint):
      return None
    return f'wants {show_hint(hint)}, but {made} is {show_hint(part.returns)}'
  if part.is_class and typing.get_origin(hint) is type:
    return None
  if not part.is_class and _is_instance(part.obj, hint):
    return None
  if _assignable(part.returns, hint):
    return f'wants an object: write {made}, not {factory}'
  return f'wants {show_hint(hint)}, got {factory}'


def _part_as_callable(part: Part, hint: Any, factory: Reference, made: Reference) -> str | None:
  """`@Part` where something to call is wanted: calling it must give what is wanted."""
  arguments, wanted = typing.get_args(hint) or (..., Any)
  if _assignable(part.returns, wanted):
    # What is missing may be bound; what is too much cannot be taken away.
    if _takes(part.obj, arguments, partial=True):
      return None
    return f'wants {show_hint(hint)}, but {factory} does not take {len(arguments)} by position'
  if _gives_callable(part.returns) and not part.is_built_by_another:
    return f'wants {show_hint(hint)}: write {made}, not {factory}'
  return f'wants {show_hint(hint)}, but {factory} builds {show_hint(part.returns)}'


def _object_as_callable(part: Part, hint: Any, factory: Reference, made: Reference) -> str | None:
  """`@Part()` where something to call is wanted: the object itself must be callable."""
  arguments, wanted = typing.get_args(hint) or (..., Any)
  known = _plain(wanted) is not Any and _plain(part.returns) is not Any
  if part.is_built_by_another or (known and _assignable(part.returns, wanted)):
    return f'wants a factory: write {factory}, not {made}'
  if not _gives_callable(part.returns):
    return f'wants a factory or function: write {factory}, not {made}'
  if part.is_class and isinstance(arguments, list):
    arguments = [part.obj, *arguments]
  if part.is_class and not _takes(part.obj.__call__, arguments):
    return f'wants {show_hint(hint)}, but {made} does not take {len(arguments) - 1} by position'
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
  if _is_protocol(origin):
    return _fits_class(type(obj), origin)
  return isinstance(obj, origin)


def _gives_callable(returns: Any) -> bool:
  """Whether an object of this annotation can itself be called."""
  returns = _plain(returns)
  origin = typing.get_origin(returns) or returns
  if not isinstance(origin, type):
    return True
  return origin is collections.abc.Callable or '__call__' in dir(origin)


def _assignable(given: Any, wanted: Any) -> bool:
  """Whether what is annotated `given` may be handed to `wanted`; in doubt, yes."""
  given, wanted = _plain(given), _plain(wanted)
  if Any in (given, wanted) or wanted is object:
    return True
  for hint, arms_of_given in ((given, True), (wanted, False)):
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
      arms = typing.get_args(hint)
      return any(
        _assignable(arm, wanted) if arms_of_given else _assignable(given, arm) for arm in arms
      )
  given, wanted = _class_of(given), _class_of(wanted)
  if wanted is collections.abc.Callable:
    return _gives_callable(given)
  if not isinstance(given, type) or not isinstance(wanted, type):
    return True
  if wanted in (float, complex) and given in (int, float):
    return True
  return _fits_class(given, wanted)


def _class_of(hint: Any) -> Any:
  if hint is None:
    return _NONE
  origin = typing.get_origin(hint) or hint
  if origin is typing.Literal:
    return type(typing.get_args(hint)[0])
  # jaxtyping: Float[Array, '...'] is an Array.
  return getattr(origin, 'array_type', origin)


def _is_protocol(cls: type) -> bool:
  return getattr(cls, '_is_protocol', False)


def _fits_class(given: type, wanted: type) -> bool:
  if wanted in given.__mro__:
    return True
  if not _is_protocol(wanted):
    return issubclass(given, wanted)
  methods = {
    name
    for base in wanted.__mro__
    if _is_protocol(base)
    for name, value in vars(base).items()
    if inspect.isfunction(value) and (name == '__call__' or not name.startswith('_'))
  }
  return all(hasattr(given, name) for name in methods) and (
    '__call__' not in methods or '__call__' in dir(given)
  )


def convert(value: Any, hint: Any) -> Any:
  """The value with each int that stands for a float made a float."""
  hint = _plain(hint)
  origin, args = typing.get_origin(hint), typing.get_args(hint)
  if type(value) is int:
    arms = args if origin in (typing.Union, types.UnionType) else (hint,)
    return float(value) if float in arms and int not in arms else value
  if origin in (typing.Union, types.UnionType):
    generic = [arm for arm in args if typing.get_origin(arm) is not None]
    return convert(value, generic[0]) if len(generic) == 1 else value
  if type(value) is dict and len(args) == 2:
    return {convert(k, args[0]): convert(v, args[1]) for k, v in value.items()}
  if type(value) is tuple and origin is tuple and args and args[-1] is not Ellipsis:
    return tuple(map(convert, value, args)) if len(args) == len(value) else value
  if type(value) in (list, tuple) and args:
    return type(value)(convert(item, args[0]) for item in value)
  return value
