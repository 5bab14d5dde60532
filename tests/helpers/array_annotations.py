"""Checks annotations of arrays like the decorator of jaxtyping, in less time: that one binds the arguments of each
call to their names, and checks them twice if there is an annotation of what is returned."""

import dataclasses
import functools
import inspect
import types
import typing
from collections.abc import Callable, Collection
from typing import Any

import jaxtyping
from beartype import beartype
from jaxtyping._decorator import _destring_annotation as resolved
from jaxtyping._storage import pop_shape_memo, push_shape_memo

JAXTYPED = jaxtyping.jaxtyped


def install(modules: Collection[str]) -> None:
  """Checks the functions and dataclasses of modules that are imported later.

  The hook decorates them with what `jaxtyping.jaxtyped` returns.
  """
  jaxtyping.jaxtyped = lambda typechecker: checked
  jaxtyping.install_import_hook(list(modules), 'beartype.beartype')


def checked(function: Any) -> Any:
  """Returns a function or a class whose arguments and results are checked."""
  if inspect.isclass(function):
    if dataclasses.is_dataclass(function):
      function.__init__ = checked(function.__init__)
    return function
  if not function.__annotations__:
    return function
  if any('{' in str(one) for one in function.__annotations__.values()):
    # Sizes that are arguments.
    return JAXTYPED(function, typechecker=beartype)
  inner = beartype(annotated(function))

  @functools.wraps(function)
  def outer(*args: Any, **kwargs: Any) -> Any:
    if jaxtyping.config.jaxtyping_disable:
      return function(*args, **kwargs)
    push_shape_memo({})
    try:
      return inner(*args, **kwargs)
    finally:
      pop_shape_memo()

  return outer


def annotated(function: Any) -> Callable[..., Any]:
  """Returns a copy of a function with types in place of annotations that are text; anything where there is no type."""
  try:
    hints = typing.get_type_hints(function, include_extras=True)
  except Exception:
    hints = {n: resolved(a, function.__globals__) for n, a in function.__annotations__.items()}
  copy = types.FunctionType(
    function.__code__,
    function.__globals__,
    function.__name__,
    function.__defaults__,
    function.__closure__,
  )
  copy.__kwdefaults__ = function.__kwdefaults__
  copy.__module__, copy.__qualname__ = function.__module__, function.__qualname__
  copy.__annotations__ = hints
  return copy
