"""The user's modules are identified by their content: in identities, differences and rendered configs."""

import importlib
import logging
import sys
import zipfile
from pathlib import Path

import pytest

from t2x.base.errors import UserError
from t2x.config import diff, identity, load, render, resolved, trust, write_resolved
from t2x.config.sources import closure, digest_of, has_effects, only_moved_imports, spec_of

RELU = 'def act(x):\n  return max(x, 0)\n'
TANH = 'import math\n\ndef act(x):\n  return math.tanh(x)\n'


@pytest.fixture
def project(tmp_path, monkeypatch, parts):
  """`project(name, **modules)` writes modules into a folder; `read` and `forget` belong to it."""
  monkeypatch.setattr(sys, 'path', list(sys.path))
  # Files of equal size that are written within a second would have the bytecode of the first.
  monkeypatch.setattr(sys, 'dont_write_bytecode', True)
  before = set(sys.modules)

  class Project:
    def __call__(self, name, **contents):
      folder = tmp_path / name
      folder.mkdir(exist_ok=True)
      for module, content in contents.items():
        path = folder.joinpath(*module.split('.')).with_suffix('.py')
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
      trust(folder)
      return folder

    def read(self, folder, text, *overrides, name='x.gin'):
      (folder / name).write_text(text)
      return load([folder / name], overrides, ['fake_parts'])

    def forget(self):
      """Forgets the loaded modules, as a new process would."""
      for name in set(sys.modules) - before:
        del sys.modules[name]
      sys.path[:] = [entry for entry in sys.path if not entry.startswith(str(tmp_path))]
      importlib.invalidate_caches()

  made = Project()
  yield made
  made.forget()


def modules(config):
  return config.used.digests


def extra(module, part='act'):
  return f'import {module}\nExperiment.extra = @{part}\n'


def test_two_modules_that_define_the_same_name_are_different_parts(project):
  folder = project('p', moda=RELU, modb=TANH)
  a, b = (project.read(folder, extra(name)) for name in ('moda', 'modb'))
  assert identity(a) != identity(b)
  first, *code = diff(a, b)
  assert first == 'Experiment.extra: @moda.act -> @modb.act'
  assert code == [
    f'module moda: {modules(a)["moda"]} -> (not used)',
    f'module modb: (not used) -> {modules(b)["modb"]}',
  ]


def test_a_renamed_copy_is_another_part_of_equal_content(project):
  folder = project('p', attn=RELU, attn_v2=RELU)
  a, b = (project.read(folder, extra(name)) for name in ('attn', 'attn_v2'))
  assert identity(a) != identity(b)
  assert diff(a, b)[0] == 'Experiment.extra: @attn.act -> @attn_v2.act'
  assert [*modules(a).values()] == [*modules(b).values()]


def test_a_part_that_is_a_variable_has_the_name_of_the_variable(project):
  text = "import functools\n__all__ = ['one', 'two']\n"
  text += 'one = functools.partial(max, 1)\ntwo = functools.partial(max, 2)\n'
  folder = project('p', partials=text)
  a, b = (project.read(folder, extra('partials', name)) for name in ('one', 'two'))
  assert diff(a, b) == ['Experiment.extra: @partials.one -> @partials.two']
  assert identity(a) != identity(b)


@pytest.mark.parametrize(
  'line',
  [
    'import helper\n',
    'from helper import SCALE\n',
    'def lazy():\n  import helper\n  return helper.SCALE\n',
    "import importlib\nhelper = importlib.import_module('helper')\n",
  ],
)
def test_an_edited_module_that_a_part_imports_changes_the_identity(project, line):
  folder = project('p', part=line + RELU, helper='SCALE = 1\n')
  before = project.read(folder, extra('part'))
  assert [*modules(before)] == ['helper', 'part']
  project.forget()
  (folder / 'helper.py').write_text('SCALE = 2\n')
  after = project.read(folder, extra('part'))
  assert identity(before).partition('.')[0] == identity(after).partition('.')[0]
  assert identity(before) != identity(after)
  (changed,) = diff(before, after)
  assert changed.startswith(f'module helper: {modules(before)["helper"]} -> ')


def test_the_digest_is_that_of_the_file_when_it_was_loaded(project):
  folder = project('p', part=RELU)
  before = project.read(folder, extra('part'))
  digest = modules(before)
  (folder / 'part.py').write_text(TANH)
  assert modules(project.read(folder, extra('part'))) == digest
  importlib.reload(sys.modules['part'])
  assert modules(project.read(folder, extra('part'))) != digest


def test_the_files_of_a_package_count_that_the_part_imports(project):
  contents = {
    'pkg.__init__': '',
    'pkg.part': 'from .inner import helper\n' + RELU,
    'pkg.other': TANH,
    'pkg.inner.__init__': '',
    'pkg.inner.helper': 'from ..top import SCALE\n',
    'pkg.top': 'SCALE = 1\n',
  }
  folder = project('p', **contents)
  found = modules(project.read(folder, extra('pkg.part')))
  assert [*found] == ['pkg', 'pkg.inner', 'pkg.inner.helper', 'pkg.part', 'pkg.top']


def test_an_imported_module_without_a_part_in_use_counts_if_its_import_has_effects(project):
  definitions = (
    'import dataclasses\nimport functools\nLIMIT = [1, 2]\ncalled = functools.partial(max, 1)\n'
    '@dataclasses.dataclass\nclass Part:\n  """Text."""\n  x: int = dataclasses.field(default=1)\n'
    "def function(x=len('a')):\n  x.y = 1\nif __name__ == '__main__':\n  function()\n"
  )
  effects = {
    'assigns': 'import fake_parts\nfake_parts.gelu = 1\n',
    'calls': 'import sys\nsys.path.count(1)\n',
    'own_call': 'def patch(): ...\n_ = patch()\n',
    'sets': 'import fake_parts\n_ = setattr(fake_parts, "gelu", 1)\n',
    'imported': 'from calls import sys\n',
    'decorated': 'def register(f): return f\n@register\ndef g(): ...\n',
  }
  folder = project('p', part=RELU, definitions=definitions, **effects)
  sys.path.append(str(folder))
  assert not has_effects(closure(['definitions']))
  assert [name for name in effects if has_effects(closure([name]))] == [*effects]
  text = extra('part')
  assert [*modules(project.read(folder, f'import definitions\n{text}'))] == ['part']
  assert [*modules(project.read(folder, f'import own_call\n{text}'))] == ['own_call', 'part']


def test_a_module_in_a_zip_archive_has_a_digest(project, tmp_path):
  digests = []
  for content in (RELU, TANH):
    archive = tmp_path / f'parts{len(digests)}.zip'
    with zipfile.ZipFile(archive, 'w') as file:
      file.writestr('zipped.py', content)
    project.forget()
    sys.path.insert(0, str(archive))
    config = project.read(project('p'), extra('zipped'))
    digests.append(modules(config)['zipped'])
  assert digests[0] != digests[1]


def install(site, name, content, version='1', requirement='t2x'):
  """Writes a package as an installation does."""
  (site / f'{name}.py').write_text(content)
  about = site / f'{name}-{version}.dist-info'
  about.mkdir()
  about.joinpath('METADATA').write_text(
    f'Name: {name}\nVersion: {version}\nRequires-Dist: {requirement}\n'
  )
  about.joinpath('top_level.txt').write_text(name)


def test_an_installed_package_of_the_user_has_a_digest_and_a_library_its_version(project, tmp_path):
  site = tmp_path / 'lib' / 'site-packages'
  site.mkdir(parents=True)
  sys.path.append(str(site))
  install(site, 'installed_parts', 'import library_parts\n' + RELU)
  install(site, 'library_parts', TANH, '2.5', 'numpy')
  folder = project('p')
  own = project.read(folder, extra('installed_parts'))
  assert [*modules(own)] == ['installed_parts'] and len(modules(own)['installed_parts']) == 12
  library = project.read(folder, extra('library_parts'))
  assert modules(library) == {'library_parts': 'version 2.5'}
  assert '# module' not in render(library)


def test_a_package_in_editable_mode_is_not_installed(project, tmp_path):
  """Its distribution is in site-packages, its files are where they are edited."""
  site = tmp_path / 'lib' / 'site-packages'
  site.mkdir(parents=True)
  install(site, 'edited_parts', '', requirement='numpy')
  (site / 'edited_parts.py').unlink()
  source = project('checkout', edited_parts=RELU)
  sys.path += [str(site), str(source)]
  assert [*modules(project.read(project('p'), extra('edited_parts')))] == ['edited_parts']


def test_parts_of_the_base_are_known_by_name(project):
  config = project.read(project('p'), 'Experiment.extra = @gelu\n')
  assert modules(config) == {} and '.' not in identity(config)


TWICE = 'import thing\nExperiment.extra = @value()\n'


def value(number):
  return f'def value():\n  return {number}\n'


def test_the_folder_of_the_gin_file_comes_before_the_working_directory(project, monkeypatch):
  own, other = (
    project('own', thing='from helper import value\n__all__ = ["value"]\n', helper=value(1)),
    project('other', thing=value(2), helper=value(3)),
  )
  monkeypatch.chdir(other)
  # As in `python -m t2x`.
  sys.path.insert(0, '')
  assert project.read(own, TWICE).build().extra == 1
  assert sys.path[-1] == '' and str(own) in sys.path


def test_a_module_of_the_path_with_another_content_is_refused(project, monkeypatch):
  own, other = project('own', thing=value(1)), project('other', thing=value(2))
  monkeypatch.chdir(project('here'))
  sys.path.insert(0, str(other))
  with pytest.raises(
    UserError, match=f"Python imports '{other}/thing.py' instead of '{own}/thing.py'"
  ):
    project.read(own, TWICE)
  (own / 'thing.py').write_text(value(2))
  assert project.read(own, TWICE).build().extra == 2


def run_folder(project, tmp_path, config):
  """A run folder with a config and copies of its modules, as `t2x train` writes it."""

  run = tmp_path / 'run'
  run.mkdir(exist_ok=True)
  (run / 'config.gin').write_text(render(config))
  write_resolved(run, resolved(config), config.used.imported)
  project.forget()
  return run


def reload(run):
  return load([run / 'config.gin'], (), ['fake_parts'])


def test_a_run_imports_its_own_modules_from_any_folder(project, tmp_path, monkeypatch):
  own, other = (
    project('own', thing='from helper import value\n__all__ = ["value"]\n', helper=value(1)),
    project('other', thing=value(2), helper=value(3)),
  )
  run = run_folder(project, tmp_path, project.read(own, TWICE))
  monkeypatch.chdir(other)
  assert reload(run).build().extra == 1


def test_a_run_imports_its_copy_of_a_module_that_was_edited_or_lost(
  project, tmp_path, monkeypatch, caplog
):
  caplog.set_level(logging.INFO, 't2x')
  own = project(
    'own', thing='import helper\nvalue = helper.value\n__all__ = ["value"]\n', helper=value(1)
  )
  run = run_folder(project, tmp_path, project.read(own, TWICE))
  monkeypatch.chdir(own)
  (own / 'helper.py').write_text(value(4))
  with pytest.raises(
    UserError, match=rf"imports 'helper' from {run}/modules, which would run its code"
  ):
    reload(run)
  trust(run / 'modules')
  assert reload(run).build().extra == 1
  assert f'using the modules in {run}/modules, because helper has changed' in caplog.text
  project.forget()
  (own / 'thing.py').unlink()
  assert reload(run).build().extra == 1


@pytest.mark.parametrize('rest', ['', 'other = 1\n'])
def test_a_run_imports_the_module_of_today_that_has_the_new_line_of_a_moved_import(
  project, tmp_path, monkeypatch, rest
):
  line = 'from t2x.base.errors import UserError\n'
  own = project('own', thing=line + value(1))
  config = project.read(own, TWICE)
  run = run_folder(project, tmp_path, config)
  # As a run that was stored before the name moved.
  copy, text = run / 'modules/thing.py', (run / 'config.gin').read_text()
  copy.write_text(line.replace('.base', '') + value(1))
  before = digest_of(copy.read_bytes())
  (run / 'config.gin').write_text(text.replace(modules(config)['thing'], before))
  (own / 'thing.py').write_text(line + value(1) + rest)
  monkeypatch.chdir(own)
  if not rest:
    assert reload(run).build().extra == 1
    return
  trust(run / 'modules')
  with pytest.raises(UserError, match=r'cannot import .thing.: .*t2x\.errors'):
    reload(run)


@pytest.mark.parametrize('packages', [[], ['outer'], ['outer.inner']])
def test_a_run_reads_modules_in_folders_without_init_files(
  project, tmp_path, monkeypatch, packages
):
  files = {f'{package}.__init__': '' for package in packages}
  own = project('own', **{'outer.inner.thing': value(1)}, **files)
  config = project.read(own, 'import outer.inner.thing as thing\n' + TWICE.partition('\n')[2])
  run = run_folder(project, tmp_path, config)
  monkeypatch.chdir(own)
  assert reload(run).build().extra == 1


def test_a_module_is_found_without_running_the_code_of_its_packages(project, monkeypatch):
  raising = "raise AssertionError('imported')"
  files = {'outer.__init__': raising, 'outer.inner.last.__init__': raising}
  monkeypatch.syspath_prepend(project('own', **{'outer.inner.last.thing': value(1)}, **files))
  loaded = {*sys.modules}
  spec = spec_of('outer.inner.last.thing')
  assert spec is not None and spec.origin.endswith('own/outer/inner/last/thing.py')
  assert spec_of('outer.inner').origin is None
  assert spec_of('outer.other.thing') is None
  assert {*sys.modules} == loaded


def test_only_imports_of_names_of_t2x_can_have_moved():
  line, code = 'from {} import {}\n', 'x = 1\n'
  before, after = (
    line.format('t2x.errors', 'UserError'),
    line.format('t2x.base.errors', 'UserError'),
  )
  assert only_moved_imports((before + code).encode(), (code + after).encode())
  relative = (text.replace('t2x', '.t2x').encode() for text in (before, after))
  assert not only_moved_imports(*relative)
  other = line.format('t2x.base.errors', 'error_line')
  assert not only_moved_imports(before.encode(), other.encode())
  assert not only_moved_imports(after.encode(), after.replace('.base', '').encode())


def test_a_run_needs_no_trust_in_its_copy_where_the_working_directory_has_the_same(
  project, tmp_path, monkeypatch
):
  own = project('own', thing=value(1))
  run = run_folder(project, tmp_path, project.read(own, TWICE))
  moved = own.rename(tmp_path / 'moved')
  monkeypatch.chdir(moved)
  assert reload(run).build().extra == 1
  assert str(run / 'modules') not in sys.path


def test_a_changed_module_without_a_copy_is_refused(project, tmp_path, monkeypatch):
  own = project('own', thing=value(1))
  config = project.read(own, TWICE)
  digest = modules(config)['thing']
  run = run_folder(project, tmp_path, config)
  (run / 'modules' / 'thing.py').unlink()
  (run / 'modules').rmdir()
  (own / 'thing.py').write_text(value(4))
  with pytest.raises(UserError) as caught:
    reload(run)
  (line,) = str(caught.value).splitlines()
  assert line.startswith(
    f"{run}/config.gin:3: the module 'thing' has changed since the config was written, with the digest {digest}: "
  )
  assert f'{own}/thing.py has the digest ' in line and 'remove this line to use it' in line
  text = (run / 'config.gin').read_text()
  (run / 'config.gin').write_text(text.replace(f'# module thing: {digest}\n', ''))
  assert reload(run).build().extra == 4


def test_a_module_that_is_loaded_in_another_version_is_refused(project, tmp_path):
  own = project('own', thing=value(1))
  run = run_folder(project, tmp_path, project.read(own, TWICE))
  trust(run / 'modules')
  (own / 'thing.py').write_text(value(4))
  assert project.read(own, TWICE).build().extra == 4
  with pytest.raises(
    UserError, match='is already loaded: only a new process can load the recorded version'
  ):
    reload(run)


def test_a_damaged_copy_is_refused(project, tmp_path):
  own = project('own', thing=value(1))
  run = run_folder(project, tmp_path, project.read(own, TWICE))
  trust(run / 'modules')
  (own / 'thing.py').unlink()
  Path(run / 'modules' / 'thing.py').write_text(value(5))
  with pytest.raises(UserError, match="the module 'thing' has changed"):
    reload(run)
