"""What a trial's result may depend on beside its config: versions, the device, the commit."""

import functools
import importlib.metadata
import platform
import subprocess

__all__ = ['commit', 'origin', 'versions']


@functools.cache
def origin() -> dict[str, str]:
  """Versions, device and commit, as they were at the first call in this process."""
  return versions() | {'commit': commit() or 'unknown'}


def versions() -> dict[str, str]:
  """What the results may depend on."""
  import jax

  found = {'python': platform.python_version()}
  for name in ('t2x', 'jax', 'jaxlib', 'flax', 'optax', 'numpy'):
    found[name] = importlib.metadata.version(name)
  return found | {'device': jax.devices()[0].device_kind}


def commit() -> str:
  """Of the working directory's repository; '+' when files differ from it, '' without one."""

  def git(*arguments: str) -> str:
    done = subprocess.run(['git', *arguments], capture_output=True, text=True, check=True)
    return done.stdout.strip()

  try:
    dirty = git('status', '--porcelain', '--untracked-files=no')
    return git('rev-parse', '--short=12', 'HEAD') + ('+' if dirty else '')
  except (OSError, subprocess.CalledProcessError):
    return ''
