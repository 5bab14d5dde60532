"""`t2x parts` lists what configs can name, by interface."""

import functools
import inspect
import re
from pathlib import Path

import pytest
import typing_extensions

from t2x.cli import main
from t2x.config import catalogue
from t2x.experiments import registry

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope='module')
def interfaces():
  return {one.cls.__name__: one for one in catalogue.interfaces(registry())}


def test_parts_are_listed_under_what_takes_them(interfaces):
  names = {name: [part.name for part in one.parts] for name, one in interfaces.items()}
  for interface, part in {
    'Task': 'Mixture',
    'Source': 'TextFiles',
    'Pattern': 'Causal',
    'Norm': 'RMSNorm',
    'Optimizer': 'Muon',
    'Function': 'gelu',
    'MetricWriter': 'WandB',
    'TextEmbedding': 'TokenEmbedding',
    'MixtureWeights': 'StagedWeights',
    'ClassHead': 'PooledClassifier',
    'HeadOutputs': 'GatedHeads',
    'Mix': 'PlusAlpha',
    'Resize': 'KeepNew',
  }.items():
    assert part in names[interface]
  assert not any('MaskTokens' in found or 'fetch' in found for found in names.values())
  assert 'Experiment.task' in interfaces['Task'].places


def test_parts_whose_methods_fit_by_chance_are_not_listed(interfaces):
  names = {name: [part.name for part in one.parts] for name, one in interfaces.items()}
  assert names['Norm'] == ['JointNorm', 'LayerNorm', 'PerHead', 'RMSNorm', 'final_norm_if_needed']
  assert names['ClassHead'] == [
    'AnswerClassifier',
    'CapsuleLengths',
    'Classifier',
    'PooledClassifier',
  ]
  assert names['LayerRate'] == ['LayerDecay']
  vision = ['DistilledVisionTransformer', 'FlexibleVisionTransformer', 'PixelClassifier']
  assert sorted(names['Model']) == sorted(
    [
      'AutoregressiveForecaster',
      'DETR',
      'EncoderDecoder',
      'Forecaster',
      'LanguageModel',
      'OneStream',
      'TwoTower',
      'VisionTransformer',
      'WithGenerator',
      'YOLOS',
      *vision,
    ]
  )


def declared(cls):
  """The protocols among the base classes and in `implements`."""
  bases = [*cls.__mro__, *getattr(cls, 'implements', ())]
  return [base for base in bases if typing_extensions.is_protocol(base)]


def test_every_part_declares_its_interface(interfaces):
  """Functions of arrays declare it by their annotations, and subclasses of a base class by the base class."""
  undeclared = [
    (one.cls.__name__, part.name)
    for one in interfaces.values()
    for part in one.parts
    if one.cls is not catalogue.Function
    and one.cls not in part.returns.__mro__
    and not any(one.cls in base.__mro__ for base in declared(part.returns))
  ]
  assert undeclared == []


# Python parses the whole file to find a class.
source = functools.cache(inspect.getsource)


def test_parts_have_the_members_that_they_declare(interfaces):
  members = {
    (part.obj, name, getattr(protocol, name, None))
    for one in interfaces.values()
    for part in one.parts
    if part.is_class
    for protocol in declared(part.obj)
    for name in typing_extensions.get_protocol_members(protocol)
  }
  assert len(members) > 300
  for cls, name, member in members:
    if not hasattr(cls, name):
      sources = ''.join(source(base) for base in cls.__mro__ if base is not object)
      assert f'self.{name}' in sources or f'  {name}:' in sources, (cls, name)
    if inspect.isfunction(member):
      parameters = inspect.signature(member).parameters.values()
      by_name = {p.name: None for p in parameters if p.kind is p.KEYWORD_ONLY}
      by_position = [
        None for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
      ]
      signature = inspect.signature(getattr(cls, name))
      # The inputs of a model, `*inputs`, are named by the model.
      takes_any = any(p.kind is p.VAR_POSITIONAL for p in parameters)
      bind = signature.bind_partial if takes_any else signature.bind
      bind(*by_position, **by_name)


def test_defaults_are_names(interfaces):
  defaults = [
    row[2]
    for one in interfaces.values()
    for part in one.parts
    for row in catalogue.parameters(part)
  ]
  assert '@silu' in defaults and '@relu' in defaults
  assert [text for text in defaults if '<' in text or ' object' in text] == []


def test_all_parts_of_the_shipped_configs_are_listed(interfaces):
  listed = {part.name for one in interfaces.values() for part in one.parts}
  files = [*ROOT.glob('configs/**/*.gin')]
  used = {
    name
    for file in files
    for name in re.findall(r'@(?:\w+/)*(\w+)', re.sub('#.*', '', file.read_text()))
  }
  assert len(used) > 50
  # Functions of words that only BrownWords takes, an order of layers, packings, which are called with a length, a rule
  # of captions, names of tokens, and a function of a text.
  functions = {'name_spans', 'parts_of_speech', 'cycle_reverse', 'scene_is_right'}
  functions |= {'FullRows', 'BestFitDocuments', 'speech_tokens', 'plain_words'}
  assert used - functions <= listed


def test_every_part_has_a_summary(interfaces):
  parts = [part for one in interfaces.values() for part in one.parts]
  assert len(parts) > 150
  assert [part.name for part in parts if not catalogue.summary(part.obj)] == []
  assert all(catalogue.summary(one.cls) for one in interfaces.values())


def test_descriptions_come_from_base_classes_too(interfaces):
  (task,) = (part for part in interfaces['Task'].parts if part.name == 'CausalLM')
  rows = {name: (default, text) for name, _, default, text in catalogue.parameters(task)}
  assert rows['length'] == ('required', 'tokens per row.')
  assert rows['train_split'] == ("'train'", 'the split for training.')
  assert rows['strategy'][0] == '@Sampling(temperature=0.8, top_k=40)'


def test_settings_that_a_constructor_forwards_are_listed_with_their_range(interfaces):
  (mixer,) = (part for part in interfaces['Sublayer'].parts if part.name == 'LSHAttention')
  rows = {name: row for name, *row in catalogue.parameters(mixer)}
  assert rows['num_heads'][0].startswith('an integer, at least 1 and at most')
  assert rows['num_heads'][1:] == ['required', 'number of heads.']
  assert rows['use_bias'] == [
    'True or False',
    'False',
    'whether the query and value projections have biases.',
  ]
  assert not mixer.open and 'settings' not in mixer.parameters


def test_a_part_is_described(capsys):
  assert main(['parts', 'Cosine']) == 0
  out = capsys.readouterr().out
  assert 'a Schedule, taken by' in out
  assert 'https://arxiv.org/abs/1608.03983' in out
  assert re.search(r'Cosine\.warmup_steps = \d+', out)
  assert main(['parts', 'Task']) == 0
  assert 'Taken by' in capsys.readouterr().out
  assert main(['parts', 'Trainer']) == 0
  assert 'Trainer.num_steps = required' in capsys.readouterr().out
  assert main(['parts', 'Stack']) == 0
  assert 'Stack.blocks = [@Block]' in capsys.readouterr().out
  assert main(['parts', 'Tune']) == 0
  assert 'Tune.parameter = required' in capsys.readouterr().out
  assert main(['parts', 'Sweep']) == 0
  out = capsys.readouterr().out
  assert "Sweep.match = 'steps'" in out and 'Sweep.file' not in out


def test_unknown_names_are_errors_with_a_suggestion(capsys):
  assert main(['parts', 'Cosin']) == 2
  assert "no part named 'Cosin'; did you mean 'Cosine'?" in capsys.readouterr().err
  assert main(['parts', '--import', 'no_such_module']) == 2
  assert "no module named 'no_such_module'" in capsys.readouterr().err


def test_parts_of_a_module_of_the_user(tmp_path, monkeypatch, capsys):
  (tmp_path / 'own_parts.py').write_text(
    'import dataclasses\nfrom t2x.train import Cosine\n\n\n'
    '@dataclasses.dataclass(frozen=True, kw_only=True)\nclass Sawtooth(Cosine):\n'
    '  """Falls and rises.\n\n  Attributes:\n    teeth: number of teeth.\n  """\n\n  teeth: int = 3\n'
  )
  monkeypatch.chdir(tmp_path)
  assert main(['parts', '--import', 'own_parts', 'Sawtooth']) == 0
  out = capsys.readouterr().out
  assert 'a Schedule' in out
  assert 'Sawtooth.teeth = 3' in out and 'number of teeth' in out


def test_pages(tmp_path, capsys):
  assert main(['parts', '--markdown', str(tmp_path)]) == 0
  page = (tmp_path / 'Schedule.md').read_text()
  assert '## Cosine' in page
  assert '| `warmup_steps` |' in page
  assert len(list(tmp_path.glob('*.md'))) > 30
  assert main(['parts', '--markdown', str(tmp_path / 'Schedule.md')]) == 2
  err = capsys.readouterr().err
  assert err.count('\n') == 1 and 'Schedule.md is not a folder' in err
