"""Projections of a mixer of t2x in PyTorch, around the heads of other packages."""

import numpy as np
import pytest

torch = pytest.importorskip('torch', reason="the extra 'references' is not installed")


def projected(mixer, x):
  """Yields queries, keys and values [batch, heads, length, head_dim] of x [batch, length, d_model]."""
  for linear in (mixer.q, mixer.k, mixer.v):
    kernel, bias = (torch.tensor(np.array(leaf[...])) for leaf in (linear.kernel, linear.bias))
    yield torch.einsum('bld,dhe->bhle', x, kernel) + bias[:, None]


def joined(mixer, y):
  """Returns the output projection of the outputs [batch, heads, length, head_dim] of the heads."""
  out = mixer.out
  kernel, bias = (torch.tensor(np.array(leaf[...])) for leaf in (out.kernel, out.bias))
  return torch.einsum('bhle,hed->bld', y, kernel) + bias
