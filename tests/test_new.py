"""`t2x new` writes files that work under another name, and replaces none."""

import subprocess
import sys

import pytest
from pages import ROOT, blocks

from t2x.cli import main
from t2x.cli.new import KINDS, rendered

NAMES = {
  'part': 'MyGLU',
  'mixer': 'MyMixer',
  'encoding': 'MyBias',
  'task': 'MyReviews',
  'sweep': 'my_sweep',
}
PAGES = {'sweep': 'ablation.md'}


@pytest.fixture
def folder(tmp_path, monkeypatch):
  """A folder that is no checkout, as the current one."""
  monkeypatch.chdir(tmp_path)
  monkeypatch.syspath_prepend(str(tmp_path))
  return tmp_path


@pytest.mark.slow
def test_configs_are_valid_and_tests_pass(folder, capsys):
  for kind, name in NAMES.items():
    assert main(['new', kind, name]) == 0
  printed = capsys.readouterr().out
  for config in ('my_glu.gin', 'my_mixer.gin', 'my_reviews.gin'):
    assert f't2x train {config}' in printed
    assert main(['check', config]) == 0
  assert main(['sweep', 'my_sweep.gin', '--dry-run']) == 0
  # Names of the examples stay in no file that names the part.
  text = ''.join(path.read_text() for path in folder.glob('*my_*'))
  for _, example, *_ in KINDS.values():
    assert example not in text or example == 'Heads'
  command = [sys.executable, '-m', 'pytest', '-q', '-p', 'no:cacheprovider', '.']
  done = subprocess.run(
    command, capture_output=True, text=True, check=False, env={'PYTHONPATH': f'{ROOT}:{folder}'}
  )
  assert done.returncode == 0, done.stdout
  assert '5 passed' in done.stdout


@pytest.mark.parametrize('kind', KINDS)
def test_pages_show_the_files(kind, monkeypatch):
  monkeypatch.chdir(ROOT)
  example = 'heads' if kind == 'sweep' else KINDS[kind][1]
  shown = {
    block.file: block.text for block in blocks(ROOT / 'docs' / PAGES.get(kind, 'new_part.md'))
  }
  texts, commands = rendered(kind, example)
  assert {name: shown.get(name) for name in texts} == texts
  assert len(commands) == 3


@pytest.mark.parametrize(
  ('kind', 'name', 'problem'),
  [
    ('part', 'Class', 'Python cannot import class.py, because class is one of its keywords'),
    ('mixer', 'Lambda', 'Python cannot import lambda.py'),
    ('part', 'A' * 300, "'AAAAAAAAAAAAAAAAAAAA...' has 300 letters: choose a name of at most 80"),
  ],
)
def test_no_module_is_written_that_python_cannot_import(folder, capsys, kind, name, problem):
  assert main(['new', kind, name]) == 2
  assert problem in capsys.readouterr().err
  assert not list(folder.iterdir())


def test_a_folder_that_cannot_be_written_is_refused(folder, capsys, monkeypatch):
  def fail(**_):
    raise OSError(30, 'Read-only file system')

  monkeypatch.setattr('t2x.base.files.tempfile.TemporaryFile', fail)
  assert main(['new', 'part', 'MyGLU']) == 2
  assert 'the current folder . cannot be written: Read-only file system' in capsys.readouterr().err
  assert not list(folder.iterdir())


def test_a_sweep_is_announced_as_an_example_of_head_counts(folder, capsys):
  assert main(['new', 'sweep', 'dropout']) == 0
  lines = capsys.readouterr().out.splitlines()
  assert lines[:2] == [
    'wrote dropout.gin: an example that compares head counts; edit variants',
    'wrote dropout_base.gin',
  ]
  # The announcement describes the template.
  assert "'heads_1': {'MultiHeadAttention.num_heads': 1}" in (folder / 'dropout.gin').read_text()


def test_no_file_is_replaced(folder, capsys):
  (folder / 'test_my_glu.py').write_text('mine')
  assert main(['new', 'part', 'MyGLU']) == 2
  assert [path.name for path in folder.iterdir()] == ['test_my_glu.py']
  assert 'test_my_glu.py exists already' in capsys.readouterr().err


@pytest.mark.parametrize(
  ('name', 'message'),
  [
    ('my-part', "'my-part' is not the name of a class"),
    ('mine', "'mine' is not the name of a class"),
    ('Random', 'random.py would hide the Python module random'),
  ],
)
def test_names_that_python_cannot_use_are_refused(name, message, folder, capsys):
  assert main(['new', 'part', name]) == 2
  assert message in capsys.readouterr().err
  assert not [*folder.iterdir()]
