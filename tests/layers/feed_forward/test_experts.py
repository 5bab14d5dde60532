"""Mixtures of experts: against transformers, padding, capacity, and inside a stack."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from t2x.layers import Call, SwitchFeedForward, Tokens, normal
from t2x.models import Block, Stack
from t2x.train.optimizers import matrix_dimensions
from t2x.train.params import Blueprint

torch = pytest.importorskip('torch', reason="the extra 'references' is not installed")
pytest.importorskip('transformers', reason="the extra 'references' is not installed")
from transformers import SwitchTransformersConfig  # noqa: E402
from transformers.models.switch_transformers import modeling_switch_transformers as reference  # noqa: E402

BATCH, LENGTH, WIDTH, HIDDEN, EXPERTS = 3, 10, 8, 12, 4
TOLERANCE = {'atol': 1e-5, 'rtol': 1e-5}


def switch(seed=0, **settings):
  settings = {'num_experts': EXPERTS, 'hidden_dim': HIDDEN, 'kernel_init': normal(0.5)} | settings
  return SwitchFeedForward(WIDTH, **settings, rngs=nnx.Rngs(seed))


def inputs(seed=1, batch=BATCH):
  return jax.random.normal(jax.random.key(seed), (batch, LENGTH, WIDTH))


def call(segments=None):
  segments = None if segments is None else jnp.asarray(segments)
  return Call(Tokens.row(LENGTH, segments=segments))


def in_transformers(part, capacity):
  """The layer of transformers with the weights of `part`."""
  config = SwitchTransformersConfig(
    d_model=WIDTH,
    d_ff=HIDDEN,
    num_experts=EXPERTS,
    expert_capacity=capacity,
    dense_act_fn='relu',
    dropout_rate=0.0,
  )
  layer = reference.SwitchTransformersSparseMLP(config).eval()
  weights = {'router.classifier.weight': np.array(part.router.kernel[...]).T}
  for i in range(EXPERTS):
    weights[f'experts.expert_{i}.wi.weight'] = np.array(part.expert.up.kernel[i]).T
    weights[f'experts.expert_{i}.wo.weight'] = np.array(part.expert.down.kernel[i]).T
  layer.load_state_dict({name: torch.tensor(value) for name, value in weights.items()})
  return layer


def reference_run(part, x, cotangent, capacity):
  """Output, balance loss, number of dropped tokens and gradients in transformers."""
  layer = in_transformers(part, capacity)
  x = torch.tensor(np.asarray(x))
  y = layer(x)
  chosen, _, logits = layer.router(x)
  probabilities = torch.softmax(logits, -1)
  balance = reference.load_balancing_loss_func(probabilities, probabilities.argmax(-1))
  ((y * torch.tensor(np.asarray(cotangent))).sum() + 0.1 * balance).backward()
  gradients = {name: value.grad.numpy() for name, value in layer.named_parameters()}
  return y.detach().numpy(), balance.item(), BATCH * LENGTH - int(chosen.sum()), gradients


# 3 of 10 tokens for each of 4 experts; all tokens.
@pytest.mark.parametrize(('factor', 'capacity'), [(1.0, 3), (4.0, 10)])
def test_switch_is_the_layer_of_transformers(factor, capacity, compared):
  part, x = switch(capacity_factor=factor, balance=0.1), inputs()
  cotangent = jax.random.normal(jax.random.key(2), x.shape)
  y, balance, num_dropped, expected = reference_run(part, x, cotangent, capacity)

  def loss(part):
    result = part(x, call())
    return (result.x * cotangent).sum() + result.aux.losses['balance'].mean(), result

  gradients, result = jax.jit(jax.grad(loss, has_aux=True))(part)
  system = 'Switch Transformer', 'transformers SwitchTransformersSparseMLP'
  compared(*system, result.x, y, **TOLERANCE)
  compared(*system, result.aux.losses['balance'].mean(), 0.1 * balance, **TOLERANCE)
  assert result.aux.metrics['dropped_tokens'] == (num_dropped, BATCH * LENGTH)
  assert (num_dropped > 0) == (capacity < LENGTH)
  router = expected.pop('router.classifier.weight').T
  compared(*system, gradients.router.kernel[...], router, **TOLERANCE, of='gradients')
  for i in range(EXPERTS):
    for own, name in ((gradients.expert.up.kernel, 'wi'), (gradients.expert.down.kernel, 'wo')):
      wanted = expected[f'experts.expert_{i}.{name}.weight'].T
      compared(*system, own[i], wanted, **TOLERANCE, of='gradients')


def test_each_row_has_a_capacity_and_a_loss_of_its_own():
  part, x = switch(capacity_factor=1.0), inputs()
  whole = part(x, call())
  for i in range(BATCH):
    alone = part(x[i : i + 1], call())
    np.testing.assert_allclose(alone.x[0], whole.x[i], atol=1e-6)
    np.testing.assert_allclose(
      alone.aux.losses['balance'][0], whole.aux.losses['balance'][i], atol=1e-6
    )


def test_padding_takes_no_capacity_and_no_part_in_the_loss_and_the_metric():
  # Three tokens for each expert, and four padding tokens that come first.
  part, x = switch(capacity_factor=1.0, balance=1.0), inputs()
  segments = jnp.asarray([[0] * 4 + [1] * 6] * BATCH)
  result = part(x, call(segments))
  np.testing.assert_array_equal(result.x[:, :4], 0.0)
  first = part(jnp.concatenate([x[:, 4:], x[:, :4]], axis=1), call())
  np.testing.assert_allclose(result.x[:, 4:], first.x[:, :6], atol=1e-6)
  changed = part(x.at[:, :4].add(1.0), call(segments))
  np.testing.assert_array_equal(changed.x, result.x)
  for own, other in zip(jax.tree.leaves(changed.aux), jax.tree.leaves(result.aux), strict=True):
    np.testing.assert_array_equal(own, other)
  assert result.aux.metrics['dropped_tokens'][1] == 6 * BATCH
  probabilities = jax.nn.softmax(x[:, 4:] @ part.router.kernel[...])
  share = jax.nn.one_hot(probabilities.argmax(-1), EXPERTS).mean(1)
  expected = EXPERTS * (share * probabilities.mean(1)).sum(-1)
  np.testing.assert_allclose(result.aux.losses['balance'], expected, rtol=1e-5)


def test_a_row_of_padding_has_finite_gradients_and_no_loss():
  part, x = switch(), inputs()

  def loss(part):
    aux = part(x, call([[0] * LENGTH])).aux
    return aux.losses['balance'].sum(), aux

  gradients, aux = jax.grad(loss, has_aux=True)(part)
  assert aux.losses['balance'].tolist() == [0.0] * BATCH
  assert aux.metrics['dropped_tokens'] == (0.0, 0.0)
  assert all(bool(jnp.isfinite(one).all()) for one in jax.tree.leaves(gradients))


def test_later_tokens_change_no_earlier_one():
  part, x = switch(capacity_factor=0.5), inputs()
  changed = part(x.at[:, 6:].add(1.0), call())
  np.testing.assert_array_equal(changed.x[:, :6], part(x, call()).x[:, :6])


def test_a_single_token_is_never_dropped():
  part, x = switch(capacity_factor=0.1), inputs()[:, :1]
  assert part(x, Call(Tokens.row(1))).aux.metrics['dropped_tokens'] == (0.0, BATCH)


def test_the_router_computes_in_float32():
  """Experts are chosen alike in bfloat16, where scores of 256 and 257 are the same."""
  part = switch(num_experts=2, capacity_factor=2.0)
  part.router.kernel[...] = (
    jnp.zeros((WIDTH, 2)).at[:2].set(jnp.asarray([[256.0, 256.0], [0.0, 1.0]]))
  )
  assert part.router.kernel.get_metadata()['keep_float32']
  part = jax.tree.map(lambda a: a.astype(jnp.bfloat16) if a.ndim == 3 else a, part)
  x = jnp.zeros((1, LENGTH, WIDTH), jnp.bfloat16).at[:, :, :2].set(1.0)
  result = part(x, call())
  up, down = (p.kernel[...] for p in (part.expert.up, part.expert.down))
  h = jax.nn.relu(x @ up[1]) @ down[1]
  assert result.x.dtype == jnp.bfloat16
  np.testing.assert_allclose(result.x, h * jax.nn.sigmoid(1.0), rtol=2e-2, atol=1e-2)


def test_dropout_needs_a_key():
  part, sure, x = switch(dropout_rate=0.5), switch(), inputs()
  np.testing.assert_array_equal(part(x, call()).x, sure(x, call()).x)
  keyed = Call(Tokens.row(LENGTH), key=jax.random.key(0))
  assert not np.allclose(part(x, keyed).x, sure(x, call()).x)


def test_a_stack_sums_losses_and_metrics_over_its_layers():
  """Both sublayers of both layers are mixtures."""
  feed_forward = functools.partial(SwitchFeedForward, num_experts=EXPERTS, hidden_dim=HIDDEN)
  block = functools.partial(Block, mixer=feed_forward, feed_forward=feed_forward)
  stack = Stack(WIDTH, num_layers=2, blocks=[block], rngs=nnx.Rngs(0))
  aux = stack(inputs(), call()).aux
  assert aux.losses['balance'].shape == (BATCH,)
  # The loss is near its coefficient where the router is near uniform, as at the start.
  np.testing.assert_allclose(aux.losses['balance'], 4 * 0.01, rtol=0.3)
  assert aux.metrics['dropped_tokens'][1] == 4 * BATCH * LENGTH


def test_muon_sees_one_matrix_for_each_expert():
  found = {
    name: matrix_dimensions(info) for name, info in Blueprint(jax.eval_shape(switch)).infos.items()
  }
  for name in ('up', 'down'):
    matrix = found[f'expert.{name}.kernel']
    assert (matrix.reduction_axis, matrix.output_axis) == ((1,), (2,)), name


def test_fans_match_one_expert():
  part = SwitchFeedForward(64, num_experts=8, hidden_dim=256, rngs=nnx.Rngs(0))
  for value, inputs in (
    (part.router.kernel, 64),
    (part.expert.up.kernel, 64),
    (part.expert.down.kernel, 256),
  ):
    assert value[...].std() == pytest.approx((0.1 / inputs) ** 0.5, rel=0.1)
  assert not np.allclose(part.expert.up.kernel[0], part.expert.up.kernel[1])
