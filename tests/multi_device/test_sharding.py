"""On eight fake devices (a process of its own): where each array of a train state lives, and that a
checkpoint of one mesh restores onto another."""

from eight_devices import ROOT, run_on_eight_devices

SCRIPT = """
import importlib.util, sys
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import PartitionSpec as P
from t2x.base.errors import UserError
from t2x.layers.arrays import named_leaves
from t2x.parallel import Mesh, batch_sharding, state_shardings
from t2x.train.checkpoints.store import Checkpoints
from t2x.train.optimizers import Adafactor, AdamW, Muon, build_optimizer
from t2x.train.params import Blueprint
from t2x.train.schedules import Constant

spec = importlib.util.spec_from_file_location('models', sys.argv[1])
models = importlib.util.module_from_spec(spec)
spec.loader.exec_module(models)
from flax import nnx

infos = Blueprint(jax.eval_shape(lambda: models.TinyModel(8, nnx.Rngs(0)))).infos

def init(optimizer):
  def of(key):
    params = dict(named_leaves(models.TinyModel(8, nnx.Rngs(key))))
    rule = build_optimizer(
      optimizer, Constant(peak=1e-3), clip_norm=None, num_steps=1, infos=infos
    )
    return {'params': params, 'opt_state': rule.init(params), 'key': key, 'step': jnp.zeros((), int)}
  return of

def abstract(mesh, optimizer):
  shapes = jax.eval_shape(init(optimizer), jax.random.key(0))
  shardings = state_shardings(mesh.build(), mesh.rules, infos, shapes)
  return jax.tree.map(
    lambda s, where: jax.ShapeDtypeStruct(s.shape, s.dtype, sharding=where), shapes, shardings
  )

def specs(tree):
  leaves = jax.tree_util.tree_leaves_with_path(tree)
  return {jax.tree_util.keystr(p, simple=True, separator='.'): leaf.sharding.spec for p, leaf in leaves}

mesh = Mesh(data=2, fsdp=2, tensor=2)
target = abstract(mesh, AdamW())
state = jax.jit(init(AdamW()), out_shardings=jax.tree.map(lambda a: a.sharding, target))(
  jax.random.key(0)
)
found = specs(state)
moment = 'opt_state.0.mu.'
assert found['params.blocks.q'] == P(None, 'fsdp', 'tensor'), found
for name, where in found.items():
  if name.startswith('params.'):
    assert found[name.replace('params.', moment)] == where, name
assert found['step'] == found['key'] == P()
shard = state['params']['table'].addressable_shards[0]
assert shard.data.shape == (8, 4)

muon = specs(abstract(mesh, Muon()))
assert any(w == P(None, 'fsdp', 'tensor') for n, w in muon.items() if n.startswith('opt_state'))
rows = specs(abstract(mesh, Adafactor(min_dim_size=4)))
assert [w for n, w in rows.items() if '.rows.blocks.q' in n] == [P()]

checkpoints = Checkpoints(sys.argv[2])
checkpoints.save(1, state)
checkpoints.wait()
for other in (Mesh(data=1, fsdp=4, num_devices=4), Mesh(num_devices=1)):
  restored, _ = checkpoints.restore(abstract(other, AdamW()))
  expected = specs(abstract(other, AdamW()))
  assert specs(restored) == expected
  for a, b in zip(jax.tree.leaves(state), jax.tree.leaves(restored)):
    if not jnp.issubdtype(a.dtype, jax.dtypes.prng_key):
      np.testing.assert_array_equal(np.asarray(a), np.asarray(b))

batch = jax.make_array_from_process_local_data(batch_sharding(mesh.build()), np.zeros((8, 3)))
assert batch.addressable_shards[0].data.shape == (2, 3)
try:
  Mesh(data=1, tensor=8).build()
  abstract(Mesh(data=1, tensor=8), AdamW())
except UserError as error:
  print(error)
"""


def test_state_and_checkpoints_on_eight_devices(tmp_path):
  done = run_on_eight_devices(SCRIPT, ROOT / 'tests/train/conftest.py', tmp_path)
  assert done.stderr == ''
  assert "its axis 'heads' of size 2 does not divide over the mesh axis tensor 8" in done.stdout
