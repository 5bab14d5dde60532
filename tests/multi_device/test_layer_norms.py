"""On eight fake devices (a separate process): norms by layer of sharded arrays are those of NumPy."""

import pytest
from eight_devices import run_on_eight_devices

SCRIPT = """
import jax
import numpy as np

from t2x.layers import RoPE
from t2x.parallel import Mesh
from t2x.train import AdamW, Constant, Experiment, Trainer, Program
from tiny_lm import causal_lm, full_rows, lm

model = lm(vocab_size=264, num_layers=4, encoding=RoPE)
rows = full_rows(8, 16)
results = []
for mesh in (Mesh(num_devices=1), Mesh(data=2, fsdp=2, tensor=2)):
  trainer = Trainer(
    num_steps=4, batch_size=8, optimizer=AdamW(), schedule=Constant(peak=1e-2), layer_norms=True
  )
  program = Program(Experiment(model=model, task=causal_lm(16), trainer=trainer, mesh=mesh))
  state, frozen = program.init(0)
  before = jax.tree.map(np.asarray, state.params)
  batch = {name: jax.device_put(rows[name], leaf.sharding) for name, leaf in program.batch().items()}
  state, out = program.train_step()(state, frozen, batch)
  after = jax.tree.map(np.asarray, state.params)
  norms = jax.device_get(out).layer_norms
  for kind, tree in (('parameter', before), ('update', {n: after[n] - before[n] for n in before})):
    for layer in range(4):
      members = [np.asarray(a[layer], np.float64) for n, a in tree.items() if '.blocks.' in n]
      expected = np.sqrt(sum((a ** 2).sum() for a in members))
      np.testing.assert_allclose(norms[f'{kind}/body.stack.{layer}'], expected, rtol=1e-4)
  kernel = state.params['body.stack.blocks.0.feed_forward.up.kernel']
  sharded = kernel.addressable_shards[0].data.size < kernel.size
  assert sharded == (mesh.num_devices is None), mesh
  results.append(norms)
one, eight = results
assert one.keys() == eight.keys()
for name, value in one.items():
  np.testing.assert_allclose(eight[name], value, rtol=1e-4, err_msg=name)
"""


@pytest.mark.nightly
def test_norms_by_layer_on_eight_devices_equal_those_on_one():
  run_on_eight_devices(SCRIPT)
