"""Splash attention on eight fake devices (a process of its own), in the interpreter, equals `Dense` on one."""

import pytest
from eight_devices import run_on_eight_devices

SCRIPT = """
import functools
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import NamedSharding, PartitionSpec as P
from t2x.base.step import in_step
from t2x.layers import AttentionInputs, Causal, Dense, DotProduct, Splash, Tokens
from t2x.layers.constraints import constrain
from t2x.parallel import Activations, Mesh

keys = jax.random.split(jax.random.key(0), 4)
q, k, v = (jax.random.normal(a, (4, 256, n, 8)) for a, n in zip(keys, (4, 2, 2)))
arrays = q, k, v, jax.random.normal(keys[3], (4,))
segments = jnp.asarray([[1] * 100 + [2] * 156, [1] * 200 + [0] * 56] * 2)

def loss(arrays, kernel, layout):
  q, k, v, sink = arrays
  def layer(x, scale):
    x = constrain(x, 'batch', 'length', 'heads', None)
    tokens = Tokens.row(256, segments=segments)
    scores = DotProduct(scale * x, k, 0.3, 2.0, sink)
    return x + kernel(AttentionInputs(scores, v, Causal(), tokens, tokens)), None
  with in_step(layout=layout):
    x, _ = jax.lax.scan(jax.checkpoint(layer), q, jnp.asarray([1.0, 2.0]))
  return jnp.sin(x).sum(), x

def run(kernel, layout, arrays):
  function = jax.value_and_grad(functools.partial(loss, kernel=kernel, layout=layout), has_aux=True)
  return jax.jit(function)(arrays)

kernel = Splash(128, interpret=True)
expected = run(Dense(), None, arrays)
for name, tensor_rules in (('heads', {}), ('query heads only', {'kv_heads': None})):
  settings = Mesh(data=2, fsdp=2, tensor=2)
  settings.activation_rules.update(tensor_rules)
  mesh = settings.build()
  layout = Activations.of(mesh, settings)
  spec = NamedSharding(mesh, P(('data', 'fsdp'), None, 'tensor'))
  split = *jax.device_put(arrays[:3], spec), jax.device_put(arrays[3], NamedSharding(mesh, P()))
  found = run(kernel, layout, split)
  if not tensor_rules:
    assert found[0][1].addressable_shards[0].data.shape == (1, 256, 2, 8), found[0][1].sharding
    forward = jax.jit(functools.partial(loss, kernel=kernel, layout=layout))
    text = forward.lower(split).compile().as_text()
    assert 'all-gather' not in text and 'all-to-all' not in text
  for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
    spread = max(1.0, float(jnp.abs(b).max()))
    np.testing.assert_allclose(a / spread, b / spread, atol=2e-6, rtol=0, err_msg=name)
"""


@pytest.mark.nightly
def test_splash_on_eight_devices_equals_dense_on_one():
  run_on_eight_devices(SCRIPT)
