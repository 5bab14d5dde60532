"""Recurrent decoders against joeynmt and PyTorch, with every parameter and its gradient."""

import functools
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from applying import moved
from flax import nnx

from t2x.layers import (
  Call,
  Causal,
  FixedVector,
  GRUCell,
  LastVector,
  MaxoutOutput,
  RecurrentDecoder,
  SourceSequence,
  StateBeforeDecoder,
  Tokens,
)
from tests.parity import archives

torch = pytest.importorskip('torch', reason="the extra 'references' is not installed")
pytestmark = pytest.mark.nightly

WIDTH, LENGTH = 8, 6
SOURCE_LENGTHS = np.asarray([5, 3, 4])
rng = np.random.default_rng(0)
X, WEIGHTS = (rng.normal(size=(3, LENGTH, WIDTH)).astype(np.float32) for _ in range(2))
STATES = rng.normal(size=(3, 5, WIDTH)).astype(np.float32)
SEGMENTS = (np.arange(5) < SOURCE_LENGTHS[:, None]).astype(np.int32)


def joeynmt():
  """Its module of decoders, which needs little of the modules that it imports."""
  stubs = {
    'builders': {'build_activation': lambda name: getattr(torch, name)},
    'config': {'ConfigurationError': ValueError},
    'encoders': {'Encoder': object},
    'helpers': {'freeze_params': None, 'subsequent_mask': None},
    'transformer_layers': {'PositionalEncoding': None, 'TransformerDecoderLayer': None},
  }
  modules = {f'joeynmt.{name}': types.ModuleType(f'joeynmt.{name}') for name in stubs}
  for name, members in stubs.items():
    vars(modules[f'joeynmt.{name}']).update(members)
  return archives.module('joeynmt', '2.3.0', 'joeynmt.decoders', modules)


def as_theirs(part):
  """The arrays of a decoder, or of its gradient, by joeynmt's names; their two biases of gates are one."""
  inputs, state = part.cell.inputs, part.cell.state.kernel[...].reshape(2 * WIDTH, -1)
  rows = np.concatenate([inputs.kernel[...].reshape(WIDTH, -1), state[:WIDTH]])
  return {
    'rnn.weight_ih_l0': rows.T,
    'rnn.weight_hh_l0': state[WIDTH:].T,
    'rnn.bias_ih_l0': inputs.bias[...].reshape(-1),
    'att_vector_layer.weight': part.out.kernel[...].reshape(2 * WIDTH, -1).T,
    'att_vector_layer.bias': part.out.bias[...],
    'attention.key_layer.weight': part.attention.k.kernel[...].T,
    'attention.query_layer.weight': part.attention.q.kernel[...].T,
    'attention.energy_layer.weight': part.attention.scores.w[...],
    'bridge_layer.weight': part.initial.bridge.kernel[...].T,
    'bridge_layer.bias': part.initial.bridge.bias[...],
  }


def check(compare, ours, in_theirs, expected, alignments, gradients):
  """Compares outputs, alignments and the gradients of all parameters, of the input and of the source.

  Args:
    compare: compares two arrays.
    ours: our decoder.
    in_theirs: converts the arrays of our decoder to theirs by name.
    expected: their outputs.
    alignments: their attention.
    gradients: theirs by name.
  """

  @jax.jit
  def weighted(part, x, states):
    source = SourceSequence(states, Tokens.row(5, segments=jnp.asarray(SEGMENTS)))
    record = frozenset({'probabilities'})
    result = part(x, Call(Tokens.row(LENGTH), Causal(), source=source, record=record))
    return (result.x * WEIGHTS).sum(), result

  (own, dx, dsource), result = jax.grad(weighted, (0, 1, 2), has_aux=True)(ours, X, STATES)
  compare(result.x, expected.detach().numpy())
  compare(result.recorded['probabilities'][:, 0], alignments.detach().numpy())
  for name, gradient in (in_theirs(own) | {'x': dx, 'source': dsource}).items():
    compare(gradient, gradients[name].numpy(), of='gradients')


def test_a_recurrent_decoder_equals_joeynmt(compared):
  ours = moved(RecurrentDecoder(WIDTH, rngs=nnx.Rngs(0)), scale=0.1)
  encoder = types.SimpleNamespace(output_size=WIDTH)
  sizes = {'emb_size': WIDTH, 'hidden_size': WIDTH, 'vocab_size': 3}
  theirs = joeynmt().RecurrentDecoder(rnn_type='lstm', encoder=encoder, **sizes)
  parameters, arrays = dict(theirs.named_parameters()), as_theirs(ours)
  assert parameters.keys() - arrays.keys() == {'output_layer.weight', 'rnn.bias_hh_l0'}
  with torch.no_grad():
    for name, array in arrays.items():
      parameters[name].copy_(torch.tensor(np.array(array)))
    # The sum of both biases is ours.
    parameters['rnn.bias_ih_l0'].sub_(parameters['rnn.bias_hh_l0'])
  x, states = (torch.tensor(a, requires_grad=True) for a in (X, STATES))
  last = states[torch.arange(3), torch.tensor(SOURCE_LENGTHS - 1)]
  mask = torch.tensor(SEGMENTS[:, None] > 0)
  _, _, alignments, expected = theirs(x, states, last, mask, LENGTH)
  (expected * torch.tensor(WEIGHTS)).sum().backward()
  grads = {name: p.grad for name, p in parameters.items()} | {'x': x.grad, 'source': states.grad}
  compare = functools.partial(
    compared, 'recurrent decoder with attention', 'joeynmt RecurrentDecoder'
  )
  check(compare, ours, as_theirs, expected, alignments, grads)


def by_state_before(cell, x, states, arrays):
  """The outputs of Bahdanau's decoder, or without attention those of Cho's, with torch.nn.GRUCell in float64."""
  last = states[torch.arange(3), torch.tensor(SOURCE_LENGTHS - 1)]
  h, outputs = torch.tanh(last @ arrays['bridge'] + arrays['bridge bias']), []
  for step in range(LENGTH):
    context = last
    if 'q' in arrays:
      pairs = torch.tanh((h @ arrays['q'])[:, None] + states @ arrays['k'])
      scores = (pairs @ arrays['w']).masked_fill(torch.tensor(SEGMENTS == 0), -torch.inf)
      context = (scores.softmax(dim=-1)[:, None] @ states)[:, 0]
    h = cell(torch.cat([x[:, step], context], dim=1), h)
    if arrays['out'].ndim == 3:  # [h and context, width]
      u, c = arrays['out']
      outputs.append(torch.tanh(h @ u + context @ c + arrays['out bias']))
    else:  # [h, x and context, width, pieces, width]
      u, v, c = arrays['out'].permute(0, 2, 1, 3)
      pieces = h @ u + x[:, step] @ v + context @ c
      outputs.append(torch.amax(pieces + arrays['out bias'][:, None], dim=0))
  return torch.stack(outputs, dim=1)


def arrays_of(part):
  """The arrays of a decoder, or of its gradient, outside of its cell, and those of the cell by PyTorch's names."""
  bridge, attention = part.initial.bridge, part.attention
  arrays = {
    'bridge': bridge.kernel[...],
    'bridge bias': bridge.bias[...],
    'out': part.out.kernel[...],
    'out bias': part.out.bias[...],
  }
  if 'record.probabilities' in attention.reads:
    of_scores = {'w': attention.scores.w[...][0]}
    arrays |= {'q': attention.q.kernel[...], 'k': attention.k.kernel[...]} | of_scores
  inputs, state = (
    p.kernel[...].reshape(-1, 3 * WIDTH) for p in (part.cell.inputs, part.cell.state)
  )
  rows = np.concatenate([inputs, state[:WIDTH]])
  of_cell = {
    'weight_ih': rows.T,
    'weight_hh': state[WIDTH:].T,
    'bias_ih': part.cell.inputs.bias[...].reshape(-1),
    'bias_hh': part.cell.reset_bias[...],
  }
  return tuple({k: np.asarray(a) for k, a in group.items()} for group in (arrays, of_cell))


FIXED = functools.partial(FixedVector, vector=functools.partial(LastVector, use_bridge=False))
STATE_BEFORE = {
  'attention with the state before': {},
  'deep output with maxout': {'output': MaxoutOutput},
  'one vector in every step': {'output': MaxoutOutput, 'attention': FIXED},
}


@pytest.mark.parametrize('system', STATE_BEFORE)
def test_a_decoder_with_the_state_before_equals_the_paper(compared, system):
  settings = STATE_BEFORE[system]
  ours = moved(StateBeforeDecoder(WIDTH, cell=GRUCell, rngs=nnx.Rngs(0), **settings), scale=0.3)
  cell, (arrays, of_cell) = torch.nn.GRUCell(2 * WIDTH, WIDTH).double(), arrays_of(ours)
  parameters = dict(cell.named_parameters())
  with torch.no_grad():
    for name, array in of_cell.items():
      # Only the bias of the last gate is inside the reset.
      parameters[name].zero_()[-len(array) :].copy_(torch.tensor(array))

  def leaf(array):
    return torch.tensor(np.float64(array), requires_grad=True)

  tensors = {name: leaf(a) for name, a in (arrays | {'x': X, 'source': STATES}).items()}
  expected = by_state_before(cell, tensors['x'], tensors['source'], tensors)
  (expected * torch.tensor(WEIGHTS)).sum().backward()

  @jax.jit
  def weighted(part, x, states):
    source = SourceSequence(states, Tokens.row(5, segments=jnp.asarray(SEGMENTS)))
    y = part(x, Call(Tokens.row(LENGTH), Causal(), source=source)).x
    return (y * WEIGHTS).sum(), y

  gradients, y = jax.grad(weighted, (0, 1, 2), has_aux=True)(ours, X, STATES)
  reference = 'torch.nn.GRUCell'
  compared(system, reference, y, expected.detach().numpy())
  found, found_cell = arrays_of(gradients[0])
  found |= found_cell | {'x': gradients[1], 'source': gradients[2]}
  grads = {name: p.grad for name, p in (parameters | tensors).items()}
  for name, gradient in found.items():
    wanted = grads[name].numpy()[-len(gradient) :]
    compared(system, reference, gradient, wanted, of='gradients')
