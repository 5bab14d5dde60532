"""Token metadata: plain rows, pytree structure, tokens of other sequences."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t2x.base.errors import UserError
from t2x.layers import RowLayout, Slots, Tokens


def test_a_plain_row_counts_from_zero_and_is_contiguous():
  tokens = Tokens.row(4, segments=jnp.ones((2, 4), int))
  np.testing.assert_array_equal(tokens.positions, [[0, 1, 2, 3]])
  assert tokens.layout is RowLayout.CONTIGUOUS
  assert tokens.segments.shape == (2, 4)
  assert tokens.order is None and tokens.coords is None and tokens.marks == {}


def test_the_layout_is_never_inferred():
  assert Tokens(jnp.arange(4)[None]).layout is RowLayout.ARBITRARY


def test_the_structure_depends_on_the_names_of_the_marks_not_on_their_order():
  a, b = jnp.zeros((1, 3), bool), jnp.ones((1, 3), bool)
  one, other = Tokens.row(3, marks={'a': a, 'b': b}), Tokens.row(3, marks={'b': b, 'a': a})
  assert jax.tree.structure(one) == jax.tree.structure(other)
  for x, y in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
    np.testing.assert_array_equal(x, y)
  assert jax.tree.structure(one) != jax.tree.structure(Tokens.row(3, marks={'a': a}))


def test_layout_and_grid_are_static():
  image = Tokens.row(5, grid=(2, 2), num_extra=1)
  out = jax.jit(lambda tokens: tokens)(image)
  assert (out.layout, out.grid, out.num_extra) == (RowLayout.CONTIGUOUS, (2, 2), 1)
  assert len(jax.tree.leaves(image)) == 1


def test_tokens_of_another_sequence_are_not_packed_with_these():
  positions = jnp.arange(3)[None]
  packed = Tokens(positions, positions + 1, layout=RowLayout.PACKED)
  assert packed.as_source().layout is RowLayout.ARBITRARY
  assert Tokens.row(3).as_source().layout is RowLayout.CONTIGUOUS


def test_a_cache_refuses_positions_that_only_encodings_read():
  slots = Slots.empty(1, 4)
  place = jnp.arange(2)[None]
  assert slots.extend(Tokens(place)).next == 2
  with pytest.raises(UserError, match=r'a cache cannot hold Tokens\.encoded'):
    slots.extend(Tokens(place, encoded=place))
