"""Worker processes of the data pipeline."""

import sys

import pytest
from tiny_source import Places

from t2x.data import prefetch


@pytest.mark.skipif(sys.platform != 'linux', reason='glibc is on Linux')
@pytest.mark.parametrize(('setting', 'expected'), [('on', True), ('off', False)])
def test_workers_keep_the_memory_of_large_batches(monkeypatch, setting, expected):
  # On any device.
  monkeypatch.setenv('JAX_PLATFORMS', 'cuda')
  monkeypatch.setenv('LD_PRELOAD', '')
  monkeypatch.setenv('T2X_ALLOCATOR', setting)
  [batch] = prefetch(Places(), 0, 1, num_workers=1)
  assert batch['on_heap'] == expected
