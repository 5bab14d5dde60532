"""A loss over the whole batch on eight fake devices (a process of its own) equals that on one device."""

import pytest
from eight_devices import run_on_eight_devices

CODE = """
import functools
import sys

import jax
import jax.numpy as jnp
import numpy as np
from applying import moved
from eight_devices import split
from flax import nnx
from loss_terms import assert_close, gradient
from t2x.data import Bytes
from t2x.domains.retrieval import Contrastive, Tower, TwoTower
from t2x.layers import MLP, MultiHeadAttention, TokenEmbedding
from t2x.models import Block, Encoder, Stack
from t2x.parallel import Mesh
from t2x.samples import BabelDates

part = functools.partial
block = part(Block, mixer=part(MultiHeadAttention, num_heads=2, use_bias=False), feed_forward=part(MLP, hidden_dim=16))
tower = part(
  Tower,
  d_model=8,
  embedding=part(TokenEmbedding, vocab_size=264),
  body=part(Encoder, stack=part(Stack, num_layers=1, blocks=[block])),
)
model = moved(TwoTower(a=tower, b=tower, dim=8, rngs=nnx.Rngs(0)), scale=0.3, seed=0)
task = Contrastive(source=BabelDates(), tokenizer=Bytes(), source_length=4, target_length=6)
rng = np.random.default_rng(0)
batch = {n: rng.integers(5, 250, s.shape).astype(np.int32) for n, s in task.spec(16).items()}
for side in 'ab':
  lengths = rng.integers(1, batch[side].shape[1] + 1, (16, 1))
  batch[side + '_segments'] = (np.arange(batch[side].shape[1]) < lengths).astype(np.int32)
batch['weight'] = (np.arange(16) % 5 > 0).astype(np.int32)
batch = jax.tree.map(jnp.asarray, batch)
one_device, metrics = gradient(task, model, batch)
assert max(float(jnp.abs(leaf).max()) for leaf in jax.tree.leaves(one_device)) > 1e-2
for mesh in (Mesh(data=2, fsdp=2, tensor=2), Mesh(data=8))[:int(sys.argv[1])]:
  placed, rows, layout = split(model, batch, mesh)
  grads, same = gradient(task, placed, rows, 1, layout)
  assert_close(grads, one_device, 5e-6)
  assert_close(same, metrics, 5e-6)
# The loss of the rows of some devices alone is another one.
parts = [gradient(task, model, jax.tree.map(lambda a: a[i : i + 8], batch))[1]['loss'] for i in (0, 8)]
assert abs(sum(p[0] for p in parts) - metrics['loss'][0]) > 1
"""


@pytest.mark.slow
@pytest.mark.parametrize('num_meshes', [1, pytest.param(2, marks=pytest.mark.nightly)])
def test_the_contrastive_loss_and_its_gradient_on_eight_devices_equal_those_on_one(num_meshes):
  run_on_eight_devices(CODE, num_meshes)
