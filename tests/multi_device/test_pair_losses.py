"""The sigmoid loss of all pairs at once, in blocks, and around a ring of eight fake devices (a process of its own)."""

import pytest
from eight_devices import run_on_eight_devices

CODE = """
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec
from loss_terms import assert_close
from t2x.base.step import in_step
from t2x.parallel import Activations, Mesh
from t2x.domains.retrieval import PairRows, RingSigmoid, Sigmoid, SigmoidInBlocks
from t2x.domains.retrieval.pair_losses import Scores

ROWS, DIM = 32, 12
rng = np.random.default_rng(0)
a = rng.normal(size=(ROWS, DIM)) / 3
b = a + rng.normal(size=a.shape) / 3
a, b = jnp.asarray(a, jnp.float32), jnp.asarray(b, jnp.float32)
scores = Scores(jnp.float32(4.0), jnp.float32(-1.5))
# Three texts occur twice, on other devices; there is padding.
texts = np.arange(ROWS)
texts[[20, 31, 7]] = texts[[1, 2, 6]]
hashes = jnp.asarray(np.stack([texts, texts * 0 + 5], axis=1), jnp.uint32)
rows = PairRows(jnp.arange(ROWS), jnp.asarray(rng.random(ROWS) > 0.2), hashes)
weights = jnp.asarray(rng.random(ROWS), jnp.float32) * rows.present


def of(loss, layout=None):
  def total(a, b, scores, rows, weights):
    with in_step(layout=layout):
      pairs = loss(a, b, scores, rows)
    return (pairs.losses * weights).sum(), pairs
  return jax.jit(jax.value_and_grad(total, (0, 1, 2), has_aux=True))


arguments = a, b, scores, rows, weights
whole = of(Sigmoid())(*arguments)
assert 0 < np.asarray(whole[0][1].correct)[np.asarray(rows.present)].sum() < rows.present.sum()
assert_close(of(SigmoidInBlocks(size=8))(*arguments), whole, 1e-5)
settings = Mesh(data=4, fsdp=2)
mesh = settings.build()
layout = Activations.of(mesh, settings)
split = NamedSharding(mesh, PartitionSpec(('data', 'fsdp')))
placed = [jax.device_put(x, split) for x in (a, b)]
placed += [scores, *(jax.tree.map(lambda x: jax.device_put(x, split), x) for x in (rows, weights))]
programs = {
  name: of(loss, layout).lower(*placed).compile()
  for name, loss in (('whole', Sigmoid()), ('ring', RingSigmoid()))
}
for name, program in programs.items():
  assert_close(program(*placed), whole, 1e-5)
text = {name: program.as_text() for name, program in programs.items()}
assert 'all-gather' in text['whole'] and 'collective-permute' not in text['whole']
assert 'all-gather' not in text['ring'] and 'collective-permute' in text['ring']
# No device holds more products than those of its own rows.
assert f'f32[{ROWS // 8},{ROWS}]' in text['whole']
assert not any(f'[{n},{ROWS}]' in text['ring'] for n in (ROWS, ROWS // 8))
"""


@pytest.mark.slow
def test_blocks_and_a_ring_equal_the_whole_sigmoid_loss_with_gradients_and_the_ring_gathers_nothing():
  run_on_eight_devices(CODE)
