"""Suggestions for misspelled names."""

import difflib
from collections.abc import Iterable


def closest(name: str, names: Iterable[str]) -> str | None:
  """Returns the most similar of `names`, or None."""
  candidates = list(dict.fromkeys(names))
  same_letters = [c for c in candidates if c.lower() == name.lower() and c != name]
  matches = same_letters or difflib.get_close_matches(name, candidates, 1, 0.6)
  return matches[0] if matches else None


def did_you_mean(name: str, names: Iterable[str], form: str = "'{}'") -> str:
  """Returns '; did you mean ...?' with the most similar name, or ''."""
  guess = closest(name, names)
  return f'; did you mean {form.format(guess)}?' if guess else ''
