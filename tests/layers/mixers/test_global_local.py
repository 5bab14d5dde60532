"""GlobalLocalAttention: which projections each query uses, marks, tiles, memory, and what it refuses."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from applying import applied
from flax import nnx

from t2x.base.errors import UserError
from t2x.layers import (
  Blockwise,
  Dense,
  Global,
  GlobalLocalAttention,
  Marked,
  MultiHeadAttention,
  RowLayout,
  Tokens,
  Window,
)
from t2x.testing.subject import perturbed

WIDTH, HEADS, LENGTH = 12, 2, 14
X = jnp.asarray(np.random.default_rng(0).normal(size=(2, LENGTH, WIDTH)), jnp.float32)
SEGMENTS = np.repeat([1, 2, 0], [8, 4, 2])[None]
POSITIONS = np.concatenate([np.arange(8), np.arange(4), np.arange(2)])[None]
MARKS = np.isin(np.arange(LENGTH), [2, 9])[None]
PACKED = Tokens(POSITIONS, SEGMENTS, marks={'global': MARKS}, layout=RowLayout.PACKED)

run = jax.jit(applied, static_argnames='pattern')


def build(**settings):
  return perturbed(GlobalLocalAttention(WIDTH, num_heads=HEADS, rngs=nnx.Rngs(0), **settings))


def attention(mixer, names):
  """Standard attention with some projections of the mixer."""
  part = MultiHeadAttention(WIDTH, num_heads=HEADS, kernel=Dense(), rngs=nnx.Rngs(0))
  part.q, part.k, part.v = (getattr(mixer, name) for name in names)
  part.out = mixer.out
  return part


@pytest.mark.parametrize('kernel', [Dense(), Blockwise(4, 4)], ids=str)
@pytest.mark.parametrize('global_tokens', [Global(2), Marked('global')], ids=str)
def test_global_queries_use_their_own_projections_and_the_others_do_not(global_tokens, kernel):
  """Against standard attention with either set of projections, in packed rows with padding."""
  mixer = build(global_tokens=global_tokens, kernel=kernel)
  pattern, tokens = Window(2) | global_tokens, jax.tree.map(jnp.asarray, PACKED)
  y, _ = run(mixer, X, tokens=tokens, pattern=pattern)
  expected = {
    is_global: run(attention(mixer, names), X, tokens=tokens, pattern=pattern)[0]
    for is_global, names in ((False, 'qkv'), (True, ('q_global', 'k_global', 'v_global')))
  }
  is_global = MARKS[0] if isinstance(global_tokens, Marked) else POSITIONS[0] < 2
  for place in range(12):
    target = expected[bool(is_global[place])][:, place]
    np.testing.assert_allclose(y[:, place], target, rtol=1e-5, atol=1e-5)


def test_absent_marks_are_refused():
  mixer = build(global_tokens=Marked('global'))
  with pytest.raises(UserError, match=r"reads Tokens\.marks\['global'\]"):
    applied(mixer, X, pattern=Window(2))
