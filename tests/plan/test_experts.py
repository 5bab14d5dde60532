"""Experts split over an abstract mesh, in the traced program: products, vectors that move, weights that do not."""

import functools

import jax
import jax.numpy as jnp
import pytest
from flax import nnx

from t2x.base.step import in_step
from t2x.layers import MLP, Call, Capacity, Dropless, GatedMLP, MixtureOfExperts, Tokens
from t2x.parallel import Activations, Mesh, batch_sharding, state_shardings
from t2x.plan.arrays import Array
from t2x.plan.shards import spec_of
from t2x.plan.trace import Walker
from t2x.train.params import Blueprint

BATCH, LENGTH, WIDTH = 8, 16, 8
# 16 tokens x 2 choices x 1.25 / 8 experts.
SLOTS = 5


def traced(expert, mesh, dispatch=Capacity()):
  """The totals of a forward and a backward pass on one device, and the specs of the parameters."""
  settings, abstract = mesh, mesh.abstract()
  layout = Activations.of(abstract, settings)
  build = functools.partial(MixtureOfExperts, num_experts=8, expert=expert, dispatch=dispatch)
  shapes = jax.eval_shape(lambda: build(WIDTH, rngs=nnx.Rngs(0)))
  blueprint = Blueprint(shapes)
  params = blueprint.params(shapes)
  split = state_shardings(abstract, settings.rules, blueprint.infos, params)

  def loss(part, x):
    with in_step(layout=layout, target='tpu'):
      result = part(layout.constrain(x, ('batch', 'length', 'embed')), Call(Tokens.row(LENGTH)))
    return jnp.square(result.x).sum()

  x = jax.ShapeDtypeStruct((BATCH, LENGTH, WIDTH), jnp.float32)
  jaxpr = jax.make_jaxpr(jax.grad(loss, (0, 1)))(shapes, x)
  inputs = [
    Array(leaf.shape, 4, spec_of(split[name], leaf.ndim), False) for name, leaf in params.items()
  ]
  inputs.append(Array(x.shape, 4, spec_of(batch_sharding(abstract), 3), True))
  sizes = dict(abstract.shape)
  return Walker(sizes, {}).walk(jaxpr, inputs)[1]


@pytest.mark.parametrize(
  'expert',
  [functools.partial(GatedMLP, hidden_dim=32), functools.partial(MLP, hidden_dim=32)],
  ids=['gated', 'with biases'],
)
@pytest.mark.parametrize('sizes', [{'data': 2, 'expert': 4}, {'fsdp': 2, 'expert': 4, 'data': 1}])
def test_vectors_move_to_the_experts_and_back_and_no_weights_move(expert, sizes):
  """As in the compiled program (tests/multi_device/test_experts.py)."""
  totals = traced(expert, Mesh(**sizes))
  moved = 4 * (8 * SLOTS * BATCH * WIDTH) * 4 // 8
  assert totals.collectives['all-to-all', ('expert',)] == moved
  gathered = [axes for kind, axes in totals.collectives if kind == 'all-gather']
  assert all('expert' not in axes for axes in gathered)


def test_each_device_computes_its_share_of_the_products():
  totals = traced(functools.partial(GatedMLP, hidden_dim=32), Mesh(data=2, expert=4))
  router, experts = BATCH * LENGTH * WIDTH * 8, 3 * BATCH * 8 * SLOTS * WIDTH * 32
  # 2 FLOPs, in the forward pass and for the gradients of both operands.
  assert totals.flops * 8 == 3 * 2 * (router + experts)


@pytest.mark.parametrize('sizes', [{'data': 2, 'expert': 4}, {'fsdp': 2, 'expert': 4, 'data': 1}])
def test_without_a_capacity_devices_gather_tokens_and_compute_their_share(sizes):
  """The vectors of four devices of a row each are gathered in each direction of the pass, and their choices (int32) and
  weights; the grouped products count the rows that are expected to be in use."""
  totals = traced(functools.partial(GatedMLP, hidden_dim=32), Mesh(**sizes), Dropless())
  vectors, numbers = 4 * LENGTH * WIDTH * 4, 4 * LENGTH * 2 * 4
  assert totals.collectives['all-gather', ('expert',)] == 2 * vectors + 2 * numbers
  assert totals.collectives['reduce-scatter', ('expert',)] == 2 * vectors + numbers
  router, experts = BATCH * LENGTH * WIDTH * 8, 3 * BATCH * LENGTH * 2 * WIDTH * 32
  assert totals.flops * 8 == 3 * 2 * (router + experts)
