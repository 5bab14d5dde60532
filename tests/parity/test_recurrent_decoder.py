"""The recurrent decoder against joeynmt, with every parameter and its gradient."""

import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from applying import moved
from flax import nnx

from t2x.layers import Call, Causal, RecurrentDecoder, Source, Tokens
from tests.parity import archives

torch = pytest.importorskip('torch', reason="the extra 'parity' is not installed")
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

  @jax.jit
  def weighted(part, x, states):
    source = Source(states, Tokens.row(5, segments=jnp.asarray(SEGMENTS)))
    record = frozenset({'probabilities'})
    result = part(x, Call(Tokens.row(LENGTH), Causal(), source=source, record=record))
    return (result.x * WEIGHTS).sum(), result

  gradients, result = jax.grad(weighted, (0, 1, 2), has_aux=True)(ours, X, STATES)
  system, reference = 'recurrent decoder with attention', 'joeynmt RecurrentDecoder'
  compared(system, reference, result.x, expected.detach().numpy())
  recorded = result.recorded['probabilities'][:, 0]
  compared(system, reference, recorded, alignments.detach().numpy())
  found = as_theirs(gradients[0]) | {'x': gradients[1], 'source': gradients[2]}
  grads = {name: p.grad for name, p in parameters.items()} | {'x': x.grad, 'source': states.grad}
  for name, gradient in found.items():
    compared(system, reference, gradient, grads[name].numpy(), of='gradients')
