"""Dropless: against all experts computed for all tokens, and its products against `jax.lax.ragged_dot`."""

import functools
import math
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from t2x.base.errors import UserError
from t2x.base.step import in_step, plain_operations, step_context
from t2x.layers import (
  MLP,
  Aux,
  Call,
  Capacity,
  Dropless,
  FeedForward,
  GatedMLP,
  MixtureOfExperts,
  Result,
  RMSNorm,
  Routing,
  Tokens,
)
from t2x.layers.grouped import Groups, grouped_parts, grouped_product
from t2x.layers.keys import row_keys
from t2x.layers.parameters import Linear

BATCH, LENGTH, WIDTH, EXPERTS = 3, 30, 8, 5
SEGMENTS = [[0, 0] + [1] * 18 + [2] * 10, [1] * LENGTH, [1] * 7 + [0] + [1] * 12 + [0] * 10]
EXACT = {'atol': 2e-6, 'rtol': 2e-6}


class Own(FeedForward):
  """A user's expert with a matrix of its own, not in a `Linear`, and a vector."""

  def __init__(self, d_model, *, rngs):
    key = jax.random.split(rngs.params())
    self.matrix = nnx.Param(jax.random.normal(key[0], (d_model, d_model)))
    self.vector = nnx.Param(jax.random.normal(key[1], (d_model,)))
    self.linear = Linear(
      (d_model,), (d_model,), ('embed', 'mlp'), init=nnx.initializers.normal(), rngs=rngs
    )

  def __call__(self, x, call, cache=None):
    y = self.linear(x @ self.matrix[...] + self.vector[...][None, None])
    occupied = (call.tokens.segments != 0).astype(jnp.float32)
    return Result(y, aux=Aux({'used': occupied.sum(axis=1)}, {'mean': (occupied.sum(), 1.0)}))


EXPERT = {
  'gated': functools.partial(GatedMLP, hidden_dim=12),
  'biases and a norm': functools.partial(MLP, hidden_dim=12, norm=RMSNorm),
  'own matrix': Own,
}


def mixture(expert='gated', **settings):
  part = MixtureOfExperts(
    WIDTH,
    num_experts=EXPERTS,
    rngs=nnx.Rngs(0),
    **{'expert': EXPERT.get(expert, expert), 'dispatch': Dropless(), **settings},
  )
  leaves, structure = jax.tree.flatten(part)
  keys = jax.random.split(jax.random.key(1), len(leaves))
  noisy = [a + 0.1 * jax.random.normal(k, a.shape) for a, k in zip(leaves, keys, strict=True)]
  return jax.tree.unflatten(structure, noisy)


def inputs(seed=1):
  return jax.random.normal(jax.random.key(seed), (BATCH, LENGTH, WIDTH))


def call(segments=SEGMENTS, **fields):
  segments = None if segments is None else jnp.asarray(segments)
  return Call(Tokens.row(LENGTH, segments=segments), **fields)


def of_all_experts(part, x):
  """Computes all experts for all tokens, and multiplies them with their weights."""
  routing = part.router(x, call())
  hot = jax.nn.one_hot(routing.expert, EXPERTS) * routing.weight[..., None]
  weight = hot.sum(axis=2) * (jnp.asarray(SEGMENTS) != 0)[..., None]
  no_padding, y = call([[1] * LENGTH] * BATCH), 0.0
  for i in range(EXPERTS):
    expert = jax.tree.map(lambda a, i=i: a[i], part.expert)
    y += weight[..., i, None] * expert(x, no_padding).x
  return y


def value_and_gradients(function, part, x):
  weights = jax.random.normal(jax.random.key(2), x.shape)

  def loss(part, x):
    y = function(part, x)
    return (y * weights).sum(), y

  return jax.jit(jax.value_and_grad(loss, argnums=(0, 1), has_aux=True))(part, x)


def assert_equal(actual, expected, tolerance=1e-6):
  """Differences are relative to the largest value of each array."""
  pairs = zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True)
  for a, b in pairs:
    scale = max(1.0, float(np.abs(np.asarray(b)).max()))
    np.testing.assert_allclose(a, b, atol=tolerance * scale, rtol=0)


@pytest.mark.parametrize(
  ('expert', 'plain'),
  [*((name, False) for name in EXPERT), ('biases and a norm', True)],
  ids=lambda value: {True: 'ragged_dot', False: 'blocks'}.get(value, value),
)
def test_the_output_and_the_gradients_equal_those_of_all_experts(expert, plain):
  """With padding at the start, inside and at the end of a row."""

  def own(part, x):
    if not plain:
      return part(x, call()).x
    with plain_operations():
      return part(x, call()).x

  part, x = mixture(expert), inputs()
  assert_equal(
    value_and_gradients(own, part, x), value_and_gradients(of_all_experts, part, x), 2e-6
  )


def test_with_room_the_first_choices_of_each_expert_in_the_batch_have_places():
  """Outputs, gradients and the metric, where the choices without a place have the weight 0."""
  part, x = mixture('biases and a norm', dispatch=Dropless(room=0.7)), inputs()
  expert = np.array(part.router(x, call()).expert)
  places, is_token = math.ceil(0.7 * expert.size / EXPERTS), np.array(SEGMENTS) != 0
  used, count = np.zeros(expert.shape), np.zeros(EXPERTS, int)
  for place in np.ndindex(expert.shape):
    if is_token[place[:2]] and count[expert[place]] < places:
      used[place], count[expert[place]] = 1, count[expert[place]] + 1

  def with_places(part, x):
    routing = part.router(x, call())
    weight = jax.nn.one_hot(routing.expert, EXPERTS) * (routing.weight * used)[..., None]
    experts = [jax.tree.map(lambda a, i=i: a[i], part.expert) for i in range(EXPERTS)]
    ys = jnp.stack([e(x, call([[1] * LENGTH] * BATCH)).x for e in experts], axis=2)
    return (weight.sum(axis=2)[..., None] * ys).sum(axis=2)

  results = [value_and_gradients(f, part, x) for f in (lambda p, x: p(x, call()).x, with_places)]
  assert_equal(*results, 2e-6)
  dropped, chosen = part(x, call()).aux.metrics['dropped_tokens']
  assert (dropped, chosen) == (2 * is_token.sum() - used.sum(), 2 * is_token.sum())
  assert dropped > 0
  one = part(x[:, :1], Call(Tokens.row(1))).aux.metrics['dropped_tokens']
  assert one == (0, 2 * BATCH)


@pytest.mark.parametrize('outer', [Dropless(), Capacity(factor=float(EXPERTS))])
@pytest.mark.parametrize('inner', [Dropless(), Capacity(factor=4.0)])
def test_mixtures_of_mixtures_are_equal_or_refused(outer, inner):
  experts = functools.partial(
    MixtureOfExperts, num_experts=4, expert=EXPERT['gated'], dispatch=inner
  )
  part, x = mixture(experts, dispatch=outer), inputs()
  if isinstance(outer, Dropless) and isinstance(inner, Capacity):
    with pytest.raises(UserError, match=r'Capacity gives slots to the tokens of each row'):
      part(x, call())
  else:
    expected = mixture(experts, dispatch=Capacity(factor=float(EXPERTS)))(x, call()).x
    np.testing.assert_allclose(part(x, call()).x, expected, **EXACT)


def test_places_for_a_batch_are_refused_where_a_step_splits_it():
  part, x = mixture('gated', dispatch=Dropless(room=0.7)), inputs()
  with in_step(micro_batches=2), pytest.raises(UserError, match=r'room .* Trainer.accumulate = 2'):
    part(x, call())
  with in_step(micro_batches=2):
    mixture('gated')(x, call())


def test_a_capacity_that_drops_nothing_gives_the_same():
  part, x = mixture('biases and a norm'), inputs()
  results = []
  for dispatch in (Dropless(), Capacity(factor=float(EXPERTS))):
    part.dispatch = dispatch
    results.append(value_and_gradients(lambda part, x: part(x, call()).x, part, x))
  assert_equal(*(jax.tree.leaves(result) for result in results), 2e-6)


@pytest.mark.parametrize(('sizes', 'block'), [((64, 0, 32, 96), 32), ((0, 0, 192, 0), 64)])
def test_products_of_blocks_equal_ragged_dot(sizes, block):
  """Outputs and gradients to 1e-6, with parts without rows; rows that are not in use give zeros."""
  rows = 224 if block == 32 else 256
  keys = jax.random.split(jax.random.key(0), 3)
  x = jax.random.normal(keys[0], (1, rows, WIDTH))
  kernel = jax.random.normal(keys[1], (len(sizes), WIDTH, 12))
  weights = jax.random.normal(keys[2], (rows, 12))
  counts = jnp.asarray(sizes)
  part = jnp.searchsorted(jnp.cumsum(counts), jnp.arange(rows), side='right')
  groups = Groups(counts[None, None], part[None], block)

  def blocks(x, kernel):
    def multiply(kernel):
      return grouped_product(x, kernel, ('embed', 'mlp'), step_context().groups), ()

    y, _ = grouped_parts(multiply, groups, kernel)
    return (y[0] * weights).sum(), y[0]

  def ragged(x, kernel):
    y = jax.lax.ragged_dot(x[0], kernel, counts)
    return (y * weights).sum(), y

  results = [
    jax.jit(jax.value_and_grad(function, argnums=(0, 1), has_aux=True))(x, kernel)
    for function in (blocks, ragged)
  ]
  assert_equal(*results)


def test_gradients_of_kernels_are_rounded_once():
  """Sums over blocks in bfloat16 would be rounded once per block."""
  rows, block = 1024, 32
  groups = Groups(jnp.full((1, 1, 1), rows), jnp.zeros((1, rows), jnp.int32), block)
  x, weights = (
    jax.random.uniform(jax.random.key(seed), (1, rows, 4)).astype(jnp.bfloat16) for seed in (0, 1)
  )

  def loss(kernel):
    def multiply(kernel):
      return grouped_product(x, kernel, ('embed', 'mlp'), step_context().groups), ()

    return (grouped_parts(multiply, groups, kernel)[0] * weights).sum()

  gradient = jax.jit(jax.grad(loss))(jnp.zeros((1, 4, 4), jnp.bfloat16))[0].astype(jnp.float32)
  exact = np.einsum('ri,ro->io', *(np.asarray(a[0], np.float64) for a in (x, weights)))
  np.testing.assert_allclose(gradient, exact, rtol=2**-9 + 1e-5)


class Second(nnx.Module):
  """A router that gives all tokens to one expert."""

  is_causal = True
  num_choices = None

  def __init__(self, d_model, num_experts, *, rngs):
    pass

  def __call__(self, x, call):
    shape = (*x.shape[:2], 1)
    return Routing(jnp.ones(shape, jnp.int32), jnp.ones(shape))


def test_one_expert_processes_all_tokens_that_chose_it():
  part, x = mixture(router=Second), inputs()
  second = jax.tree.map(lambda a: a[1], part.expert)
  np.testing.assert_allclose(part(x, call(None)).x, second(x, call(None)).x, **EXACT)


def test_parameters_of_experts_without_tokens_are_not_read():
  """On a CPU: only the blocks that are in use are multiplied. NaN times 0 would be NaN."""
  part, x = mixture(router=Second), inputs()
  part.expert = jax.tree.map(lambda a: jnp.full_like(a, jnp.nan).at[1].set(a[1]), part.expert)
  gradients, y = jax.jit(jax.grad(lambda part: ((y := part(x, call()).x).sum(), y), has_aux=True))(
    part
  )
  assert bool(jnp.isfinite(y).all())
  assert all(bool(jnp.isfinite(a).all()) for a in jax.tree.leaves(gradients))


def test_later_tokens_and_other_rows_change_no_token():
  part, x = mixture(), inputs()
  before, after = part(x, call()).x, part(x.at[1:, 6:].add(1.0), call()).x
  np.testing.assert_allclose(before[0], after[0], **EXACT)
  np.testing.assert_allclose(before[:, :6], after[:, :6], **EXACT)


def test_a_batch_of_padding_has_zeros_and_finite_gradients():
  part, x = mixture('biases and a norm'), inputs()
  (_, y), gradients = value_and_gradients(
    lambda part, x: part(x, call([[0] * LENGTH] * BATCH)).x, part, x
  )
  np.testing.assert_array_equal(y, 0.0)
  assert all(bool(jnp.isfinite(a).all()) for a in jax.tree.leaves(gradients))


def test_rows_positions_and_experts_have_dropout_masks_of_their_own():
  """With equal experts, rows and tokens, only masks differ, and a row's mask depends on its key only."""
  part = mixture(expert='gated')
  part.expert.dropout_rate = 0.5
  part.expert = jax.tree.map(lambda a: jnp.broadcast_to(a[:1], a.shape), part.expert)
  x, keys = jnp.broadcast_to(inputs()[:1, :1], (2, LENGTH, WIDTH)), row_keys(jax.random.key(0), 2)
  run = jax.jit(lambda part, x, keys: part(x, Call(Tokens.row(LENGTH), key=keys)).x)
  y = run(part, x, keys)
  assert len(np.unique(np.asarray(y).reshape(-1, WIDTH), axis=0)) == 2 * LENGTH
  np.testing.assert_allclose(y[1:], run(part, x[1:], keys[1:]), **EXACT)


class Opposite(Second):
  """A router that gives all tokens to two experts with opposite weights."""

  def __call__(self, x, call):
    shape = (*x.shape[:2], 2)
    return Routing(
      jnp.broadcast_to(jnp.arange(2), shape), jnp.broadcast_to(jnp.asarray([1.0, -1.0]), shape)
    )


def test_the_experts_of_a_token_have_different_dropout_masks():
  """Outputs of equal experts with equal masks would cancel."""
  part = mixture(router=Opposite)
  part.expert.dropout_rate = 0.5
  part.expert = jax.tree.map(lambda a: jnp.broadcast_to(a[:1], a.shape), part.expert)
  y = part(inputs(), call(None, key=row_keys(jax.random.key(0), BATCH))).x
  assert bool((jnp.abs(y).max(axis=-1) > 0).all())
  np.testing.assert_allclose(part(inputs(), call(None)).x, 0.0, atol=1e-6)


def test_losses_and_metrics_of_the_experts_are_summed_over_the_batch():
  """A loss per row is the mean of the rows, so that the mean over the batch is that of the rows."""
  aux = mixture('own matrix')(inputs(), call()).aux
  choices = 2 * np.count_nonzero(SEGMENTS)
  np.testing.assert_allclose(aux.losses['used'], [choices / BATCH] * BATCH)
  assert aux.metrics['mean'] == (choices, EXPERTS)


def test_bfloat16_accumulates_in_float32():
  part, x = mixture(), inputs()
  half = jax.tree.map(lambda a: a.astype(jnp.bfloat16), part)
  half.router = part.router
  part.expert = jax.tree.map(lambda a: a.astype(jnp.float32), half.expert)
  x = x.astype(jnp.bfloat16)
  expected = part(x.astype(jnp.float32), call()).x
  y = half(x, call()).x
  assert y.dtype == jnp.bfloat16
  np.testing.assert_allclose(y.astype(jnp.float32), expected, atol=0.05, rtol=0.05)


def test_a_layout_that_splits_experts_but_not_the_batch_is_refused():
  axes = {'experts': ('tensor',), 'batch': ('data',)}
  layout = types.SimpleNamespace(
    mesh=types.SimpleNamespace(shape={'data': 2, 'tensor': 2}), mesh_axes=lambda axis: axes[axis]
  )
  with (
    in_step(layout=layout),
    pytest.raises(UserError, match='axis tensor splits the experts but not the batch'),
  ):
    mixture()(inputs(), call())
