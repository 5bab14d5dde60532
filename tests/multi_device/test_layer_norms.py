"""On eight fake devices (a separate process): norms by layer of sharded arrays are those of NumPy."""

import pytest
from eight_devices import run_on_eight_devices

SCRIPT = """
import functools
import jax
import numpy as np

from t2x.data import Bytes, TextFiles
from t2x.layers import MLP, MultiHeadAttention, RoPE, TokenEmbedding
from t2x.models import Block, Decoder, LanguageModel, Stack
from t2x.parallel import Mesh
from t2x.tasks import CausalLM
from t2x.train import AdamW, Constant, Experiment, Trainer, Program

block = functools.partial(
  Block,
  mixer=functools.partial(MultiHeadAttention, num_heads=2),
  feed_forward=functools.partial(MLP, hidden_dim=32),
)
model = functools.partial(
  LanguageModel,
  d_model=16,
  embedding=functools.partial(TokenEmbedding, vocab_size=264),
  body=functools.partial(
    Decoder, stack=functools.partial(Stack, num_layers=4, blocks=[block]), encoding=RoPE
  ),
)
rng = np.random.default_rng(0)
rows = {
  'tokens': rng.integers(5, 261, size=(8, 16)).astype(np.int32),
  'segments': np.ones((8, 16), np.int32),
  'positions': np.tile(np.arange(16, dtype=np.int32), (8, 1)),
}
results = []
for mesh in (Mesh(num_devices=1), Mesh(data=2, fsdp=2, tensor=2)):
  trainer = Trainer(
    num_steps=4, batch_size=8, optimizer=AdamW(), schedule=Constant(peak=1e-2), layer_norms=True
  )
  task = CausalLM(source=TextFiles(train='none'), tokenizer=Bytes(), length=16)
  program = Program(Experiment(model=model, task=task, trainer=trainer, mesh=mesh))
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
