"""Errors caused by user input, which are reported in one line without a traceback."""

import unicodedata

# Control characters, formatting such as the direction of text, surrogates, line separators.
_UNPRINTABLE = ('Cc', 'Cf', 'Cs', 'Zl', 'Zp')

# Exit code of an interrupted run, which the same command resumes.
EXIT_INTERRUPTED = 75


class UserError(Exception):
  """Invalid user input.

  Args:
    message: one line, or one line per error: what is wrong, where, and what to do.
    exit_code: exit code of the command line.
  """

  def __init__(self, message: str, exit_code: int = 2):
    super().__init__(message)
    self.exit_code = exit_code


class Interrupted(UserError):
  """The process was interrupted after it saved its state. `reason` begins the message."""

  def __init__(self, reason: str = 'interrupted'):
    super().__init__(f'{reason}; run the same command to resume', EXIT_INTERRUPTED)


def first_line(error: BaseException) -> str:
  """Returns the first line of an error message, or ''."""
  return (str(error).strip().splitlines() or [''])[0]


def error_line(error: BaseException) -> str:
  """Returns `first_line`, after the class of the error unless it is a UserError."""
  line = first_line(error)
  return line if isinstance(error, UserError) else f'{type(error).__name__}: {line}'


def is_printable(text: str) -> bool:
  """Returns whether a text has no control characters, which terminals would interpret."""
  # The fast check suffices for nearly all texts.
  return text.isprintable() or not any(
    unicodedata.category(character) in _UNPRINTABLE for character in text
  )


def printable(text: str, *, lines: bool = False) -> str:
  """Returns the text with control characters as escapes (`\\x1b`); `lines` keeps its newlines."""
  if text.isprintable():
    return text
  return ''.join(
    char
    if is_printable(char) or (lines and char == '\n')
    else char.encode('unicode_escape').decode()
    for char in text
  )
