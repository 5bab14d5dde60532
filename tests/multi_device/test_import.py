"""Someone else's weights, read straight onto eight fake devices (a process of its own): each device
is given its part, and nothing else of a parameter is read."""

from eight_devices import run_on_eight_devices

SCRIPT = """
import json, pathlib, sys
import jax, numpy as np
from flax import nnx
from t2x.experiments import read_config
from tiny_models import llama_shapes
from t2x.interop import HFModel
from t2x.interop.safetensors import write_tensors
from t2x.parallel import Mesh, state_shardings
from t2x.train.params import Blueprint
from t2x.layers.arrays import named_leaves

folder = pathlib.Path(sys.argv[1])
d, hidden, vocab = 16, 32, 64
config = {'model_type': 'llama', 'architectures': ['LlamaForCausalLM'], 'hidden_size': d}
config |= {'intermediate_size': hidden, 'num_hidden_layers': 3, 'num_attention_heads': 4}
shapes = llama_shapes(d, hidden, 3, vocab)
rng = np.random.default_rng(0)
tensors = {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
write_tensors(folder, {n: (t.shape, t.dtype) for n, t in tensors.items()}, tensors.__getitem__)
(folder / 'config.json').write_text(json.dumps(config | {'vocab_size': vocab}))

source = HFModel(folder)
(folder / 'model.gin').write_text(source.gin)
builder = read_config([folder / 'model.gin']).build().model
model = jax.eval_shape(lambda: builder(rngs=nnx.Rngs(0)))
whole = source.read(model)
mesh = Mesh(data=1, fsdp=4, tensor=2)
blueprint = Blueprint(model)
params = blueprint.params(model)
shardings = state_shardings(mesh.build(), mesh.rules, blueprint.infos, params)
target = blueprint.model(jax.tree.map(
  lambda s, where: jax.ShapeDtypeStruct(s.shape, s.dtype, sharding=where), params, shardings
))

arrays, _ = source.arrays(target)
leaves = dict(named_leaves(target))
for name, lazy in arrays.items():
  taken = []
  read = lazy.read
  object.__setattr__(lazy, 'read', lambda index: taken.append(read(index)) or taken[-1])
  array = lazy.on(leaves[name].sharding)
  part = array.sharding.shard_shape(array.shape)
  assert all(one.shape == part for one in taken), (name, part, [one.shape for one in taken])
assert arrays['body.stack.blocks.0.mixer.q.kernel'].shape == (3, d, 4, 4)
assert leaves['body.stack.blocks.0.mixer.q.kernel'].sharding.shard_shape((3, d, 4, 4)) == (3, 4, 2, 4)

placed = source.read(target)
for (name, one), (_, other) in zip(named_leaves(whole), named_leaves(placed), strict=True):
  assert other.sharding == leaves[name].sharding, name
  np.testing.assert_array_equal(one, other)
"""


def test_weights_are_read_straight_into_their_shardings(tmp_path):
  run_on_eight_devices(SCRIPT, tmp_path)
