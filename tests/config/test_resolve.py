"""The language: scopes, macros, references, includes, overrides and the factories of defaults."""

import functools
import re
import subprocess
import sys

import pytest

from t2x.config import load, render, trust
from t2x.experiments import read_config
from tests.config.conftest import GOOD


def parts_of(model):
  """The stack of the encoder and of the decoder, built."""
  built = model(rngs=None)
  return built.given['encoder'], built.given['decoder']


def block(stack, i=0):
  return stack.given['blocks'][i].given


def test_a_factory_is_a_partial_and_without_bindings_the_part_itself(read, parts):
  config = read('Experiment.extra = [@relu, @Causal, @Window]\nWindow.dilation = 2')
  relu, causal, window = config.build().extra
  assert relu is parts.relu
  assert causal is parts.Causal
  assert isinstance(window, functools.partial)
  assert (window.func, window.keywords) == (parts.Window, {'dilation': 2})


def test_bindings_reach_factories_that_are_defaults(read, parts):
  encoder, decoder = parts_of(read(GOOD + 'gelu.approximate = False').build().model)
  assert decoder is None
  assert block(encoder)['mixer'] == parts.Attention(8, num_heads=4, rngs=None)
  assert block(encoder)['feed_forward'].given['activation'] == ('gelu', 1.0, False)


def test_an_object_that_can_be_called_serves_as_a_function(read):
  encoder, _ = parts_of(read(GOOD + 'MLP.activation = @scaled()\nscaled.factor = 3').build().model)
  assert block(encoder)['feed_forward'].given['activation'] == ('scaled', 1.0, 3.0)


def test_bindings_reach_a_default_that_is_a_partial(read):
  text = GOOD.replace('Attention.num_heads = 4', 'Attention.kernel = @Dense()')
  encoder, _ = parts_of(read(text + 'Stack.blocks = [@PresetBlock]').build().model)
  assert block(encoder)['mixer'].given['num_heads'] == 3


def test_settings_that_a_constructor_forwards_are_those_of_its_base_class(read, errors):
  text = GOOD.replace(
    'Attention.num_heads = 4', 'Block.mixer = @TiedAttention\nTiedAttention.tied = False\n'
  )
  text += 'TiedAttention.num_heads = 2\nTiedAttention.kernel = @Dense()\nDense.precision = "low"\n'
  mixer = block(parts_of(read(text).build().model)[0])['mixer'].given
  assert (mixer['num_heads'], mixer['kernel'].precision, mixer['tied']) == (2, 'low', False)
  (message,) = errors(text.replace('.num_heads = 2', '.num_heads = None'))
  assert 'TiedAttention.num_heads must be an integer' in message
  (message,) = errors(text.replace('.kernel = @Dense()', '.kernal = @Dense()'))
  assert "did you mean 'kernel'" in message


def test_a_scope_holds_for_everything_beneath_and_the_more_specific_wins(read):
  config = read(
    GOOD
    + """
Model.encoder = @encoder/Stack
Model.decoder = @decoder/Stack
decoder/Stack.num_layers = 3
encoder/Attention.num_heads = 2
encoder/Stack.blocks = [@Block, @encoder/local/Block]
encoder/local/Attention.num_heads = 1
encoder/local/MLP.hidden_dim = 5
"""
  )
  encoder, decoder = parts_of(config.build().model)
  assert (encoder.given['num_layers'], decoder.given['num_layers']) == (2, 3)
  assert block(decoder)['mixer'].given['num_heads'] == 4
  heads = [block(encoder, i)['mixer'].given['num_heads'] for i in range(2)]
  widths = [block(encoder, i)['feed_forward'].given['hidden_dim'] for i in range(2)]
  assert heads == [2, 1]
  assert widths == [16, 5]


def test_a_reference_that_leaves_a_scope_with_bindings_is_refused(errors):
  (message,) = errors(
    GOOD
    + """
Model.encoder = @encoder/Stack
encoder/Attention.num_heads = 2
encoder/Stack.blocks = [@Block, @local/Block]
local/MLP.hidden_dim = 5
"""
  )
  assert '@local/Block leaves the scope encoder, so encoder/Attention.num_heads' in message
  assert 'write @encoder/local/Block' in message


def test_the_command_line_wins_over_files_and_scopes(read):
  text = (
    GOOD
    + """
Model.encoder = @encoder/Stack
encoder/Attention.num_heads = 2
encoder/MLP.hidden_dim = 3
Model.decoder = @decoder/Stack
"""
  )
  config = read(text, 'Attention.num_heads=7', '--gin.encoder/MLP.hidden_dim=9')
  encoder, decoder = parts_of(config.build().model)
  assert block(encoder)['mixer'].given['num_heads'] == 7
  assert block(decoder)['mixer'].given['num_heads'] == 7
  assert block(encoder)['feed_forward'].given['hidden_dim'] == 9
  assert block(decoder)['feed_forward'].given['hidden_dim'] == 16


def test_of_two_overrides_the_more_specific_or_the_later_wins(read):
  text = GOOD + 'Model.encoder = @encoder/Stack\nModel.decoder = @Stack\n'
  config = read(
    text, 'encoder/Stack.num_layers=5', 'Stack.num_layers=3', 'Model.d_model=1', 'Model.d_model=2'
  )
  encoder, decoder = parts_of(config.build().model)
  assert (encoder.given['num_layers'], decoder.given['num_layers']) == (5, 3)
  assert block(encoder)['mixer'].given['d_model'] != 1


@pytest.mark.parametrize(
  ('override', 'value'),
  [
    ('Experiment.extra=64', 64),
    ('Experiment.extra=1e-3', 1e-3),
    ('Experiment.extra=None', None),
    ('Experiment.extra=[1, (2,)]', [1, (2,)]),
    ("Experiment.extra='a b'", 'a b'),
    ('Experiment.extra=word', 'word'),
    ('Experiment.extra=runs/2024-01/x.txt', 'runs/2024-01/x.txt'),
    ('Experiment.extra=~/data', '~/data'),
    ('width=3', 3),
    ('Experiment.extra=%width', 1),
  ],
)
def test_an_override_is_a_gin_value_or_a_word(read, override, value):
  assert read('width = 1\nExperiment.extra = %width', override).build().extra == value


def test_a_macro_is_built_once_and_shared(read):
  extra = read(
    """
    Experiment.extra = [%w, %w, @Window(), %both]
    both = (%w, @Window())
    w = @Window()
    Window.size = 3
    """
  ).build()
  first, second, own, (third, other) = extra.extra
  assert first is second is third
  assert own == first
  assert own is not first
  assert other is not first


def test_a_macro_is_shared_across_scopes_and_its_factories_take_the_scope_of_their_place(read):
  config = read(
    GOOD
    + """
kernel = @Dense()
Attention.kernel = %kernel
Block.mixer = %mixer
mixer = @Attention
Model.encoder = @encoder/Stack
Model.decoder = @decoder/Stack
decoder/Attention.num_heads = 1
"""
  )
  encoder, decoder = (block(stack)['mixer'].given for stack in parts_of(config.build().model))
  assert encoder['kernel'] is decoder['kernel']
  assert (encoder['num_heads'], decoder['num_heads']) == (4, 1)


def test_two_builds_share_nothing_mutable(read):
  config = read('l = [1]\nExperiment.extra = %l')
  first, second = config.build(), config.build()
  assert first == second
  assert first.extra is not second.extra


def test_includes_are_relative_to_the_including_file_then_to_the_working_directory(read, tmp_path):
  (tmp_path / 'deep').mkdir()
  (tmp_path / 'deep' / 'a.gin').write_text("include 'b.gin'\ninclude 'top.gin'\n")
  (tmp_path / 'deep' / 'b.gin').write_text("Experiment.name = 'b'\n")
  config = read("include 'deep/a.gin'", top='Experiment.extra = 1')
  assert (config.build().name, config.build().extra) == ('b', 1)
  assert [str(s.place) for s in config.bindings_used] == ['deep/b.gin:1', 'top.gin:1']


def test_a_file_included_twice_does_not_reset_what_was_set_in_between(read):
  config = read(
    "include 'base.gin'\nExperiment.name = 'mine'\ninclude 'base.gin'",
    base="Experiment.name = 'base'",
  )
  assert config.build().name == 'mine'


def test_files_are_read_in_order_and_later_statements_win(read):
  text = "Experiment.name = 'x'\n"
  config = read(text, files=('x.gin', 'z.gin'), z="Experiment.name = 'z'")
  assert config.build().name == 'z'


def test_the_root_may_be_any_gin_value(read, parts):
  text = GOOD.replace('Experiment.model = @Model\n', '')
  model = read(text, root='@Model').build()
  assert model.func is parts.Model
  assert read('m = @Window()\nWindow.size = 2', root='%m').build() == parts.Window(2)


def test_a_user_module_beside_the_config_is_imported(read, tmp_path, monkeypatch):
  (tmp_path / 'my_parts_a.py').write_text(
    'import dataclasses\nfrom fake_parts import Pattern\n'
    '@dataclasses.dataclass(frozen=True)\nclass Mine(Pattern):\n  n: int\n'
    'def _hidden(): ...\n'
  )
  monkeypatch.setattr(sys, 'path', list(sys.path))
  extra = read('import my_parts_a\nExperiment.extra = @Mine()\nMine.n = 3').build().extra
  assert (type(extra).__name__, extra.n) == ('Mine', 3)
  with pytest.raises(Exception, match=r"^x\.gin:2: no part named '_hidden'"):
    read('import my_parts_a\nExperiment.extra = @_hidden')


def test_a_name_that_two_modules_export_is_written_with_its_module(
  read, errors, tmp_path, monkeypatch
):
  (tmp_path / 'my_parts_b.py').write_text('__all__ = ["Causal"]\nclass Causal: ...\n')
  monkeypatch.setattr(sys, 'path', list(sys.path))
  (tmp_path / 'my_parts_o.py').write_text('__all__ = ["Causal"]\nclass Causal: ...\n')
  text = 'import my_parts_b as mine\nExperiment.extra = @{}()'
  assert errors('import my_parts_o\n' + text.format('Causal')) == [
    "x.gin:3: 'Causal' is ambiguous: write fake_parts.Causal or mine.Causal or my_parts_b.Causal or my_parts_o.Causal"
  ]
  # Of the user's module and t2x, the user's is meant, whose name may be older.
  config = read(text.format('Causal'))
  assert config.build().extra.__module__ == 'my_parts_b'
  assert config.notes() == ['Causal is that of my_parts_b, not fake_parts.Causal']
  assert '@Causal()' in render(config)
  assert read(text.format('mine.Causal')).build().extra.__module__ == 'my_parts_b'
  assert read(text.format('fake_parts.Causal')).build().extra.__module__ == 'fake_parts'


def test_a_user_module_that_fails_is_a_one_line_error(errors, tmp_path, monkeypatch):
  monkeypatch.setattr(sys, 'path', list(sys.path))
  (tmp_path / 'my_parts_c.py').write_text('1 / 0')
  (tmp_path / 'my_parts_d.py').write_text('import not_there')
  (tmp_path / 'my_parts_e.py').write_text('import sys\nsys.exit(3)')
  assert errors('import my_parts_c\nimport my_parts_d\nimport my_parts_e') == [
    "x.gin:1: cannot import 'my_parts_c': ZeroDivisionError: division by zero",
    "x.gin:2: cannot import 'my_parts_d': ModuleNotFoundError: No module named 'not_there'",
    "x.gin:3: cannot import 'my_parts_e': SystemExit: 3",
  ]


def test_two_configs_live_in_one_process(read):
  a, b = read('Experiment.extra = 1'), read('Experiment.extra = 2')
  assert (a.build().extra, b.build().extra) == (1, 2)


def test_importing_the_room_imports_no_jax():
  code = "import sys, t2x.config; print('jax' in sys.modules, 'flax' in sys.modules)"
  out = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True, check=True)
  assert out.stdout.split() == ['False', 'False']


def test_flax_modules_and_jaxtyping_annotations_are_read(tmp_path, monkeypatch):
  (tmp_path / 'my_flax_parts.py').write_text("""
from collections.abc import Callable
from flax import nnx
from jaxtyping import Array, Float

class Layer(nnx.Module):
  def __init__(self, d_model: int, *, width: int, act: Callable[[Float[Array, 'd']], Array] = nnx.gelu, rngs: nnx.Rngs):
    self.width = width

class Whole(nnx.Module):
  def __init__(self, *, layer: Callable[..., nnx.Module] = Layer, rngs: nnx.Rngs):
    self.layer = layer(3, rngs=rngs)

def act(x: Float[Array, 'd']) -> Float[Array, 'd']: ...

class Root:
  def __init__(self, *, whole: Callable[..., nnx.Module]):
    self.whole = whole
""")
  monkeypatch.setattr(sys, 'path', list(sys.path))
  trust(tmp_path)
  file = tmp_path / 'x.gin'
  text = 'import my_flax_parts\nRoot.whole = @Whole\nLayer.act = @act\n'
  file.write_text(text + 'Layer.width = 5')
  assert load(file, root='Root').build().whole(rngs=None).layer.width == 5
  file.write_text(text.replace('@act', '@Layer').replace('@Whole', '@Whole()'))
  with pytest.raises(Exception) as caught:
    load(file, root='Root')
  whole, act = str(caught.value).splitlines()[:2]
  assert whole == f'{file}:2: Root.whole must be a part, not an object: write @Whole, not @Whole()'
  assert act.startswith(f'{file}:3: Layer.act must be a function')
  assert act.endswith(', but @Layer builds a Layer')


TWO = GOOD.replace(
  'Experiment.model = @Model', 'Experiment.model = @a/Model\nExperiment.extra = @b/Model'
)


def test_a_binding_above_an_include_that_binds_it_again_is_an_error(read, errors):
  text = "MLP.hidden_dim = 32\nMLP.activation = @relu\ninclude 'base.gin'\n"
  (line,) = errors(text, base=GOOD)
  assert line == (
    'x.gin:1: MLP.hidden_dim has no effect: base.gin:5 binds it again, which line 3 includes; move this binding '
    'below that line'
  )
  assert read(text.replace('32', '16'), base=GOOD)
  nested = "include 'middle.gin'", "MLP.hidden_dim = 32\ninclude 'base.gin'"
  (line,) = errors(nested[0], middle=nested[1], base=GOOD)
  assert line.startswith('middle.gin:1: MLP.hidden_dim has no effect')
  assert (
    'width has no effect'
    in errors("width = 8\nExperiment.extra = %width\ninclude 'm.gin'", m=GOOD + 'width = 9')[0]
  )


def test_an_unscoped_binding_that_every_use_overrides_is_an_error(read, errors):
  scoped = 'a/MLP.hidden_dim = 8\nb/MLP.hidden_dim = 4\n'
  (line,) = errors(TWO + scoped)
  assert line == (
    'x.gin:6: MLP.hidden_dim has no effect: every use of MLP has its own, a/MLP.hidden_dim (x.gin:7), '
    'b/MLP.hidden_dim (x.gin:8)'
  )
  assert read(TWO + 'a/MLP.hidden_dim = 8\n')
  # A later file may replace it.
  later = read("include 'base.gin'\n" + scoped, base=TWO)
  assert later.notes() == [
    'not used, because their parts were replaced: MLP.hidden_dim (base.gin:6)'
  ]
  assert read(TWO + 'a/MLP.hidden_dim = 8\nb/MLP.hidden_dim = 4\n', 'MLP.hidden_dim=2')


def test_an_overriding_file_overrides_scoped_bindings_of_other_files(read, tmp_path):
  text = TWO + 'a/MLP.hidden_dim = 8\n'
  read(text)
  (tmp_path / 'own.gin').write_text('MLP.hidden_dim = 2\nb/MLP.hidden_dim = 3\n')
  files = ['x.gin', 'own.gin']
  settings = {'registry_modules': ['fake_parts'], 'overriding': ['own.gin']}

  def widths(*overrides):
    config = load(files, overrides, base=load('x.gin', (), ['fake_parts']), **settings)
    experiment = config.build()
    return [
      block(parts_of(model)[0])['feed_forward'].given['hidden_dim']
      for model in (experiment.model, experiment.extra)
    ]

  assert widths() == [2, 3]
  assert widths('a/MLP.hidden_dim=5') == [5, 3]
  assert widths('MLP.hidden_dim=6') == [6, 6]


def test_positions_that_two_bodies_get_are_noted(tmp_path):
  path = tmp_path / 'x.gin'
  path.write_text("include 't2x:models/small_electra.gin'\n")
  notes = read_config([path]).notes()
  assert any(
    re.fullmatch(
      r'Encoder.encoding \(.*\.gin:\d+\) sets the positions of Encoder and generator/Encoder', note
    )
    for note in notes
  )
  path.write_text(
    "include 't2x:models/small_electra.gin'\ngenerator/Encoder.encoding = @Sinusoidal\n"
  )
  assert not any('sets the positions' in note for note in read_config([path]).notes())
