"""Against the real gin library: the same language where gin is right, refusals where it is silent."""

import re
import sys

import gin
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from t2x.config import diff, load, render
from tests.config.conftest import GOOD

PARTS = ['A', 'B', 'C', 'D']
SCOPES = ['', 's', 't', 's/t', 't/s']
FAKE = """
__all__ = ['A', 'B', 'C', 'D', 'Root']

def record(name, values):
  # Factories are called here, so that gin's scopes at the time of the call are those of the place.
  def call(value):
    if isinstance(value, (list, tuple)):
      return type(value)(map(call, value))
    if isinstance(value, dict):
      return {key: call(item) for key, item in value.items()}
    return ('made', value()) if callable(value) else value
  return (name, *map(call, values))

def A(x=0, y=None): return record('A', (x, y))
def B(x=0, y=None): return record('B', (x, y))
def C(x=0, y=None): return record('C', (x, y))
def D(x=0, y=None): return record('D', (x, y))
def Root(x=0, y=None): return record('Root', (x, y))
"""

literals = st.one_of(
  st.none(),
  st.booleans(),
  st.integers(-(2**70), 2**70),
  st.floats(allow_nan=False, allow_infinity=False),
  st.text(max_size=6),
  st.binary(max_size=3),
)


def _text(value):
  return value if isinstance(value, _Gin) else repr(value)


class _Gin(str):
  """gin text that prints as itself inside containers."""

  def __repr__(self):
    return str(self)


@st.composite
def references(draw, after):
  """A reference to a part that comes later, so that there are no circles."""
  name = draw(st.sampled_from(PARTS[after:]))
  scope = draw(st.sampled_from(SCOPES))
  end = draw(st.sampled_from(['', '()']))
  return _Gin(f'@{scope}{"/" if scope else ""}{name}{end}')


def values(after, macros=()):
  """Mostly references and macros, alone and in containers; and literals of all kinds."""
  leaf = [literals]
  if after < len(PARTS):
    leaf += [references(after)] * 2
  if macros:
    leaf += [st.sampled_from([_Gin(f'%{name}') for name in macros])]
  item = st.one_of(leaf)
  return st.one_of(
    item,
    item,
    st.lists(item, max_size=3),
    st.lists(item, max_size=2).map(tuple),
    st.dictionaries(st.text(max_size=3), st.lists(item, max_size=1), max_size=2),
  )


@st.composite
def programs(draw):
  """Bindings of all parts in many scopes, in any order, some in blocks; macros hold parts C and D."""
  lines = [f'm{i} = {_text(draw(values(2)))}' for i in range(2)]
  lines.append(f'Root.x = {_text(draw(st.lists(references(0), min_size=2, max_size=4)))}')
  for i, part in enumerate(PARTS, 1):
    macros = ['m0', 'm1'] if i < 3 else []
    for scope in draw(st.lists(st.sampled_from(SCOPES), min_size=1, max_size=5)):
      key = f'{scope}{"/" if scope else ""}{part}'
      x = f'x = {draw(st.integers(0, 999))}'
      y = f'y = {_text(draw(values(i, macros)))}'
      block = f'{key}:\n  {x}  # a block\n  {y}\n'
      lines.append(draw(st.sampled_from([block, f'{key}.{x}', f'{key}.{y}'])))
  return draw(st.permutations(lines))


@pytest.fixture(scope='module')
def fakes():
  """The parts for us, as a module, and for gin."""
  import types

  module = types.ModuleType('gin_fakes')
  exec(FAKE, module.__dict__)
  sys.modules['gin_fakes'] = module
  for name in module.__all__:
    gin.external_configurable(getattr(module, name), name, module='gin_fakes')
  yield module
  del sys.modules['gin_fakes']
  gin.clear_config()


def by_gin(text):
  gin.clear_config()
  gin.parse_config(text)
  return gin.get_configurable('Root')()


def refusing_nothing_unused(file):
  """Our config, without the statements that nothing uses and those that a later one replaces."""
  for _ in range(60):
    try:
      return load(file, registry_modules=['gin_fakes'], root='Root')
    except Exception as error:
      # gin drops the outer scope without a word.
      assume('leaves the scope' not in str(error))
      lines = file.read_text().split('\n')
      found = [line.split(':', 2) for line in str(error).splitlines()]
      assert all(
        re.search('nothing uses|bound twice|has no effect', text) for _, _, text in found
      ), str(error)
      for _, number, text in found:
        earlier = re.search(r'bound twice: .* in line (\d+)', text)
        number = earlier[1] if earlier else number
        line = lines[int(number) - 1]
        lines[int(number) - 1] = '  ' * line.startswith(' ') + '# ' + line.strip()
      kept = '\n'.join(lines)
      file.write_text(drop_empty_blocks(kept))
  raise AssertionError('statements that nothing uses never end')


def drop_empty_blocks(text):
  lines = text.split('\n')
  for i, line in enumerate(lines):
    if line.endswith(':') and not line.startswith('#'):
      body = lines[i + 1 : i + 3]
      if all(one.strip().startswith('#') for one in body):
        lines[i] = '# ' + line
  return '\n'.join(lines)


@settings(max_examples=80, suppress_health_check=list(HealthCheck))
@given(lines=programs())
def test_parsing_and_resolution_agree_with_gin(fakes, tmp_path, lines):
  file = tmp_path / 'x.gin'
  text = '\n'.join(lines) + '\n'
  file.write_text(text, encoding='utf-8')
  wanted = by_gin(text)
  config = refusing_nothing_unused(file)
  found = config.build()
  assert repr(found) == repr(wanted)
  rendered = render(config)
  again = tmp_path / 'config.gin'
  again.write_text(rendered, encoding='utf-8')
  config_again = load(again, registry_modules=['gin_fakes'], root='Root')
  assert repr(config_again.build()) == repr(wanted)
  assert render(config_again) == rendered
  assert diff(config, config_again) == []


@pytest.mark.parametrize(
  ('added', 'told'),
  [
    ("Experiment.name = 3", 'x.gin:6: Experiment.name must be a string in quotes, got 3'),
    ("decodr/MLP.hidden_dim = 3\nModel.decoder = @decoder/Stack",
     "x.gin:6: nothing uses decodr/MLP.hidden_dim: no MLP is used in scope 'decodr'; did you mean 'decoder'?"),
    ("widht = 3", 'x.gin:6: nothing uses macro %widht'),
    ("width = 3\nMLP.dropout_rate = %widht",
     'x.gin:7: macro %widht is not defined; did you mean %width?'),
    ("Window.size = 3", 'x.gin:6: nothing uses Window.size: Window is not reachable from Experiment'),
    ("Block.pattern = @Causal", 'x.gin:6: Block.pattern must be an object: write @Causal(), not @Causal'),
  ],
)  # fmt: skip
def test_silent_mistakes_of_gin_are_refused(errors, added, told):
  assert told in errors(GOOD + added)


def test_an_unscoped_override_does_not_lose_to_a_scoped_binding(read):
  config = read(
    GOOD + 'Model.encoder = @encoder/Stack\nencoder/Stack.num_layers = 3', 'Stack.num_layers=9'
  )
  assert config.build().model(rngs=None).given['encoder'].given['num_layers'] == 9


def test_a_macro_that_holds_an_object_does_not_build_two(read):
  extra = read('w = @Window()\nWindow.size = 1\nExperiment.extra = [%w, %w]').build().extra
  assert extra[0] is extra[1]


def test_an_unclosed_bracket_names_its_file_and_line(errors):
  assert errors(GOOD + 'Experiment.extra = [1,\n  2,\n') == [
    "x.gin:6: syntax error: '[' is never closed"
  ]
