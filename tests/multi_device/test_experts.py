"""Experts split over eight fake devices (a process of its own) compute what one device computes, by capacity and
without a limit."""

import functools
import json

import pytest
from eight_devices import run_on_eight_devices

pytestmark = pytest.mark.slow

SCRIPT = """
import functools, json, sys
import jax, jax.numpy as jnp, numpy as np
from eight_devices import split
from flax import nnx
from t2x.base.step import in_step
from t2x.layers import (BatchBalance, Call, Dropless, GatedMLP, MLP, MixtureOfExperts, RMSNorm, SwitchFeedForward,
  Tokens, TopK, normal)
from t2x.layers.keys import row_keys
from t2x.parallel import Mesh
from t2x.plan import hlo
from t2x.plan.collectives import collectives
from t2x.plan.hlo import _multiply_adds as multiply_adds

BATCH, LENGTH, WIDTH = 8, 16, 8
switch = functools.partial(SwitchFeedForward, capacity_factor=1.0, kernel_init=normal(0.5))
mixture = functools.partial(MixtureOfExperts, expert=functools.partial(GatedMLP, hidden_dim=32, dropout_rate=0.1))
# All tokens of the batch, on all devices, count in its balance.
of_batch = functools.partial(TopK, losses=[BatchBalance(coefficient=1.0)])
biased = functools.partial(MixtureOfExperts, expert=functools.partial(MLP, hidden_dim=32, norm=RMSNorm))
parts = {
  'switch': switch(WIDTH, num_experts=4, hidden_dim=32, rngs=nnx.Rngs(0)),
  'mixture': mixture(WIDTH, num_experts=8, router=of_batch, rngs=nnx.Rngs(0)),
  'dropless': mixture(WIDTH, num_experts=8, dispatch=Dropless(), rngs=nnx.Rngs(0)),
  # All devices have different experts, so that their rows share places as those of one device do.
  'bounded': mixture(WIDTH, num_experts=8, dispatch=Dropless(room=0.75), rngs=nnx.Rngs(0)),
  'biased': biased(WIDTH, num_experts=8, dispatch=Dropless(), rngs=nnx.Rngs(0)),
}
x = jax.random.normal(jax.random.key(1), (BATCH, LENGTH, WIDTH))
segments = jnp.asarray([[1] * 12 + [0] * 4] * BATCH)
keys = row_keys(jax.random.key(2), BATCH)

def loss(part, x, segments, keys, layout):
  with in_step(layout=layout):
    if layout is not None:
      x = layout.constrain(x, ('batch', 'length', 'embed'))
    result = part(x, Call(Tokens.row(LENGTH, segments=segments), key=keys))
  return jnp.square(result.x).sum() + sum(loss.sum() for loss in result.aux.losses.values()), (result.x, result.aux)

def run(part, rows, layout=None):
  function = functools.partial(loss, layout=layout)
  step = jax.jit(jax.value_and_grad(function, argnums=(0, 1), has_aux=True)).lower(part, *rows).compile()
  return step(part, *rows), hlo.Program(step.as_text())

found = {}
for name, meshes in json.load(sys.stdin).items():
  part = parts[name]
  expected, alone = run(part, (x, segments, keys))
  if name in ('switch', 'mixture', 'bounded'):
    assert expected[0][1][1].metrics['dropped_tokens'][0] > 0
  for text in meshes:
    sizes = {axis: int(size) for axis, size in (pair.split(' ') for pair in text.split(' x '))}
    placed, rows, layout = split(part, (x, segments, keys), Mesh(**({'data': 1} | sizes)))
    results, program = run(placed, rows, layout)
    for a, b in zip(jax.tree.leaves(expected), jax.tree.leaves(results), strict=True):
      np.testing.assert_allclose(a, b, atol=1e-5, rtol=1e-5)
    listed = collectives(program, dict(layout.mesh.shape))
    found[f'{name}, {text}'] = {
      'kernel': placed.expert.up.kernel.addressable_shards[0].data.shape,
      'flops': program.flops() * 8 / alone.flops(),
      'all-to-all': [(c.axes, c.count, c.bytes) for c in listed if c.kind == 'all-to-all'],
      'all-gather': [(c.axes, c.count, c.bytes) for c in listed if c.kind == 'all-gather'],
      'reduce-scatter': [(c.axes, c.count, c.bytes) for c in listed if c.kind == 'reduce-scatter'],
      'products': sorted({multiply_adds(i, inside) for i, _, inside in program.executed() if i.opcode == 'dot'}),
    }
print(json.dumps(found))
"""


TENSOR, CONTEXT = 'data 2 x expert 2 x tensor 2', 'expert 4 x context 2'
OFTEN = {
  'switch': ['fsdp 2 x expert 4'],
  'mixture': [TENSOR, CONTEXT],
  'dropless': ['fsdp 2 x expert 4', TENSOR],
  'bounded': ['expert 8'],
}
RARELY = {
  'mixture': ['data 2 x expert 4', 'fsdp 2 x expert 4'],
  'dropless': ['data 2 x expert 4', CONTEXT, 'data 8'],
  'biased': [TENSOR],
}
nightly = functools.partial(pytest.param, marks=pytest.mark.nightly)


@functools.cache
def results(is_rare):
  """What the devices found, by part and mesh, for the meshes of every commit or of the night."""
  meshes = json.dumps(RARELY if is_rare else OFTEN)
  return json.loads(run_on_eight_devices(SCRIPT, input=meshes).stdout.splitlines()[-1])


def found(part, mesh):
  return results(mesh not in OFTEN.get(part, ()))[f'{part}, {mesh}']


@pytest.mark.parametrize('is_rare', [False, nightly(True)])
def test_experts_on_eight_devices_equal_one(is_rare):
  """Outputs, losses, metrics and gradients, where tokens are dropped; asserted by the script."""
  assert len(results(is_rare)) == sum(map(len, (RARELY if is_rare else OFTEN).values()))


def test_devices_hold_their_part_of_the_experts():
  assert found('mixture', TENSOR)['kernel'] == [4, 8, 16]
  assert found('switch', 'fsdp 2 x expert 4')['kernel'] == [1, 4, 32]


@pytest.mark.parametrize(
  'mesh', [nightly('data 2 x expert 4'), nightly('fsdp 2 x expert 4'), TENSOR]
)
def test_vectors_move_to_the_experts_and_back_and_no_weights_move(mesh):
  """Two all-to-all in each direction of the pass, of all slots; each device computes its share of the products."""
  of_mesh = found('mixture', mesh)
  parts = 4 if 'tensor' in mesh else 8
  # 8 experts with 5 slots (16 tokens x 2 choices x 1.25 / 8) in each of 8 rows, 8 float32 each.
  moved = 4 * (8 * 5 * 8 * 8) * 4 // parts
  assert of_mesh['all-to-all'] == [[['expert'], 4, moved]]
  # Keys of dropout; a matrix of one expert has 8 x 32 float32.
  assert sum(size for axes, _, size in of_mesh['all-gather'] if 'expert' in axes) < 8 * 32 * 4
  assert of_mesh['flops'] == pytest.approx(1.0, rel=0.1)


def test_switch_moves_vectors_and_no_weights():
  of_mesh = found('switch', 'fsdp 2 x expert 4')
  assert [(axes, count) for axes, count, _ in of_mesh['all-to-all']] == [(['expert'], 4)]
  assert sum(size for axes, _, size in of_mesh['all-gather'] if 'expert' in axes) < 8 * 32 * 4
  assert of_mesh['flops'] == pytest.approx(1.0, rel=0.1)


def test_devices_that_split_a_row_share_the_slots_of_an_expert():
  """5 slots over 2 devices are 3 each, of which one is never occupied."""
  assert found('mixture', CONTEXT)['flops'] == pytest.approx(6 / 5, rel=0.1)


@pytest.mark.parametrize('mesh', [nightly('data 2 x expert 4'), 'fsdp 2 x expert 4', TENSOR])
def test_without_a_capacity_devices_gather_tokens_and_return_sums(mesh):
  """Vectors, choices, weights and keys of dropout are gathered; sums of outputs are scattered, and the gradients of all
  of these; no weights move over `expert`. A product is of one block of 32 rows with one expert."""
  of_mesh = found('dropless', mesh)
  tensor = 2 if 'tensor' in mesh else 1
  # The rows of four devices, or of two devices with two rows each: 16 tokens of 8 float32, 2 choices, keys
  # of 2 integers.
  vectors, numbers = 4 * 16 * 8 * 4, 4 * 16 * 2 * 4
  assert of_mesh['all-to-all'] == []
  over_expert = [row for row in of_mesh['all-gather'] if 'expert' in row[0]]
  assert over_expert == [[['expert'], 5, 2 * vectors + 3 * numbers]]
  assert [row[:2] for row in of_mesh['reduce-scatter']] == [[['expert'], 3]]
  assert max(of_mesh['products']) == 32 * 8 * 32 // tensor
