"""Errors that a user can mend: told in one line, without a traceback."""

__all__ = ['EXIT_INTERRUPTED', 'UserError']

# The exit code of a run that was stopped and goes on when the same command is run again.
EXIT_INTERRUPTED = 75


class UserError(Exception):
  """Something the user wrote or handed in is wrong.

  The message is one clear line (or one line a finding): what, where, what to do. The command line
  prints it and exits with `exit_code`.
  """

  def __init__(self, message: str, exit_code: int = 2):
    super().__init__(message)
    self.exit_code = exit_code
