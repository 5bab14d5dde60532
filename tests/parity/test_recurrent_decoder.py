"""Recurrent decoders against joeynmt, fairseq and PyTorch, with every parameter and its gradient."""

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
  DotProductScores,
  GRUCell,
  LastVector,
  RecurrentDecoder,
  Source,
  SourceAttention,
  StackedCells,
  StateBeforeDecoder,
  Tokens,
)
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
    source = Source(states, Tokens.row(5, segments=jnp.asarray(SEGMENTS)))
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
  """The outputs of Bahdanau's decoder, with torch.nn.GRUCell."""
  last = states[torch.arange(3), torch.tensor(SOURCE_LENGTHS - 1)]
  h, outputs = torch.tanh(last @ arrays['bridge'] + arrays['bridge bias']), []
  for step in range(LENGTH):
    pairs = torch.tanh((h @ arrays['q'])[:, None] + states @ arrays['k'])
    scores = (pairs @ arrays['w']).masked_fill(torch.tensor(SEGMENTS == 0), -torch.inf)
    context = (scores.softmax(dim=-1)[:, None] @ states)[:, 0]
    h = cell(torch.cat([x[:, step], context], dim=1), h)
    outputs.append(torch.tanh(torch.cat([h, context], dim=1) @ arrays['out'] + arrays['out bias']))
  return torch.stack(outputs, dim=1)


def arrays_of(part):
  """The arrays of a decoder, or of its gradient, outside of its cell, and those of the cell by PyTorch's names."""
  attention, bridge = part.attention, part.initial.bridge
  arrays = {
    'q': attention.q.kernel[...],
    'k': attention.k.kernel[...],
    'w': attention.scores.w[...][0],
    'bridge': bridge.kernel[...],
    'bridge bias': bridge.bias[...],
    'out': part.out.kernel[...].reshape(2 * WIDTH, WIDTH),
    'out bias': part.out.bias[...],
  }
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


def test_a_decoder_with_the_state_before_equals_the_paper(compared):
  ours = moved(StateBeforeDecoder(WIDTH, cell=GRUCell, rngs=nnx.Rngs(0)), scale=0.3)
  cell, (arrays, of_cell) = torch.nn.GRUCell(2 * WIDTH, WIDTH), arrays_of(ours)
  parameters = dict(cell.named_parameters())
  with torch.no_grad():
    for name, array in of_cell.items():
      # Only the bias of the last gate is inside the reset.
      parameters[name].zero_()[-len(array) :].copy_(torch.tensor(array))
  tensors = {name: torch.tensor(a, requires_grad=True) for name, a in arrays.items()}
  x, states = (torch.tensor(a, requires_grad=True) for a in (X, STATES))
  expected = by_state_before(cell, x, states, tensors)
  (expected * torch.tensor(WEIGHTS)).sum().backward()

  @jax.jit
  def weighted(part, x, states):
    source = Source(states, Tokens.row(5, segments=jnp.asarray(SEGMENTS)))
    y = part(x, Call(Tokens.row(LENGTH), Causal(), source=source)).x
    return (y * WEIGHTS).sum(), y

  gradients, y = jax.grad(weighted, (0, 1, 2), has_aux=True)(ours, X, STATES)
  system, reference = 'attention with the state before', 'torch.nn.GRUCell'
  compared(system, reference, y, expected.detach().numpy())
  found, found_cell = arrays_of(gradients[0])
  found |= found_cell | {'x': gradients[1], 'source': gradients[2]}
  grads = {k: p.grad for k, p in (parameters | tensors | {'x': x, 'source': states}).items()}
  for name, gradient in found.items():
    wanted = grads[name].numpy()[-len(gradient) :]
    compared(system, reference, gradient, wanted, of='gradients')


class _IncrementalDecoder(torch.nn.Module):
  def __init__(self, dictionary):
    super().__init__()

  def set_incremental_state(self, *state):
    pass


class _Dictionary(list):
  def pad(self):
    return 0


def fairseq():
  """Its module of LSTM models, which needs little of the modules that it imports."""

  def same(rate, module_name):
    return torch.nn.Identity()

  def unchanged(*names):
    return lambda part: part

  stubs = {
    'utils': {},
    'modules': {'AdaptiveSoftmax': None, 'FairseqDropout': same},
    'models': {
      'FairseqEncoder': object,
      'FairseqEncoderDecoderModel': object,
      'FairseqIncrementalDecoder': _IncrementalDecoder,
      'register_model': unchanged,
      'register_model_architecture': unchanged,
    },
  }
  modules = {f'fairseq.{name}': types.ModuleType(f'fairseq.{name}') for name in stubs}
  for name, members in stubs.items():
    vars(modules[f'fairseq.{name}']).update(members)
  models = archives.unpacked('fairseq', '0.12.2') / 'fairseq' / 'models'
  modules['fairseq.models'].__path__ = [str(models)]
  return archives.module('fairseq', '0.12.2', 'fairseq.models.lstm', modules)


def as_fairseq(part):
  """The arrays of a decoder with two cells, or of its gradient, by fairseq's names; see `as_theirs` about biases."""
  arrays = {'attention.input_proj.weight': part.attention.q.kernel[...].T}
  for layer, cell in enumerate(part.cell.cells):
    inputs, state = (p.kernel[...].reshape(-1, 4 * WIDTH) for p in (cell.inputs, cell.state))
    rows = np.concatenate([inputs, state[: cell.fed_dim]])
    arrays[f'layers.{layer}.weight_ih'] = rows.T
    arrays[f'layers.{layer}.weight_hh'] = state[cell.fed_dim :].T
    arrays[f'layers.{layer}.bias_ih'] = cell.inputs.bias[...].reshape(-1)
  # Their input is the context and then h.
  out = part.out.kernel[...][::-1].reshape(2 * WIDTH, WIDTH)
  return arrays | {'attention.output_proj.weight': out.T}


def test_a_decoder_of_two_cells_equals_fairseq(compared):
  """Each vector of the state starts with the last vector of the source: the encoder's cells are not in our `Source`."""
  build = functools.partial(
    RecurrentDecoder,
    cell=functools.partial(StackedCells, num_layers=2),
    attention=functools.partial(SourceAttention, scores=DotProductScores, projections=('q',)),
    initial=functools.partial(LastVector, use_bridge=False),
  )
  ours = moved(build(WIDTH, rngs=nnx.Rngs(0)), scale=0.1)
  # Their projection has no bias.
  ours.out.bias[...] = jnp.zeros(WIDTH)
  x, states = (torch.tensor(a, requires_grad=True) for a in (X, STATES))
  theirs = fairseq().LSTMDecoder(
    _Dictionary(range(3)),
    embed_dim=WIDTH,
    hidden_size=WIDTH,
    out_embed_dim=WIDTH,
    encoder_output_units=WIDTH,
    num_layers=2,
    pretrained_embed=lambda ids: x,
    share_input_output_embed=True,
  )
  parameters, arrays = dict(theirs.named_parameters()), as_fairseq(ours)
  assert parameters.keys() - arrays.keys() == {f'layers.{layer}.bias_hh' for layer in (0, 1)}
  with torch.no_grad():
    for name, array in arrays.items():
      parameters[name].copy_(torch.tensor(np.array(array)))
    for layer in (0, 1):
      parameters[f'layers.{layer}.bias_ih'].sub_(parameters[f'layers.{layer}.bias_hh'])
  last = states[torch.arange(3), torch.tensor(SOURCE_LENGTHS - 1)].expand(2, -1, -1)
  encoded = states.transpose(0, 1), last, last, torch.tensor(SEGMENTS.T == 0)
  expected, alignments = theirs.eval().extract_features(torch.zeros(3, LENGTH).long(), encoded)
  (expected * torch.tensor(WEIGHTS)).sum().backward()
  grads = {name: p.grad for name, p in parameters.items()} | {'x': x.grad, 'source': states.grad}
  compare = functools.partial(compared, 'recurrent translation', 'fairseq 0.12.2 LSTMDecoder')
  check(compare, ours, as_fairseq, expected, alignments, grads)
