"""Provenance of a trial beside its config, modules and data: package versions, device and source code of t2x."""

import functools
import hashlib
import importlib.metadata
import os
import platform
import subprocess
from pathlib import Path

import t2x


@functools.cache
def origin() -> dict[str, str]:
  """Returns versions, device and commits, determined at the first call in this process.

  `commit` is the commit of t2x's source code. `project` is the commit of the repository of the
  working directory, if it is a different one. Both include a digest of uncommitted changes.
  """
  source, here = _repository(_source()), _repository(Path.cwd())
  project = {'project': _head(here, '*.py')} if here not in (None, source) else {}
  return versions() | {'commit': commit()} | project


def versions() -> dict[str, str]:
  """Returns the versions of Python, t2x and the numerical libraries, and the kind of device."""
  import jax

  result = {'python': platform.python_version(), 't2x': t2x.__version__}
  for name in ('jax', 'jaxlib', 'flax', 'optax', 'numpy'):
    result[name] = importlib.metadata.version(name)
  return result | {'device': jax.devices()[0].device_kind}


def commit() -> str:
  """Returns the commit of t2x's source code, with '+' and a digest appended if files differ from it."""
  source = _source()
  repository = _repository(source)
  # The package may be installed inside a repository that does not track it.
  tracked = repository is not None and (
    repository == source or bool(_git(source, 'ls-files', '--error-unmatch', 't2x/__init__.py'))
  )
  if repository is None or not tracked:
    return f'none: t2x {t2x.__version__} is not run from a checkout'
  return _head(source, 't2x')


def _source() -> Path:
  """Returns the folder that contains the package."""
  return Path(t2x.__file__).resolve().parents[1]


def _repository(folder: Path) -> Path | None:
  """Returns the root of the git repository that contains a folder."""
  folders = (folder.resolve(), *folder.resolve().parents)
  return next((path for path in folders if (path / '.git').exists()), None)


def _head(folder: Path, paths: str) -> str:
  """Returns 12 digits of the checked-out commit, with '+' and a digest appended if files differ from it.

  Args:
    folder: a folder in the repository.
    paths: the source code in `folder`, as a pathspec of git; changes of other files do not count. New Python files
      count if git does not ignore them.
  """
  head = _git(folder, 'rev-parse', '--short=12', 'HEAD')
  changes = _git(folder, 'diff', '--no-ext-diff', '--no-textconv', '--binary', 'HEAD', '--', paths)
  new = _git(folder, 'ls-files', '--others', '--exclude-standard', '-z', '--', paths)
  if head and changes is not None and new is not None:
    files = {name: _read(folder / name) for name in sorted(new.split('\0')) if name.endswith('.py')}
    if not changes and not files:
      return head
    return f'{head}+{hashlib.sha256(repr((changes, files)).encode()).hexdigest()[:8]}'
  # git is missing, or refuses a repository that belongs to another user.
  head = _read_head((_repository(folder) or folder) / '.git')
  return f'{head[:12]} (changes unknown: git failed)' if head else 'unknown: git failed'


def _read(path: Path) -> bytes:
  return path.read_bytes() if path.is_file() else b''


def _git(folder: Path, *arguments: str) -> str | None:
  """Returns the output of git; None if it fails."""
  # Inside a git hook these variables point to another repository.
  environment = {k: v for k, v in os.environ.items() if not k.startswith('GIT_')}
  # In a container the source code often belongs to another user. Its code is executed anyway.
  trusted = ('-c', f'safe.directory={_repository(_source())}')
  try:
    done = subprocess.run(
      ['git', '--no-optional-locks', *trusted, '-C', str(folder), *arguments],
      capture_output=True,
      text=True,
      errors='surrogateescape',
      check=True,
      env=environment,
    )
  except (OSError, ValueError, subprocess.CalledProcessError):
    return None
  return done.stdout.strip()


def _read_head(git: Path) -> str:
  """Reads the checked-out commit from the files in `.git`; '' if that fails."""
  try:
    if git.is_file():  # A worktree's file: 'gitdir: FOLDER'.
      git = git.parent / git.read_text().partition(': ')[2].strip()
    head = (git / 'HEAD').read_text().strip()
    if not head.startswith('ref: '):
      return head
    name = head.removeprefix('ref: ')
    common = git / 'commondir'
    folders = [git, *([git / common.read_text().strip()] if common.exists() else [])]
    for folder in folders:
      if (folder / name).is_file():
        return (folder / name).read_text().strip()
    packed = (folders[-1] / 'packed-refs').read_text().splitlines()
    return next((line.split()[0] for line in packed if line.endswith(f' {name}')), '')
  except (OSError, ValueError):
    return ''
