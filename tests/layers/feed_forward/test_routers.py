"""Routers against those of transformers and st-moe-pytorch, expert choice against loops, and what is refused."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from t2x.base.errors import UserError
from t2x.base.step import in_step
from t2x.layers import (
  MLP,
  BatchBalance,
  ByChance,
  Call,
  Capacity,
  CapacityByChoice,
  Causal,
  ExpertChoice,
  GatedMLP,
  LoadBias,
  MixtureOfExperts,
  RowBalance,
  Tokens,
  TopK,
  Window,
  WithinGroups,
  ZLoss,
  sigmoid,
)
from t2x.layers.keys import row_keys
from t2x.train.params import Blueprint

BATCH, LENGTH, WIDTH, EXPERTS = 3, 10, 8, 8
TOLERANCE = {'atol': 1e-5, 'rtol': 1e-5}
SEGMENTS = np.array([[1] * 7 + [0] * 3, [1] * 10, [0] * 4 + [1] * 6])


def router(kind=TopK, **settings):
  part = kind(WIDTH, EXPERTS, rngs=nnx.Rngs(0), **settings)
  part.kernel[...] = 0.5 * jax.random.normal(jax.random.key(3), (WIDTH, EXPERTS))
  return part


def inputs(seed=1):
  return jax.random.normal(jax.random.key(seed), (BATCH, LENGTH, WIDTH))


def call(segments=None, **fields):
  segments = None if segments is None else jnp.asarray(segments)
  return Call(Tokens.row(LENGTH, segments=segments), **fields)


def by_expert(routing):
  """The weight of each expert for each token, 0 for experts that are not chosen."""
  return (jax.nn.one_hot(routing.expert, EXPERTS) * routing.weight[..., None]).sum(axis=2)


@pytest.mark.parametrize('normalise', [True, False])
def test_sigmoid_within_groups_equals_the_router_of_deepseek_v3(normalise):
  """Chosen experts, weights, and the gradients of the kernel and the input; the bias changes choices only."""
  torch = pytest.importorskip('torch', reason="the extra 'references' is not installed")
  pytest.importorskip('transformers', reason="the extra 'references' is not installed")
  from transformers import DeepseekV3Config
  from transformers.models.deepseek_v3 import modeling_deepseek_v3

  config = DeepseekV3Config(
    hidden_size=WIDTH,
    n_routed_experts=EXPERTS,
    num_experts_per_tok=3,
    n_group=4,
    topk_group=2,
    norm_topk_prob=normalise,
    routed_scaling_factor=2.5,
    num_attention_heads=2,
    num_key_value_heads=2,
  )
  reference = modeling_deepseek_v3.DeepseekV3TopkRouter(config)
  groups = WithinGroups(num_groups=4, num_chosen=2)
  settings = {'selection': groups, 'factor': 2.5, 'normalise': normalise, 'bias': LoadBias}
  part = router(k=3, scoring=sigmoid, **settings)
  part.bias.bias[...] = jax.random.normal(jax.random.key(4), (EXPERTS,))
  reference.load_state_dict(
    {
      'weight': torch.tensor(np.array(part.kernel[...]).T),
      'e_score_correction_bias': torch.tensor(np.array(part.bias.bias[...])),
    }
  )
  x = inputs()
  cotangent = np.asarray(jax.random.normal(jax.random.key(2), (BATCH, LENGTH, EXPERTS)))
  theirs = torch.tensor(np.asarray(x), requires_grad=True)
  _, weight, expert = reference(theirs)
  full = torch.zeros(BATCH * LENGTH, EXPERTS).scatter(1, expert, weight)
  (full * torch.tensor(cotangent).reshape(-1, EXPERTS)).sum().backward()

  def loss(part, x):
    y = by_expert(part(x, call()))
    return (y * cotangent).sum(), y

  (own, dx), y = jax.jit(jax.grad(loss, argnums=(0, 1), has_aux=True))(part, x)
  np.testing.assert_allclose(y.reshape(-1, EXPERTS), full.detach().numpy(), **TOLERANCE)
  np.testing.assert_allclose(own.kernel[...], reference.weight.grad.numpy().T, **TOLERANCE)
  np.testing.assert_allclose(dx, theirs.grad.numpy(), **TOLERANCE)


def test_groups_differ_from_the_highest_affinities():
  """Within one group of two experts: its sum is the highest, but not both of its experts are."""
  affinity = jnp.asarray([0.9, 0.1, 0.6, 0.5, 0.2, 0.3])
  assert WithinGroups(num_groups=3, num_chosen=1)(affinity, 2).tolist() == [2, 3]
  assert WithinGroups(num_groups=3, num_chosen=1, best=1)(affinity, 2).tolist() == [0, 1]


GSHARD = 'GShard', 'st-moe-pytorch TopNGating'


def gating_of_st_moe(part, **settings):
  torch = pytest.importorskip('torch', reason="the extra 'references' is not installed")
  st_moe = pytest.importorskip('st_moe_pytorch', reason="the extra 'references' is not installed")
  from st_moe_pytorch.st_moe_pytorch import TopNGating

  del st_moe
  gating = TopNGating(WIDTH, EXPERTS, straight_through_dispatch_tensor=False, **settings).train()
  gating.load_state_dict(
    {'to_gates.weight': torch.tensor(np.array(part.kernel[...]).T)}, strict=False
  )
  return torch, gating


def mixture(dispatch, part):
  """A mixture with `part` as its router; the output has the weights of the experts that have a slot for the token."""
  build = functools.partial(GatedMLP, hidden_dim=4)
  mixed = MixtureOfExperts(
    WIDTH, num_experts=EXPERTS, expert=build, dispatch=dispatch, rngs=nnx.Rngs(0)
  )
  mixed.router = part
  return mixed


def test_slots_by_choice_equal_top_n_gating(compared):
  """GShard's order in which experts run full, its balance loss and the z-loss; no expert is left out by chance."""
  losses = (RowBalance(coefficient=1.0, num_choices=1), ZLoss(coefficient=1.0))
  part, x = router(balance=0.0, losses=losses), inputs()
  # 4 slots for 20 choices of 8 experts.
  torch, gating = gating_of_st_moe(part, threshold_train=1e-9, capacity_factor_train=3.2)
  _, combine, balance, z = gating(torch.tensor(np.asarray(x)))
  routing, dispatch = part(x, call()), CapacityByChoice()
  slot = dispatch.assigned(routing.expert, EXPERTS, 4, 4).reshape(routing.expert.shape)
  kept = jax.nn.one_hot(slot, 4 * EXPERTS) * routing.weight[..., None]
  got = kept.sum(axis=2).reshape(BATCH, LENGTH, EXPERTS, 4)
  compared(*GSHARD, got, combine.detach().numpy(), **TOLERANCE)
  assert (slot == 4 * EXPERTS).sum() > 0
  np.testing.assert_allclose(routing.aux.losses['balance'].mean(), balance.item(), **TOLERANCE)
  np.testing.assert_allclose(routing.aux.losses['router_z'].mean(), z.item(), **TOLERANCE)


def test_the_z_loss_is_the_mean_over_the_tokens_of_a_row_without_padding():
  part, x = router(balance=0.0, losses=(ZLoss(coefficient=0.5),)), inputs()
  found = part(x, call(SEGMENTS)).aux.losses['router_z']
  scores = np.asarray(x, np.float64) @ np.asarray(part.kernel[...], np.float64)
  squares = np.log(np.exp(scores).sum(axis=-1)) ** 2
  expected = [0.5 * row[own != 0].mean() for row, own in zip(squares, SEGMENTS, strict=True)]
  np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_the_gradients_of_the_losses_equal_those_of_top_n_gating(compared):
  losses = (RowBalance(coefficient=0.7, num_choices=1), ZLoss(coefficient=0.3))
  part, x = router(balance=0.0, losses=losses), inputs()
  torch, gating = gating_of_st_moe(part)
  theirs = torch.tensor(np.asarray(x), requires_grad=True)
  _, _, balance, z = gating(theirs)
  (0.7 * balance + 0.3 * z).backward()

  def loss(part, x):
    return sum(value.mean() for value in part(x, call()).aux.losses.values())

  own, dx = jax.jit(jax.grad(loss, argnums=(0, 1)))(part, x)
  wanted = gating.to_gates.weight.grad.numpy().T, theirs.grad.numpy()
  for got, gradient in zip((own.kernel[...], dx), wanted, strict=True):
    compared(*GSHARD, got, gradient, of='gradients', **TOLERANCE)


def test_second_experts_are_used_as_often_as_in_top_n_gating():
  """The frequency of each second expert over 500 draws, with GShard's threshold; the first is always used."""
  part, x = router(by_chance=ByChance(threshold=0.5)), inputs()
  torch, gating = gating_of_st_moe(part, threshold_train=0.5, capacity_factor_train=8.0)
  torch.manual_seed(0)
  theirs = torch.tensor(np.asarray(x))
  with torch.no_grad():
    used = sum((gating(theirs)[1].sum(-1) > 0).float() for _ in range(500)) / 500

  @jax.jit
  @functools.partial(jax.vmap, in_axes=0)
  def draw(key):
    routing = part(x, call(key=row_keys(key, BATCH)))
    return (jax.nn.one_hot(routing.expert, EXPERTS).sum(axis=2) > 0).astype(jnp.float32), routing

  own, routing = draw(jax.random.split(jax.random.key(0), 500))
  np.testing.assert_allclose(own.mean(axis=0), used.numpy(), atol=0.13)
  full = part(x, call())
  expected = np.minimum(full.weight[..., 1] / 0.5, 1.0)
  np.testing.assert_allclose((routing.expert[..., 1] < EXPERTS).mean(axis=0), expected, atol=0.09)
  assert np.all(np.asarray(routing.expert)[..., 0] == np.asarray(full.expert)[..., 0])
  assert 0.2 < expected.mean() < 0.95


def test_the_first_expert_is_used_below_the_threshold_too():
  part, x = router(by_chance=ByChance(threshold=20.0)), inputs()
  expert = part(x, call(key=row_keys(jax.random.key(0), BATCH))).expert
  np.testing.assert_array_equal(expert[..., 0], part(x, call()).expert[..., 0])
  assert (expert[..., 1] == EXPERTS).mean() > 0.9


def test_nothing_is_random_in_evaluation():
  random, plain = router(by_chance=ByChance(), jitter=0.1), router()
  for a, b in zip(
    *(jax.tree.leaves(part(inputs(), call())) for part in (random, plain)), strict=True
  ):
    np.testing.assert_array_equal(a, b)


def test_jitter_multiplies_the_input_of_the_router_only():
  """Each element by a number from 1 - jitter to 1 + jitter, drawn for each row."""
  part, x = router(jitter=0.25), jnp.ones((2, LENGTH, WIDTH))
  part.kernel[...] = jnp.eye(WIDTH)
  keys = row_keys(jax.random.key(0), 2)
  tokens = Tokens.row(LENGTH)
  scores = np.asarray(part.scores(x, Call(tokens, key=keys)))
  assert 0.75 <= scores.min() < 0.8
  assert 1.2 < scores.max() <= 1.25
  assert abs(scores.mean() - 1) < 0.03
  np.testing.assert_array_equal(scores[1:], part.scores(x[1:], Call(tokens, key=keys[1:])))
  assert (scores[0] != scores[1]).any()
  np.testing.assert_array_equal(part.scores(x, Call(tokens)), 1.0)


def test_expert_choice_equals_a_loop_over_experts():
  """Each expert takes the best factor / experts of the tokens of each segment, in float64."""
  part, x = router(ExpertChoice, factor=2.0), inputs()
  scores = np.asarray(x, np.float64) @ np.asarray(part.kernel[...], np.float64)
  affinity = np.exp(scores) / np.exp(scores).sum(axis=-1, keepdims=True)
  expected = np.zeros(affinity.shape)
  segments = SEGMENTS + np.array([[0] * 10, [0] * 3 + [1] * 7, [0] * 10])
  for b, segment in [(b, n) for b, row in enumerate(segments) for n in {*row.tolist()} - {0}]:
    tokens = np.flatnonzero(segments[b] == segment)
    number = -(-2 * len(tokens) // EXPERTS)
    for e in range(EXPERTS):
      best = tokens[np.argsort(-affinity[b, tokens, e])[:number]]
      expected[b, best, e] = affinity[b, best, e]
  result = mixture(Capacity(factor=2.0 / EXPERTS), part)(x, call(segments))
  chosen = jnp.where(segments[..., None] > 0, by_expert(part(x, call(segments))), 0.0)
  np.testing.assert_allclose(chosen, expected, **TOLERANCE)
  assert result.aux.metrics['dropped_tokens'] == (0, np.count_nonzero(expected))


@pytest.mark.parametrize('factor', [0.5, 2.0])
def test_a_token_uses_the_parameters_of_as_many_experts_as_choose_it(factor):
  part = MixtureOfExperts(
    WIDTH,
    num_experts=EXPERTS,
    expert=functools.partial(MLP, hidden_dim=6),
    router=functools.partial(ExpertChoice, factor=factor),
    rngs=nnx.Rngs(0),
  )
  infos = Blueprint(jax.eval_shape(lambda: part)).infos
  assert {info.active for info in infos.values() if 'experts' in info.stacked} == {factor / EXPERTS}


def test_the_balance_of_a_batch_is_that_of_one_long_row():
  part, x = router(balance=0.0, losses=(BatchBalance(coefficient=0.5),)), inputs()
  loss = part(x, call(SEGMENTS)).aux.losses['batch_balance']
  long = Tokens.row(BATCH * LENGTH, segments=jnp.asarray(SEGMENTS.reshape(1, -1)))
  row = router(balance=0.5)(x.reshape(1, -1, WIDTH), Call(long)).aux.losses['balance']
  np.testing.assert_allclose(loss, jnp.broadcast_to(row, (BATCH,)), **TOLERANCE)
  with in_step(micro_batches=2), pytest.raises(UserError, match=r'Trainer.accumulate = 2 splits'):
    part(x, call(SEGMENTS))


def test_the_weights_of_experts_that_all_underflow_are_finite():
  part = router(scoring=sigmoid)
  part.kernel[...] = jnp.full((WIDTH, EXPERTS), -100.0)
  assert bool(jnp.isfinite(part(jnp.ones((1, LENGTH, WIDTH)), call()).weight).all())


@pytest.mark.parametrize(
  ('settings', 'message'),
  [
    ({'k': 1, 'normalise': False, 'by_chance': ByChance()}, r'by_chance has no effect with TopK.k'),
    (
      {'selection': WithinGroups(num_groups=3, num_chosen=1)},
      r'WithinGroups.* does not fit 2 of 8',
    ),
    ({'selection': WithinGroups(num_groups=8, num_chosen=1, best=1)}, r'does not fit 2 of 8'),
    ({'selection': WithinGroups(num_groups=8, num_chosen=2)}, r'best must be at most the size'),
    ({'kind': ExpertChoice, 'factor': 9.0}, r'ExpertChoice.factor = 9.0: must be at most 8'),
  ],
)
def test_settings_that_do_not_fit_are_refused(settings, message):
  with pytest.raises(UserError, match=message):
    router(**settings)


@pytest.mark.parametrize('pattern', [Causal(), Window(3), Causal() & Window(3)])
@pytest.mark.parametrize(
  ('dispatch', 'kind', 'name'),
  [
    (Capacity(), ExpertChoice, r'router = ExpertChoice'),
    (CapacityByChoice(), TopK, r'dispatch = CapacityByChoice'),
  ],
)
def test_a_part_whose_later_tokens_change_earlier_ones_needs_the_full_pattern(
  dispatch, kind, name, pattern
):
  part = MixtureOfExperts(
    WIDTH,
    num_experts=EXPERTS,
    expert=functools.partial(GatedMLP, hidden_dim=4),
    router=kind,
    dispatch=dispatch,
    rngs=nnx.Rngs(0),
  )
  assert 'pattern' in part.reads
  with pytest.raises(UserError, match=rf'MixtureOfExperts\.{name} lets later tokens change'):
    part(inputs(), call(pattern=pattern))
  assert bool(jnp.isfinite(part(inputs(), call()).x).all())
