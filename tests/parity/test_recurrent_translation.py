"""Recurrent translation models against joeynmt and fairseq: logits and gradients, greedy and beam search."""

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
  FinalStates,
  FinalVectors,
  GRUCell,
  LSTMCell,
  Plain,
  Recurrent,
  RecurrentDecoder,
  SourceAttention,
  StackedCells,
  TanhOutput,
  TokenEmbedding,
  Tokens,
)
from t2x.models import Decoder, Encoder, EncoderDecoder, LMHead, Stack, SublayerBlock
from tests.parity import archives

torch = pytest.importorskip('torch', reason="the extra 'references' is not installed")
pytestmark = pytest.mark.nightly

part = functools.partial
WIDTH, VOCAB, LENGTH, WIDTH_OF_BEAM = 8, 11, 5, 3
# joeynmt expects them in descending order.
SOURCE_LENGTHS = np.asarray([6, 4, 3])
rng = np.random.default_rng(0)
SEGMENTS = (np.arange(6) < SOURCE_LENGTHS[:, None]).astype(np.int32)
# fairseq finds the padding by its id, 0.
SOURCE, TARGET = (rng.integers(1, VOCAB, (3, length)) for length in (6, LENGTH))
SOURCE *= SEGMENTS
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


def translator(num_layers, cell=LSTMCell, head=LMHead, **settings):
  """Our model, with `settings` of the decoder."""
  decoder = part(
    RecurrentDecoder, cell=part(StackedCells, num_layers=num_layers, cell=cell), **settings
  )
  encoder = stacked(part(Recurrent, cell=cell), num_layers)
  model = EncoderDecoder(
    d_model=WIDTH,
    embedding=part(TokenEmbedding, vocab_size=VOCAB),
    encoder=part(Encoder, stack=encoder, final_norm=None),
    decoder=part(Decoder, stack=stacked(decoder, 1), final_norm=None),
    head=head,
    rngs=nnx.Rngs(0),
  )
  return moved(model, scale=0.3)


def set_parameters(parameters, arrays):
  """Sets the parameters of torch by name; shorter arrays are their ends, and others are 0."""
  with torch.no_grad():
    for name, parameter in parameters.items():
      array = arrays.get(name, np.zeros(0))
      padding = [(len(parameter) - len(array), 0), *[(0, 0)] * (array.ndim - 1)]
      parameter.copy_(torch.tensor(np.pad(array, padding)))


def layers_of(model, name):
  """The arrays of the encoder by PyTorch's names after NAME, the decoder, and its cells from the lowest."""
  (block,) = model.encoder.stack.blocks
  arrays = {}
  for suffix, cell in {'': block.mixer.cell, '_reverse': block.mixer.backward}.items():
    for layer in range(model.encoder.stack.num_layers):
      own = jax.tree.map(lambda a, layer=layer: a[layer], cell)
      arrays |= cell_arrays(own, f'{name}.{{}}_l{layer}{suffix}')
  (block,) = model.decoder.stack.blocks
  return arrays, jax.tree.map(lambda a: a[0], block.mixer)


class Joeynmt:
  """A model of both packages.

  Args:
    rnn_type, attention, init_hidden: those of joeynmt.
    num_layers: of the encoder and the decoder.
    cell: ours.
    bridge: whether the initial state is projected.
    settings: of our attention.
  """

  def __init__(self, rnn_type, attention, init_hidden, num_layers, cell, bridge, **settings):
    attention_settings = part(SourceAttention, **settings)
    initial = part(FinalVectors, use_bridge=bridge)
    self.ours = translator(num_layers, cell, attention=attention_settings, initial=initial)
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
    set_parameters(self.parameters, self.as_theirs(self.ours))

  def as_theirs(self, model):
    """The arrays of a model, or of its gradient, by joeynmt's names; see test_recurrent.py about biases."""
    arrays, decoder = layers_of(model, 'encoder.rnn')
    arrays['table.weight'] = model.embedding.table[...]
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

  def logits(self):
    states, last, mask = self.encode()
    return self.decoder(self.table(torch.tensor(TARGET)), states, last, mask, LENGTH)[0]

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


class _Part(torch.nn.Module):
  def __init__(self, *parts):
    super().__init__()
    if len(parts) == 2:
      self.encoder, self.decoder = parts

  def set_incremental_state(self, *state):
    pass


class _Dictionary(list):
  def pad(self):
    return 0


def fairseq():
  """Its module of LSTM models, which needs little of the modules that it imports."""

  def unchanged(*names):
    return lambda part: part

  classes = ('FairseqEncoder', 'FairseqEncoderDecoderModel', 'FairseqIncrementalDecoder')
  names = ('register_model', 'register_model_architecture')

  def dropout(rate, module_name):
    made = torch.nn.Identity()
    made.p = rate
    return made

  members = {
    'utils': {},
    'modules': {'AdaptiveSoftmax': None, 'FairseqDropout': dropout},
    'models': dict.fromkeys(classes, _Part) | dict.fromkeys(names, unchanged),
  }
  modules = {f'fairseq.{name}': types.ModuleType(f'fairseq.{name}') for name in members}
  for name, own in members.items():
    vars(modules[f'fairseq.{name}']).update(own)
  models = archives.unpacked('fairseq', '0.12.2') / 'fairseq' / 'models'
  modules['fairseq.models'].__path__ = [str(models)]
  return archives.module('fairseq', '0.12.2', 'fairseq.models.lstm', modules)


class Fairseq:
  """Its LSTMModel with an encoder of two layers in both directions; its decoder starts from their final h and c."""

  def __init__(self):
    attention = part(SourceAttention, scores=DotProductScores, projections=('q',))
    # Their projection of context and h has no bias.
    output = part(TanhOutput, use_bias=False)
    settings = {'attention': attention, 'initial': FinalStates, 'output': output}
    self.ours = translator(2, head=part(LMHead, use_bias=True), **settings)
    package, words = fairseq(), _Dictionary(range(VOCAB))
    self.table = torch.nn.Embedding(VOCAB, WIDTH)
    shared = {'embed_dim': WIDTH, 'num_layers': 2, 'pretrained_embed': self.table}
    shared |= {'dropout_in': 0.0, 'dropout_out': 0.0}
    encoder = package.LSTMEncoder(
      words, hidden_size=WIDTH // 2, bidirectional=True, left_pad=False, **shared
    )
    sizes = dict.fromkeys(('hidden_size', 'out_embed_dim', 'encoder_output_units'), WIDTH)
    decoder = package.LSTMDecoder(words, **sizes, **shared)
    self.model = package.LSTMModel(encoder, decoder).eval()
    self.parameters = dict(self.model.named_parameters())
    arrays = self.as_theirs(self.ours)
    biases = self.parameters.keys() - arrays.keys()
    assert all('bias_hh' in name for name in biases)
    set_parameters(self.parameters, arrays)

  def as_theirs(self, model):
    """The arrays of a model, or of its gradient, by fairseq's names; see test_recurrent.py about biases."""
    arrays, decoder = layers_of(model, 'encoder.lstm')
    arrays['encoder.embed_tokens.weight'] = model.embedding.table[...]
    for layer, cell in enumerate(decoder.cell.cells):
      arrays |= cell_arrays(cell, f'decoder.layers.{layer}.{{}}')
    # Their input is the context and then h.
    out = decoder.out.kernel[...][::-1].reshape(2 * WIDTH, WIDTH)
    arrays['decoder.attention.output_proj.weight'] = out.T
    arrays['decoder.attention.input_proj.weight'] = decoder.attention.q.kernel[...].T
    arrays['decoder.fc_out.weight'] = model.head.out.kernel[...].T
    arrays['decoder.fc_out.bias'] = model.head.out.bias[...]
    return {name: np.asarray(array) for name, array in arrays.items()}

  def logits(self):
    return self.of_rows(slice(None), TARGET)

  def of_rows(self, rows, target):
    lengths = torch.tensor(SOURCE_LENGTHS)[rows]
    ids = torch.tensor(SOURCE)[rows, : lengths.max()]
    padded = len(target) // len(ids)
    repeated = ids.repeat(padded, 1), lengths.repeat(padded)
    return self.model(*repeated, torch.tensor(target))[0]

  def continuations(self, row, beams):
    outputs = self.of_rows(slice(row, row + 1), beams)
    return torch.log_softmax(outputs[:, -1], dim=-1).detach().numpy()


GENERAL = {'scores': DotProductScores, 'projections': ('k',)}
CASES = {
  'additive': part(Joeynmt, 'lstm', 'bahdanau', 'bridge', 1, LSTMCell, True),
  'multiplicative': part(Joeynmt, 'gru', 'luong', 'last', 2, GRUCell, False, **GENERAL),
  'states': Fairseq,
}
REFERENCES = {
  Joeynmt: 'joeynmt RecurrentEncoder, RecurrentDecoder',
  Fairseq: 'fairseq 0.12.2 LSTMModel',
}


@pytest.fixture(scope='module', params=CASES)
def case(request):
  return CASES[request.param]()


def test_a_recurrent_translation_model_equals_its_reference(case, compared):
  expected = case.logits()
  (expected * torch.tensor(WEIGHTS)).sum().backward()

  @jax.jit
  def weighted(model):
    source = Tokens.row(6, segments=jnp.asarray(SEGMENTS))
    inputs = jnp.asarray(SOURCE), jnp.asarray(TARGET)
    result = model(*inputs, source_tokens=source)
    return (result.x * WEIGHTS).sum(), result

  gradient, result = jax.grad(weighted, has_aux=True)(case.ours)
  system, reference = 'recurrent translation', REFERENCES[type(case)]
  compared(system, reference, result.x, expected.detach().numpy())
  for name, array in case.as_theirs(gradient).items():
    wanted = case.parameters[name].grad.numpy()[-len(array) :]
    compared(system, reference, array, wanted, rtol=1e-5, of='gradients')


def searched(case, width):
  """The tokens of a beam search of their model, with all prefixes read again in each step."""
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
def test_generated_tokens_equal_those_of_the_reference(case, strategy):
  source_tokens = Tokens.row(6, segments=jnp.asarray(SEGMENTS))
  inputs = {'source': jnp.asarray(SOURCE), 'source_tokens': source_tokens}
  settings = {'max_new_tokens': LENGTH, 'eos_id': None, 'pad_id': 0, 'strategy': strategy}
  with jax.numpy_rank_promotion('allow'):  # Only layers and models broadcast explicitly.
    found = generate(case.ours, START, np.ones(3, int), **settings, **inputs)
  width = 1 if isinstance(strategy, Greedy) else WIDTH_OF_BEAM
  np.testing.assert_array_equal(found.tokens[:, 0], searched(case, width))
