"""Figures of a sweep for papers."""

import re
import sys
import xml.etree.ElementTree as ET

import pytest

from t2x.cli import main
from t2x.sweeps.report import read_results


def files(folder):
  return {path.name: path.read_bytes() for path in (folder / 'figures').iterdir()}


def axes_of(monkeypatch, folder):
  """The axes of each figure that a report draws, by its name."""
  from matplotlib.figure import Figure

  seen, save = {}, Figure.savefig

  def savefig(self, path, **settings):
    seen[path.stem] = self.axes[0]
    save(self, path, **settings)

  monkeypatch.setattr(Figure, 'savefig', savefig)
  assert main(['report', str(folder), '--figures']) == 0
  return seen


def test_figures_are_svg_and_pdf_files_that_are_equal_for_equal_results(sweep, capsys):
  folder = sweep()
  assert main(['report', str(folder), '--figures']) == 0
  first = files(folder)
  wrote = [f'wrote {folder}/figures/{name}' for name in first]
  assert sorted(capsys.readouterr().err.splitlines()) == sorted(wrote)
  assert sorted(first) == ['curves.pdf', 'curves.svg', 'differences.pdf', 'differences.svg']
  for name, content in first.items():
    if name.endswith('.svg'):
      assert ET.fromstring(content).tag.endswith('svg')
    else:
      # Type 3 fonts are refused by conferences.
      assert content.startswith(b'%PDF') and b'/Type3' not in content
  assert main(['report', str(folder), '--figures']) == 0
  assert files(folder) == first


def test_the_figures_have_the_numbers_of_the_report(sweep, monkeypatch):
  folder = sweep(diverged=('', 0), failed=('', 0))
  axes, rows = axes_of(monkeypatch, folder), read_results(folder).rows
  forest = axes['differences']
  compared = rows[1:]
  assert [t.get_text() for t in forest.get_yticklabels()] == [
    f'{row.variant} ({row.verdict})' for row in compared
  ]
  lines = [line.get_xdata() for line in forest.get_lines()][1:]
  for (low, high), (middle,), row in zip(lines[::2], lines[1::2], compared, strict=True):
    comparison = row.comparison
    assert (low, middle, high) == (comparison.low, comparison.difference, comparison.high)
  curves = axes['curves'].get_lines()
  assert [line.get_label() for line in curves] == [row.variant for row in rows]
  assert axes['curves'].get_ylabel() == 'loss (eval)'
  for line, row in zip(curves, rows, strict=True):
    assert (line.get_xdata()[0], line.get_xdata()[-1]) == axes['curves'].get_xlim() == (10, 100)
    assert line.get_ydata()[-1] == pytest.approx(row.summary.mean, rel=1e-4)


def test_figures_without_matplotlib_are_refused_before_the_report(sweep, monkeypatch, capsys):
  monkeypatch.setitem(sys.modules, 'matplotlib', None)
  folder = sweep()
  assert main(['report', str(folder), '--figures']) == 2
  assert 'matplotlib (--figures): pip install' in capsys.readouterr().err
  assert not (folder / 'report.html').exists() and not (folder / 'looks.json').exists()


def test_a_sweep_without_results_has_no_figures_and_a_fit_is_refused(sweep, capsys):
  folder = sweep(ended=0)
  for path in folder.parent.glob('trials/*/metrics.jsonl'):
    path.unlink()
  assert main(['report', str(folder), '--figures']) == 0
  assert not (folder / 'figures').exists()
  assert main(['report', str(folder), '--fit', '--figures']) == 2
  assert re.search('--figures has no effect with --fit', capsys.readouterr().err)
