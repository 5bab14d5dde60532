"""Wirings and initialisers of deep stacks against published factors and PyTorch."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from t2x.base.errors import UserError
from t2x.layers import (
  MLP,
  Admin,
  Call,
  DeepNorm,
  MultiHeadAttention,
  NoNorm,
  PostNorm,
  Result,
  Tokens,
  deep_norm_init,
  normal,
  sub_ln_init,
  t_fixup_decoder,
  t_fixup_encoder,
  width_normal,
  xavier_uniform,
)
from t2x.layers.building import at_position
from t2x.models import Block, Stack

torch = pytest.importorskip('torch', reason="the extra 'references' is not installed")

WIDTH = 8
X = jax.random.normal(jax.random.key(0), (3, 5, WIDTH))
KEY = jax.random.key(1)
WEIGHT = np.asarray(jax.random.normal(jax.random.key(2), (WIDTH, WIDTH)))


def built(kind, num_layers, num_branches=2, **settings):
  with at_position(num_layers=num_layers, num_branches=num_branches):
    return kind(WIDTH, rngs=nnx.Rngs(0), **settings)


def factor(init, num_layers, num_branches=2):
  """The factor by which an initialiser multiplies Xavier's values."""
  with at_position(num_layers=num_layers, num_branches=num_branches):
    values = init(KEY, (16, 24))
  (ratio,) = np.unique(np.round(values / init.init(KEY, (16, 24)), 5))
  return ratio


def torch_norm(x):
  return torch.nn.functional.layer_norm(torch.tensor(np.asarray(x)), (WIDTH,), eps=1e-6).numpy()


# alpha and beta by torchscale's formulas: `math.pow` of 2 N, 3 N, 8 N and 12 N.
@pytest.mark.parametrize(
  ('num_layers', 'num_branches', 'alpha', 'beta'),
  [
    (6, 2, (2 * 6) ** 0.25, (8 * 6) ** -0.25),
    (100, 2, 200**0.25, 800**-0.25),
    (6, 3, (3 * 6) ** 0.25, (12 * 6) ** -0.25),
  ],
)
def test_deep_norm_has_the_published_factors(num_layers, num_branches, alpha, beta, compared):
  wiring = built(DeepNorm, num_layers, num_branches)
  assert wiring.ends_with_norm and wiring.alpha == pytest.approx(alpha)
  y = wiring(X, lambda h: Result(h @ WEIGHT)).x
  expected = torch_norm(alpha * X + X @ WEIGHT)
  compared('DeepNorm', 'torch layer_norm', y, expected, rtol=1e-7)
  assert factor(deep_norm_init(), num_layers, num_branches) == pytest.approx(beta, abs=1e-5)


def test_deep_norm_of_the_encoder_of_an_encoder_decoder():
  """Wang et al., figure 2: 0.81 (N^4 M)^(1/16) and 0.87 (N^4 M)^(-1/16)."""
  assert built(DeepNorm, 6, decoder_layers=4).alpha == pytest.approx(0.81 * (6**4 * 4) ** (1 / 16))
  beta = factor(deep_norm_init(decoder_layers=4), 6)
  assert beta == pytest.approx(0.87 * (6**4 * 4) ** (-1 / 16), abs=1e-5)


def test_t_fixup_has_the_factors_of_the_authors_code():
  assert factor(t_fixup_encoder(), 12) == pytest.approx(0.67 * 12**-0.25, abs=1e-5)
  assert factor(t_fixup_decoder(), 12, 3) == pytest.approx((9 * 12) ** -0.25, abs=1e-5)
  table = t_fixup_decoder(width_normal(64), num_layers=12)(KEY, (5000, 64))
  assert float(table.std()) == pytest.approx(64**-0.5 * (9 * 12) ** -0.25, rel=0.01)


def test_sub_ln_has_the_published_factors():
  assert factor(sub_ln_init(), 12) == pytest.approx(math.sqrt(math.log(24)), abs=1e-5)
  assert factor(sub_ln_init(), 12, 3) == pytest.approx(math.sqrt(math.log(36)), abs=1e-5)
  gamma = math.sqrt(math.log(3 * 4) * math.log(2 * 12) / 3)
  assert factor(sub_ln_init(decoder_layers=4), 12) == pytest.approx(gamma, abs=1e-5)


@pytest.mark.parametrize(
  'part', [deep_norm_init(), sub_ln_init(), t_fixup_encoder(), t_fixup_decoder()]
)
def test_an_initialiser_without_a_stack_is_refused(part):
  with pytest.raises(UserError, match='depends on the depth of a stack'):
    part(KEY, (4, 4))


def test_initialisers_scale_only_their_projections(compared):
  def stack(**settings):
    attention = functools.partial(MultiHeadAttention, num_heads=2, **settings)
    block = functools.partial(
      Block, mixer=attention, feed_forward=functools.partial(MLP, hidden_dim=4)
    )
    return Stack(WIDTH, num_layers=4, blocks=[block], rngs=nnx.Rngs(0)).blocks[0].mixer

  init = t_fixup_encoder()
  plain, scaled = stack(), stack(value_init=init, out_init=init)
  for name, ratio in (('q', 1), ('k', 1), ('v', 0.67 * 4**-0.25), ('out', 0.67 * 4**-0.25)):
    a, b = (vars(mixer)[name].kernel[...] for mixer in (plain, scaled))
    compared('T-Fixup', 'NumPy, float64', b, ratio * a, rtol=1e-5, atol=0)


def test_no_norm_adds_the_branch():
  wiring = NoNorm(WIDTH, rngs=nnx.Rngs(0))
  np.testing.assert_allclose(wiring(X, lambda h: Result(2 * h)).x, 3 * X, rtol=1e-6)
  assert not wiring.ends_with_norm and not jax.tree.leaves(wiring)


# admin_torch.calculate_init(12) and (96).
@pytest.mark.parametrize(('num_layers', 'expected'), [(6, 2.0170092), (48, 4.4948332)])
def test_admin_starts_at_the_values_of_admin_torch(num_layers, expected, compared):
  wiring = built(Admin, num_layers)
  np.testing.assert_allclose(wiring.omega[...], np.full(WIDTH, expected), rtol=1e-6)
  wiring.omega[...] = jnp.linspace(0.5, 2, WIDTH)
  y = wiring(X, lambda h: Result(h @ WEIGHT)).x
  expected = torch_norm(np.linspace(0.5, 2, WIDTH) * np.asarray(X) + X @ WEIGHT)
  compared('Admin', 'torch layer_norm', y, expected, rtol=1e-7)


def test_admin_takes_one_value_per_branch_of_the_stack():
  omega = [1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.7]
  block = functools.partial(
    Block,
    mixer=functools.partial(MultiHeadAttention, num_heads=2),
    feed_forward=functools.partial(MLP, hidden_dim=4),
    wiring=functools.partial(Admin, omega=omega),
  )
  blocks = Stack(WIDTH, num_layers=4, blocks=[block, block], rngs=nnx.Rngs(0)).blocks
  values = [
    float(vars(blocks[place])[name].omega[...][repeat, 0])
    for repeat in range(2)
    for place in range(2)
    for name in ('mixer_wiring', 'feed_forward_wiring')
  ]
  np.testing.assert_allclose(values, omega)
  with pytest.raises(UserError, match='has 8 values, but the stack has 4 residual branches'):
    Stack(WIDTH, num_layers=2, blocks=[block], rngs=nnx.Rngs(0))


def first_change(wiring, init, num_layers):
  """RMS change of a stack's output after one step of gradient descent on all matrices."""
  init = xavier_uniform if init is None else init
  block = functools.partial(
    Block,
    mixer=functools.partial(MultiHeadAttention, num_heads=2, value_init=init(), out_init=init()),
    feed_forward=functools.partial(MLP, hidden_dim=16, kernel_init=init(), out_init=init()),
    wiring=wiring,
  )
  stack = Stack(WIDTH, num_layers=num_layers, blocks=[block], rngs=nnx.Rngs(0))
  call_of = functools.partial(run, target=normal(1.0)(KEY, X.shape))
  gradient = jax.jit(jax.grad(lambda stack: call_of(stack)[1]))(stack)
  stepped = jax.tree.map(lambda p, g: p - 0.001 * g, stack, gradient)
  change = call_of(stepped)[0] - call_of(stack)[0]
  return float(jnp.square(change).mean() ** 0.5)


def run(stack, target):
  y = stack(X, Call(Tokens.row(X.shape[1]))).x
  return y, jnp.square(y - target).mean()


@pytest.mark.nightly
@pytest.mark.parametrize(
  ('wiring', 'init'), [(DeepNorm, deep_norm_init), (Admin, None), (NoNorm, t_fixup_encoder)]
)
def test_the_first_step_of_a_deep_stack_is_smaller_than_that_of_post_norm(wiring, init):
  plain = first_change(PostNorm, None, 24) / first_change(PostNorm, None, 3)
  assert first_change(wiring, init, 24) / first_change(wiring, init, 3) < 0.5 * plain
