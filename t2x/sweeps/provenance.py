"""What a trial's result may depend on beside its config: versions, the device, the source code."""

import functools
import hashlib
import importlib.metadata
import os
import platform
import subprocess
import sys
from pathlib import Path

import t2x
from t2x import config as config_lib


@functools.cache
def origin() -> dict[str, str]:
  """Returns versions, device and commits, as they are at the first call in this process.

  `commit` is that of t2x's source code. `project` is that of the repository around the working
  directory, where there is another one.
  """
  source, here = _repository(_source()), _repository(Path.cwd())
  project = {'project': _head(here)} if here not in (None, source) else {}
  return versions() | {'commit': commit()} | project


def versions() -> dict[str, str]:
  """What the results may depend on."""
  import jax

  found = {'python': platform.python_version(), 't2x': t2x.__version__}
  for name in ('jax', 'jaxlib', 'flax', 'optax', 'numpy'):
    found[name] = importlib.metadata.version(name)
  return found | {'device': jax.devices()[0].device_kind}


def commit() -> str:
  """The commit of t2x's source code; '+' when files differ from it."""
  source = _source()
  repository = _repository(source)
  # A package that is installed below someone else's repository is not a part of that.
  tracked = repository is not None and (
    repository == source or bool(_git(source, 'ls-files', '--error-unmatch', 't2x/__init__.py'))
  )
  if repository is None or not tracked:
    return f'none: t2x {t2x.__version__} is not run from a checkout'
  return _head(repository)


def modules(config: config_lib.Config) -> dict[str, str]:
  """A digest of the source of each module of the user's that a config imports, as it is loaded."""
  names = dict.fromkeys(one.module.partition('.')[0] for one in config.imports)
  return {f'module {name}': _digest(name) for name in names if name in sys.modules}


@functools.cache
def _digest(name: str) -> str:
  """Taken once for a process, which loads a module once."""
  module = sys.modules[name]
  file = Path(getattr(module, '__file__', None) or '')
  files = sorted(file.parent.rglob('*.py')) if hasattr(module, '__path__') else [file]
  digest = hashlib.sha256()
  for one in files:
    digest.update(one.read_bytes() if one.is_file() else b'')
  return digest.hexdigest()[:12]


def _source() -> Path:
  """The folder that holds the package."""
  return Path(t2x.__file__).resolve().parents[1]


def _repository(folder: Path) -> Path | None:
  """The root of the git repository around a folder."""
  folders = (folder.resolve(), *folder.resolve().parents)
  return next((one for one in folders if (one / '.git').exists()), None)


def _head(repository: Path) -> str:
  """Twelve digits of the commit that is checked out, and '+' when files differ from it."""
  found = _git(repository, 'rev-parse', '--short=12', 'HEAD')
  changes = _git(repository, 'status', '--porcelain', '--untracked-files=no')
  if found and changes is not None:
    return found + ('+' if changes else '')
  # There is no git, or it refuses the repository of another user.
  found = _read_head(repository / '.git')
  return f'{found[:12]} (changes unknown: git failed)' if found else 'unknown: git failed'


def _git(folder: Path, *arguments: str) -> str | None:
  """What git prints; None where it fails."""
  # In a hook these name another repository.
  environment = {k: v for k, v in os.environ.items() if not k.startswith('GIT_')}
  # In a container the source code often belongs to another user. It is being run anyway.
  trusted = ('-c', f'safe.directory={_repository(_source())}')
  try:
    done = subprocess.run(
      ['git', '--no-optional-locks', *trusted, '-C', str(folder), *arguments],
      capture_output=True,
      text=True,
      check=True,
      env=environment,
    )
  except (OSError, ValueError, subprocess.CalledProcessError):
    return None
  return done.stdout.strip()


def _read_head(git: Path) -> str:
  """The commit that `.git` has checked out, read without git; '' where it cannot be read."""
  try:
    if git.is_file():  # A worktree: 'gitdir: FOLDER'.
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
