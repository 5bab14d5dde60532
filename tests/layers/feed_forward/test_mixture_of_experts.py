"""MixtureOfExperts: against Mixtral's block in transformers, its capacity against loops over tokens, and its parts."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from t2x.base.errors import UserError
from t2x.layers import (
  MLP,
  NO_AUX,
  Aux,
  Call,
  Capacity,
  Dropless,
  FeedForward,
  GatedMLP,
  LightweightConvolution,
  MixtureOfExperts,
  MultiHeadAttention,
  Parallel,
  Result,
  Routing,
  Tokens,
  TopK,
)
from t2x.layers.constraints import constrain
from t2x.layers.keys import row_keys

BATCH, LENGTH, WIDTH, HIDDEN, EXPERTS = 3, 10, 8, 12, 4
TOLERANCE = {'atol': 1e-5, 'rtol': 1e-5}


def mixture_of(
  d_model, hidden_dim=HIDDEN, dispatch=None, router=TopK, expert=GatedMLP, *, rngs, **settings
):
  """A mixture in which nothing is dropped by default."""
  return MixtureOfExperts(
    d_model,
    num_experts=EXPERTS,
    expert=functools.partial(expert, hidden_dim=hidden_dim, **settings),
    router=router,
    dispatch=dispatch or Capacity(factor=float(EXPERTS)),
    rngs=rngs,
  )


def perturbed(part, seed=1):
  """Adds noise to all parameters."""
  leaves, structure = jax.tree.flatten(part)
  keys = jax.random.split(jax.random.key(seed), len(leaves))
  noisy = [a + 0.1 * jax.random.normal(k, a.shape) for a, k in zip(leaves, keys, strict=True)]
  return jax.tree.unflatten(structure, noisy)


def mixture(**settings):
  return perturbed(mixture_of(WIDTH, rngs=nnx.Rngs(0), **settings))


def inputs(seed=1, batch=BATCH):
  return jax.random.normal(jax.random.key(seed), (batch, LENGTH, WIDTH))


def call(segments=None, **fields):
  segments = None if segments is None else jnp.asarray(segments)
  return Call(Tokens.row(LENGTH, segments=segments), **fields)


def in_transformers(part):
  """Mixtral's block in transformers with the weights of `part`; its loop over experts is the reference."""
  torch = pytest.importorskip('torch', reason="the extra 'references' is not installed")
  pytest.importorskip('transformers', reason="the extra 'references' is not installed")
  from transformers import MixtralConfig
  from transformers.models.mixtral import modeling_mixtral

  config = MixtralConfig(
    hidden_size=WIDTH,
    intermediate_size=HIDDEN,
    num_local_experts=EXPERTS,
    num_experts_per_tok=2,
    experts_implementation='eager',
  )
  block = modeling_mixtral.MixtralSparseMoeBlock(config).eval()
  gate, up, down = (
    np.array(p.kernel[...]).swapaxes(1, 2)
    for p in (part.expert.gate, part.expert.up, part.expert.down)
  )
  weights = {
    'gate.weight': np.array(part.router.kernel[...]).T,
    'experts.gate_up_proj': np.concatenate([gate, up], axis=1),
    'experts.down_proj': down,
  }
  block.load_state_dict({name: torch.tensor(value) for name, value in weights.items()})
  return torch, modeling_mixtral, block


@pytest.mark.parametrize('dispatch', [None, Dropless()], ids=['capacity', 'dropless'])
def test_the_mixture_equals_the_block_of_mixtral(compared, dispatch):
  """Outputs and the gradients of all parameters and of the input."""
  part, x = mixture(dispatch=dispatch), inputs()
  cotangent = jax.random.normal(jax.random.key(2), x.shape)
  torch, _, block = in_transformers(part)
  theirs = torch.tensor(np.asarray(x), requires_grad=True)
  y = block(theirs)
  (y * torch.tensor(np.asarray(cotangent))).sum().backward()
  expected = {name: value.grad.numpy() for name, value in block.named_parameters()}

  def loss(part, x):
    result = part(x, call())
    return (result.x * cotangent).sum(), result

  (own, dx), result = jax.jit(jax.grad(loss, argnums=(0, 1), has_aux=True))(part, x)
  system = 'Mixtral', 'transformers MixtralSparseMoeBlock'
  compared(*system, result.x, y.detach().numpy(), **TOLERANCE)
  compared(*system, dx, theirs.grad.numpy(), of='gradients', **TOLERANCE)
  gates = expected['experts.gate_up_proj'].swapaxes(1, 2)
  for gradient, reference in (
    (own.router.kernel, expected['gate.weight'].T),
    (own.expert.gate.kernel, gates[..., :HIDDEN]),
    (own.expert.up.kernel, gates[..., HIDDEN:]),
    (own.expert.down.kernel, expected['experts.down_proj'].swapaxes(1, 2)),
  ):
    compared(*system, gradient[...], reference, of='gradients', **TOLERANCE)
  if dispatch is None:
    assert result.aux.metrics['dropped_tokens'] == (0, 2 * BATCH * LENGTH)


def test_shared_experts_beside_routed_ones_equal_the_block_of_deepseek_v2():
  """Outputs and the gradient of the input; two shared experts are one layer of twice the width."""
  torch = pytest.importorskip('torch', reason="the extra 'references' is not installed")
  pytest.importorskip('transformers', reason="the extra 'references' is not installed")
  from transformers import DeepseekV2Config
  from transformers.models.deepseek_v2 import modeling_deepseek_v2

  router = functools.partial(TopK, normalise=False)
  routed = functools.partial(mixture_of, router=router)
  shared = functools.partial(GatedMLP, hidden_dim=2 * HIDDEN)
  part = perturbed(Parallel(WIDTH, parts={'shared': shared, 'routed': routed}, rngs=nnx.Rngs(0)))
  config = DeepseekV2Config(
    hidden_size=WIDTH,
    moe_intermediate_size=HIDDEN,
    num_attention_heads=2,
    num_key_value_heads=2,
    n_routed_experts=EXPERTS,
    num_experts_per_tok=2,
    n_shared_experts=2,
    topk_method='greedy',
    routed_scaling_factor=1.0,
    experts_implementation='eager',
  )
  block = modeling_deepseek_v2.DeepseekV2Moe(config).eval()
  gate, up, down = (
    np.array(p.kernel[...]).swapaxes(1, 2)
    for p in (part.routed.expert.gate, part.routed.expert.up, part.routed.expert.down)
  )
  weights = {
    'gate.weight': np.array(part.routed.router.kernel[...]).T,
    'experts.gate_up_proj': np.concatenate([gate, up], axis=1),
    'experts.down_proj': down,
    **{
      f'shared_experts.{name}_proj.weight': np.array(getattr(part.shared, name).kernel[...]).T
      for name in ('gate', 'up', 'down')
    },
  }
  block.load_state_dict({name: torch.tensor(value) for name, value in weights.items()})
  x = inputs()
  theirs = torch.tensor(np.asarray(x), requires_grad=True)
  y = block(theirs)
  y.square().sum().backward()
  own, dx = jax.value_and_grad(lambda x: jnp.square(part(x, call()).x).sum())(x)
  np.testing.assert_allclose(part(x, call()).x, y.detach().numpy(), **TOLERANCE)
  np.testing.assert_allclose(own, y.square().sum().item(), **TOLERANCE)
  np.testing.assert_allclose(dx, theirs.grad.numpy(), **TOLERANCE)


def test_the_balance_loss_equals_that_of_mixtral_for_each_row():
  """Transformers' loss is k for a uniform distribution."""
  part, x = mixture(router=functools.partial(TopK, balance=0.5)), inputs()
  segments = [[1] * 7 + [0] * 3, [1] * 10, [0] * 4 + [1] * 6]
  loss = part(x, call(segments)).aux.losses['balance']
  torch, reference, _ = in_transformers(part)
  for i, row in enumerate(segments):
    logits = torch.tensor(np.asarray(x[i] @ part.router.kernel[...]))
    mask = torch.tensor([row], dtype=torch.float32)
    expected = reference.load_balancing_loss_func((logits,), EXPERTS, 2, mask)
    np.testing.assert_allclose(loss[i], 0.5 * expected / 2, **TOLERANCE)


def by_loops(part, x, segments, num_slots):
  """Tokens take slots in the order of the row, each with both choices, in float64."""

  def of(parameter):
    return np.asarray(parameter[...], np.float64)

  x, y, dropped = np.asarray(x, np.float64), np.zeros(x.shape), 0
  for b, row in enumerate(segments):
    free = [num_slots] * EXPERTS
    for t in np.flatnonzero(row):
      scores = x[b, t] @ of(part.router.kernel)
      probabilities = np.exp(scores) / np.exp(scores).sum()
      best = np.argsort(-probabilities)[:2]
      for e in best:
        if not free[e]:
          dropped += 1
          continue
        free[e] -= 1
        gate, up = (x[b, t] @ of(p.kernel)[e] for p in (part.expert.gate, part.expert.up))
        out = (gate / (1 + np.exp(-gate)) * up) @ of(part.expert.down.kernel)[e]
        y[b, t] += probabilities[e] / probabilities[best].sum() * out
  return y, dropped


def test_capacity_equals_a_loop_over_the_tokens():
  """Four slots for 20 choices of 4 experts; padding takes none, wherever it is."""
  part, x = mixture(dispatch=Capacity(factor=0.8)), inputs()
  segments = [[0, 0, 1, 1, 1, 1, 1, 2, 2, 2], [1] * 10, [1, 1, 1, 1, 0, 1, 1, 1, 1, 0]]
  expected, dropped = by_loops(part, x, segments, 4)
  result = part(x, call(segments))
  np.testing.assert_allclose(result.x, expected, **TOLERANCE)
  total, count = result.aux.metrics['dropped_tokens']
  assert (total, count) == (dropped, 2 * np.count_nonzero(segments))
  assert dropped > 0


def test_later_tokens_change_no_earlier_one():
  part, x = mixture(dispatch=Capacity(factor=0.3)), inputs()
  before, after = part(x, call()), part(x.at[:, 6:].add(1.0), call())
  np.testing.assert_array_equal(before.x[:, :6], after.x[:, :6])


def test_a_single_token_is_never_dropped():
  part, x = mixture(dispatch=Capacity(factor=0.1)), inputs()[:, :1]
  assert part(x, Call(Tokens.row(1))).aux.metrics['dropped_tokens'] == (0.0, 2 * BATCH)


def test_a_row_of_padding_has_finite_gradients_and_no_loss():
  part, x = mixture(), inputs()

  def loss(part):
    result = part(x, call([[0] * LENGTH] * BATCH))
    return result.aux.losses['balance'].sum() + result.x.sum(), result

  gradients, result = jax.grad(loss, has_aux=True)(part)
  assert result.aux.losses['balance'].tolist() == [0.0] * BATCH
  np.testing.assert_array_equal(result.x, 0.0)
  assert all(bool(jnp.isfinite(one).all()) for one in jax.tree.leaves(gradients))


def test_experts_and_rows_have_dropout_masks_of_their_own():
  """With equal experts and two equal rows, only masks differ."""
  part = mixture(dropout_rate=0.5)
  part.expert = jax.tree.map(lambda a: jnp.broadcast_to(a[:1], a.shape), part.expert)

  class Everywhere:
    is_causal = True
    num_choices = None

    def __call__(self, x, call):
      shape = (*x.shape[:2], EXPERTS)
      return Routing(jnp.broadcast_to(jnp.arange(EXPERTS), shape), jnp.ones(shape))

  @dataclasses.dataclass(frozen=True)
  class Outputs(Capacity):
    def __call__(self, experts, x, routing):
      h = jnp.broadcast_to(x, (EXPERTS, *x.shape))
      y, aux = experts(h, jnp.ones(h.shape[:-1], bool))
      return y.swapaxes(0, 1).reshape(x.shape[0], -1, WIDTH), aux

  part.router, part.dispatch = Everywhere(), Outputs()
  x = jnp.broadcast_to(inputs(batch=1)[:, :1], (2, LENGTH, WIDTH))
  y = part(x, call(key=row_keys(jax.random.key(0), 2))).x.reshape(-1, WIDTH)
  assert len(np.unique(np.asarray(y), axis=0)) == len(y)
  same = part(x, call()).x.reshape(-1, WIDTH)
  np.testing.assert_allclose(same, jnp.broadcast_to(same[0], same.shape), atol=1e-6)


def test_weights_are_probabilities_unless_normalised():
  normalised, plain = (
    TopK(WIDTH, EXPERTS, k=2, normalise=normalise, rngs=nnx.Rngs(0)) for normalise in (True, False)
  )
  x = inputs()
  probabilities = np.asarray(jax.nn.softmax(x @ plain.kernel[...]))
  best = -np.sort(-probabilities, axis=-1)[..., :2]
  np.testing.assert_allclose(plain(x, call()).weight, best, rtol=1e-5)
  np.testing.assert_allclose(
    normalised(x, call()).weight, best / best.sum(-1, keepdims=True), rtol=1e-5
  )


def test_equal_scores_choose_the_first_experts():
  router = TopK(WIDTH, EXPERTS, k=3, rngs=nnx.Rngs(0))
  router.kernel[...] = jnp.zeros((WIDTH, EXPERTS))
  assert router(inputs(), call()).expert.tolist() == [[[0, 1, 2]] * LENGTH] * BATCH


def test_the_router_computes_in_float32():
  """Experts are chosen alike in bfloat16, where scores of 256 and 257 are the same."""
  router = TopK(WIDTH, 2, k=1, normalise=False, rngs=nnx.Rngs(0))
  router.kernel[...] = jnp.zeros((WIDTH, 2)).at[:2].set(jnp.asarray([[256.0, 256.0], [0.0, 1.0]]))
  assert router.kernel.get_metadata()['keep_float32']
  x = jnp.zeros((1, LENGTH, WIDTH), jnp.bfloat16).at[:, :, :2].set(1.0)
  assert router(x, call()).expert.tolist() == [[[1]] * LENGTH]


class Scaled(FeedForward):
  """A user's layer with a loss, a metric and a view of its slots."""

  def __init__(self, d_model, *, hidden_dim, rngs):
    self.mlp = MLP(d_model, hidden_dim=hidden_dim, rngs=rngs)

  def __call__(self, x, call, cache=None):
    occupied = (call.tokens.segments != 0).astype(jnp.float32)
    aux = Aux({'used': occupied.sum(axis=1)}, {'mean': (occupied.sum(), occupied.size)})
    return Result(constrain(self.mlp(x, call).x, 'batch', None, 'embed'), aux=aux)


def test_losses_and_metrics_of_the_experts_are_summed():
  result = mixture(expert=Scaled)(inputs(), call([[1] * 6 + [0] * 4] * BATCH))
  np.testing.assert_allclose(result.aux.losses['used'], 12.0)
  assert result.aux.metrics['mean'] == (36.0, EXPERTS * BATCH * LENGTH)


class First(nnx.Module):
  """A user's router: the first expert for all tokens, padding included."""

  is_causal = True
  num_choices = None

  def __init__(self, d_model, num_experts, *, rngs):
    self.num_experts = num_experts

  def __call__(self, x, call):
    shape = (*x.shape[:2], 1)
    return Routing(jnp.zeros(shape, jnp.int32), jnp.ones(shape), NO_AUX)


def test_a_router_of_a_user_chooses_and_padding_has_no_expert():
  part, x = mixture(router=First), inputs()
  first = jax.tree.map(lambda a: a[0], part.expert)
  y = part(x, call([[1] * 9 + [0]] * BATCH)).x
  np.testing.assert_allclose(y[:, :9], first(x, call()).x[:, :9], **TOLERANCE)
  np.testing.assert_array_equal(y[:, 9], 0.0)


@pytest.mark.parametrize(
  ('settings', 'message'),
  [
    ({'router': functools.partial(TopK, k=5)}, r'TopK.k = 5: must be at most 4, the number of'),
    ({'router': functools.partial(TopK, k=1)}, r'TopK.normalise = True with TopK.k = 1 sets each'),
    (
      {'expert': functools.partial(MultiHeadAttention, num_heads=2)},
      r'expert = MultiHeadAttention reads .*pattern.*, which experts do not get',
    ),
    (
      {'expert': functools.partial(LightweightConvolution, num_heads=2, kernel_size=3)},
      r'expert = LightweightConvolution (reads|has a state)',
    ),
  ],
)
def test_settings_and_parts_without_effect_are_refused(settings, message):
  with pytest.raises(UserError, match=message):
    MixtureOfExperts(
      WIDTH,
      num_experts=EXPERTS,
      rngs=nnx.Rngs(0),
      **{'expert': functools.partial(MLP, hidden_dim=8), **settings},
    )


def test_the_slots_follow_from_the_factor_or_are_a_number():
  numbers = [Capacity(factor=0.8), Capacity(factor=None, slots=3), Capacity(factor=None, slots=30)]
  assert [dispatch.num_slots(24, 12, 4) for dispatch in numbers] == [5, 3, 12]
  for settings in ({'slots': 3}, {'factor': None}):
    with pytest.raises(UserError, match='set one of them, and the other one to None'):
      Capacity(**settings)
