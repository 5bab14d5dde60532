"""Convolutions of groups of features on eight devices (in another process) equal those on one."""

import json

import pytest
from eight_devices import run_on_eight_devices

SCRIPT = """
import json
import jax, jax.numpy as jnp, numpy as np
from t2x.base.step import in_step
from t2x.layers.constraints import constrain
from t2x.layers.group_convolution import convolution
from t2x.parallel import Activations, Mesh

rng = np.random.default_rng(0)
differences = {}
for group_size, stride, size, sides, axis in [
  (1, 1, 3, (4, 4), None), (1, 2, 3, (4, 4), None), (4, 1, 3, (4, 4), None), (16, 1, 3, (4, 4), None),
  (16, 2, 2, (4, 4), None), (1, 1, 5, (12,), 'heads'),
]:
  x = rng.normal(size=(8, *sides, 16)).astype(np.float32)
  kernel = rng.normal(size=(*(size,) * len(sides), group_size, 16)).astype(np.float32)
  around = size // 2 if size % 2 else 0

  def value(x, kernel):
    x = constrain(x, 'batch', *(None,) * len(sides), axis)
    y = convolution(x, kernel, stride, around, axis)
    weights = jnp.cos(jnp.arange(y.size, dtype=jnp.float32)).reshape(y.shape)
    return (y * weights).sum(), y

  def everything(layout):
    def run(x, kernel):
      with in_step(layout=layout):
        (_, y), gradients = jax.value_and_grad(value, (0, 1), has_aux=True)(x, kernel)
        return y, *gradients
    return [np.asarray(one) for one in jax.jit(run)(x, kernel)]

  expected = everything(None)
  for sizes in (
    {}, {'tensor': 2}, {'context': 2}, {'data': 1, 'fsdp': 2, 'tensor': 4}, {'data': 2, 'fsdp': 2, 'expert': 2}
  ):
    mesh = Mesh(**sizes)
    found = everything(Activations.of(mesh.build(), mesh))
    name = f'{len(sides)} sides, groups of {group_size}, stride {stride}, {sizes}'
    differences[name] = [float(abs(a - b).max() / abs(b).max()) for a, b in zip(found, expected)]
print(json.dumps(differences))
"""


@pytest.mark.slow
def test_outputs_and_gradients_on_eight_devices_equal_those_on_one():
  differences = json.loads(run_on_eight_devices(SCRIPT).stdout.splitlines()[-1])
  assert len(differences) == 30
  assert {name: each for name, each in differences.items() if max(each) > 1e-5} == {}
