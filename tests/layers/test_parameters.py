"""Parameters and projections."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from equations import products
from flax import nnx
from halved import Halved

from t2x.base.step import in_step
from t2x.layers import Linear, WeightNormLinear, initialized, lecun_normal, param, stacked, zeros


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


def test_weight_normalisation_starts_as_the_plain_projection_and_its_gain_is_the_norm():
  sizes = (3, 4), (2, 5), (None, 'embed', 'heads', 'mlp')
  settings = {'init': lecun_normal(), 'use_bias': True, 'kind': 'matrix'}

  def build(kind):
    # Two layers, as in a stack.
    def part(rngs):
      return stacked(lambda i, rngs: kind(*sizes, **settings, rngs=rngs), 2, rngs)

    both = initialized(part, jax.random.key(0))
    return jax.tree.map(lambda a: a[1], both)

  plain, normed = build(Linear), build(WeightNormLinear)
  x = jax.random.normal(jax.random.key(1), (6, 3, 4))
  np.testing.assert_allclose(normed(x), plain(x), atol=1e-6)
  normed.kernel[...] = 3.0 * normed.kernel[...]
  np.testing.assert_allclose(normed(x), plain(x), atol=1e-6)
  normed.gain[...] = jnp.arange(10.0).reshape(2, 5)
  norms = np.linalg.norm(normed.weight(), axis=(0, 1))
  np.testing.assert_allclose(norms, np.arange(10.0).reshape(2, 5), atol=1e-5)
