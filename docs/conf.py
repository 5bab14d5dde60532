"""Sphinx configuration: `sphinx-build -W docs docs/_build` writes the pages.

Pages of parts and recipes are written from the code and the configs first (`generate.py`).
"""

import sys
from pathlib import Path

from pygments.lexers import PythonLexer

DOCS = Path(__file__).parent
sys.path[:0] = [str(DOCS), str(DOCS.parent)]

import generate  # noqa: E402 (needs the path above)

project = 't2x'
html_title = 't2x'
extensions = ['myst_parser', 'long_cells']
myst_heading_anchors = 3
exclude_patterns = ['_build']
html_theme = 'furo'
html_static_path = ['manual.css']
html_css_files = ['manual.css']
html_copy_source = False
html_show_copyright = False
html_show_sphinx = False

generate.write(DOCS)


def setup(app):
  """Highlights gin as Python, whose literals it has."""
  app.add_lexer('gin', PythonLexer)
