"""MLP and gated units against their formulas; activations against theirs; initialisers."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from applying import applied
from flax import nnx

from t2x import config as config_lib
from t2x import layers
from t2x.base.errors import UserError
from t2x.layers import MLP, GatedMLP, Linear, normal, variance_scaling, xavier_uniform

SIZE = ['MLP.hidden_dim=4']
ACTIVATIONS = {
  'relu': lambda x: max(x, 0.0),
  'gelu': lambda x: 0.5 * x * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
  'gelu_exact': lambda x: 0.5 * x * (1 + math.erf(x / math.sqrt(2))),
  'quick_gelu': lambda x: x / (1 + math.exp(-1.702 * x)),
  'silu': lambda x: x / (1 + math.exp(-x)),
  'swish': lambda x: x / (1 + math.exp(-x)),
  'elu': lambda x: x if x > 0 else math.exp(x) - 1,
  'selu': lambda x: 1.0507009873554805 * (x if x > 0 else 1.6732632423543772 * (math.exp(x) - 1)),
  'sigmoid': lambda x: 1 / (1 + math.exp(-x)),
  'softplus': lambda x: math.log1p(math.exp(x)),
  'tanh': math.tanh,
  'linear': lambda x: x,
  'relu_squared': lambda x: max(x, 0.0) ** 2,
}


SYSTEMS = {'gelu': 'GELU', 'swish': 'Swish', 'elu': 'ELU', 'selu': 'SELU'}


@pytest.mark.parametrize('name', ACTIVATIONS)
def test_activation_is_its_formula(name, compared):
  x = np.linspace(-4.0, 4.0, 33)
  expected = [ACTIVATIONS[name](value) for value in x]
  y = getattr(layers, name)(jnp.asarray(x, jnp.float32))
  compared(SYSTEMS.get(name), 'NumPy, float64', y, expected, rtol=1e-5, atol=2e-6)


# As PyTorch's: of two slopes that meet at 0 the one from below.
@pytest.mark.parametrize(
  ('name', 'slope'),
  [
    ('relu', 0.0),
    ('relu_squared', 0.0),
    ('elu', 1.0),
    ('selu', 1.0507009873554805 * 1.6732632423543772),
  ],
)
def test_gradient_at_the_kink_is_that_from_below(name, slope):
  gradient = jax.vmap(jax.grad(getattr(layers, name)))(jnp.array([0.0, -0.0]))
  np.testing.assert_allclose(gradient, [slope, slope], rtol=1e-6)


def weights(module):
  """The parameters of a feed-forward layer with random biases, in float64."""
  rng = np.random.default_rng(1)
  found = {}
  for name in ('gate', 'up', 'down'):
    projection = getattr(module, name, None)
    if projection is None:
      continue
    bias = 0.0
    if projection.bias is not None:
      bias = rng.normal(size=projection.bias[...].shape)
      projection.bias[...] = jnp.asarray(bias, jnp.float32)
    found[name] = np.asarray(projection.kernel[...], np.float64), bias
  return found


def apply(x, kernel_and_bias):
  return x @ kernel_and_bias[0] + kernel_and_bias[1]


@pytest.mark.parametrize('use_bias', [True, False])
def test_mlp_is_its_formula(use_bias):
  mlp = MLP(6, hidden_dim=10, activation=layers.tanh, use_bias=use_bias, rngs=nnx.Rngs(0))
  x = np.random.default_rng(0).normal(size=(2, 3, 6))
  w = weights(mlp)
  y, cache = applied(mlp, jnp.asarray(x, jnp.float32))
  np.testing.assert_allclose(y, apply(np.tanh(apply(x, w['up'])), w['down']), atol=2e-5)
  assert cache is None


@pytest.mark.parametrize('name', ['sigmoid', 'gelu', 'relu', 'silu', 'linear'])
def test_gated_mlp_is_its_formula(name, compared):
  activation = getattr(layers, name)
  mlp = GatedMLP(6, hidden_dim=10, activation=activation, use_bias=True, rngs=nnx.Rngs(0))
  x = np.random.default_rng(0).normal(size=(2, 3, 6))
  w = weights(mlp)
  gate = np.vectorize(ACTIVATIONS[name])(apply(x, w['gate']))
  y, _ = applied(mlp, jnp.asarray(x, jnp.float32))
  expected = apply(gate * apply(x, w['up']), w['down'])
  compared('gated linear units', 'NumPy, float64', y, expected, rtol=1e-7, atol=2e-5)


@pytest.mark.parametrize('ff_class', [MLP, GatedMLP])
def test_dropout_needs_a_key_and_keeps_the_mean(ff_class):
  mlp = ff_class(4, hidden_dim=1024, activation=layers.relu, dropout_rate=0.5, rngs=nnx.Rngs(0))
  x = jnp.ones((1, 1, 4))
  whole, _ = applied(mlp, x)
  np.testing.assert_array_equal(whole, applied(mlp, x, key=None)[0])
  dropped = jax.jit(jax.vmap(lambda key: applied(mlp, x, key=key)[0]))(
    jax.random.split(jax.random.key(0), 16)
  )
  assert not np.allclose(dropped[0], dropped[1])
  np.testing.assert_allclose(dropped.mean(0), whole, atol=4 * dropped.std(0).max() / 4)


def test_parameters_name_their_axes():
  mlp = GatedMLP(4, hidden_dim=8, use_bias=True, rngs=nnx.Rngs(0))
  assert mlp.gate.kernel.axes == mlp.up.kernel.axes == ('embed', 'mlp')
  assert mlp.down.kernel.axes == ('mlp', 'embed')
  assert (mlp.up.bias.axes, mlp.down.bias.axes) == (('mlp',), ('embed',))


def test_fans_match_the_matrix_whatever_the_heads():
  init = variance_scaling(1.0, 'fan_in', 'normal')
  inwards = Linear((64,), (8, 16), ('embed', 'heads', 'head_dim'), init=init, rngs=nnx.Rngs(0))
  outwards = Linear((8, 16), (64,), ('heads', 'head_dim', 'embed'), init=init, rngs=nnx.Rngs(0))
  assert inwards.kernel[...].std() == pytest.approx(64**-0.5, rel=0.05)
  assert outwards.kernel[...].std() == pytest.approx(128**-0.5, rel=0.05)


@pytest.mark.parametrize(
  ('init', 'stddev'),
  [
    (layers.normal(0.5), 0.5),
    (layers.truncated_normal(0.5), 0.5),
    (layers.xavier_uniform(), math.sqrt(2 / 500)),
    (layers.lecun_normal(), math.sqrt(1 / 200)),
    (layers.he_normal(), math.sqrt(2 / 200)),
    (variance_scaling(3.0, 'fan_out', 'uniform'), math.sqrt(3 / 300)),
    (layers.zeros(), 0.0),
  ],
)
def test_initializer_has_its_spread(init, stddev):
  values = init(jax.random.key(0), (200, 300), jnp.float32)
  assert float(values.std()) == pytest.approx(stddev, rel=0.02)
  assert float(values.mean()) == pytest.approx(0.0, abs=0.02 * stddev)


def test_initializers_are_values():
  assert normal(0.1) == normal(0.1) != normal(0.2)
  assert hash(xavier_uniform()) == hash(xavier_uniform())
  assert (layers.ones()(jax.random.key(0), (3,), jnp.float32) == 1).all()


@pytest.mark.parametrize('name', ['relu', 'selu', 'sigmoid', 'silu', 'softplus', 'tanh'])
def test_a_config_binds_the_function_of_jax_itself_under_its_name(name):
  config = config_lib.load([], [*SIZE, f'MLP.activation=@{name}'], ['t2x.layers'], root='@MLP')
  assert config.build().keywords['activation'] is getattr(jnp if name == 'tanh' else jax.nn, name)
  assert f'".activation": ["{name}", false, {{}}]' in config_lib.canonical(config)
  assert f'activation = @{name}\n' in config_lib.render(config)


@pytest.mark.parametrize('name', ['leaky_relu', 'jax.nn.leaky_relu', 'jax.nn.relu', 'nn.silu'])
def test_no_other_function_of_jax_is_part_of_a_config(name):
  with pytest.raises(UserError, match=f"no part named '{name}'"):
    config_lib.load([], [*SIZE, f'MLP.activation=@{name}'], ['t2x.layers'], root='@MLP')
