"""Fields of every row of a GPU benchmark: GPU, driver, cuDNN, jax, clocks and power limit; and packages from wheels."""

import contextlib
import importlib.metadata
import os
import platform
import re
import shutil
import statistics
import subprocess
import threading
import zipfile
from collections.abc import Iterator
from pathlib import Path

PACKAGES = Path(__file__).with_name('gpu_wheels.txt')
QUERY = {
  'gpu': 'name',
  'driver': 'driver_version',
  'power_limit_watts': 'power.limit',
  'max_sm_mhz': 'clocks.max.sm',
  'memory_mhz': 'clocks.max.memory',
}
# The median of what nvidia-smi reports while a part runs.
SAMPLED = {'sm_mhz': 'clocks.sm', 'power_watts': 'power.draw'}
BUSY = 'utilization.gpu'
SECONDS_BETWEEN_SAMPLES = 2


def first_gpu() -> str | None:
  """Returns the GPU to measure as an entry of CUDA_VISIBLE_DEVICES; None without an NVIDIA driver or GPU."""
  if shutil.which('nvidia-smi') is None:
    return None
  visible = os.environ.get('CUDA_VISIBLE_DEVICES', '0').split(',')[0].strip()
  return visible if visible and query('name', visible) else None


def query(fields: str, gpu: str) -> list[str]:
  """Returns fields that nvidia-smi reports of a GPU; [] if it fails."""
  command = ['nvidia-smi', '-i', gpu, f'--query-gpu={fields}', '--format=csv,noheader,nounits']
  with contextlib.suppress(OSError, subprocess.TimeoutExpired):
    done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    if done.returncode == 0 and done.stdout.strip():
      return [value.strip() for value in done.stdout.splitlines()[0].split(',')]
  return []


def machine(gpu: str | None) -> dict[str, object]:
  """Returns what does not change while the benchmark runs.

  Args:
    gpu: an entry of CUDA_VISIBLE_DEVICES; None: the CPU, for a smoke test.
  """
  row: dict[str, object] = dict.fromkeys(QUERY)
  if gpu is None:
    row['gpu'] = f'none: {platform.machine()} CPU, {os.cpu_count()} cores'
  else:
    row |= zip(QUERY, query(','.join(QUERY.values()), gpu), strict=False)
  row['cudnn'] = ', '.join(
    f'{distribution.name} {distribution.version}'
    for distribution in importlib.metadata.distributions()
    if re.match(r'nvidia[-_]cudnn', distribution.name or '')
  )
  row |= {name: importlib.metadata.version(name) for name in ('jax', 'jaxlib')}
  return row | {'python': platform.python_version(), 'commit': commit()}


def commit() -> str | None:
  """Returns the commit of the checkout; None in a copy without its history."""
  with contextlib.suppress(OSError, subprocess.CalledProcessError):
    command = ['git', '-C', str(PACKAGES.parent), 'rev-parse', '--short', 'HEAD']
    return subprocess.check_output(command, stderr=subprocess.DEVNULL, text=True).strip()
  return None


class Clocks:
  """Samples of the GPU's clock and power draw while it works, in a thread.

  Args:
    gpu: an entry of CUDA_VISIBLE_DEVICES; None takes no samples.
  """

  def __init__(self, gpu: str | None):
    self._samples: list[list[float | None]] = []
    self._closed = threading.Event()
    if gpu is not None:
      threading.Thread(target=self._take, args=(gpu,), daemon=True).start()

  def _take(self, gpu: str) -> None:
    while not self._closed.wait(SECONDS_BETWEEN_SAMPLES):
      values = [number(text) for text in query(','.join([*SAMPLED.values(), BUSY]), gpu)]
      if values and values[-1] != 0:
        self._samples.append(values)

  def restart(self) -> None:
    """Forgets the samples of the part before."""
    self._samples = []

  def row(self) -> dict[str, float | None]:
    """Returns the medians since `restart` while the GPU was busy; None without samples."""
    row: dict[str, float | None] = {}
    for column, name in enumerate(SAMPLED):
      values = [s[column] for s in list(self._samples) if s[column] is not None]
      row[name] = statistics.median(values) if values else None
    return row

  def close(self) -> None:
    """Ends the samples."""
    self._closed.set()


def number(text: str) -> float | None:
  """Returns a number of nvidia-smi; None for `[N/A]`."""
  try:
    return float(text)
  except ValueError:
    return None


def unpack(folder: Path, to: Path) -> None:
  """Unpacks the wheels of a folder.

  Raises:
    ValueError: the folder has no wheels.
  """
  wheels = sorted(folder.glob('*.whl'))
  if not wheels:
    raise ValueError(f'--wheels {folder}: there are no files *.whl')
  for wheel in wheels:
    with zipfile.ZipFile(wheel) as file:
      file.extractall(to)


def missing(path: list[str], packages: Path = PACKAGES) -> list[str]:
  """Returns the packages of a list, as in gpu_wheels.txt, that are not in the folders of `path`."""
  found = {
    normal(distribution.name) for distribution in importlib.metadata.distributions(path=path)
  }
  return [name for name in names_of(packages) if normal(name) not in found]


def names_of(packages: Path) -> Iterator[str]:
  """Yields the names of a list of packages."""
  for line in packages.read_text().splitlines():
    if match := re.match(r'[\w.-]+', line):
      yield match.group()


def normal(name: str) -> str:
  """Returns the name of a package as PyPI compares it."""
  return re.sub(r'[-_.]+', '-', name).lower()
