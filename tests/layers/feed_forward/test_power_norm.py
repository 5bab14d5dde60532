"""PowerNorm against algorithm 2 of the paper over several steps, in float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from applying import double
from flax import nnx
from tiny_lm import ATTENTION, causal_lm, full_rows, lm

from t2x.base.errors import UserError
from t2x.base.step import plain_operations
from t2x.layers import MLP, Call, NoNorm, Plain, PowerNorm, PowerNormRule, Tokens
from t2x.models import SublayerBlock
from t2x.parallel import Mesh
from t2x.train import AdamW, Constant, Experiment, Program, Trainer

WIDTH, GROUPS, DECAY, EPSILON = 6, 2, 0.7, 1e-3
SYSTEM = 'PowerNorm', 'NumPy, float64'
RNG = np.random.default_rng(0)
SEGMENTS = np.array([[1, 1, 1, 2, 2], [1, 1, 0, 0, 0]])
IS_TOKEN = (SEGMENTS > 0)[..., None]
X, G = RNG.normal(size=(2, 3, 2, 5, WIDTH)).astype(np.float32)
SCALE, BIAS = RNG.normal(size=(2, WIDTH)).astype(np.float32)


def paper(x, g, psi_squared, nu):
  """Outputs, gradients of y, scale and bias, and both averages after the step.

  `psi_squared` and `nu` are those of the preceding step, `g` is the gradient of the outputs.
  """
  tokens = [(b, t) for b in range(2) for t in range(5) if SEGMENTS[b, t]]
  psi = np.sqrt(psi_squared + EPSILON)
  hat = x / psi
  slope_of_hat = SCALE.astype(np.float64) * g
  corrected = slope_of_hat - nu * hat
  count = len(tokens)
  sigma = sum(x[i] ** 2 for i in tokens) / count
  gamma = sum(hat[i] * hat[i] for i in tokens) / count
  big_lambda = sum(slope_of_hat[i] * hat[i] for i in tokens) / count
  return (
    hat * SCALE + BIAS,
    corrected / psi * IS_TOKEN,
    sum(g[i] * hat[i] for i in tokens),
    sum(g[i] for i in tokens),
    DECAY * psi_squared + (1 - DECAY) * sigma,
    nu * (1 - (1 - DECAY) * gamma) + (1 - DECAY) * big_lambda,
  )


def layer_scaled(x, g=None):
  """x divided by the root mean square of its group; with `g`, the gradient of x for the gradient g of that."""
  y, slope = np.zeros(x.shape), np.zeros(x.shape)
  size = WIDTH // GROUPS
  for first in range(0, WIDTH, size):
    group = slice(first, first + size)
    rms = np.sqrt((x[..., group] ** 2).mean(axis=-1, keepdims=True) + EPSILON)
    y[..., group] = x[..., group] / rms
    if g is not None:
      along = (g[..., group] * y[..., group]).mean(axis=-1, keepdims=True)
      slope[..., group] = (g[..., group] - y[..., group] * along) / rms
  return y if g is None else slope


def test_steps_equal_the_algorithm(compared):
  """Outputs, gradients and averages in three steps of packed rows with padding; halves of a batch add up."""
  rule = PowerNormRule(decay=DECAY, epsilon=EPSILON)
  norm = PowerNorm(WIDTH, num_groups=GROUPS, averages=rule, rngs=nnx.Rngs(0))
  norm.scale[...], norm.bias[...] = jnp.asarray(SCALE), jnp.asarray(BIAS)
  assert norm.means.get_metadata()['rule'] is rule

  @jax.jit
  def step(norm, x, g, segments):
    def weighted(norm, x):
      y = norm(x, Call(Tokens(jnp.arange(5)[None], segments))).x
      return (y * g).sum(), y

    return jax.grad(weighted, argnums=(0, 1), has_aux=True)(norm, x)

  psi_squared, nu = np.ones(WIDTH), np.zeros(WIDTH)
  for x, g in zip(X, np.where(IS_TOKEN, G, 0), strict=True):
    (slopes, slope), y = step(norm, *map(jnp.asarray, (x, g, SEGMENTS)))
    inner = layer_scaled(np.float64(x))
    wanted, of_inner, of_scale, of_bias, psi_squared, nu = paper(inner, g, psi_squared, nu)
    compared(*SYSTEM, y, wanted)
    compared(*SYSTEM, slope, layer_scaled(np.float64(x), of_inner), of='gradients')
    compared(*SYSTEM, slopes.scale[...], of_scale, of='gradients')
    compared(*SYSTEM, slopes.bias[...], of_bias, of='gradients')
    halves = [
      step(norm, *(jnp.asarray(a[rows]) for a in (x, g, SEGMENTS)))[0][0].means[...]
      for rows in (slice(0, 1), slice(1, 2))
    ]
    np.testing.assert_allclose(sum(halves), slopes.means[...], atol=1e-5)
    norm.means[...] = rule(norm.means[...], slopes.means[...])
    compared(*SYSTEM, norm.means[0], psi_squared)
    compared(*SYSTEM, norm.means[1], nu)
  assert np.abs(nu).max() > 0.1
  assert (double(norm.means)[2] == 0).all()


def test_a_step_without_tokens_moves_nothing():
  value = jnp.asarray([[2.0], [0.5], [0.0]])
  rule = PowerNormRule(decay=DECAY, epsilon=EPSILON)
  np.testing.assert_array_equal(rule(value, jnp.zeros((3, 1))), value)


def test_plain_operations_give_the_same_output():
  norm = PowerNorm(WIDTH, rngs=nnx.Rngs(0))
  call = Call(Tokens.row(5))
  with plain_operations():
    plain, slope = jax.jvp(lambda x: norm(x, call).x, (X[0],), (G[0],))
  np.testing.assert_allclose(plain, norm(jnp.asarray(X[0]), call).x, atol=1e-6)
  assert jnp.isfinite(slope).all()


def test_groups_that_do_not_divide_the_width_are_refused():
  with pytest.raises(UserError, match=r'PowerNorm.num_groups = 4 does not divide d_model = 6'):
    PowerNorm(WIDTH, num_groups=4, rngs=nnx.Rngs(0))


def trained(accumulate):
  """The running means of both layers after three steps of a causal language model on packed rows with padding."""
  sublayers = {'mixer': ATTENTION, 'mixer_norm': PowerNorm, 'mlp': MLP, 'mlp_norm': PowerNorm}
  sublayers['mlp'] = lambda d_model, *, rngs: MLP(d_model, hidden_dim=16, rngs=rngs)
  wiring = {name: Plain if name.endswith('norm') else NoNorm for name in sublayers}
  block = lambda d_model, *, rngs: SublayerBlock(  # noqa: E731
    d_model, sublayers=sublayers, wiring=wiring, rngs=rngs
  )
  trainer = Trainer(
    num_steps=3,
    batch_size=4,
    optimizer=AdamW(),
    schedule=Constant(peak=1e-2),
    accumulate=accumulate,
  )
  experiment = Experiment(
    model=lm(num_layers=2, blocks=[block]), task=causal_lm(12), trainer=trainer, mesh=Mesh()
  )
  program = Program(experiment)
  state, frozen = program.init(0)
  step = jax.jit(program.step())
  for seed in range(3):
    rows = full_rows(4, 12, seed)
    state, _ = step(state, frozen, rows | {'segments': rows['segments'].at[1:, 8:].set(0)})
  return {name: np.asarray(a) for name, a in state.params.items() if name.endswith('means')}


def test_micro_batches_move_the_means_alike():
  whole, parts = trained(1), trained(2)
  assert len(whole) == 2
  for name, means in whole.items():
    assert (means[:, 0] != 1).all() and (means[:, 1] != 0).all()
    np.testing.assert_allclose(means, parts[name], rtol=1e-5, atol=1e-6)
