"""Context of the model under construction, which its parts and initialisers read without an argument."""

import contextlib
import contextvars
import dataclasses
import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from t2x.base.errors import UserError


@dataclasses.dataclass(frozen=True)
class LayerNumbers:
  """The layers of a body, counted from 0, that use each copy of stacked parameters.

  Attributes:
    users: for each copy, the layers that use it.
    num_layers: number of layers of the body.
  """

  users: tuple[tuple[int, ...], ...]
  num_layers: int


@dataclasses.dataclass(frozen=True)
class Position:
  """Position of a part in its body.

  Attributes:
    layer: index of the first layer that uses the parameters; traced in a layer, because layers are built together.
      For a stage, the index of its first layer.
    layers: the layers that use each copy of the parameters; None outside of layers.
    num_layers: number of layers of the body.
    branch: index of the residual branch in its layer.
    num_branches: number of residual branches per layer.
  """

  layer: Any = None
  layers: LayerNumbers | None = None
  num_layers: int | None = None
  branch: int | None = None
  num_branches: int | None = None

  def stage(self, num_layers: int) -> tuple[int, int]:
    """Returns the index of the first layer of a stack and the number of layers of its body, which are 0 and the stack's
    own `num_layers` if the stack is not a stage."""
    if self.layers is not None or self.num_layers is None:
      return 0, num_layers
    return self.layer or 0, self.num_layers


@dataclasses.dataclass(frozen=True)
class Scale:
  """Factors of a model relative to a narrower one (`MuP`).

  Attributes:
    width_ratio: width of the model divided by that of its base.
    factors: factors of initial values by parameter name; others have factor 1.
  """

  width_ratio: float = 1.0
  factors: Mapping[str, float] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class BuildContext:
  """Properties of the model under construction that layers and initialisers read.

  Attributes:
    position: position of the part in its body.
    scale: factors of muP.
    axis: logical axis of the features that a norm normalises.
    counting: whether layers are only counted, so that the number of layers is that of one stage.
    vocab_size: vocabulary size of the task.
    vocab_multiple: number that the sizes of parameters over the vocabulary are rounded up to a multiple of.
    pattern: attention pattern of the block, as far as the body, its stages and the block set it; None outside of them.
  """

  position: Position = Position()
  scale: Scale = Scale()
  axis: str = 'embed'
  counting: bool = False
  vocab_size: int | None = None
  vocab_multiple: int | None = None
  pattern: Any = None


_CONTEXT: contextvars.ContextVar[BuildContext] = contextvars.ContextVar('build_context')


def build_context() -> BuildContext:
  """Returns the current build context; its attributes have their defaults outside of `building`."""
  return _CONTEXT.get(BuildContext())


@contextlib.contextmanager
def building(**fields: Any) -> Iterator[None]:
  """Sets these fields of the `BuildContext` for the construction of parts inside the context."""
  token = _CONTEXT.set(dataclasses.replace(build_context(), **fields))
  try:
    yield
  finally:
    _CONTEXT.reset(token)


def at_position(**fields: Any) -> contextlib.AbstractContextManager[None]:
  """Sets these fields of the `Position` for the construction of parts inside the context."""
  return building(position=dataclasses.replace(build_context().position, **fields))


def unwrap_partial(build: object) -> Any:
  """Returns the class or function of a builder, without the settings that are bound to it."""
  return build.func if isinstance(build, functools.partial) else build


def given(build: Callable[..., Any], **arguments: object) -> Callable[..., Any]:
  """Binds the arguments that the constructor of a part accepts, and returns its builder.

  Configs cannot set these arguments; the containing part does (`t2x.config.signature.BUILDER_ARGUMENTS`).
  """
  taken = _parameters(unwrap_partial(build)) & arguments.keys()
  return functools.partial(build, **{name: arguments[name] for name in taken}) if taken else build


@functools.cache
def _parameters(build: Callable[..., Any]) -> frozenset[str]:
  """Returns the parameters of a builder; a class with `**settings` also has those of its base class."""
  # Flax's metaclass hides the signature of a class.
  owners = [cls for cls in getattr(build, '__mro__', ()) if '__init__' in vars(cls)]
  names: set[str] = set()
  for function in [vars(cls)['__init__'] for cls in owners] or [build]:
    parameters = inspect.signature(function).parameters.values()
    names |= {p.name for p in parameters}
    if not any(p.kind is p.VAR_KEYWORD for p in parameters):
      break
  return frozenset(names)


def residual_branches(name: str) -> int:
  """Returns the number of residual branches of the body under construction, for the part `name`.

  Raises:
    UserError: no stack is under construction.
  """
  position = build_context().position
  if position.num_layers is None or position.num_branches is None:
    raise UserError(f'{name} depends on the depth of a stack: use it in the sublayers of a Block')
  return position.num_layers * position.num_branches


def branch_index() -> Any:
  """Returns the index in its body of the residual branch under construction; 0 outside of a stack."""
  position = build_context().position
  if position.layer is None or position.num_branches is None or position.branch is None:
    return 0
  return position.layer * position.num_branches + position.branch
