"""Run by test_ring.py in a process of its own, with eight fake devices: prints how far `Ring` on eight devices is
from a kernel on one device, and the collectives of its compiled program, for each case named."""

import json
import sys

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import NamedSharding, PartitionSpec

from t2x.base.step import in_step
from t2x.layers import (
  Blockwise,
  Causal,
  Dense,
  DotProduct,
  Full,
  Global,
  Marked,
  Ring,
  Tokens,
  Window,
)
from t2x.layers.attention.kernels import AttentionInputs, PositionTerms
from t2x.layers.constraints import constrain
from t2x.parallel import Activations, Mesh
from t2x.plan.collectives import collectives
from t2x.plan.hlo import Program
from tests.layers.attention.kernels.test_kernels import TableBias, packed, random_pattern

BATCH, LENGTH, HEADS = 4, 64, 4
BLOCK = 4
MESHES = {
  'context 4': Mesh(data=2, context=4),
  'context 8': Mesh(data=1, context=8),
  'all axes': Mesh(data=2, context=2, tensor=2),
  'context over two axes': Mesh(
    data=1, expert=2, context=4, activation_rules={'batch': 'data', 'length': ('expert', 'context')}
  ),
}


def tokens_of(kind):
  """Metadata of BATCH rows, and of the keys if they are another sequence."""
  rng = np.random.default_rng(0)
  if kind == 'packed':
    return packed(rng, LENGTH, BATCH)
  if kind == 'shuffled':
    return Tokens(jnp.asarray(np.stack([rng.permutation(LENGTH) for _ in range(BATCH)])))
  if kind == 'marked':
    names = 'prefix', 'global'
    return Tokens.row(
      LENGTH, marks={name: jnp.asarray(rng.random((BATCH, LENGTH)) < 0.1) for name in names}
    )
  assert kind == 'row'
  return Tokens.row(LENGTH)


def case(pattern, tokens='row', mesh='context 4', **settings):
  return {'pattern': pattern, 'tokens': tokens, 'mesh': mesh, **settings}


FEATURES = {'soft_cap': 2.0, 'sink': True, 'bias': True}
CASES = {
  'causal, packed, all features': case(Causal(), 'packed', 'all axes', **FEATURES),
  'window': case(Causal() & Window(10)),
  'causal': case(Causal(), mesh='context 8'),
  'full': case(Full()),
  'both sides': case(Window(7), mesh='context 8'),
  'global': case(Window(5) | Global(3)),
  'marked': case(Causal() & (Window(9) | Marked('global')), 'marked', **FEATURES),
  'dilated': case(Causal() & Window(6, dilation=3), 'packed', 'context 8'),
  'shuffled': case(Causal(), 'shuffled', **FEATURES),
  'two mesh axes': case(Causal(), 'packed', 'context over two axes', **FEATURES),
  'dropout': case(Causal(), 'packed', rate=0.2),
  'bfloat16': case(Causal(), 'packed', dtype='bfloat16'),
  'cross-attention': case(Full(), k_len=32, **FEATURES),
  **{
    f'random pattern {i}': case(random_pattern(np.random.default_rng(i)), 'marked')
    for i in range(8)
  },
}


def run(kernel, layout, arrays, settings, *tokens):
  """Returns outputs and gradients, through rematerialised layers in a scan, and the compiled program."""

  def loss(arrays, tokens):
    q, k, v, sink, bias = arrays

    def layer(x, scale):
      x = constrain(x, 'batch', 'length', 'heads', None)
      scores = DotProduct(
        (scale * x).astype(k.dtype),
        k,
        0.3,
        settings.get('soft_cap'),
        sink if settings.get('sink') else None,
      )
      rate = settings.get('rate', 0.0)
      terms = PositionTerms(bias, 0.3) if settings.get('bias') else None
      key = jax.random.key(1) if rate else None
      given = AttentionInputs(scores, v, settings['pattern'], *tokens, terms, rate, key)
      return x + kernel(given), None

    with in_step(layout=layout):
      x, _ = jax.lax.scan(jax.checkpoint(layer), q, jnp.asarray([1.0, 0.5], q.dtype))
    return jnp.sin(x.astype(jnp.float32)).sum(), x

  step = (
    jax.jit(jax.value_and_grad(loss, has_aux=True, allow_int=True)).lower(arrays, tokens).compile()
  )
  (_, out), gradients = step(arrays, tokens)
  floats = [g for g in jax.tree.leaves(gradients) if g.dtype != jax.dtypes.float0]
  return [np.asarray(x.astype(jnp.float32)) for x in (out, *floats)], step


def dense(arrays, settings, *tokens):
  """Returns `run` with the kernel of one device: row by row, since the sum over all rows in float32 is further from
  that in float64 than the tolerance."""

  def row(i):
    own = jax.tree.map(lambda x: x[i : i + 1] if len(x) == BATCH else x, tokens)
    return run(Dense(), None, (*(x[i : i + 1] for x in arrays[:3]), *arrays[3:]), settings, *own)[0]

  x, *gradients = zip(*map(row, range(BATCH)), strict=True)
  rows, sums = [x, *gradients[:3]], gradients[3:]
  return [*map(np.concatenate, rows), *(np.sum(g, axis=0, dtype=np.float64) for g in sums)]


def difference(name):
  """Returns the largest difference relative to the largest element of an array, and the collectives."""
  settings = CASES[name]
  mesh = MESHES[settings['mesh']]
  layout = Activations.of(mesh.build(), mesh)
  keys = jax.random.split(jax.random.key(0), 5)
  k_len, dtype = settings.get('k_len', LENGTH), settings.get('dtype', 'float32')
  shapes = (BATCH, LENGTH, HEADS, 8), (BATCH, k_len, 2, 8), (BATCH, k_len, 2, 8)
  q, k, v = (jax.random.normal(key, s, dtype) for key, s in zip(keys, shapes, strict=False))
  tokens = tokens_of(settings['tokens'])
  k_tokens = tokens if k_len == LENGTH else Tokens.row(k_len)
  arrays = q, k, v, jax.random.normal(keys[3], (HEADS,)), TableBias(HEADS, nnx.Rngs(0))
  # The tiles of dropout are part of the definition, and products of bfloat16 are rounded per tile.
  if {'rate', 'dtype'} & settings.keys():
    expected, _ = run(Blockwise(BLOCK, BLOCK), None, arrays, settings, tokens, k_tokens)
  else:
    expected = dense(arrays, settings, tokens, k_tokens)
  spec = PartitionSpec(*(mesh.activation_rules.get(axis) for axis in ('batch', 'length', 'heads')))
  split = NamedSharding(layout.mesh, spec)
  everywhere = NamedSharding(layout.mesh, PartitionSpec())
  on_devices = *jax.device_put(arrays[:3], split), *jax.device_put(arrays[3:], everywhere)
  batch = NamedSharding(layout.mesh, PartitionSpec(mesh.activation_rules['batch']))
  given = (
    jax.tree.map(lambda x: jax.device_put(x, batch if len(x) == BATCH else everywhere), one)
    for one in (tokens, k_tokens)
  )
  found, step = run(Ring(BLOCK), layout, on_devices, settings, *given)
  errors = [
    np.abs(a - b).max() / max(1.0, np.abs(b).max()) for a, b in zip(found, expected, strict=True)
  ]
  listed = collectives(Program(step.as_text()), dict(layout.mesh.shape))
  moved = {f'{one.kind} {" ".join(one.axes)}': [one.count, one.bytes] for one in listed}
  return {'difference': float(max(errors)), 'collectives': moved}


if __name__ == '__main__':
  names = sys.argv[1:] or list(CASES)
  print(json.dumps({name: difference(name) for name in names}))
