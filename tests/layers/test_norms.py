"""LayerNorm and RMSNorm against their formulas in float64."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from t2x.base.errors import UserError
from t2x.layers import (
  MLP,
  GatedDeltaNet,
  GatedMLP,
  JointNorm,
  LayerNorm,
  MultiHeadAttention,
  NormedHeads,
  PatchMerging,
  PreNorm,
  RMSNorm,
)
from t2x.train.params import Blueprint


def example(norm, seed=0):
  """A norm with random scale and bias, and an input far from 0."""
  rng = np.random.default_rng(seed)
  for name in ('scale', 'bias'):
    if getattr(norm, name, None) is not None:
      getattr(norm, name)[...] = jnp.asarray(rng.normal(size=8), jnp.float32)
  return 3.0 + 2.0 * rng.normal(size=(2, 5, 8))


def layer_norm(x, scale, bias, epsilon):
  centred = x - x.mean(-1, keepdims=True)
  return centred / np.sqrt((centred**2).mean(-1, keepdims=True) + epsilon) * scale + bias


@pytest.mark.parametrize('epsilon', [1e-6, 0.1])
@pytest.mark.parametrize('use_bias', [True, False])
def test_layer_norm_is_its_formula(epsilon, use_bias):
  norm = LayerNorm(8, epsilon=epsilon, use_bias=use_bias, rngs=nnx.Rngs(0))
  x = example(norm)
  bias = np.asarray(norm.bias[...], np.float64) if use_bias else 0.0
  expected = layer_norm(x, np.asarray(norm.scale[...], np.float64), bias, epsilon)
  np.testing.assert_allclose(norm(jnp.asarray(x, jnp.float32)), expected, atol=2e-6)
  assert (norm.bias is None) == (not use_bias)


@pytest.mark.parametrize('norm', [LayerNorm, RMSNorm])
def test_parameters_of_norms_are_marked_to_stay_float32(norm):
  built = norm(8, rngs=nnx.Rngs(0))
  for name in ('scale', 'bias'):
    if (variable := getattr(built, name, None)) is not None:
      assert variable.get_metadata()['keep_float32']


@pytest.mark.parametrize('epsilon', [1e-6, 0.1])
def test_rms_norm_is_its_formula(epsilon, compared):
  norm = RMSNorm(8, epsilon=epsilon, rngs=nnx.Rngs(0))
  x = example(norm)
  scale = np.asarray(norm.scale[...], np.float64)
  expected = x / np.sqrt((x**2).mean(-1, keepdims=True) + epsilon) * scale
  y = norm(jnp.asarray(x, jnp.float32))
  compared('RMSNorm', 'NumPy, float64', y, expected, rtol=1e-7, atol=2e-6)


@pytest.mark.parametrize('norm_class', [LayerNorm, RMSNorm])
def test_norm_of_bfloat16_is_computed_in_float32(norm_class):
  norm = norm_class(8, rngs=nnx.Rngs(0))
  x = jnp.asarray(example(norm), jnp.bfloat16)
  y = norm(x)
  assert y.dtype == jnp.bfloat16
  np.testing.assert_array_equal(y, norm(x.astype(jnp.float32)).astype(jnp.bfloat16))


@pytest.mark.parametrize('norm_class', [LayerNorm, RMSNorm])
def test_parameters_name_their_axes(norm_class):
  norm = norm_class(8, rngs=nnx.Rngs(0))
  for parameter in (norm.scale, getattr(norm, 'bias', norm.scale)):
    assert parameter.axes == ('embed',)


@pytest.mark.parametrize(
  ('build', 'axes'),
  [
    (partial(MultiHeadAttention, num_heads=2, qk_norm=RMSNorm), {'q_norm.scale': 'head_dim'}),
    (
      partial(MultiHeadAttention, num_heads=2, qk_norm=partial(JointNorm, norm=LayerNorm)),
      {'k_norm.bias': 'features'},
    ),
    (
      partial(MultiHeadAttention, num_heads=2, head_outputs=NormedHeads),
      {'head_outputs.norm.scale': 'features'},
    ),
    (partial(MLP, hidden_dim=6, norm=LayerNorm), {'norm.bias': 'mlp'}),
    (partial(GatedMLP, hidden_dim=6, norm=RMSNorm), {'norm.scale': 'mlp'}),
    (partial(GatedDeltaNet, num_heads=2), {'norm.scale': 'head_dim'}),
    (PatchMerging, {'norm.scale': 'merged'}),
    (PreNorm, {'norm.scale': 'embed'}),
  ],
)
def test_norms_have_the_axis_of_their_features(build, axes):
  infos = Blueprint(jax.eval_shape(lambda: build(8, rngs=nnx.Rngs(0)))).infos
  assert {name: infos[name].axes for name in axes} == {n: (axis,) for n, axis in axes.items()}


def test_a_scale_with_an_offset_is_initially_1():
  """Gemma's norm: the stored scale is that of the formula minus 1."""
  norm = RMSNorm(8, unit_offset=True, rngs=nnx.Rngs(0))
  assert not norm.scale[...].any()
  x = example(norm)
  expected = (
    x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6) * (1.0 + np.asarray(norm.scale[...]))
  )
  np.testing.assert_allclose(norm(jnp.asarray(x, jnp.float32)), expected, atol=2e-6)
  with pytest.raises(UserError, match=r'^RMSNorm\.unit_offset has no effect'):
    RMSNorm(8, unit_offset=True, use_scale=False, rngs=nnx.Rngs(0))
