"""The table of t2x's names, and errors of imports of moved names."""

import collections
import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

from t2x.base import names as table
from t2x.experiments import registry
from t2x.tasks.former import BASES

ROOT = Path(__file__).parents[2]
# Every name that configs could use when parts began to move from packages to domains, with its package then.
STORED = (ROOT / 'tests' / 'config' / 'names.txt').read_text().split()
# Names that left since: no setting of any part accepts one of these values, so no stored config names them.
INTERNAL = {
  *(
    'data.InOrder',
    'data.Overlap',
    'data.Resegment',
    'data.SeveralTexts',
    'layers.CompressedMemory',
  ),
  *('layers.FlowState', 'layers.LoadRule', 'layers.Source', 'parallel.Cluster'),
}


def test_names_are_unique():
  """Over the core, samples and domains; protocols too, which no config names."""
  homes = collections.Counter(e.name for package in table.packages() for e in table.names(package))
  assert [name for name, count in homes.items() if count > 1] == []


def test_a_renamed_class_of_layers_is_an_error_with_the_new_name():
  with pytest.raises(
    ImportError, match=r'^t2x\.layers has no Source any more: write SourceSequence$'
  ):
    importlib.import_module('t2x.layers').__getattr__('Source')


def test_packages_of_the_core_export_all_names():
  for package in table.CORE:
    module = importlib.import_module(package)
    for name in table.names(package):
      assert hasattr(module, name.name), name
      assert table.import_line(package, name) == f'from {package} import {name.name}'


def test_stored_names_resolve():
  """By the name alone, and by the package that exported it."""
  parts = registry()
  assert len(STORED) == 663
  for stored in STORED:
    name = stored.rpartition('.')[2]
    if name in BASES:  # An abstract base class, of which a config has no instance.
      continue
    if stored in INTERNAL:
      assert not parts.find(stored)
      continue
    (part,) = parts.find(name)
    assert parts.find(stored) == parts.find(f't2x.{stored}') == [part]
    assert part.name == part.obj.__name__ == name
    # Activations are functions of jax.
    assert part.obj.__module__.partition('.')[0] == 't2x' or stored in {
      f'layers.{own}' for own in ('relu', 'selu', 'sigmoid', 'silu', 'softplus', 'tanh')
    }


@pytest.fixture
def tree(tmp_path, monkeypatch):
  """A tree in which `AudioFrames` has moved to a domain, and `Words` to a folder of samples."""
  for path, text in {
    'layers/__init__.py': 'from t2x.layers.mlp import *\n',
    'layers/mlp.py': "__all__ = ['MLP']\n\nclass MLP: ...\n",
    'domains/speech/__init__.py': 'from t2x.domains.speech.frames import *\n',
    'domains/speech/frames.py': "__all__ = [\n  'AudioFrames',\n]\n\nclass AudioFrames: ...\n",
    'domains/speech/interop.py': "__all__ = ['convert']\n\ndef convert(): ...\n",
    'samples/__init__.py': '',
    'samples/words.py': "__all__ = ['Words']\n\nclass Words: ...\n",
  }.items():
    (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / path).write_text(text)
  table.names.cache_clear()
  monkeypatch.setattr(table, 'ROOT', tmp_path)
  yield
  table.names.cache_clear()


@pytest.mark.usefixtures('tree')
def test_imports_of_moved_names_fail_with_the_new_line():
  missing = table.missing('t2x.layers')
  with pytest.raises(ImportError) as error:
    missing('AudioFrames')
  line = 'from t2x.domains.speech import AudioFrames'
  assert str(error.value) == f'AudioFrames is not in t2x.layers: write `{line}`'
  # This package does not export the names of its modules.
  with pytest.raises(ImportError, match=r'write `from t2x\.samples\.words import Words`'):
    missing('Words')
  for name in ('convert', 'mlp', '__path__', 'Other'):
    with pytest.raises(AttributeError, match=f"'t2x.layers' has no attribute '{name}'"):
      missing(name)


def printed(code: str) -> str:
  done = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True, cwd=ROOT)
  assert done.returncode == 0, done.stderr
  return done.stdout.strip()


def failed(code: str) -> str:
  done = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True, cwd=ROOT)
  assert done.returncode == 1
  return done.stderr.splitlines()[-1]


def test_an_import_from_another_package_fails_with_the_line():
  error = failed('from t2x.layers import CausalLM')
  line = 'from t2x.tasks import CausalLM'
  assert error == f'ImportError: CausalLM is not in t2x.layers: write `{line}`'
  assert 'cannot import name' in failed('from t2x.layers import Nothing')


def test_a_package_imports_a_module_when_its_name_is_used():
  code = """
import sys
import t2x.layers
from t2x.layers import *
print({'t2x.layers.norms', 't2x.layers.mixers.linformer'} - {*sys.modules})
"""
  assert printed(code.replace('from t2x.layers import *', '')).startswith("{'t2x.layers")
  assert printed(code) == 'set()'
  code = """
import sys, t2x.layers
print('RMSNorm' in dir(t2x.layers), 't2x.layers.norms' in sys.modules)
assert t2x.layers.RMSNorm is t2x.layers.norms.RMSNorm is vars(t2x.layers)['RMSNorm']
print('t2x.layers.mixers.linformer' in sys.modules, t2x.layers.mixers.__name__)
"""
  assert printed(code).splitlines() == ['True False', 'False t2x.layers.mixers']


def test_star_imports_for_type_checkers_are_those_of_all_modules_with_names():
  for package in table.packages():
    stars = re.findall(
      r'from ([\w.]+) import \*', importlib.import_module(package).__loader__.get_source(package)
    )
    assert sorted({entry.module for entry in table.names(package)}) == sorted(stars)
