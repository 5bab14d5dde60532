"""Key-value-predict attention over the last states against the paper's equations in float64, PyTorch's gradients."""

import functools

import jax.numpy as jnp
import numpy as np
import pytest
from applying import check_decoding, moved
from flax import nnx
from tiny_lm import lm
from torch_arrays import linear

from t2x.base.errors import UserError
from t2x.layers import (
  Activation,
  AdditiveScores,
  Call,
  Causal,
  MultiHeadAttention,
  Plain,
  PredictionHeads,
  Recurrent,
  RowLayout,
  Sequential,
  SplitKeyValues,
  SplitQueries,
  Tokens,
  Window,
  tanh,
)
from t2x.models import SublayerBlock

torch = pytest.importorskip('torch', reason="the extra 'references' is not installed")
part = functools.partial
SIZE, LAST = 4, 3
# Two documents in a row, and one with padding.
SEGMENTS = np.array([[1] * 4 + [2] * 5, [1] * 6 + [0] * 3])
POSITIONS = np.array([[0, 1, 2, 3, 0, 1, 2, 3, 4], [0, 1, 2, 3, 4, 5, 0, 1, 2]])
TOKENS = Tokens(jnp.asarray(POSITIONS), jnp.asarray(SEGMENTS), layout=RowLayout.PACKED)
PATTERN = Window(LAST + 1) & ~Window(1)


def ours(num_parts):
  """The attention layer and its tanh, for `num_parts` parts of SIZE features."""
  attention = part(
    MultiHeadAttention,
    num_heads=1,
    head_dim=SIZE,
    value_dim=SIZE,
    use_bias=False,
    scores=AdditiveScores,
    queries=part(SplitQueries, num_parts=num_parts),
    key_values=part(SplitKeyValues, num_parts=num_parts),
    head_outputs=part(PredictionHeads, num_parts=num_parts),
  )
  return part(Sequential, parts={'mixer': attention, 'last': part(Activation, activation=tanh)})


class Daniluk(torch.nn.Module):
  """Equations 2 to 5 and 7 to 11 of the paper, for each token by itself."""

  def __init__(self, num_parts):
    super().__init__()
    self.num_parts, double = num_parts, {'dtype': torch.float64}
    self.query, self.key = (torch.nn.Linear(SIZE, SIZE, bias=False, **double) for _ in range(2))
    self.w = torch.nn.Parameter(torch.randn(SIZE, **double))
    self.out = torch.nn.Linear(2 * SIZE, num_parts * SIZE, **double)

  def arrays(self, get):
    maps = {
      'q.projection': self.query,
      'key_values.k': self.key,
      'out': self.out,
    }
    arrays = {'mixer.scores.w': get(self.w)}
    for name, module in maps.items():
      arrays |= linear(f'mixer.{name}', module, get)
    return arrays

  def forward(self, states):
    parts = states.split(SIZE, dim=-1)
    keys, values, predict = {1: (0, 0, 0), 2: (0, 1, 1), 3: (0, 1, 2)}[self.num_parts]
    keys, values, predict = parts[keys], parts[values], parts[predict]
    rows = []
    for b, segments in enumerate(SEGMENTS):
      for t, segment in enumerate(segments):
        if segment == 0:
          rows.append(torch.zeros(self.num_parts * SIZE, dtype=torch.float64))
          continue
        before = [j for j in range(max(0, t - LAST), t) if segments[j] == segment]
        r = torch.zeros(SIZE, dtype=torch.float64)
        if before:
          m = torch.tanh(self.key(keys[b, before]) + self.query(keys[b, t]))
          r = torch.softmax(m @ self.w, dim=0) @ values[b, before]
        rows.append(torch.tanh(self.out(torch.cat([r, predict[b, t]]))))
    return torch.stack(rows).reshape(*SEGMENTS.shape, -1)


@pytest.mark.parametrize('num_parts', [1, 2, 3])
def test_outputs_and_gradients_equal_the_equations_token_by_token(num_parts, equal):
  torch.manual_seed(0)
  theirs, width = Daniluk(num_parts), num_parts * SIZE
  states = np.random.default_rng(0).normal(size=(2, 9, width)).astype(np.float32)

  def apply(module):
    y = module(jnp.asarray(states), Call(TOKENS, Causal() & PATTERN)).x
    return jnp.where(SEGMENTS[..., None] > 0, y, 0)

  system = 'key-value-predict attention' if num_parts == 3 else None
  equal(
    system,
    'PyTorch, float64',
    theirs,
    ours(num_parts)(width, rngs=nnx.Rngs(0)),
    theirs.arrays,
    lambda module: module(torch.tensor(states, dtype=torch.float64)),
    apply,
  )


def test_a_recurrent_language_model_with_it_decodes_as_it_reads():
  blocks = [
    part(SublayerBlock, sublayers={'mixer': Recurrent}, wiring=Plain),
    part(SublayerBlock, sublayers={'mixer': ours(3)}, wiring=Plain, pattern=PATTERN),
  ]
  model = lm(3 * SIZE, vocab_size=9, num_layers=2, blocks=blocks)(rngs=nnx.Rngs(0))
  check_decoding(moved(model))


def test_parts_that_do_not_fit_are_refused():
  with pytest.raises(UserError, match=r'SplitQueries.num_parts = 5 does not divide d_model = 12'):
    ours(5)(12, rngs=nnx.Rngs(0))
  with pytest.raises(UserError, match=r'SplitKeyValues has values of 6 features .* 1 heads of 4'):
    ours(2)(12, rngs=nnx.Rngs(0))
