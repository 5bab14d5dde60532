"""Errors that a user can mend: told in one line, without a traceback."""

import unicodedata

# Control characters, formatting such as the direction of text, surrogates, line separators.
_UNPRINTABLE = ('Cc', 'Cf', 'Cs', 'Zl', 'Zp')

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


class Interrupted(UserError):
  """The process was asked to stop; what it had done is saved. `told`: how it ended, in a few words."""

  def __init__(self, told: str = 'interrupted'):
    super().__init__(f'{told}; run the same command to resume', EXIT_INTERRUPTED)


def first_line(error: BaseException) -> str:
  """The first line of what an error says; '' where it says nothing."""
  return (str(error).strip().splitlines() or [''])[0]


def in_a_line(error: BaseException) -> str:
  """`first_line`, led by the error's kind where it is no user's mistake."""
  line = first_line(error)
  return line if isinstance(error, UserError) else f'{type(error).__name__}: {line}'


def is_printable(text: str) -> bool:
  """Whether a text holds no control characters: nothing that a terminal would act on."""
  # Nearly all texts are, and quickly known to be.
  return text.isprintable() or not any(
    unicodedata.category(character) in _UNPRINTABLE for character in text
  )


def printable(text: str, *, lines: bool = False) -> str:
  """Returns the text with control characters as escapes (`\\x1b`); `lines` keeps its newlines."""
  if text.isprintable():
    return text
  return ''.join(
    one if is_printable(one) or (lines and one == '\n') else one.encode('unicode_escape').decode()
    for one in text
  )
