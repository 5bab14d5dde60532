"""Parameters and projections."""

import jax
import numpy as np
import pytest
from equations import products
from flax import nnx
from halved import Halved

from t2x.base.hyperparameters import in_step
from t2x.layers import Linear, lecun_normal, param, zeros


def test_a_projection_merges_rows_unless_their_length_is_split():
  linear = Linear(
    (4,), (2, 3), ('embed', 'heads', None), init=lecun_normal(), use_bias=False, rngs=nnx.Rngs(0)
  )
  x = jax.random.normal(jax.random.key(0), (5, 7, 4))

  def ranks(layout):
    # Traced anew for each layout.
    with in_step(layout=layout):
      jaxpr = jax.make_jaxpr(lambda x: linear(x))(x)
    return [e.invars[0].aval.ndim for e in products(jaxpr.jaxpr)]

  assert ranks(None) == [2]
  assert ranks(Halved('length')) == [3]
  expected = np.einsum('bld,dhk->blhk', x, linear.kernel[...])
  for layout in (None, Halved('length')):
    with in_step(layout=layout):
      np.testing.assert_allclose(linear(x), expected, atol=1e-5)


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
