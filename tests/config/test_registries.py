"""The registry of the names that configs may use."""

import gc

from t2x.config.registries import Registry


def test_only_later_objects_are_searched_for_cycles():
  gc.unfreeze()
  assert Registry.of(['t2x.base.ranges', 't2x.base.errors']).find('UserError')
  assert gc.get_freeze_count() > 1000
  assert gc.isenabled()
  later = [[]]
  assert any(entry is later for entry in gc.get_objects())


def test_a_package_exports_what_it_defines_beside_what_it_re_exports(tmp_path, monkeypatch):
  package = tmp_path / 'parts_of_a_user'
  package.mkdir()
  (package / 'other.py').write_text(
    "__all__ = ['relu', 'Hidden']\ndef relu(x): ...\nclass Hidden: ...\n"
  )
  (package / '__init__.py').write_text('from .other import relu\nclass Own: ...\n')
  monkeypatch.syspath_prepend(tmp_path)
  assert set(Registry.of(['parts_of_a_user']).names()) == {'Own', 'relu'}
