"""Recurrent translation models against joeynmt: logits and gradients, greedy and beam search."""

import functools
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from applying import moved
from flax import nnx

from t2x.decode import Beam, Greedy, generate
from t2x.layers import (
  DotProductScores,
  FinalVectors,
  GRUCell,
  LSTMCell,
  Plain,
  Recurrent,
  RecurrentDecoder,
  SourceAttention,
  StackedCells,
  TokenEmbedding,
  Tokens,
)
from t2x.models import Decoder, Encoder, EncoderDecoder, LMHead, Stack, SublayerBlock
from tests.parity import archives

torch = pytest.importorskip('torch', reason="the extra 'parity' is not installed")
pytestmark = pytest.mark.nightly

part = functools.partial
WIDTH, VOCAB, LENGTH, WIDTH_OF_BEAM = 8, 11, 5, 3
# joeynmt expects them in descending order.
SOURCE_LENGTHS = np.asarray([6, 4, 3])
rng = np.random.default_rng(0)
SOURCE, TARGET = (rng.integers(0, VOCAB, (3, length)) for length in (6, LENGTH))
SEGMENTS = (np.arange(6) < SOURCE_LENGTHS[:, None]).astype(np.int32)
WEIGHTS = rng.normal(size=(3, LENGTH, VOCAB)).astype(np.float32)
START = np.full((3, 1), 2)


def stub(name, **members):
  module = types.ModuleType(f'joeynmt.{name}')
  vars(module).update(members)
  return module


def joeynmt(name):
  """A module of the package, which needs little of the modules that it imports."""
  activation = {'build_activation': lambda name: getattr(torch, name)}
  layers = ('PositionalEncoding', 'TransformerDecoderLayer', 'TransformerEncoderLayer')
  stubs = [
    stub('builders', **activation),
    stub('config', ConfigurationError=ValueError),
    stub('helpers', freeze_params=None, subsequent_mask=None),
    stub('transformer_layers', **dict.fromkeys(layers)),
  ]
  if name == 'decoders':
    stubs.append(stub('encoders', Encoder=object))
  modules = {module.__name__: module for module in stubs}
  return archives.module('joeynmt', '2.3.0', f'joeynmt.{name}', modules)


def stacked(mixer, num_layers):
  layer = part(SublayerBlock, sublayers={'mixer': mixer}, wiring=Plain)
  return part(Stack, num_layers=num_layers, blocks=[layer])


class Case:
  """A model of both packages.

  Args:
    rnn_type, attention, init_hidden: those of joeynmt.
    num_layers: of the encoder and the decoder.
    cell: ours.
    bridge: whether the initial state is projected.
    settings: of our attention.
  """

  def __init__(self, rnn_type, attention, init_hidden, num_layers, cell, bridge, **settings):
    self.num_layers = num_layers
    decoder = part(
      RecurrentDecoder,
      cell=part(StackedCells, num_layers=num_layers, cell=cell),
      attention=part(SourceAttention, **settings),
      initial=part(FinalVectors, use_bridge=bridge),
    )
    encoder = stacked(part(Recurrent, cell=cell), num_layers)
    model = EncoderDecoder(
      d_model=WIDTH,
      embedding=part(TokenEmbedding, vocab_size=VOCAB),
      encoder=part(Encoder, stack=encoder, final_norm=None),
      decoder=part(Decoder, stack=stacked(decoder, 1), final_norm=None),
      head=LMHead,
      rngs=nnx.Rngs(0),
    )
    self.ours = moved(model, scale=0.3)
    shared = {'rnn_type': rnn_type, 'emb_size': WIDTH, 'num_layers': num_layers}
    self.table = torch.nn.Embedding(VOCAB, WIDTH)
    self.encoder = joeynmt('encoders').RecurrentEncoder(hidden_size=WIDTH // 2, **shared)
    self.decoder = joeynmt('decoders').RecurrentDecoder(
      hidden_size=WIDTH,
      encoder=self.encoder,
      attention=attention,
      init_hidden=init_hidden,
      vocab_size=VOCAB,
      dropout=0.0,
      emb_dropout=0.0,
      hidden_dropout=0.0,
      **shared,
    )
    modules = {'table': self.table, 'encoder': self.encoder, 'decoder': self.decoder}
    self.parameters = dict(torch.nn.ModuleDict(modules).named_parameters())
    with torch.no_grad():
      for name, parameter in self.parameters.items():
        array = self.as_theirs(model=self.ours).get(name, np.zeros(0))
        padding = [(len(parameter) - len(array), 0), *[(0, 0)] * (array.ndim - 1)]
        parameter.copy_(torch.tensor(np.pad(array, padding)))

  def as_theirs(self, model):
    """The arrays of a model, or of its gradient, by joeynmt's names; see test_recurrent.py about biases."""
    arrays = {'table.weight': model.embedding.table[...]}
    (block,) = model.encoder.stack.blocks
    for suffix, cell in {'': block.mixer.cell, '_reverse': block.mixer.backward}.items():
      for layer in range(self.num_layers):
        own = jax.tree.map(lambda a, layer=layer: a[layer], cell)
        arrays |= cell_arrays(own, f'encoder.rnn.{{}}_l{layer}{suffix}')
    (block,) = model.decoder.stack.blocks
    decoder = jax.tree.map(lambda a: a[0], block.mixer)
    for layer, cell in enumerate(decoder.cell.cells):
      arrays |= cell_arrays(cell, f'decoder.rnn.{{}}_l{layer}')
    attention = decoder.attention
    linears = {
      'att_vector_layer': decoder.out,
      'bridge_layer': decoder.initial.bridge,
      'attention.query_layer': attention.q,
      'attention.key_layer': attention.k,
    }
    for name, linear in linears.items():
      if linear is not None:
        arrays[f'decoder.{name}.weight'] = linear.kernel[...].reshape(-1, WIDTH).T
        if linear.bias is not None:
          arrays[f'decoder.{name}.bias'] = linear.bias[...]
    if attention.q is not None:
      arrays['decoder.attention.energy_layer.weight'] = attention.scores.w[...]
    arrays['decoder.output_layer.weight'] = model.head.out.kernel[...].T
    return {name: np.asarray(array) for name, array in arrays.items()}

  def encode(self):
    embedded, lengths = self.table(torch.tensor(SOURCE)), torch.tensor(SOURCE_LENGTHS)
    mask = torch.tensor(SEGMENTS[:, None] > 0)
    return *self.encoder(embedded, lengths, mask), mask

  def continuations(self, rows, beams):
    """Log-probabilities of the tokens after sequences [beams, length] of one row of the source."""
    states, last, mask = (a[rows : rows + 1].expand(beams.shape[0], -1, -1) for a in self.three())
    outputs, *_ = self.decoder(
      self.table(torch.tensor(beams)), states, last[:, 0], mask, beams.shape[1]
    )
    return torch.log_softmax(outputs[:, -1], dim=-1).detach().numpy()

  def three(self):
    states, last, mask = self.encode()
    return states, last[:, None], mask


def cell_arrays(cell, name):
  inputs, state = (
    np.asarray(p.kernel[...]).reshape(-1, cell.num_gates * cell.state_dim)
    for p in (cell.inputs, cell.state)
  )
  arrays = {
    name.format('weight_ih'): np.concatenate([inputs, state[: cell.fed_dim]]).T,
    name.format('weight_hh'): state[cell.fed_dim :].T,
    name.format('bias_ih'): np.asarray(cell.inputs.bias[...]).reshape(-1),
  }
  if isinstance(cell, GRUCell):
    arrays[name.format('bias_hh')] = np.asarray(cell.reset_bias[...])
  return arrays


GENERAL = {'scores': DotProductScores, 'projections': ('k',)}
CASES = {
  'additive': ('lstm', 'bahdanau', 'bridge', 1, LSTMCell, True),
  'multiplicative': ('gru', 'luong', 'last', 2, GRUCell, False),
}


@pytest.fixture(scope='module', params=CASES)
def case(request):
  settings = GENERAL if request.param == 'multiplicative' else {}
  return Case(*CASES[request.param], **settings)


def test_a_recurrent_translation_model_equals_joeynmt(case, compared):
  states, last, mask = case.encode()
  expected, *_ = case.decoder(case.table(torch.tensor(TARGET)), states, last, mask, LENGTH)
  (expected * torch.tensor(WEIGHTS)).sum().backward()

  @jax.jit
  def weighted(model):
    source = Tokens.row(6, segments=jnp.asarray(SEGMENTS))
    inputs = jnp.asarray(SOURCE), jnp.asarray(TARGET)
    result = model(*inputs, source_tokens=source)
    return (result.x * WEIGHTS).sum(), result

  gradient, result = jax.grad(weighted, has_aux=True)(case.ours)
  system, reference = 'recurrent translation', 'joeynmt RecurrentEncoder, RecurrentDecoder'
  compared(system, reference, result.x, expected.detach().numpy())
  for name, array in case.as_theirs(gradient).items():
    wanted = case.parameters[name].grad.numpy()[-len(array) :]
    compared(system, reference, array, wanted, rtol=1e-5, of='gradients')


def searched(case, width):
  """The tokens of a beam search of joeynmt's model, with all prefixes read again in each step."""
  found = []
  for row in range(3):
    beams, scores = START[:1], np.zeros(1)
    for _ in range(LENGTH):
      total = scores[:, None] + case.continuations(row, beams)
      best = np.argsort(-total, axis=None, kind='stable')[:width]
      parents, tokens = np.unravel_index(best, total.shape)
      beams = np.concatenate([beams[parents], tokens[:, None]], axis=1)
      scores = total[parents, tokens]
    found.append(beams[0, 1:])
  return np.asarray(found)


@pytest.mark.parametrize('strategy', [Greedy(), Beam(WIDTH_OF_BEAM)], ids=str)
def test_generated_tokens_equal_those_of_joeynmt(case, strategy):
  source_tokens = Tokens.row(6, segments=jnp.asarray(SEGMENTS))
  inputs = {'source': jnp.asarray(SOURCE), 'source_tokens': source_tokens}
  settings = {'max_new_tokens': LENGTH, 'eos_id': None, 'pad_id': 0, 'strategy': strategy}
  with jax.numpy_rank_promotion('allow'):  # Only layers and models broadcast explicitly.
    found = generate(case.ours, START, np.ones(3, int), **settings, **inputs)
  width = 1 if isinstance(strategy, Greedy) else WIDTH_OF_BEAM
  np.testing.assert_array_equal(found.tokens[:, 0], searched(case, width))
