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
