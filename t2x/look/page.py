"""The HTML page of a `Look`, in one file without external resources."""

import base64
import zlib
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Any

import numpy as np
from jaxtyping import Float

from t2x.base.drawing import png_url
from t2x.base.errors import printable
from t2x.base.html_page import html_page
from t2x.look.attention import Attention
from t2x.look.look import Look

STATISTICS = ('entropy', 'distance', 'previous', 'first', 'separator')


def page(look: Look, title: str, facts: Mapping[str, str]) -> str:
  """Returns the page.

  Args:
    look: what to draw.
    title: title of the page.
    facts: further facts by name, such as the run and the input.
  """
  own, base = resources.files('t2x.look'), resources.files('t2x.base')
  return html_page(
    body=own / 'look.html',
    title=title,
    styles=(base / 'page.css', own / 'look.css'),
    scripts=(base / 'core.js', own / 'look.js'),
    data=page_data(look, facts),
  )


def page_data(look: Look, facts: Mapping[str, str]) -> dict[str, Any]:
  """Returns the content of the page as values that JSON can represent."""
  lens, losses = look.lens, look.losses
  return {
    'facts': [[name, printable(value)] for name, value in facts.items()],
    'notes': list(look.notes),
    'attention': [_attention(attention) for attention in look.attention],
    'lens': lens
    and {
      'positions': _texts(lens.positions),
      'targets': _texts(lens.targets),
      'ids': lens.ids.tolist(),
      'probabilities': np.round(lens.probabilities.astype(float), 4).tolist(),
      'names': {str(i): printable(name) for i, name in lens.names.items()},
    },
    'losses': losses
    and {
      'tokens': _texts(losses.tokens),
      'losses': np.round(losses.losses, 4).tolist(),
      'ranks': losses.ranks.tolist(),
      'context': losses.context,
    },
    'neighbours': [
      {
        'name': table.name,
        'rows': [
          [printable(token), [[printable(n.token), round(n.cosine, 3)] for n in nearest]]
          for token, nearest in zip(table.tokens, table.nearest, strict=True)
        ],
      }
      for table in look.neighbours
    ],
    'maps': [{'title': title, **_packed(values[None])} for title, values in maps(look)],
    'loads': [
      {'name': load.name, 'groups': _texts(load.groups), **_packed(load.shares[None])}
      for load in look.loads
    ],
    'drawings': [[title, png_url(picture)] for title, picture in look.drawings.items()],
    'pixels': None if look.pixels is None else _packed(np.moveaxis(look.pixels, -1, 0) / 255.0),
  }


def maps(look: Look) -> list[tuple[str, Float[np.ndarray, 'rows columns']]]:
  """Returns the maps of positions and patterns with titles; vectors that are not learned are drawn, too."""
  return [
    *((f'Cosine similarity: {vectors.name}', vectors.similarity_map) for vectors in look.positions),
    *(
      (f'Values: {vectors.name}', vectors.values)
      for vectors in look.positions
      if not vectors.is_learned
    ),
    *(
      (f'{matrix.title}: {matrix.pattern}', matrix.mask.astype(np.float32))
      for matrix in look.matrices
    ),
  ]


def _texts(texts: Sequence[str]) -> list[str]:
  return [printable(text) for text in texts]


def _attention(attention: Attention) -> dict[str, Any]:
  statistics = {}
  for name in STATISTICS:
    values = [getattr(layer, name) for layer in attention.statistics]
    if all(value is not None for value in values):
      statistics[name] = [np.round(value, 4).tolist() for value in values]
  grid = attention.grid and [attention.grid.rows, attention.grid.columns, attention.grid.num_extra]
  return {
    'name': attention.name,
    'queries': _texts(attention.queries),
    'keys': _texts(attention.keys),
    'grid': grid,
    # The mean over heads comes first.
    'layers': [
      _packed(np.concatenate([layer.mean(0, keepdims=True), layer])) for layer in attention.layers
    ],
    'statistics': statistics,
  }


def _packed(maps: Float[np.ndarray, 'maps rows columns']) -> dict[str, Any]:
  """Returns maps as compressed 16-bit numbers in base64: n of map i is low[i] + n / 65535 * (high[i] - low[i])."""
  low = np.minimum(maps.min(axis=(1, 2)), 0.0)
  high = maps.max(axis=(1, 2))
  width = np.where(high > low, high - low, 1.0)[:, None, None]
  codes = np.rint(65535 * (maps - low[:, None, None]) / width).astype('<u2')
  return {
    'shape': list(maps.shape),
    'low': [float(f'{v:.6g}') for v in low],
    'high': [float(f'{v:.6g}') for v in high],
    'numbers': base64.b64encode(zlib.compress(codes.tobytes(), 9)).decode(),
  }
