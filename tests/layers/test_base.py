"""Token metadata: plain rows, pytree structure, tokens of other sequences."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from equations import products
from flax import nnx
from halved import Halved

from t2x.base.errors import UserError
from t2x.layers import Linear, RowLayout, Slots, Tokens, lecun_normal, param, zeros
from t2x.layers.constraints import use_layout


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


def test_a_projection_merges_rows_unless_their_length_is_split():
  linear = Linear(
    (4,), (2, 3), ('embed', 'heads', None), init=lecun_normal(), use_bias=False, rngs=nnx.Rngs(0)
  )
  x = jax.random.normal(jax.random.key(0), (5, 7, 4))

  def ranks(layout):
    # Traced anew for each layout.
    with use_layout(layout):
      jaxpr = jax.make_jaxpr(lambda x: linear(x))(x)
    return [e.invars[0].aval.ndim for e in products(jaxpr.jaxpr)]

  assert ranks(None) == [2]
  assert ranks(Halved('length')) == [3]
  expected = np.einsum('bld,dhk->blhk', x, linear.kernel[...])
  for layout in (None, Halved('length')):
    with use_layout(layout):
      np.testing.assert_allclose(linear(x), expected, atol=1e-5)


def test_a_cache_refuses_positions_that_only_encodings_read():
  slots = Slots.empty(1, 4)
  place = jnp.arange(2)[None]
  assert slots.extend(Tokens(place)).next == 2
  with pytest.raises(UserError, match=r'a cache cannot hold Tokens\.encoded'):
    slots.extend(Tokens(place, encoded=place))


@pytest.mark.parametrize(
  ('settings', 'message'),
  [
    ({}, r"param\(shape=\(4, 2\), axes=\('embed', 'mlp'\)\) has no kind"),
    ({'kind': 'matrix'}, r"of kind 'matrix' needs matrix=\(inputs, outputs\)"),
  ],
)
def test_a_parameter_states_its_kind(settings, message):
  with pytest.raises(ValueError, match=message):
    param(zeros(), (4, 2), ('embed', 'mlp'), nnx.Rngs(0), **settings)


def test_a_parameter_with_a_matrix_is_a_matrix_unless_it_states_another_kind():
  def kind(**settings):
    metadata = param(zeros(), (4, 2), ('a', 'b'), nnx.Rngs(0), **settings).get_metadata()
    return metadata['kind'], metadata['matrix']

  assert kind(matrix=(4, 2)) == ('matrix', (4, 2))
  assert kind(matrix=(4, 2), kind='filter') == ('filter', (4, 2))
