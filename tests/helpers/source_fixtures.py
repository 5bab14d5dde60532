"""Fixtures of tests of sources, which their folders import in `conftest.py`."""

import pytest


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
  """A cache folder of the test's own."""
  monkeypatch.setenv('T2X_CACHE', str(tmp_path / 'cache'))
  return tmp_path / 'cache'


@pytest.fixture
def message():
  """Runs something that must fail with a UserError of one line; gives the line."""
  from t2x.base.errors import UserError

  def call(function, *args, **kwargs):
    with pytest.raises(UserError) as caught:
      function(*args, **kwargs)
    assert '\n' not in str(caught.value)
    return str(caught.value)

  return call
