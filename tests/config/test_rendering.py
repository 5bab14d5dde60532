"""Resolved configs as text that runs again, as a table with origins, and compared."""

import sys

from t2x.config import diff, render, show, trust

TEXT = """
include 'base.gin'
width = 16
w = @Window()
Window.size = 3
encoder/Attention.num_heads = 2
Experiment.extra = [%w, %w, (%width,), {'a': None, 'b': -1.5}, "it's", 1e999]
Model.encoder = @encoder/Stack
Experiment.name = 'mine'
"""
BASE = """
Experiment:
  model = @Model
  name = 'base'
  trainer = @Trainer()
Trainer.num_steps = 7
Model.d_model = %width
Stack.num_layers = 2
Attention.num_heads = 4
MLP.hidden_dim = 16
"""


def test_a_rendered_config_is_deterministic_and_has_no_includes(read):
  text = render(read(TEXT, 'Trainer.num_steps=9', base=BASE))
  assert (
    text
    == """\
w = @Window()
width = 16

Experiment:
  model = @Model
  trainer = @Trainer()
  name = 'mine'
  extra = [%w, %w, (%width,), {'a': None, 'b': -1.5}, "it's", 1e999]

encoder/Attention:
  num_heads = 2

MLP:
  hidden_dim = 16

Model:
  d_model = %width
  encoder = @encoder/Stack

Stack:
  num_layers = 2

Trainer:
  num_steps = 9

Window:
  size = 3
"""
  )


def test_rendering_again_gives_the_same_text_and_objects(read):
  config = read(TEXT, 'Trainer.num_steps=9', base=BASE)
  text = render(config)
  again = read(text)
  assert render(again) == text
  assert diff(config, again) == []
  assert again.build().model(rngs=None) == config.build().model(rngs=None)
  assert again.build().extra == config.build().extra


def test_a_rendered_override_still_wins_over_scoped_bindings(read):
  config = read(TEXT, 'Attention.num_heads=8', base=BASE)
  again = read(render(config))
  assert again.build().model(rngs=None) == config.build().model(rngs=None)
  assert 'encoder/Attention' not in render(config)


def test_long_values_are_broken_into_lines(read):
  values = [f'number {i}' for i in range(20)]
  config = read(f'Experiment.extra = {values}')
  text = render(config)
  assert max(map(len, text.splitlines())) < 40
  assert read(text).build().extra == values


def test_a_rendered_config_finds_the_users_modules_from_another_folder(read, tmp_path, monkeypatch):
  monkeypatch.setattr(sys, 'path', list(sys.path))
  (tmp_path / 'my_parts_r.py').write_text('def thing(): return 3\n')
  config = read('import my_parts_r\nExperiment.extra = @thing()')
  text = render(config)
  assert text.startswith(f'import my_parts_r\n# modules in: {tmp_path}\n')
  sys.modules.pop('my_parts_r')
  sys.path[:] = [folder for folder in sys.path if folder != str(tmp_path)]
  (tmp_path / 'run').mkdir()
  (tmp_path / 'run' / 'config.gin').write_text(text)
  monkeypatch.chdir(tmp_path / 'run')
  trust(tmp_path)
  again = read('', files=('config.gin',))
  assert again.build().extra == 3
  assert 'import my_parts_r' in render(again)


def test_show_prints_each_value_with_its_origin(read):
  text = show(
    read(
      'Experiment.trainer = @Trainer()\nsteps = 5\nTrainer.num_steps = %steps\n', 'Trainer.seed=3'
    )
  )
  assert (
    text
    == """\
Experiment:
  model = None          # default
  trainer = @Trainer()  # x.gin:1
  types = None          # default
  name = 'run'          # default
  extra = None          # default

Trainer:
  num_steps = 5     # x.gin:3, %steps x.gin:2
  seed = 3          # command line
  optimizer = None  # default
"""
  )


def test_show_leaves_out_parts_without_parameters(read):
  assert 'Causal:' not in show(read('Experiment.extra = @Causal()'))


def test_show_prints_scopes_separately_where_they_differ(read):
  text = show(
    read(
      'Experiment.extra = [@a/Window(), @b/Window(), @c/Window()]\nWindow.size = 1\nb/Window.size = 2'
    )
  )
  assert 'a/Window, c/Window:\n  size = 1      # x.gin:2' in text
  assert 'b/Window:\n  size = 2      # x.gin:3' in text


def test_diff_prints_values_after_resolution(read):
  a = read(TEXT, base=BASE)
  b = read(TEXT, 'width=32', 'Trainer.num_steps=1', 'MLP.activation=@relu', base=BASE)
  assert diff(a, b) == [
    'Experiment.model.d_model: 16 -> 32',
    'Experiment.model.encoder.blocks[0].feed_forward.activation: @gelu -> @relu',
    'Experiment.trainer.num_steps: 7 -> 1',
    'Experiment.extra[2][0]: 16 -> 32',
  ]


def test_diff_prints_other_parts_with_their_arguments(read):
  a = read('Experiment.extra = @Window()\nWindow.size = 3')
  b = read('Experiment.extra = @Causal()')
  assert diff(a, b) == ['Experiment.extra: Window(size=3) -> Causal()']
  assert diff(b, read('')) == ['Experiment.extra: Causal() -> None']


def test_defaults_that_a_dataclass_builds_are_shown_and_compared(read):
  default, empty = (
    read('Experiment.extra = @Table()'),
    read('Experiment.extra = @Table()\nTable.entries = {}'),
  )
  some = read("Experiment.extra = @Table()\nTable.entries = {'a': 1}")
  assert 'entries = {}  # default' in show(default)
  assert diff(some, default) == ["Experiment.extra.entries: {'a': 1} -> {}"]
  assert diff(default, empty) == []


def test_diff_ignores_differences_of_spelling(read):
  a = read('Experiment.types = @Types()\nTypes.f = 1\nTypes.i = 0')
  b = read(
    """
    one = 1.0
    Experiment.types = @s/Types()
    s/Types.f = %one
    Types.pattern = @Pattern()
    """
  )
  assert diff(a, b) == []
