"""What is put around a sublayer: norms, or scalars."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from t2x.errors import UserError
from t2x.layers import (
  MLP,
  Call,
  FixupWiring,
  LayerNorm,
  PostNorm,
  PreNorm,
  Result,
  ReZero,
  RMSNorm,
  Tokens,
  fixup,
  he_normal,
  normal,
  zeros,
)
from t2x.train.optimizers import decay_mask
from t2x.train.params import Blueprint

X = jax.random.normal(jax.random.key(0), (3, 5, 8))


def double(h):
  return Result(2.0 * h + 1.0, 'cache')


def test_pre_norm_is_its_formula():
  wiring = PreNorm(8, norm=RMSNorm, rngs=nnx.Rngs(0))
  result = wiring(X, double)
  y, rest = result.x, result.cache
  np.testing.assert_allclose(y, X + 2.0 * RMSNorm(8, rngs=nnx.Rngs(0))(X) + 1.0, atol=1e-6)
  assert rest == 'cache'


def test_post_norm_is_its_formula():
  wiring = PostNorm(8, rngs=nnx.Rngs(0))
  result = wiring(X, double)
  y, rest = result.x, result.cache
  np.testing.assert_allclose(y, LayerNorm(8, rngs=nnx.Rngs(0))(3.0 * X + 1.0), atol=1e-6)
  assert rest == 'cache'


def unlike_the_start(wiring):
  """The same part with its scalars somewhere else."""
  leaves, structure = jax.tree.flatten(wiring)
  moved = [leaf + 0.3 + 0.2 * i for i, leaf in enumerate(leaves)]
  return jax.tree.unflatten(structure, moved)


def with_scalars(kind):
  return lambda d_model, **settings: unlike_the_start(kind(d_model, **settings))


REZERO, FIXUP = with_scalars(ReZero), with_scalars(FixupWiring)
WIRINGS = [PreNorm, PostNorm, REZERO, FIXUP]


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


def test_fixup_is_its_formula():
  wiring = FixupWiring(8, rngs=nnx.Rngs(0))
  np.testing.assert_allclose(wiring(X, double).x, 3.0 * X + 1.0, atol=1e-6)
  for name, value in (('before', 0.2), ('scale', 0.7), ('after', -0.4)):
    getattr(wiring, name)[...] = jnp.asarray(value)
  result = wiring(X, double)
  y, rest = result.x, result.cache
  np.testing.assert_allclose(y, X + 0.7 * (2.0 * (X + 0.2) + 1.0) - 0.4, atol=1e-6)
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


@pytest.mark.parametrize('kind', [ReZero, FixupWiring])
def test_scalars_are_not_decayed(kind):
  keys = jax.random.split(jax.random.key(0), 3)
  stacked = jax.vmap(lambda key: kind(8, rngs=nnx.Rngs(key)))(keys)
  assert all(leaf.shape == (3,) for leaf in jax.tree.leaves(stacked))
  assert not any(decay_mask(Blueprint(jax.eval_shape(lambda: stacked)).infos).values())


@pytest.mark.parametrize('wiring_class', [PreNorm, PostNorm, REZERO])
def test_keep_scales_the_branch_of_each_example(wiring_class):
  wiring = wiring_class(8, rngs=nnx.Rngs(0))
  keep = jnp.asarray([0.0, 1.0, 2.0])[:, None, None]
  y = wiring(X, double, None, keep).x
  whole = wiring(X, double).x
  twice = wiring(X, lambda h: Result(2.0 * double(h).x)).x
  nothing = wiring(X, lambda h: Result(jnp.zeros_like(h))).x
  np.testing.assert_allclose(y, jnp.stack([nothing[0], whole[1], twice[2]]), atol=1e-6)


@pytest.mark.parametrize('wiring_class', [PreNorm, REZERO, FIXUP])
def test_keep_and_dropout_are_on_the_branch_alone(wiring_class):
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
