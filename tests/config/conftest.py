"""Small fake parts, and a loader that writes gin text to files first."""

import sys
import textwrap
import types

import pytest

from t2x.base.errors import UserError
from t2x.config import load

# A config without errors.
GOOD = """
Experiment.model = @Model
Model.d_model = 8
Stack.num_layers = 2
Attention.num_heads = 4
MLP.hidden_dim = 16
"""

PARTS = '''
"""Parts shaped like those of t2x: modules, frozen dataclasses, functions."""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Literal, Protocol

from t2x.base import ranges

__all__ = [
  'Attention', 'Block', 'Causal', 'Constant', 'Dense', 'Experiment', 'GatedMLP', 'Kernel', 'MLP',
  'Mixer', 'Model', 'Normal', 'Pattern', 'PresetBlock', 'Stack', 'Trainer', 'Types', 'Window', 'adamw', 'add',
  'gelu', 'relu', 'scaled', 'zero', 'Ranges', 'Strict', 'NoCache', 'FewArguments', 'OneValue', 'Fits',
  'Declared', 'OfAnother', 'NoTuple', 'Table', 'TiedAttention',
]


class Rngs: ...


class Module:
  """Equality by class and arguments, so that trees compare."""

  def __init__(self, **given):
    self.given = given

  def __eq__(self, other):
    return type(self) is type(other) and self.given == other.given

  __hash__ = None

  def __repr__(self):
    return f'{type(self).__name__}({self.given})'


class Mixer(Protocol):
  def mix(self, x): ...


@dataclasses.dataclass(frozen=True)
class Pattern: ...


@dataclasses.dataclass(frozen=True)
class Causal(Pattern): ...


@dataclasses.dataclass(frozen=True)
class Window(Pattern):
  size: int
  dilation: int = 1

  def __post_init__(self):
    if self.size <= 0:
      raise ValueError(f'size must be positive, got {self.size}')


@dataclasses.dataclass(frozen=True)
class Kernel: ...


@dataclasses.dataclass(frozen=True)
class Dense(Kernel):
  precision: str = 'high'


@dataclasses.dataclass(frozen=True)
class Normal:
  stddev: float = 0.02

  def __call__(self, shape: tuple[int, ...]) -> list:
    return [self.stddev] * shape[0]


@dataclasses.dataclass(frozen=True)
class Constant:
  value: float

  def __call__(self, shape: tuple[int, ...]) -> list:
    return [self.value] * shape[0]


def gelu(x: float, approximate: bool = True) -> float:
  return ('gelu', x, approximate)


@dataclasses.dataclass(frozen=True)
class scaled:
  factor: float = 2.0

  def __call__(self, x: float) -> float:
    return ('scaled', x, self.factor)


@dataclasses.dataclass(frozen=True)
class add:
  def __call__(self, x: float, y: float) -> float:
    return ('add', x, y)


def zero() -> float:
  return 0.0


def relu(x: float) -> float:
  return ('relu', x)


class Attention(Module):
  def __init__(self, d_model: int, *, num_heads: int, kernel: Kernel = Dense(), rngs: Rngs):
    super().__init__(d_model=d_model, num_heads=num_heads, kernel=kernel)

  def mix(self, x): ...


class TiedAttention(Attention):
  def __init__(self, d_model: int, *, tied: bool = True, rngs: Rngs, **settings):
    super().__init__(d_model, rngs=rngs, **settings)
    self.given['tied'] = tied


class MLP(Module):
  def __init__(self, d_model: int, *, hidden_dim: int, activation: Callable[[float], float] = gelu,
               dropout_rate: ranges.TunableRate = 0.0, init: Callable[..., list] = Normal(), rngs: Rngs):
    super().__init__(d_model=d_model, hidden_dim=hidden_dim, activation=activation(1.0),
                     dropout_rate=dropout_rate, init=init)


class GatedMLP(MLP): ...


class Block(Module):
  def __init__(self, d_model: int, *, mixer: Callable[..., Mixer] = Attention,
               feed_forward: 'Callable[..., MLP]' = MLP, cross: Callable[..., Mixer] | None = None,
               pattern: Pattern = Pattern(), rngs: Rngs):
    super().__init__(mixer=mixer(d_model, rngs=rngs), feed_forward=feed_forward(d_model, rngs=rngs),
                     cross=cross and cross(d_model, rngs=rngs), pattern=pattern)


class PresetBlock(Block):
  def __init__(self, d_model: int, *,
               mixer: Callable[..., Mixer] = functools.partial(Attention, num_heads=3),
               feed_forward: Callable[..., MLP] = MLP, rngs: Rngs):
    super().__init__(d_model, mixer=mixer, feed_forward=feed_forward, rngs=rngs)


class Stack(Module):
  def __init__(self, d_model: int, *, num_layers: int, blocks: Sequence[Callable[..., Block]] = (Block,),
               rngs: Rngs):
    super().__init__(num_layers=num_layers, blocks=[block(d_model, rngs=rngs) for block in blocks])


class Model(Module):
  def __init__(self, *, d_model: int, encoder: Callable[..., Stack] = Stack,
               decoder: Callable[..., Stack] | None = None, rngs: Rngs):
    super().__init__(encoder=encoder(d_model, rngs=rngs), decoder=decoder and decoder(d_model, rngs=rngs))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Trainer:
  num_steps: int
  seed: int = 0
  optimizer: Callable[..., Any] = None


def adamw(learning_rate, *, weight_decay: float = 0.0, betas: tuple[float, float] = (0.9, 0.999)):
  return ('adamw', learning_rate, weight_decay, betas)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Types:
  i: int = 0
  f: float = 0.0
  b: bool = False
  s: str = ''
  maybe: int | None = None
  none_default: int = None
  remat: Literal['full', 'dots'] | None = None
  ints: tuple[int, ...] = ()
  pair: tuple[int, float] = (1, 1.0)
  names: Sequence[str] = ()
  listed: list[float] = None
  table: Mapping[str, int] = None
  pattern: Pattern = Pattern()
  patterns: Sequence[Pattern] = ()
  mixer: Callable[..., Mixer] | None = None
  activation: Callable[[float], float] = relu
  init: Callable[..., list] = Normal()
  whatever: Any = None
  open: 'NoSuchName' = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Ranges:
  rate: ranges.Rate = 0.0
  maybe_positive: ranges.Positive | None = None
  count: ranges.Count = 1
  path: ranges.Text = 'x'
  counts: Annotated[Sequence[ranges.Count], ranges.NonEmpty] = (1,)
  finite: ranges.Finite = 0.0


class Called(Protocol):
  @property
  def cache(self) -> int: ...

  def __call__(self, x: int, *, pattern: int) -> tuple[int, int]: ...


class NoCache:
  def __init__(self, d_model: int, *, rngs: Rngs): ...

  def __call__(self, x, *, pattern): ...


class FewArguments(NoCache):
  cache = 1

  def __call__(self, x): ...


class OneValue(NoCache):
  cache = 1

  def __call__(self, x, *, pattern) -> tuple[int]: ...


class Fits(NoCache):
  cache = 1

  def __call__(self, x, *, pattern, more=None) -> tuple[int, int]: ...


class Declared(Fits):
  implements = (Called,)


class OfAnother(Fits):
  implements = (Mixer,)

  def mix(self, x): ...


class NoTuple(Fits):
  implements = Called


@dataclasses.dataclass(frozen=True, kw_only=True)
class Strict:
  mixer: Callable[..., Called] = Fits


@dataclasses.dataclass(frozen=True, kw_only=True)
class Table:
  entries: Mapping[str, int] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Experiment:
  model: Callable[..., Model] | None = None
  trainer: Trainer | None = None
  types: Types | None = None
  name: str = 'run'
  extra: Any = None
'''


@pytest.fixture(scope='session')
def parts():
  """The module `fake_parts`, importable by name."""
  module = types.ModuleType('fake_parts')
  sys.modules['fake_parts'] = module
  exec(PARTS, module.__dict__)
  yield module
  del sys.modules['fake_parts']


@pytest.fixture
def read(tmp_path, monkeypatch, parts):
  """`read(text, *overrides, other=text)` loads `x.gin`; keywords are further files `NAME.gin`."""
  monkeypatch.chdir(tmp_path)

  def read(text, *overrides, root='Experiment', files=('x.gin',), **others):
    for name, content in {'x': text, **others}.items():
      (tmp_path / f'{name}.gin').write_text(textwrap.dedent(content).lstrip('\n'))
    return load(files, overrides, ['fake_parts'], root)

  return read


@pytest.fixture
def errors(read):
  """Like `read`, for configs that are refused: the lines of the error."""

  def errors(text, *overrides, **others):
    with pytest.raises(UserError) as caught:
      read(text, *overrides, **others)
    assert caught.value.exit_code == 2
    return str(caught.value).splitlines()

  return errors
