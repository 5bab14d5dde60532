"""Which source code made a result."""

import re
import subprocess

import pytest

from t2x.sweeps import provenance


def git(folder, *arguments):
  line = ['git', '-c', 'user.name=a', '-c', 'user.email=a@b', '-C', str(folder), *arguments]
  return subprocess.run(line, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def checkout(tmp_path, monkeypatch):
  """A repository with t2x's source code."""
  source = tmp_path / 'source'
  (source / 't2x').mkdir(parents=True)
  (source / 't2x' / '__init__.py').write_text('')
  git(source, 'init', '-q')
  git(source, 'add', '-A')
  git(source, 'commit', '-qm', 'first')
  monkeypatch.setattr(provenance, '_source', lambda: source)
  provenance.origin.cache_clear()
  yield source
  provenance.origin.cache_clear()


def test_the_commit_matches_the_source_code_wherever_the_command_runs(
  checkout, tmp_path, monkeypatch
):
  head = git(checkout, 'rev-parse', '--short=12', 'HEAD')
  monkeypatch.chdir(tmp_path)
  assert provenance.commit() == head == provenance.origin()['commit']
  assert 'project' not in provenance.origin()
  # A hook of another repository has these set.
  monkeypatch.setenv('GIT_DIR', '/nowhere')
  assert provenance.commit() == head
  (checkout / 't2x' / '__init__.py').write_text('changed = True')
  changed = provenance.commit()
  assert re.fullmatch(rf'{head}\+[0-9a-f]{{8}}', changed) and provenance.commit() == changed
  (checkout / 't2x' / '__init__.py').write_text('changed = False')
  changed_again = provenance.commit()
  assert changed_again not in (head, changed)
  # A new file of the package counts, other files do not.
  (checkout / 'README').write_text('text')
  assert provenance.commit() == changed_again
  (checkout / 't2x' / 'new.py').write_text('')
  with_new = provenance.commit()
  (checkout / 't2x' / 'new.py').write_text('1')
  assert len({head, changed, changed_again, with_new, provenance.commit()}) == 5


def test_the_project_has_a_commit_of_its_own(checkout, tmp_path, monkeypatch):
  project = tmp_path / 'project'
  (project / 'configs').mkdir(parents=True)
  git(project, 'init', '-q')
  git(project, 'commit', '-qm', 'first', '--allow-empty')
  monkeypatch.chdir(project / 'configs')
  assert provenance.origin()['project'] == git(project, 'rev-parse', '--short=12', 'HEAD')
  assert provenance.origin()['commit'] == git(checkout, 'rev-parse', '--short=12', 'HEAD')


@pytest.mark.parametrize('kind', ['branch', 'packed', 'detached', 'worktree'])
def test_without_git_the_commit_is_read(checkout, tmp_path, monkeypatch, kind):
  head = git(checkout, 'rev-parse', 'HEAD')
  if kind == 'packed':
    git(checkout, 'pack-refs', '--all')
  if kind == 'detached':
    git(checkout, 'checkout', '-q', '--detach')
  if kind == 'worktree':
    git(checkout, 'worktree', 'add', '-q', str(tmp_path / 'other'))
    monkeypatch.setattr(provenance, '_source', lambda: tmp_path / 'other')
  monkeypatch.setenv('PATH', '')
  assert provenance.commit() == f'{head[:12]} (changes unknown: git failed)'


def test_a_package_below_the_repository_of_a_project_has_its_version(
  checkout, tmp_path, monkeypatch
):
  package = checkout / 'venv' / 'site-packages'
  (package / 't2x').mkdir(parents=True)
  (package / 't2x' / '__init__.py').write_text('')
  monkeypatch.setattr(provenance, '_source', lambda: package)
  assert provenance.commit() == 'none: t2x 0.1.0 is not run from a checkout'
  monkeypatch.setattr(provenance, '_source', lambda: tmp_path)
  assert provenance.commit() == 'none: t2x 0.1.0 is not run from a checkout'
