"""The verdicts of a sweep as a LaTeX table."""

import re
import shutil
import subprocess

import pytest

from t2x.cli import main
from t2x.sweeps.report import read_results

EFFECTS = {'vanilla': 0.0, 'a_b %': -0.12, r'50$ \x{~^}': 0.2}


@pytest.fixture
def folder(sweep):
  return sweep(effects=EFFECTS, seeds=4, diverged=('a_b %', 1), failed=('none', 0))


def test_the_table_has_the_numbers_of_the_report(folder, tmp_path):
  file = tmp_path / 'table.tex'
  assert main(['report', str(folder), '--latex', str(file)]) == 0
  text = file.read_text()
  rows = read_results(folder).rows
  lines = [line for line in text.splitlines() if line.endswith(r'\\')][1:]
  assert len(lines) == len(rows) == 3
  for line, row in zip(lines, rows, strict=True):
    _, verdict, mean, seeds, *compared = (
      cell.strip() for cell in line.removesuffix(r'\\').split(' & ')
    )
    numbers = [float(n) for n in re.findall(r'[-+]?\d+\.\d+', mean + ' '.join(compared))]
    expected = [row.summary.mean, row.summary.std]
    if row.comparison is not None:
      expected += [row.comparison.difference, row.comparison.low, row.comparison.high]
    assert numbers == pytest.approx(expected, abs=6e-3)
    assert (int(seeds), verdict) == (row.summary.n, row.verdict)
  assert r'a\_b \%' in lines[1]
  assert r'50\$ \textbackslash{}x\{\textasciitilde{}\textasciicircum{}\}' in lines[2]


def test_the_caption_is_short_and_the_tests_stand_below(folder, tmp_path, capsys):
  file = tmp_path / 'table.tex'
  assert main(['report', str(folder), '--latex', str(file)]) == 0
  assert capsys.readouterr().err == f'wrote {file}\n'
  text = file.read_text()
  assert r'\caption{Differences in loss from vanilla (lower is better).}' in text
  below = text[text.index(r'\end{tabular}') :]
  assert "Verdicts: paired t tests. Dunnett's method corrects their p-values (step-down)" in below
  assert r'largest deviation 0.40 \%; the intervals leave out the noise of the' in below
  assert r'a\_b \%: 1 of 4 seeds diverged.' in below
  assert 'Partial' not in below


def test_a_verdict_by_divergence_rates_is_named(sweep, tmp_path):
  file = str(tmp_path / 'table.tex')
  diverged = sweep(effects={'vanilla': 0.0, 'relu': 0.0}, seeds=6, diverged=('relu', 6), failed=())
  assert main(['report', str(diverged), '--latex', file]) == 0
  text = (tmp_path / 'table.tex').read_text()
  rates = (
    "no seed finished in both; the verdict follows from the divergence rates (Barnard's test)."
  )
  assert f'relu: 6 of 6 seeds diverged; {rates}' in text


def test_a_partial_report_is_named(sweep, tmp_path):
  file = str(tmp_path / 'table.tex')
  assert main(['report', str(sweep(ended=7)), '--latex', file]) == 0
  assert 'Partial report: 7 of 25 trials ended' in (tmp_path / 'table.tex').read_text()


def test_the_caption_and_the_names_of_variants_are_chosen(sweep, tmp_path, capsys):
  file = tmp_path / 'table.tex'
  command = ['report', str(sweep(points=({'Stack.num_layers': 2},))), '--latex', str(file)]
  labels = ['--label', 'vanilla=the baseline', '--label', r'geglu=GEGLU \& $\sigma$']
  assert main([*command, *labels]) == 0
  text = file.read_text()
  assert r'\caption{Differences in loss from the baseline (lower is better).}' in text
  assert '\n    the baseline (num\\_layers = 2) & baseline' in text
  assert '\n    GEGLU \\& $\\sigma$ (num\\_layers = 2) & helps' in text
  assert '\n    rezero (num\\_layers = 2) & hurts' in text
  assert main([*command, '--caption', r'Loss at $2^{10}$ tokens.']) == 0
  assert r'\caption{Loss at $2^{10}$ tokens.}' in file.read_text()
  capsys.readouterr()
  for option, value, error in (
    ('--label', 'gegl=x', "--label: the sweep has no variant 'gegl'; did you mean 'geglu'?"),
    (
      '--label',
      'tab:heads',
      "--label 'tab:heads' has no value: --label names a variant, VARIANT=LATEX; the label of the table is "
      r'\label{tab:SWEEP}',
    ),
  ):
    assert main([*command, option, value]) == 2
    assert error in capsys.readouterr().err
  for option in ('--label', '--caption'):
    assert main([*command[:2], option, 'geglu=x']) == 2
    assert f'{option} has no effect without --latex: remove it' in capsys.readouterr().err


def test_another_suffix_and_a_fit_are_refused(folder, tmp_path, capsys):
  assert main(['report', str(folder), '--latex', str(folder / 'sweep.json')]) == 2
  assert 'must end in .tex' in capsys.readouterr().err
  assert main(['report', str(folder), '--fit', '--latex', str(tmp_path / 'a.tex')]) == 2
  assert '--latex has no effect with --fit' in capsys.readouterr().err


def test_the_table_replaces_only_a_table_of_t2x(folder, tmp_path, capsys):
  thesis, table = tmp_path / 'thesis.tex', tmp_path / 'table.tex'
  thesis.write_text('my thesis')
  (tmp_path / 'link.tex').symlink_to(thesis)
  for name in ('thesis.tex', 'link.tex'):
    assert main(['report', str(folder), '--latex', str(tmp_path / name)]) == 2
    assert f'{name} would replace' in capsys.readouterr().err
    assert (tmp_path / name).read_text() == 'my thesis'
  for _ in range(2):
    assert main(['report', str(folder), '--latex', str(table)]) == 0


@pytest.mark.nightly
@pytest.mark.skipif(shutil.which('pdflatex') is None, reason='LaTeX is not installed')
def test_the_table_compiles(folder, tmp_path):
  names = ['--label', r'vanilla=$d_k$ \& more', '--caption', r'Differences of \emph{loss}.']
  compiled(folder, tmp_path, *names)


@pytest.mark.nightly
@pytest.mark.skipif(shutil.which('pdflatex') is None, reason='LaTeX is not installed')
def test_a_table_of_short_names_fits_the_text_width_of_an_article(sweep, tmp_path):
  effects = {'vanilla': 0.0, 'heads_16': -0.12, 'heads_32': 0.01}
  log = compiled(sweep(effects=effects, seeds=5), tmp_path)
  assert 'inconclusive' in (tmp_path / 'table.tex').read_text()
  assert 'Overfull' not in log, log


def compiled(folder, tmp_path, *arguments):
  """The log of pdflatex on the table in an article."""
  assert main(['report', str(folder), '--latex', str(tmp_path / 'table.tex'), *arguments]) == 0
  page = r'\documentclass{article}\usepackage{booktabs}\begin{document}\input{table}\end{document}'
  (tmp_path / 'page.tex').write_text(page)
  command = ['pdflatex', '-halt-on-error', '-interaction=nonstopmode', 'page.tex']
  done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
  assert done.returncode == 0, done.stdout[-2000:]
  return done.stdout
