"""What two configs build differently: by value, after resolution."""

import dataclasses
from collections.abc import Iterator
from typing import Any

from t2x.config.load import Config
from t2x.config.render import plain
from t2x.config.resolve import Call, Shared, build
from t2x.config.values import to_gin

__all__ = ['diff']


def diff(a: Config, b: Config) -> list[str]:
  """A line for each place where `a` and `b` differ: `Experiment.model.d_model: 256 -> 512`.

  Macros, scopes, files and the order of bindings make no difference, nor does binding a default.
  """
  return list(dict.fromkeys(_Diff(a, b).value(_root_name(a), a.root, b.root)))


def _root_name(config: Config) -> str:
  return config.root.part.name if isinstance(config.root, Call) else 'root'


@dataclasses.dataclass(frozen=True)
class _Diff:
  a: Config
  b: Config

  def value(self, path: str, a: Any, b: Any) -> Iterator[str]:
    """Lines for what stands at `path` of both."""
    a, b = _call_of(a), _call_of(b)
    if isinstance(a, Call) and isinstance(b, Call) and _same_part(a, b):
      yield from self._arguments(path, a, b)
    elif type(a) is type(b) and isinstance(a, (list, tuple)) and len(a) == len(b):
      for i, (one, other) in enumerate(zip(a, b, strict=True)):
        yield from self.value(f'{path}[{i}]', one, other)
    elif type(a) is type(b) is dict and list(map(repr, a)) == list(map(repr, b)):
      for (key, one), other in zip(a.items(), b.values(), strict=True):
        yield from self.value(f'{path}[{key!r}]', one, other)
    elif not (_is_equal_object(a, b) or _is_equal_object(b, a)):
      left, right = _text(a, self.a), _text(b, self.b)
      if left != right:
        yield f'{path}: {left} -> {right}'

  def _arguments(self, path: str, a: Call, b: Call) -> Iterator[str]:
    left, right = a.given, b.given
    for name in dict.fromkeys([*a.part.parameters, *a.arguments, *b.arguments]):
      yield from self.value(f'{path}.{name}', left.get(name, _ABSENT), right.get(name, _ABSENT))


class _Absent:
  """Neither bound nor a default."""

  def __repr__(self) -> str:
    return '(not set)'


_ABSENT = _Absent()


def _call_of(value: Any) -> Any:
  return value.call if isinstance(value, Shared) else value


def _same_part(a: Call, b: Call) -> bool:
  return a.part.obj is b.part.obj and a.evaluate == b.evaluate


def _is_equal_object(call: Any, other: Any) -> bool:
  """Whether a config's `@Name()` builds the object that the other one has as a default."""
  if not isinstance(call, Call) or not call.evaluate or type(other) is not call.part.obj:
    return False
  return bool(build(call) == other)


def _text(value: Any, config: Config) -> str:
  """The value as gin text; a part with the arguments that are bound."""
  if not isinstance(value, Call):
    return to_gin(plain(value, config))
  name = config.bindings.registry.name_of(value.part)
  bound = ', '.join(
    f'{param}={to_gin(plain(argument.value, config))}'
    for param, argument in value.arguments.items()
    if argument.statement is not None
  )
  if value.evaluate:
    return f'{name}({bound})'
  return f'@{name} with {bound}' if bound else f'@{name}'
