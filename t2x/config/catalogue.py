"""The parts that configs can name, by interface, with their parameters and documentation."""

import collections
import collections.abc
import dataclasses
import functools
import inspect
import re
import typing
from collections.abc import Iterator, Mapping
from typing import Any

from t2x.base.ranges import Range
from t2x.config.protocols import declared, is_protocol, protocol_misfit
from t2x.config.registries import Registry
from t2x.config.signature import MISSING, Part
from t2x.config.type_names import is_array, plain_hint, words

_SECTIONS = re.compile(r'^(Args|Attributes|Returns|Raises|Yields):\n', re.MULTILINE)
_ENTRY = re.compile(r'^  (\w+): ', re.MULTILINE)
_PAPER = re.compile(r'https://arxiv\.org/abs/\d+\.\d+')


@dataclasses.dataclass(frozen=True)
class Interface:
  """A class or protocol whose implementations are values of parameters.

  Attributes:
    cls: the class or protocol.
    places: the parameters that take it, as PART.PARAMETER.
    parts: the parts that implement it and no interface with fewer parts.
  """

  cls: type
  places: tuple[str, ...]
  parts: tuple[Part, ...]


def interfaces(registry: Registry, root: str = 'Experiment') -> list[Interface]:
  """Returns the interfaces that the parts of a config take, in alphabetical order, without empty ones.

  Args:
    registry: the parts.
    root: the part at the root of a config.
  """
  parts = [part for name in registry.names() for part in registry.find(name)]
  slots: dict[tuple[Any, bool], list[str]] = collections.defaultdict(list)
  fitting: dict[tuple[Any, bool], list[Part]] = {}
  reached, todo = set(), registry.find(root)
  while todo:
    part = todo.pop()
    if part in reached:
      continue
    reached.add(part)
    for parameter in part.parameters.values():
      for slot in _slots(parameter.hint):
        slots[slot].append(f'{part.name}.{parameter.name}')
        if slot not in fitting:
          fitting[slot] = [other for other in parts if _fits(registry, other, *slot)]
        todo += fitting[slot]
  chosen: dict[Any, set[Part]] = collections.defaultdict(set)
  for part in reached:
    # Of several interfaces, the interface with the fewest parts is the most specific.
    candidates = sorted(
      (len(members), cls.__name__, is_factory)
      for (cls, is_factory), members in fitting.items()
      if part in members
    )
    if candidates:
      name = candidates[0][1]
      chosen[next(cls for cls, _ in fitting if cls.__name__ == name)].add(part)
  return [
    Interface(
      cls,
      tuple(
        sorted({place for slot, places in slots.items() if slot[0] is cls for place in places})
      ),
      tuple(sorted(members, key=lambda part: part.name)),
    )
    for cls, members in sorted(chosen.items(), key=lambda item: item[0].__name__)
  ]


class Function:
  """A function of arrays: activations, initialisers, pooling."""


def _slots(hint: object) -> Iterator[tuple[type, bool]]:
  """Yields (class, whether the parameter takes a factory of it) of the parts in values of an annotation."""
  hint = plain_hint(hint)
  origin, args = typing.get_origin(hint), typing.get_args(hint)
  if origin is collections.abc.Callable:
    result = plain_hint(args[1]) if args else Any
    if args and args[0] is Ellipsis and not is_array(result):
      yield from ((cls, True) for cls, _ in _slots(result))
    elif is_array(result):
      yield Function, False
  elif origin is not typing.Literal and args:
    for arg in args:
      yield from _slots(arg) if arg is not Ellipsis else ()
  elif isinstance(hint, type) and hint.__module__.startswith('t2x'):
    yield hint, False


def _fits(registry: Registry, part: Part, cls: type, is_factory: bool) -> bool:
  """Returns whether `@Part` (if a factory is taken) or `@Part()` is a value of the class."""
  made = plain_hint(part.returns)
  if cls is Function:
    return _returns_array(part)
  if not part.is_class and is_protocol(made):
    return is_factory and cls in made.__mro__
  if not isinstance(made, type) or inspect.isabstract(made) or is_protocol(made):
    return False
  if dataclasses.is_dataclass(made) if is_factory else part.is_built_by_another:
    return False
  if not is_protocol(cls):
    return issubclass(made, cls)
  # A class of a library, which a function returns, may have the methods by chance.
  if declared(made) is None and registry.part_of(made) is None:
    return False
  return protocol_misfit(made, cls) is None


def _returns_array(part: Part) -> bool:
  """Returns whether a part is a function of arrays, or builds one."""
  if not part.is_class:
    return is_array(plain_hint(part.returns))
  call = inspect.getattr_static(part.obj, '__call__', None)
  return dataclasses.is_dataclass(part.obj) and is_array(
    getattr(call, '__annotations__', {}).get('return')
  )


def summary(obj: object) -> str:
  """Returns the first sentence of an object's documentation."""
  text = ' '.join((inspect.getdoc(obj) or '').partition('\n\n')[0].split())
  return re.split(r'(?<=[^.]\.) (?=[A-Z])', text, maxsplit=1)[0]


def papers(obj: object) -> list[str]:
  """Returns the addresses of papers in an object's documentation, or in that of its module."""
  for text in (inspect.getdoc(obj), inspect.getdoc(inspect.getmodule(obj))):
    if addresses := list(dict.fromkeys(_PAPER.findall(text or ''))):
      return addresses
  return []


def descriptions(obj: object) -> dict[str, str]:
  """Returns parameter -> description, from the documentation of an object and its base classes."""
  entries: dict[str, str] = {}
  for owner in reversed(getattr(obj, '__mro__', (obj,))):
    for documented in (owner, vars(owner).get('__init__') if isinstance(owner, type) else None):
      entries |= _entries(inspect.cleandoc(getattr(documented, '__doc__', None) or ''))
  return entries


def _entries(text: str) -> dict[str, str]:
  """Returns the entries of the sections Args and Attributes of a docstring."""
  parts = _SECTIONS.split(text)
  entries: dict[str, str] = {}
  for title, body in zip(parts[1::2], parts[2::2], strict=True):
    if title in ('Args', 'Attributes'):
      fields = _ENTRY.split(body.split('\n\n')[0])
      entries |= {
        name: ' '.join(text.split()) for name, text in zip(fields[1::2], fields[2::2], strict=True)
      }
  return entries


def parameters(part: Part) -> list[tuple[str, str, str, str]]:
  """Returns name, type, default and description of each parameter that a config can set."""
  described: Mapping[str, str] = descriptions(part.obj)
  return [
    (
      name,
      kind(p.hint),
      'required' if p.default is MISSING else default_text(p.default),
      described.get(name, ''),
    )
    for name, p in part.parameters.items()
    if p.nameable and not part.is_builder_argument(name)
  ]


def kind(hint: object) -> str:
  """Describes the values of an annotation with their range."""
  if typing.get_origin(hint) is typing.Annotated:
    limits = [
      str(item).removeprefix('must be ')
      for item in typing.get_args(hint)[1:]
      if isinstance(item, Range)
    ]
    return ', '.join([words(hint), *limits])
  return 'any value' if plain_hint(hint) is Any else words(hint)


def default_text(value: object) -> str:
  """Returns a default as a config would write it."""
  # A class or function, also of jax.jit and jax.custom_jvp.
  if callable(value) and hasattr(value, '__name__'):
    return f'@{value.__name__}'
  if isinstance(value, functools.partial):
    settings = [f'{name} = {default_text(one)}' for name, one in value.keywords.items()]
    return f'{default_text(value.func)} with {", ".join(settings)}'
  if isinstance(value, tuple) and value:
    return f'[{", ".join(map(default_text, value))}]'
  if dataclasses.is_dataclass(value):
    changed = [
      f'{field.name}={default_text(getattr(value, field.name))}'
      for field in dataclasses.fields(value)
      if field.init and getattr(value, field.name) != field.default
    ]
    return f'@{type(value).__name__}({", ".join(changed)})'
  # A default that is built for each object.
  if type(value).__name__ == '_HAS_DEFAULT_FACTORY_CLASS':
    return 'empty'
  return re.sub(r' at 0x[0-9a-f]+', '', repr(value))
