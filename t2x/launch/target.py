"""The interface of the systems that t2x renders files for."""

from collections.abc import Sequence
from typing import ClassVar, Protocol

from t2x.launch.job import Job

__all__ = ['Target', 'render']


class Target(Protocol):
  """A system that starts the processes of a run.

  Attributes:
    secrets: how users pass secrets, which no file contains.
  """

  secrets: ClassVar[str]

  @property
  def num_devices(self) -> int:
    """Number of devices of a run."""

  @property
  def submit(self) -> Sequence[str]:
    """The command that submits a rendered file, without the name of the file."""

  def render(self, job: Job) -> str:
    """Returns the text of the file."""


def render(target: Target, job: Job) -> str:
  """Returns the text of the file that starts a job.

  Raises:
    UserError: a parameter is invalid, has no effect, or is named like a secret.
  """
  job.refuse_secrets(target.secrets)
  return target.render(job)
