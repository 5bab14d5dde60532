"""Gin files of t2x are named by 't2x:PATH', those of configs/runs also by their name."""

import os
from pathlib import Path

import pytest

from t2x.base.errors import UserError
from t2x.config import gin_path, parse_files, shipped, shipped_folder

RUN = shipped_folder() / 'configs' / 'runs' / 'quickstart.gin'


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  return tmp_path


@pytest.mark.parametrize(
  'name', ['t2x:runs/quickstart.gin', 't2x:configs/runs/quickstart.gin', 'quickstart']
)
def test_a_config_of_t2x_is_found_from_any_folder(name):
  assert gin_path(name) == str(RUN)


def test_a_study_is_found_with_its_base():
  path = Path(gin_path('t2x:experiments/feed_forward/sweep.gin'))
  assert path.parent == shipped_folder() / 'experiments' / 'feed_forward'


def test_a_file_of_the_working_directory_comes_first(elsewhere):
  (elsewhere / 'quickstart').mkdir()
  assert gin_path('quickstart') == str(RUN)
  (elsewhere / 'quickstart').rmdir()
  (elsewhere / 'quickstart').write_text('x = 1')
  assert gin_path('quickstart') == 'quickstart'
  assert gin_path('folder/quickstart') == 'folder/quickstart'
  assert gin_path('quickstart.gin') == 'quickstart.gin'


def test_configs_include_files_of_t2x(elsewhere):
  (elsewhere / 'a.gin').write_text("include 't2x:runs/quickstart.gin'\n")
  parsed = parse_files(['a.gin'])
  assert parsed.complete and os.path.realpath(RUN) in parsed.files


@pytest.mark.parametrize(
  ('text', 'message'),
  [
    (
      "include 't2x:runs/quickstrt.gin'",
      "a.gin:1: t2x has no config 'runs/quickstrt.gin'; did you mean 't2x:runs/quickstart.gin'?",
    ),
    ("include 't2x:qqqqqqqq'", "a.gin:1: t2x has no config 'qqqqqqqq'"),
  ],
)
def test_unknown_names_in_a_file_are_errors(text, message, elsewhere):
  (elsewhere / 'a.gin').write_text(text)
  assert [str(finding) for finding in parse_files(['a.gin']).findings] == [message]


@pytest.mark.parametrize(
  ('name', 'guess'),
  [
    ('quickstrt', 'quickstart'),
    ('mine.gn', 'mine.gin'),
    ('folder/yours.gi', 'folder/yours.gin'),
    ('configs/runs/quickstart.gin', 't2x:runs/quickstart.gin'),
    ('t2x:runs/quickstrt.gin', 't2x:runs/quickstart.gin'),
  ],
)
def test_the_most_similar_file_is_suggested(name, guess, elsewhere):
  (elsewhere / 'mine.gin').write_text('')
  (elsewhere / 'folder').mkdir()
  (elsewhere / 'folder' / 'yours.gin').write_text('')
  [finding] = parse_files([name]).findings
  assert str(finding).endswith(f"; did you mean '{guess}'?")


def test_an_installed_wheel_has_its_own_files(elsewhere, monkeypatch):
  (elsewhere / 't2x' / 'config').mkdir(parents=True)
  (elsewhere / 't2x' / 'shipped').mkdir()
  monkeypatch.setattr(shipped, '__file__', str(elsewhere / 't2x' / 'config' / 'shipped.py'))
  assert shipped_folder() == elsewhere / 't2x' / 'shipped'
  with pytest.raises(UserError, match='t2x has no config'):
    gin_path('t2x:runs/quickstart.gin')
