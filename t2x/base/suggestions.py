"""Suggestions for misspelled names."""

import difflib
from collections.abc import Iterable
from pathlib import Path


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


def similar_folders(folder: Path, file: str) -> str:
  """Returns '; did you mean ...?' with the folders in `folder` that have a file, or a similar name beside it; or ''."""
  if inside := sorted(str(path.parent) for path in folder.glob(f'*/{file}')):
    return f'; did you mean {" or ".join(inside)}?'
  return did_you_mean(
    str(folder), (str(path.parent) for path in folder.parent.glob(f'*/{file}')), '{}'
  )
