"""What is put around a sublayer: norms, or scalars."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from t2x.base.errors import UserError
from t2x.layers import (
  MLP,
  BranchNorm,
  Call,
  FixupWiring,
  LayerNorm,
  LayerScale,
  PostNorm,
  PreNorm,
  Result,
  ReZero,
  RMSNorm,
  Sandwich,
  ScaledResidual,
  Tokens,
  fixup,
  he_normal,
  normal,
  zeros,
)
from t2x.train.optimizers import decay_mask
from t2x.train.params import Blueprint

torch = pytest.importorskip('torch', reason="the extra 'references' is not installed")
pytest.importorskip('transformers', reason="the extra 'references' is not installed")
from transformers import Dinov2Config, Gemma2Config, Olmo2Config  # noqa: E402
from transformers.models.dinov2.modeling_dinov2 import Dinov2Layer  # noqa: E402
from transformers.models.gemma2.modeling_gemma2 import Gemma2DecoderLayer  # noqa: E402
from transformers.models.olmo2.modeling_olmo2 import Olmo2DecoderLayer  # noqa: E402

X = jax.random.normal(jax.random.key(0), (3, 5, 8))


def double(h):
  return Result(2.0 * h + 1.0, 'cache')


def test_pre_norm_is_its_formula(compared):
  wiring = PreNorm(8, norm=RMSNorm, rngs=nnx.Rngs(0))
  result = wiring(X, double)
  y, rest = result.x, result.cache
  x = np.asarray(X, np.float64)
  expected = x + 2.0 * x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6) + 1.0
  compared('pre-norm', 'NumPy, float64', y, expected, rtol=1e-7, atol=1e-6)
  assert rest == 'cache'


def test_post_norm_is_its_formula(compared):
  wiring = PostNorm(8, rngs=nnx.Rngs(0))
  result = wiring(X, double)
  y, rest = result.x, result.cache
  x = 3.0 * np.asarray(X, np.float64) + 1.0
  expected = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-6)
  compared('post-norm', 'NumPy, float64', y, expected, rtol=1e-7, atol=1e-6)
  assert rest == 'cache'


def unlike_the_start(wiring):
  """The same part with its scalars somewhere else."""
  leaves, structure = jax.tree.flatten(wiring)
  moved = [leaf + 0.3 + 0.2 * i for i, leaf in enumerate(leaves)]
  return jax.tree.unflatten(structure, moved)


def with_scalars(kind):
  return lambda d_model, **settings: unlike_the_start(kind(d_model, **settings))


REZERO, FIXUP, LAYER_SCALE = map(with_scalars, (ReZero, FixupWiring, LayerScale))
WIRINGS = [PreNorm, PostNorm, BranchNorm, Sandwich, REZERO, LAYER_SCALE, FIXUP]


class Fixed(torch.nn.Module):
  """A sublayer of transformers that multiplies by a matrix."""

  def __init__(self, matrix, returns_tuple):
    super().__init__()
    self.matrix, self.returns_tuple = torch.from_numpy(matrix), returns_tuple

  def forward(self, hidden_states, **settings):
    y = hidden_states @ self.matrix
    return (y, None) if self.returns_tuple else y


def as_in_transformers(layer, attention, wirings, vectors, offset=0.0):
  """The output of a layer of transformers and that of two wirings, around the same two matrices.

  Args:
    layer: has the sublayers `attention` and 'mlp'.
    attention: the name of its attention.
    wirings: of the two sublayers.
    vectors: the names of the layer's vectors, by those of the two wirings.
    offset: what the layer adds to the scales of its norms.
  """
  rng = np.random.default_rng(0)
  matrices = [rng.normal(size=(8, 8)).astype(np.float32) for _ in range(2)]
  setattr(layer, attention, Fixed(matrices[0], returns_tuple=True))
  layer.mlp = Fixed(matrices[1], returns_tuple=False)
  state = dict(layer.named_parameters())
  assert {name for names in vectors for name in names} == set(state)
  for own, names in zip(wirings, vectors, strict=True):
    assert len(jax.tree.leaves(own)) == len(names)
    for name, path in names.items():
      value = rng.normal(size=8).astype(np.float32)
      state[name].data = torch.from_numpy(value)
      part, _, field = path.rpartition('.')
      target = getattr(getattr(own, part) if part else own, field)
      target[...] = jnp.asarray(value + (offset if field == 'scale' else 0.0))
  x = rng.normal(size=(3, 5, 8)).astype(np.float32)
  with torch.no_grad():
    expected = layer.eval()(torch.from_numpy(x))
  y = jnp.asarray(x)
  for own, matrix in zip(wirings, matrices, strict=True):
    y = own(y, lambda h, matrix=matrix: Result(h @ matrix)).x
  return y, expected.numpy()


def wirings(kind, norm):
  return [kind(8, norm=norm, rngs=nnx.Rngs(0)) for _ in range(2)]


def test_branch_norm_is_the_layer_of_olmo_2():
  config = Olmo2Config(hidden_size=8, num_attention_heads=2, intermediate_size=8, rms_norm_eps=1e-6)
  vectors = [
    {'post_attention_layernorm.weight': 'norm.scale'},
    {'post_feedforward_layernorm.weight': 'norm.scale'},
  ]
  layer = Olmo2DecoderLayer(config, 0)
  y, expected = as_in_transformers(layer, 'self_attn', wirings(BranchNorm, RMSNorm), vectors)
  np.testing.assert_allclose(y, expected, atol=1e-5, rtol=1e-5)


def test_sandwich_is_the_layer_of_gemma_2(compared):
  config = Gemma2Config(
    hidden_size=8, num_attention_heads=2, intermediate_size=8, rms_norm_eps=1e-6
  )
  vectors = [
    {
      'input_layernorm.weight': 'norm.scale',
      'post_attention_layernorm.weight': 'branch_norm.scale',
    },
    {
      'pre_feedforward_layernorm.weight': 'norm.scale',
      'post_feedforward_layernorm.weight': 'branch_norm.scale',
    },
  ]
  layer = Gemma2DecoderLayer(config, 0)
  own = wirings(Sandwich, RMSNorm)
  y, expected = as_in_transformers(layer, 'self_attn', own, vectors, offset=1.0)
  for system in ('sandwich norm', 'Peri-LN'):
    compared(system, 'transformers Gemma2DecoderLayer', y, expected, rtol=1e-5, atol=1e-5)


def test_layer_scale_is_the_layer_of_dinov2():
  config = Dinov2Config(hidden_size=8, num_attention_heads=2, layer_norm_eps=1e-6)
  vectors = [
    {
      f'norm{i}.weight': 'norm.scale',
      f'norm{i}.bias': 'norm.bias',
      f'layer_scale{i}.lambda1': 'gamma',
    }
    for i in (1, 2)
  ]
  layer = Dinov2Layer(config)
  y, expected = as_in_transformers(layer, 'attention', wirings(LayerScale, LayerNorm), vectors)
  np.testing.assert_allclose(y, expected, atol=1e-5, rtol=1e-5)


def test_layer_scale_starts_near_the_identity():
  branch = LayerScale(8, initial_value=1e-3, rngs=nnx.Rngs(0))(X, double).x - X
  whole = PreNorm(8, rngs=nnx.Rngs(0))(X, double).x - X
  np.testing.assert_allclose(branch, 1e-3 * whole, atol=1e-6)
  assert (LayerScale(8, rngs=nnx.Rngs(0)).gamma[...] == 1e-5).all()


@pytest.mark.parametrize('kind', [BranchNorm, Sandwich, LayerScale])
def test_a_stream_of_added_branches_is_not_normalised(kind):
  assert kind(8, rngs=nnx.Rngs(0)).ends_with_norm is False


@pytest.mark.parametrize('norm', [None, LayerNorm, RMSNorm])
def test_rezero_is_its_formula_and_starts_as_nothing(norm):
  wiring = ReZero(8, norm=norm, rngs=nnx.Rngs(0))
  np.testing.assert_array_equal(wiring(X, double).x, X)
  wiring.alpha[...] = jnp.asarray(0.7)
  result = wiring(X, double)
  y, rest = result.x, result.cache
  h = X if norm is None else norm(8, rngs=nnx.Rngs(0))(X)
  np.testing.assert_allclose(y, X + 0.7 * (2.0 * h + 1.0), atol=1e-6)
  assert rest == 'cache'


def test_fixup_is_its_formula(compared):
  wiring = FixupWiring(8, rngs=nnx.Rngs(0))
  np.testing.assert_allclose(wiring(X, double).x, 3.0 * X + 1.0, atol=1e-6)
  for name, value in (('before', 0.2), ('scale', 0.7), ('after', -0.4)):
    getattr(wiring, name)[...] = jnp.asarray(value)
  result = wiring(X, double)
  y, rest = result.x, result.cache
  expected = np.asarray(X, np.float64)
  expected = expected + 0.7 * (2.0 * (expected + 0.2) + 1.0) - 0.4
  compared('Fixup', 'NumPy, float64', y, expected, rtol=1e-7, atol=1e-6)
  assert rest == 'cache'


@pytest.mark.parametrize(('layers', 'power'), [(2, -1 / 2), (3, -1 / 4)])
def test_fixup_scales_by_the_number_of_branches(layers, power):
  init = fixup(num_branches=18, branch_layers=layers, init=normal(1.0))
  given = jax.random.key(0), (64, 32)
  np.testing.assert_allclose(init(*given), normal(1.0)(*given) * 18**power, rtol=1e-6)
  assert fixup(18) == fixup(18) != fixup(24) and fixup(18).init == he_normal()
  with pytest.raises(UserError, match='num_branches'):
    fixup(0)


def test_a_deep_network_starts_as_the_identity_and_its_first_step_does_not_grow_with_depth():
  def change(depth):
    init = fixup(num_branches=depth)
    keys = nnx.Rngs(0)
    mlp = functools.partial(MLP, hidden_dim=32, kernel_init=init, out_init=zeros())
    layers = [(FixupWiring(8, rngs=keys), mlp(8, rngs=keys)) for _ in range(depth)]

    def run(layers):
      x = X
      for wiring, sublayer in layers:
        x = wiring(x, functools.partial(sublayer, call=Call(Tokens.row(5)))).x
      return x

    np.testing.assert_array_equal(run(layers), X)
    gradient = jax.grad(lambda layers: jnp.square(run(layers) - 1.0).mean())(layers)
    stepped = jax.tree.map(lambda p, g: p - g if p.ndim > 1 else p, layers, gradient)
    return float(jnp.square(run(stepped) - X).mean() ** 0.5)

  assert 0.5 < change(16) / change(4) < 2


def test_a_scaled_residual_is_its_formula_with_dropout_of_the_input():
  wiring = ScaledResidual(8, dropout_rate=0.5, rngs=nnx.Rngs(0))
  y = wiring(X, double).x
  np.testing.assert_allclose(y, np.sqrt(0.5) * (X + 2.0 * X + 1.0), atol=1e-6)
  seen = []
  wiring(X, lambda h: (seen.append(h), double(h))[1], jax.random.key(1))
  dropped = np.asarray(seen[0] == 0)
  assert 0.3 < dropped.mean() < 0.7
  np.testing.assert_allclose(seen[0], np.where(dropped, 0, 2.0 * X), atol=1e-6)
  keep = jnp.asarray([0.0, 1.0, 2.0])[:, None, None]
  y = wiring(X, double, None, keep).x
  np.testing.assert_allclose(y, np.sqrt(0.5) * (X + keep * (2.0 * X + 1.0)), atol=1e-6)


@pytest.mark.parametrize(('kind', 'shape'), [(ReZero, ()), (FixupWiring, ()), (LayerScale, (8,))])
def test_factors_are_not_decayed(kind, shape):
  keys = jax.random.split(jax.random.key(0), 3)
  stacked = jax.vmap(lambda key: kind(8, rngs=nnx.Rngs(key)))(keys)
  assert all(leaf.shape == (3, *shape) for leaf in jax.tree.leaves(stacked))
  assert not any(decay_mask(Blueprint(jax.eval_shape(lambda: stacked)).infos).values())


@pytest.mark.parametrize('wiring_class', [PreNorm, PostNorm, REZERO, LAYER_SCALE])
def test_keep_scales_the_branch_of_each_example(wiring_class):
  wiring = wiring_class(8, rngs=nnx.Rngs(0))
  keep = jnp.asarray([0.0, 1.0, 2.0])[:, None, None]
  y = wiring(X, double, None, keep).x
  whole = wiring(X, double).x
  twice = wiring(X, lambda h: Result(2.0 * double(h).x)).x
  nothing = wiring(X, lambda h: Result(jnp.zeros_like(h))).x
  np.testing.assert_allclose(y, jnp.stack([nothing[0], whole[1], twice[2]]), atol=1e-6)


@pytest.mark.parametrize('wiring_class', [one for one in WIRINGS if one is not PostNorm])
def test_keep_and_dropout_apply_only_to_the_branch(wiring_class):
  wiring = wiring_class(8, dropout_rate=0.5, rngs=nnx.Rngs(0))
  branch = wiring(X, double).x - X
  y = wiring(X, double, jax.random.key(1)).x
  dropped = np.isclose(y, X)
  assert 0.3 < dropped.mean() < 0.7
  np.testing.assert_allclose(y, jnp.where(dropped, X, X + 2.0 * branch), atol=1e-5)
  keep = jnp.asarray([0.0, 1.0, 2.0])[:, None, None]
  np.testing.assert_allclose(wiring(X, double, None, keep).x, X + keep * branch, atol=1e-5)


@pytest.mark.parametrize('wiring_class', WIRINGS)
def test_without_a_key_there_is_no_dropout(wiring_class):
  wiring = wiring_class(8, dropout_rate=0.5, rngs=nnx.Rngs(0))
  sure = wiring_class(8, rngs=nnx.Rngs(0))
  np.testing.assert_array_equal(wiring(X, double, None).x, sure(X, double).x)
  assert not np.allclose(wiring(X, double, jax.random.key(1)).x, sure(X, double).x)


@pytest.mark.parametrize('wiring_class', WIRINGS)
def test_type_of_the_stream_is_kept(wiring_class):
  wiring = wiring_class(8, dropout_rate=0.1, rngs=nnx.Rngs(0))
  y = wiring(X.astype(jnp.bfloat16), double, jax.random.key(0), jnp.ones((3, 1, 1))).x
  assert y.dtype == jnp.bfloat16
