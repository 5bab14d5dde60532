"""The run that a launch file starts: its command, environment and checks."""

import dataclasses
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

from t2x.base.errors import UserError, is_printable

__all__ = ['Job', 'default_name']

# Names of environment variables that hold secrets.
_SECRET = re.compile(r'(^|_)(TOKEN|KEY|SECRET|PASSWORD|PASSWD|CREDENTIALS?)(_ID)?$', re.IGNORECASE)
_NAME = re.compile(r'[a-z]([-a-z0-9]*[a-z0-9])?')
# Port of the coordinator, where the target does not choose it.
PORT = 8476
# Targets add suffixes, and Kubernetes limits names to 63 characters.
_MAX_NAME = 40


@dataclasses.dataclass(frozen=True, kw_only=True)
class Job:
  """A run, or a sweep, that a launch file starts.

  Attributes:
    name: name of the job: lower-case letters, digits and hyphens.
    files: gin files; the paths are valid where the job runs.
    folder: run folder, or output folder of a sweep, on a file system that all machines share.
    overrides: bindings `NAME=VALUE`.
    setup: shell lines that run before t2x on each machine.
    variables: environment variables.
    source: the command line that renders the file, for its header.
  """

  name: str
  files: Sequence[str]
  folder: str
  overrides: Sequence[str] = ()
  setup: Sequence[str] = ()
  variables: Mapping[str, str] = dataclasses.field(default_factory=dict)
  source: str = ''

  def __post_init__(self):
    check_name('--name', self.name, _MAX_NAME)
    texts = [*self.files, self.folder, *self.overrides, *self.setup, *self.variables.values()]
    for text in texts:
      if not is_printable(text):
        raise UserError(f'{text!r}: control characters and line breaks cannot be rendered')
    for name in self.variables:
      check_variable('--env', name)

  def refuse_secrets(self, advice: str) -> None:
    """Raises UserError if a variable is named like a secret.

    Args:
      advice: how to pass a secret to the target.
    """
    for name in self.variables:
      refuse_secrets('--env', f'{name}=', advice)
    for line in self.setup:
      refuse_secrets('--setup', line, advice)

  def train_lines(self, *options: str) -> list[str]:
    """Returns the lines of the shell command that trains; `options` are appended without quoting."""
    parts = [f't2x train {shlex.join(self.files)}', f'--out {shlex.quote(self.folder)}']
    parts += [*map(quoted_binding, self.overrides), *options]
    first, *rest = parts
    lines = [first, *(f'  {part}' for part in rest)]
    return [*(f'{line} \\' for line in lines[:-1]), lines[-1]]

  def exec_lines(self, *options: str) -> list[str]:
    """Returns the lines of `train_lines` for a shell that the command replaces."""
    first, *rest = self.train_lines(*options)
    return [f'exec {first}', *rest]

  def exports(self) -> list[str]:
    """Returns a shell line for each environment variable."""
    return [f'export {name}={shlex.quote(value)}' for name, value in self.variables.items()]

  def variables_on(self, mount: str) -> dict[str, str]:
    """Returns the environment variables, and that of the data cache, which is on a mounted volume.

    Raises:
      UserError: the run folder is outside the volume, and would be lost with the machine.
    """
    if not Path(self.folder).is_relative_to(mount) or '..' in Path(self.folder).parts:
      raise UserError(
        f'--run {self.folder}: must be inside {mount}, the volume that outlives the machines'
      )
    return {'T2X_CACHE': f'{mount}/cache', **self.variables}


def refuse_secrets(option: str, text: str, advice: str) -> None:
  """Raises UserError if a text assigns to a variable named like a secret: `NAME_KEY=...`, but not `--key=...`."""
  for name in re.findall(r'(?<![\w-])(\w+)=', text):
    if _SECRET.search(name):
      raise UserError(f'{option} {name}: secrets are not written to files: {advice}')


def quoted_binding(binding: str) -> str:
  """Returns `NAME=VALUE` as a quoted argument of the command line."""
  return shlex.quote(f'--gin.{binding}')


def check_name(option: str, name: str, limit: int = 63) -> None:
  """Raises UserError unless the name has only lower-case letters, digits and hyphens."""
  if not _NAME.fullmatch(name) or len(name) > limit:
    raise UserError(
      f"{option} '{name}': must have at most {limit} lower-case letters, digits and hyphens, and "
      'start with a letter'
    )


def check_word(option: str, text: str) -> None:
  """Raises UserError if a value is empty or has blanks, quotes or other characters of the shell."""
  if not re.fullmatch(r'[\w.:/@%+=,~-]+', text, re.ASCII):
    raise UserError(f'{option} {text!r}: must not be empty or have blanks or quotes')


def check_variable(option: str, name: str) -> None:
  """Raises UserError unless the name can be that of an environment variable."""
  if not re.fullmatch(r'[A-Za-z_]\w*', name, re.ASCII):
    raise UserError(f"{option} '{name}': must be the name of an environment variable")


def device_exports(gpus: int, cpu_devices: int) -> list[str]:
  """Returns the shell lines that select the CPU devices of a process; none if it has GPUs."""
  if gpus:
    return []
  return ['export JAX_PLATFORMS=cpu', f'export JAX_NUM_CPU_DEVICES={cpu_devices}']


def default_name(file: str) -> str:
  """Returns a name for a job that runs a gin file: 'stdlib-lm' for stdlib_lm.gin."""
  name = re.sub('[^a-z0-9]+', '-', Path(file).stem.lower()).strip('-')
  return (name if name[:1].isalpha() else f't2x-{name}')[:_MAX_NAME].rstrip('-')
