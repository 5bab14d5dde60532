"""Descriptions of annotations for error messages: 'an integer or None' for `int | None`."""

import collections.abc
import functools
import inspect
import operator
import types
import typing
from collections.abc import Mapping
from typing import Annotated, Any

from t2x.base.hyperparameters import Hyperparameter

UNIONS = (typing.Union, types.UnionType)
_NONE = type(None)
# Description of one value, and of several.
_SCALARS: Mapping[Any, tuple[str, str]] = {
  bool: ('True or False', 'True or False'),
  bytes: ('bytes', 'bytes'),
  complex: ('a complex number', 'complex numbers'),
  float: ('a number', 'numbers'),
  int: ('an integer', 'integers'),
  str: ('a string in quotes', 'strings in quotes'),
}


def plain_hint(hint: Any) -> Any:
  """Removes Annotated, NewType, type aliases, type variables and `| Hyperparameter` from an annotation."""
  while True:
    if typing.get_origin(hint) in (Annotated, typing.Final, typing.ClassVar):
      hint = typing.get_args(hint)[0]
    elif typing.get_origin(hint) in UNIONS and Hyperparameter in typing.get_args(hint):
      arms = (arm for arm in typing.get_args(hint) if arm is not Hyperparameter)
      hint = functools.reduce(operator.or_, arms)
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


def takes_parts(hint: object) -> bool:
  """Returns whether values of this annotation may be or contain parts, not only numbers and strings."""
  hint = plain_hint(hint)
  if hint in _SCALARS or hint in (None, _NONE) or typing.get_origin(hint) is typing.Literal:
    return False
  args = [arg for arg in typing.get_args(hint) if arg is not Ellipsis]
  is_callable = collections.abc.Callable in (typing.get_origin(hint), hint)
  return is_callable or not args or any(map(takes_parts, args))


def words(hint: object) -> str:
  """Describes an annotation, to follow 'must be '."""
  hint = plain_hint(hint)
  origin, args = typing.get_origin(hint), typing.get_args(hint)
  if hint is None or hint is _NONE:
    return 'None'
  if hint in _SCALARS:
    return _SCALARS[hint][0]
  if origin in UNIONS or origin is typing.Literal:
    *others, last = dict.fromkeys(_alternatives(hint))
    return f'{", ".join(others)} or {last}' if others else last
  if collections.abc.Callable in (origin, hint):
    return f'{_callable_words(args)} (@Name)'
  return _container_words(hint, origin, args)


def _alternatives(hint: object) -> list[str]:
  """Describes each arm of a union and each value of a Literal."""
  hint = plain_hint(hint)
  args = typing.get_args(hint)
  if typing.get_origin(hint) in UNIONS:
    return [text for arg in args for text in _alternatives(arg)]
  return [*map(repr, args)] if typing.get_origin(hint) is typing.Literal else [words(hint)]


def _callable_words(args: tuple[Any, ...]) -> str:
  """Describes a factory of a class, or a function."""
  built = plain_hint(args[1]) if args else Any
  if inspect.isclass(built) and not is_array(built) and built not in (*_SCALARS, list):
    return f'a part that builds {with_article(built.__name__)}'
  return 'a function' if isinstance(args[0] if args else None, list) else 'a part or function'


def is_array(hint: object) -> bool:
  """Returns whether an annotation is an array, such as Float[Array, '...']."""
  # jaxtyping: Float[Array, '...'] is an Array.
  return hasattr(hint, 'array_type') or getattr(hint, '__name__', '').endswith('Array')


def _container_words(hint: object, origin: object, args: tuple[Any, ...]) -> str:
  if origin is tuple and args and args[-1] is not Ellipsis:
    return f'a tuple ({", ".join(map(words, args))})'
  if origin is tuple:
    return f'a tuple of {_plural(args[0])}'
  if isinstance(origin, type) and issubclass(origin, Mapping):
    return f'a dict of {_plural(args[0])} to {_plural(args[1])}'
  if isinstance(origin, type) and issubclass(origin, collections.abc.Iterable):
    return f'a list of {_plural(args[0])}'
  name = getattr(hint, '__qualname__', None) or str(hint)
  return f'{with_article(name)} (@Name())'


def _plural(hint: object) -> str:
  hint = plain_hint(hint)
  if hint in _SCALARS:
    return _SCALARS[hint][1]
  if hint is Any:
    return 'values'
  if collections.abc.Callable in (typing.get_origin(hint), hint):
    return words(hint).replace('a part that builds', 'parts that build').replace('a part', 'parts')
  if isinstance(hint, type) and typing.get_origin(hint) is None:
    return f'{hint.__name__} objects (@Name())'
  return f'values, each {words(hint)}'


def with_article(name: str) -> str:
  """Adds the indefinite article: 'an MLP', 'a Mixer'."""
  vowels = 'AEFHILMNORSX' if name[:2].isupper() else 'AEIOU'
  return f'{"an" if name[:1] in vowels else "a"} {name}'
