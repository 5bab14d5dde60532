"""Experts split over eight fake devices (a process of its own) compute what one device computes."""

from eight_devices import run_on_eight_devices

SCRIPT = """
import functools
import jax, jax.numpy as jnp, numpy as np
from flax import nnx
from jax.sharding import NamedSharding, PartitionSpec as P
from t2x.base.hyperparameters import in_step
from t2x.layers import Call, SwitchFeedForward, Tokens, normal
from t2x.parallel import Activations, Mesh
from t2x.parallel.sharding import partition_spec
from t2x.train.params import Blueprint

def make(rngs):
  return SwitchFeedForward(
    8, num_experts=4, hidden_dim=16, capacity_factor=1.0, kernel_init=normal(0.5), rngs=rngs
  )

part = make(nnx.Rngs(0))
x = jax.random.normal(jax.random.key(1), (4, 16, 8))
segments = jnp.asarray([[1] * 12 + [0] * 4] * 4)

def loss(part, x, segments, layout):
  with in_step(layout=layout):
    result = part(x, Call(Tokens.row(16, segments=segments)))
  return jnp.square(result.x).sum() + result.aux.losses['balance'].sum(), (result.x, result.aux)

def run(layout, *inputs):
  function = functools.partial(loss, layout=layout)
  return jax.jit(jax.value_and_grad(function, has_aux=True))(*inputs)

expected = run(None, part, x, segments)
assert expected[0][1][1].metrics['dropped_tokens'][0] > 0

settings = Mesh(data=1, fsdp=2, expert=4)
mesh, blueprint = settings.build(), Blueprint(part)
split = {}
for name, value in blueprint.params(part).items():
  info = blueprint.infos[name]
  spec = partition_spec(mesh, settings.rules, info.all_axes, info.shape, name)
  split[name] = jax.device_put(value, NamedSharding(mesh, spec))
assert split['up'].addressable_shards[0].data.shape == (1, 4, 16), split['up'].sharding
over_rows = NamedSharding(mesh, P(('data', 'fsdp')))
arrays = [jax.device_put(a, over_rows) for a in (x, segments)]
found = run(Activations.of(mesh, settings), blueprint.model(split), *arrays)
for a, b in zip(jax.tree.leaves(expected), jax.tree.leaves(found), strict=True):
  np.testing.assert_allclose(a, b, atol=1e-5, rtol=1e-5)
"""


def test_experts_on_eight_devices_equal_one():
  run_on_eight_devices(SCRIPT)
