"""Recurrent layers against torch.nn, with every parameter and its gradient."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from applying import moved
from flax import nnx

from t2x.layers import (
  Causal,
  ElmanCell,
  Full,
  GRUCell,
  LSTMCell,
  Plain,
  Recurrent,
  Tokens,
)
from t2x.models import Encoder, Stack, SublayerBlock

torch = pytest.importorskip('torch', reason="the extra 'references' is not installed")

part = functools.partial
WIDTH, LENGTH, LAYERS = 8, 7, 2
LENGTHS = np.asarray([7, 3, 5])
SEGMENTS = (np.arange(LENGTH) < LENGTHS[:, None]).astype(np.int32)
rng = np.random.default_rng(0)
X, WEIGHTS = (rng.normal(size=(3, LENGTH, WIDTH)).astype(np.float32) for _ in range(2))
CELLS = {
  'Elman': (ElmanCell, torch.nn.RNN),
  'GRU': (GRUCell, torch.nn.GRU),
  'LSTM': (LSTMCell, torch.nn.LSTM),
}


def body(cell, pattern, **settings):
  layer = part(
    SublayerBlock, sublayers={'mixer': part(Recurrent, cell=cell, **settings)}, wiring=Plain
  )
  stack = part(Stack, num_layers=LAYERS, blocks=[layer])
  model = Encoder(WIDTH, stack=stack, pattern=pattern, final_norm=None, rngs=nnx.Rngs(0))
  return moved(model, scale=0.1)


def as_theirs(model):
  """The arrays of a body, or of its gradient, by PyTorch's names; their first biases are ours, except for c in GRUs."""
  arrays = {}
  (block,) = model.stack.blocks
  directions = {'': block.mixer.cell, '_reverse': block.mixer.backward}
  for suffix, cell in directions.items():
    for layer in range(LAYERS if cell is not None else 0):
      name = f'l{layer}{suffix}'
      inputs, state = (p.kernel[...][layer] for p in (cell.inputs, cell.state))
      arrays[f'weight_ih_{name}'] = inputs.reshape(len(inputs), -1).T
      arrays[f'weight_hh_{name}'] = state.reshape(len(state), -1).T
      arrays[f'bias_ih_{name}'] = cell.inputs.bias[...][layer].reshape(-1)
      if isinstance(cell, GRUCell):
        arrays[f'bias_hh_{name}'] = cell.reset_bias[...][layer]
  return arrays


@pytest.mark.parametrize('pattern', [Causal(), Full()], ids=str)
@pytest.mark.parametrize('name', CELLS)
def test_recurrent_layers_equal_those_of_torch(name, pattern, compared):
  cell, module = CELLS[name]
  ours = body(cell, pattern)
  width = WIDTH // 2 if pattern == Full() else WIDTH
  settings = {'num_layers': LAYERS, 'batch_first': True, 'bidirectional': pattern == Full()}
  theirs = module(WIDTH, width, **settings)
  parameters, arrays = dict(theirs.named_parameters()), as_theirs(ours)
  with torch.no_grad():
    for key, parameter in parameters.items():
      array = arrays.get(key, np.zeros(0, np.float32))
      padding = parameter.shape[0] - array.shape[0]
      padded = np.pad(array, [(padding, 0), *[(0, 0)] * (array.ndim - 1)])
      parameter.copy_(torch.tensor(padded))
  x = torch.tensor(X, requires_grad=True)
  packing = {'batch_first': True, 'enforce_sorted': False}
  packed = torch.nn.utils.rnn.pack_padded_sequence(x, torch.tensor(LENGTHS), **packing)
  expected, _ = torch.nn.utils.rnn.pad_packed_sequence(theirs(packed)[0], batch_first=True)
  (expected * torch.tensor(WEIGHTS)).sum().backward()

  @jax.jit
  def weighted(model, x):
    tokens = Tokens.row(LENGTH, segments=jnp.asarray(SEGMENTS), right_padded=True)
    y = model(x, tokens=tokens).x * SEGMENTS[..., None]
    return (y * WEIGHTS).sum(), y

  gradients, y = jax.grad(weighted, (0, 1), has_aux=True)(ours, X)
  system, reference = 'recurrent layers', f'torch.nn.{module.__name__}'
  compared(system, reference, y, expected.detach().numpy(), rtol=1e-6, atol=1e-6)
  found = as_theirs(gradients[0]) | {'x': gradients[1]}
  grads = {key: p.grad for key, p in parameters.items()} | {'x': x.grad}
  for key, gradient in found.items():
    wanted = grads[key].numpy()[-len(gradient) :]
    compared(system, reference, gradient, wanted, rtol=1e-5, atol=1e-5, of='gradients')
