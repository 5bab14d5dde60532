"""Fills in the templates of launch files."""

import importlib.resources
import json
import re
import string
from collections.abc import Iterable, Sequence

# Words that YAML reads as a boolean or as null.
_YAML_WORDS = frozenset(('y', 'n', 'yes', 'no', 'on', 'off', 'true', 'false', 'null'))


class _Line(string.Template):
  # Neither shells nor YAML use it, so that templates read like the rendered files.
  delimiter = '@@'


def fill(template: str, /, **values: str | int | Sequence[str]) -> str:
  """Returns a template with its placeholders `@@{name}` replaced.

  A placeholder for a sequence is a line of its own, and becomes one line per item with the same indentation.

  Args:
    template: name of the file in t2x/launch/templates.
    values: values of the placeholders.
  """
  path = importlib.resources.files('t2x.launch') / 'templates' / template
  lines = []
  for line in path.read_text().splitlines():
    match = re.fullmatch(r'( *)@@{(\w+)}', line)
    value = values[match[2]] if match else ''
    if match and not isinstance(value, str | int):
      lines += [f'{match[1]}{item}'.rstrip() for item in value]
    else:
      lines.append(_Line(line).substitute(values))
  # An empty sequence leaves the blank lines around it.
  return re.sub(r'\n{3,}', '\n\n', '\n'.join(lines)) + '\n'


def block(lines: Iterable[str]) -> list[str]:
  """Returns the lines of a YAML block, whose first line sets the indentation and so must not begin with blanks."""
  first, *rest = lines
  return [first.lstrip(), *rest]


def yaml_text(text: str) -> str:
  """Returns a text as a YAML scalar, in quotes if YAML would read it as something else."""
  plain = re.fullmatch(r'[a-zA-Z_/][\w./:@-]*', text, re.ASCII) and not text.endswith(':')
  return text if plain and text.lower() not in _YAML_WORDS else json.dumps(text)
