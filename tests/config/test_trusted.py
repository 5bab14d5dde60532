"""Code that comes with a gin file runs only if its folder is trusted."""

import io
import os
import subprocess
import sys

import pytest

from t2x.base.errors import UserError
from t2x.config import load, trust, trust_everything
from t2x.config.trusted import is_library, trusted_file

RAN = 'T2X_TEST_RAN'
MODULE = f"import os\nos.environ['{RAN}'] = '1'\ndef thing(): return 3\n"


@pytest.fixture
def theirs(tmp_path, monkeypatch, parts):
  """`theirs(*modules)`: a gin file in a folder of its own that imports modules which lie beside it."""
  monkeypatch.setattr(sys, 'path', list(sys.path))
  monkeypatch.delenv(RAN, raising=False)
  (tmp_path / 'here').mkdir()
  (tmp_path / 'theirs').mkdir()
  monkeypatch.chdir(tmp_path / 'here')

  def write(*modules):
    for module in modules:
      (tmp_path / 'theirs' / f'{module}.py').write_text(MODULE)
    file = tmp_path / 'theirs' / 'x.gin'
    imports = ''.join(f'import {module}\n' for module in modules)
    file.write_text(f'{imports}Experiment.extra = @{modules[0]}.thing()\n')
    return file

  return write


@pytest.fixture
def terminal(monkeypatch):
  """`terminal(typed)`: stdin and stderr are a terminal on which this is typed; returns its screen."""

  class Terminal(io.StringIO):
    def isatty(self):
      return True

  def opened(typed):
    screen = Terminal()
    monkeypatch.setattr(sys, 'stdin', Terminal(typed))
    monkeypatch.setattr(sys, 'stderr', screen)
    return screen

  return opened


def read(file):
  return load(file, registry_modules=['fake_parts']).build().extra


def refused(file):
  with pytest.raises(UserError) as caught:
    read(file)
  assert caught.value.exit_code == 2
  assert RAN not in os.environ
  return str(caught.value)


def remembered():
  return trusted_file().read_text().splitlines() if trusted_file().exists() else []


def test_a_module_beside_a_gin_file_does_not_run_unless_its_folder_is_trusted(theirs):
  file = theirs('my_parts_t1')
  assert refused(file) == (
    f"{file}:1: imports 'my_parts_t1' from {file.parent}/my_parts_t1.py, which would run its code; "
    'review the code, then pass --trust to allow it'
  )
  assert str(file.parent) not in sys.path
  assert remembered() == []
  trust(file.parent)
  assert read(file) == 3
  assert sys.path[-1] == str(file.parent)


def test_a_package_beside_a_gin_file_does_not_run(theirs):
  file = theirs('my_parts_t2')
  (file.parent / 'my_parts_t2').mkdir()
  (file.parent / 'my_parts_t2.py').rename(file.parent / 'my_parts_t2' / '__init__.py')
  assert 'my_parts_t2/__init__.py, which would run its code' in refused(file)


def test_a_module_in_a_folder_that_a_comment_names_does_not_run(theirs, tmp_path):
  file = theirs('my_parts_t3')
  (tmp_path / 'run').mkdir()
  run = tmp_path / 'run' / 'config.gin'
  run.write_text(f'# modules in: {file.parent}\n{file.read_text()}')
  assert f'{file.parent}/my_parts_t3.py' in refused(run)
  trust(run.parent)
  assert f'{file.parent}/my_parts_t3.py' in refused(run)
  trust(file.parent)
  assert read(run) == 3


def test_everything_trusted_is_remembered_and_ends(theirs):
  file = theirs('my_parts_t4')
  with trust_everything():
    assert os.environ['T2X_TRUST'] == '*'
    assert read(file) == 3
  assert 'T2X_TRUST' not in os.environ
  assert remembered() == [str(file.parent)]


@pytest.mark.parametrize('typed', ['\n', 'n\n', 'no\n', ''])
def test_any_answer_but_yes_is_no_and_ends_the_questions(typed, theirs, terminal):
  screen = terminal(typed)
  file = theirs('my_parts_t5', 'my_parts_t6')
  assert 'my_parts_t5' in refused(file)
  assert screen.getvalue() == (
    f"{file}:1: imports 'my_parts_t5' from {file.parent}/my_parts_t5.py, which would run its code\n"
    f"Trust '{file.parent}' from now on? [y/N] "
  )
  assert remembered() == []


def test_a_folder_is_asked_for_once(theirs, terminal):
  file = theirs('my_parts_t7', 'my_parts_t8')
  screen = terminal('y\n')
  assert read(file) == 3
  assert screen.getvalue().count('[y/N]') == 1
  assert remembered() == [str(file.parent)]
  assert os.environ[RAN]


def test_a_home_that_cannot_be_written_is_no_error_and_children_inherit_the_answer(
  theirs, terminal, tmp_path, monkeypatch
):
  (tmp_path / 'state').write_text('a file')
  monkeypatch.setenv('XDG_STATE_HOME', str(tmp_path / 'state'))
  monkeypatch.setenv('T2X_TRUST', '/somewhere/else')
  file = theirs('my_parts_t9')
  terminal('y\n')
  assert read(file) == 3
  assert os.environ['T2X_TRUST'] == f'/somewhere/else{os.pathsep}{file.parent}'
  file.write_text('import my_parts_t9\n')
  code = f'from t2x.config import load; print(load({str(file)!r}, root="@thing()").build())'
  out = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True, check=True)
  assert out.stdout == '3\n'


def test_a_folder_whose_name_holds_a_line_break_does_not_name_another(tmp_path):
  folder = tmp_path / f'x\n{tmp_path}'
  folder.mkdir(parents=True)
  trust(folder)
  assert remembered() == []
  trust(tmp_path / 'other')
  assert remembered() == [str(tmp_path / 'other')]


def test_a_folder_cannot_rewrite_the_question(tmp_path, theirs, terminal):
  folder = tmp_path / 'x\x1b[2K\nsafe'
  theirs('my_parts_t12').parent.rename(folder)
  screen = terminal('n\n')
  with pytest.raises(UserError) as caught:
    read(folder / 'x.gin')
  assert '/x\\x1b[2K\\nsafe/my_parts_t12.py' in str(caught.value)
  told, question = screen.getvalue().splitlines()[-2:]
  assert told.endswith('/x\\x1b[2K\\nsafe/my_parts_t12.py, which would run its code')
  assert question == f"Trust '{tmp_path}/x\\x1b[2K\\nsafe' from now on? [y/N] "


def test_trust_is_of_the_folder_behind_a_link(theirs, tmp_path):
  file = theirs('my_parts_t10')
  (tmp_path / 'link').symlink_to(file.parent)
  trust(tmp_path / 'link')
  assert remembered() == [str(file.parent)]
  assert read(file) == 3


@pytest.mark.parametrize('module', ['os', 'subprocess', 't2x.cli', '__main__', 'numpy.testing'])
def test_functions_of_libraries_are_no_parts_of_a_strange_config(module, theirs, terminal):
  file = theirs('my_parts_t11')
  file.write_text(f'import {module}\nExperiment.extra = 1\n')
  terminal('n\n')
  assert refused(file) == (
    f"{file}:1: imports the library '{module}', whose functions the config could call; "
    'review the code, then pass --trust to allow it'
  )
  trust(file.parent)
  assert read(file) == 1


def test_a_file_named_like_an_installed_module_does_not_replace_it(theirs):
  file = theirs('numpy')
  trust(file.parent)
  assert "instead of '" in refused(file)


@pytest.mark.parametrize('form', ['folder/name', 'name'])
def test_a_folder_on_the_path_hides_no_module_of_the_user(form, theirs, tmp_path):
  """An editable installation has the checkout on the path, whose folders are namespace packages."""
  name = f'my_parts_f{len(form)}'
  (tmp_path / 'checkout' / name).mkdir(parents=True)
  (tmp_path / 'checkout' / name / 'name.py').write_text("raise ValueError('of the checkout')")
  sys.path += [str(tmp_path / 'checkout'), str(tmp_path / 'installed')]
  module = name if form == 'name' else f'{name}.name'
  file = theirs(name)
  if form != 'name':
    (file.parent / name).mkdir()
    (file.parent / f'{name}.py').rename(file.parent / name / 'name.py')
    file.write_text(file.read_text().replace(name, module))
  assert 'which would run its code' in refused(file)
  trust(file.parent)
  for _ in range(2):
    assert read(file) == 3
  assert sys.path.count(str(file.parent)) == 1


@pytest.mark.parametrize('requirement', ['t2x', 't2x>=1', 't2x-other', 'numpy'])
def test_an_installed_package_is_the_users_if_it_requires_t2x(requirement, tmp_path, monkeypatch):
  name = f'parts_{"".join(filter(str.isalnum, requirement))}'
  (tmp_path / f'{name}.py').write_text('')
  about = tmp_path / f'{name}-1.dist-info'
  about.mkdir()
  (about / 'METADATA').write_text(f'Name: {name}\nVersion: 1\nRequires-Dist: {requirement}\n')
  (about / 'top_level.txt').write_text(name)
  monkeypatch.syspath_prepend(str(tmp_path))
  assert not is_library(name)
  monkeypatch.setattr('site.getsitepackages', lambda: [str(tmp_path)])
  assert is_library(name) == (requirement not in ('t2x', 't2x>=1'))
