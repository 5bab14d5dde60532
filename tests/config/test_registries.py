"""The registry of the names that configs may use."""

import subprocess
import sys
from pathlib import Path

from t2x.base import names
from t2x.config.registries import Registry, _Library
from t2x.experiments import registry

ROOT = Path(__file__).parents[2]


def printed(code: str) -> str:
  done = subprocess.run(
    [sys.executable, '-c', code], capture_output=True, text=True, check=True, cwd=ROOT
  )
  return done.stdout.strip()


def test_only_later_objects_are_searched_for_cycles():
  code = """
import gc
from t2x.experiments import registry
assert registry().find('Beam')
later = [[]]
print(gc.get_freeze_count() > 1000, gc.isenabled(), any(one is later for one in gc.get_objects()))
"""
  assert printed(code) == 'True True True'


def test_a_package_exports_what_it_defines_beside_what_it_re_exports(tmp_path, monkeypatch):
  package = tmp_path / 'parts_of_a_user'
  package.mkdir()
  (package / 'other.py').write_text(
    "__all__ = ['relu', 'Hidden']\ndef relu(x): ...\nclass Hidden: ...\n"
  )
  (package / '__init__.py').write_text('from .other import relu\nclass Own: ...\n')
  monkeypatch.syspath_prepend(tmp_path)
  assert set(Registry.of(['parts_of_a_user']).names()) == {'Own', 'relu'}


def test_names_are_known_before_anything_is_imported():
  code = """
import sys
from t2x.base.suggestions import did_you_mean
from t2x.experiments import registry
parts = registry()
known = parts.names()
print(parts.full_names('MLP'), did_you_mean('CausalLN', known), {'t2x.layers', 'jax'} & {*sys.modules})
import t2x.layers, t2x.tasks
print(registry().names() == known)
"""
  expected = "['t2x.layers.MLP'] ; did you mean 'CausalLM'? set()"
  assert printed(code).splitlines() == [expected, 'True']


def test_a_part_of_the_user_hides_that_of_t2x_whose_end_of_a_full_name_finds_it():
  code = """
import sys
from t2x.experiments import registry
class MLP: ...
parts = registry()
parts.add_object('own', 'MLP', MLP)
(part,) = parts.find('MLP')
print(part.obj is MLP, parts.hidden_by(part), parts.name_of(part), parts.home_of(part))
(other,) = parts.find('layers.MLP')
print(other.obj.__module__, parts.name_of(other), parts.home_of(other))
"""
  assert printed(code).splitlines() == [
    "True ['t2x.layers.MLP'] MLP ('__main__', 'MLP')",
    "t2x.layers.feed_forward.mlp t2x.layers.MLP ('', 'MLP')",
  ]


def test_a_part_of_t2x_that_a_module_of_the_user_exports_is_a_part_of_t2x():
  from t2x.layers import MLP

  parts = registry()
  parts.add_object('own', 'Wide', MLP)
  (part,) = parts.find('Wide')
  assert parts.find('MLP') == [part]
  assert (parts.home_of(part), parts.hidden_by(part), parts.exported_by(part)) == (
    ('', 'MLP'),
    [],
    set(),
  )


def test_names_of_the_table_are_the_parts():
  """Protocols, constants and type aliases are recognized in the text of a module."""
  parts = registry()
  for name in parts.names():
    (part,) = parts.find(name)
    assert (part.name, parts.part_of(part.obj)) == (name, part)
    assert parts.name_of(part) == name
  others = {
    entry.name
    for package in names.packages()
    for entry in names.names(package)
    if not entry.is_part
  }
  assert {'Source', 'RULES', 'Example'} <= others


def test_a_part_that_moved_to_a_domain_keeps_its_qualified_names():
  homes = {'t2x.domains.speech': 't2x.domains.speech.audio_stem'}
  parts = Registry(_Library({'AudioStem': homes}))
  found = parts.find('AudioStem')
  assert len(found) == 1
  for name in ('layers.AudioStem', 't2x.layers.AudioStem', 'domains.speech.AudioStem'):
    assert parts.find(name) == found
  assert parts.full_names('layers.AudioStem') == ['t2x.domains.speech.AudioStem']
  assert parts.find('own.AudioStem') == parts.find('ers.AudioStem') == []
