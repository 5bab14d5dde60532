"""The commands of the README and of the pages in docs/ work, and print what the pages show."""

import re
import sys

import pytest
from pages import ROOT, blocks, run_page

from t2x.base.packages import EXTRAS
from t2x.data import inspect

PAGES = [ROOT / 'README.md', *sorted((ROOT / 'docs').glob('*.md'))]
RUN = [page for page in PAGES if any(block.commands for block in blocks(page))]
# Pages of which each takes more than ten seconds of both cores.
LONG = (
  'ablation',
  'devices',
  'new_part',
  'own_pairs',
  'pictures',
  'pretrained',
  'questions',
  'sound_series_video',
  'wider',
)


def run(page, tmp_path, monkeypatch, capsys, **settings):
  monkeypatch.chdir(tmp_path)
  monkeypatch.syspath_prepend(str(tmp_path))
  monkeypatch.setenv('T2X_CACHE', str(tmp_path / 'cache'))
  # `t2x data inspect` measures the throughput for two seconds.
  hide_packages(page, monkeypatch)
  measure = inspect._speed
  monkeypatch.setattr(inspect, '_speed', lambda batches, start, _: measure(batches, start, 0.0))
  before = set(sys.modules)

  def printed():
    captured = capsys.readouterr()
    return captured.out + captured.err

  try:
    run_page(page, tmp_path, printed, **settings)
  finally:
    # The next page may have a module of the same name.
    for name in set(sys.modules) - before:
      if str(getattr(sys.modules[name], '__file__', None)).startswith(str(tmp_path)):
        del sys.modules[name]


def hide_packages(page, monkeypatch):
  """Hides the packages of extras that the page does not name. docs/index.md names one for all pages."""
  assert "after `pip install -e '.[samples]'`" in (ROOT / 'docs' / 'index.md').read_text()
  named = {'samples'}.union(
    *(names.split(',') for names in re.findall(r"pip install -e '\.\[(.+?)\]'", page.read_text()))
  )
  hidden = {module for module, extra in EXTRAS.items() if extra not in named}
  for name in [*sys.modules, *hidden]:
    if name.partition('.')[0] in hidden:
      monkeypatch.setitem(sys.modules, name, None)


@pytest.mark.slow
@pytest.mark.parametrize(
  'page',
  [pytest.param(page, marks=pytest.mark.nightly) if page.stem in LONG else page for page in RUN],
  ids=lambda page: page.stem,
)
def test_commands_of_a_page_work(page, tmp_path, monkeypatch, capsys):
  run(page, tmp_path, monkeypatch, capsys)


@pytest.mark.nightly
@pytest.mark.parametrize('page', RUN, ids=lambda page: page.stem)
def test_commands_work_as_they_are_written(page, tmp_path, monkeypatch, capsys):
  run(page, tmp_path, monkeypatch, capsys, short=False)
