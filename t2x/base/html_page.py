"""HTML pages in a single file, with data, style and script, that need no network."""

import html
import json
import re
from collections.abc import Iterable
from importlib import resources
from importlib.resources.abc import Traversable

from t2x.base.files import MARK


def html_page(
  body: Traversable,
  title: str,
  styles: Iterable[Traversable],
  scripts: Iterable[Traversable],
  data: object,
) -> str:
  """Returns a page.

  Args:
    body: HTML file with the content of the body element, without scripts; `{{title}}` is the title.
    title: title of the page, as plain text.
    styles: CSS files, in this order.
    scripts: JavaScript files, in this order.
    data: values that JSON can represent, for an element with JSON inside a script element.
  """
  text = json.dumps(data, ensure_ascii=False, separators=(',', ':'), allow_nan=False)
  # Text inside the script element cannot end it.
  for character in '<>&':
    text = text.replace(character, f'\\u{ord(character):04x}')
  parts = {
    'mark': MARK,
    'title': html.escape(title),
    'style': ''.join(file.read_text('utf-8') for file in styles),
    'script': '\n'.join(file.read_text('utf-8') for file in scripts),
    'data': text,
  }
  frame = (resources.files('t2x.base') / 'page.html').read_text('utf-8')
  page = frame.replace('{{body}}', body.read_text('utf-8').rstrip())
  return re.sub(r'\{\{(\w+)\}\}', lambda match: parts[match[1]], page)
