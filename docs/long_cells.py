"""Sphinx extension: marks the table cells of long texts with the class `long`, whose width manual.css sets."""

from docutils import nodes

# Longer texts wrap in a column of their own width; shorter ones are as wide as their longest word.
SHORT = 28


def mark(app, doctree):
  """Marks the cells of a page."""
  del app
  for cell in doctree.findall(nodes.entry):
    if len(cell.astext()) > SHORT:
      cell['classes'].append('long')


def setup(app):
  """Registers the extension."""
  app.connect('doctree-read', mark)
  return {'parallel_read_safe': True}
