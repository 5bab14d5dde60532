"""The config of ConvS2S against the FConvModel of fairseq, with every parameter and its gradient."""

import sys
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from t2x.experiments import read_config
from t2x.layers import Tokens
from t2x.layers.arrays import named_leaves
from tests.parity import archives

torch = pytest.importorskip('torch', reason="the extra 'references' is not installed")
pytestmark = pytest.mark.nightly

WIDTH, VOCAB, LENGTH, PAD, LAYERS, TAPS = 8, 13, 9, 1, 3, 3
rng = np.random.default_rng(0)
SOURCE, TARGET = (rng.integers(PAD + 1, VOCAB, size=(3, n)) for n in (7, 6))
LENGTHS = np.asarray([7, 4, 5])
SEGMENTS = (np.arange(7) < LENGTHS[:, None]).astype(np.int32)
WEIGHTS = rng.normal(size=(*TARGET.shape, VOCAB)).astype(np.float32)


class _Encoder(torch.nn.Module):
  def __init__(self, dictionary):
    super().__init__()


class _Model(torch.nn.Module):
  def __init__(self, encoder, decoder):
    super().__init__()
    self.encoder, self.decoder = encoder, decoder


class _Dropout(torch.nn.Identity):
  def __init__(self, rate, module_name):
    super().__init__()


class _Dictionary(list):
  def pad(self):
    return PAD


def make_positions(ids, padding, onnx_trace):
  tokens = ids.ne(padding).int()
  return (torch.cumsum(tokens, dim=1) * tokens).long() + padding


def fairseq():
  """Its module of convolutional models, with its own convolutions, positions and factor of gradients."""

  def module(name, **members):
    made = types.ModuleType(name)
    vars(made).update(members)
    return made

  utils = module(
    'fairseq.utils',
    make_positions=make_positions,
    get_incremental_state=lambda *args: None,
  )
  stubs = {
    'fairseq.utils': utils,
    'fairseq.incremental_decoding_utils': module('', with_incremental_state=lambda cls: cls),
  }
  parts = {
    'GradMultiply': 'grad_multiply',
    'LearnedPositionalEmbedding': 'learned_positional_embedding',
    'ConvTBC': 'conv_tbc',
    'LinearizedConvolution': 'linearized_convolution',
  }
  own = {
    name: vars(archives.module('fairseq', '0.12.2', f'fairseq.modules.{file}', dict(stubs)))[name]
    for name, file in parts.items()
  }
  modules = module(
    'fairseq.modules', FairseqDropout=_Dropout, AdaptiveSoftmax=None, BeamableMM=None, **own
  )
  models = module(
    'fairseq.models',
    FairseqEncoder=_Encoder,
    FairseqIncrementalDecoder=_Encoder,
    FairseqEncoderDecoderModel=_Model,
    register_model=lambda *names: lambda cls: cls,
    register_model_architecture=lambda *names: lambda cls: cls,
  )
  models.__path__ = [str(archives.unpacked('fairseq', '0.12.2') / 'fairseq' / 'models')]
  stubs |= {'fairseq.models': models, 'fairseq.modules': modules}
  return archives.module('fairseq', '0.12.2', 'fairseq.models.fconv', stubs), modules


@pytest.fixture
def theirs(monkeypatch):
  """The model with N(0, 0.1) added to every parameter; source and target share the embedding."""
  fconv, modules = fairseq()
  # Its function ConvTBC imports from them when it is called.
  monkeypatch.setitem(sys.modules, 'fairseq', types.ModuleType('fairseq'))
  monkeypatch.setitem(sys.modules, 'fairseq.modules', modules)
  torch.manual_seed(0)
  settings = {
    'dictionary': _Dictionary(range(VOCAB)),
    'embed_dim': WIDTH,
    # Positions begin after the padding.
    'max_positions': LENGTH + PAD + 1,
    'convolutions': ((WIDTH, TAPS),) * LAYERS,
    'dropout': 0.0,
  }
  encoder = fconv.FConvEncoder(**settings)
  decoder = fconv.FConvDecoder(**settings, out_embed_dim=WIDTH, share_embed=True)
  model = fconv.FConvModel(encoder, decoder)
  with torch.no_grad():
    for parameter in model.parameters():
      parameter.add_(torch.randn(parameter.shape) * 0.1)
  encoder.embed_tokens.weight = decoder.embed_tokens.weight
  return model


@pytest.fixture(scope='module')
def ours():
  sizes = {
    'd_model': WIDTH,
    'TokenEmbedding.vocab_size': VOCAB,
    'LearnedPositions.max_length': LENGTH,
  }
  settings = [f'{name}={value}' for name, value in sizes.items()]
  experiment = read_config(['configs/runs/dates_convolutional.gin'], settings).build()
  return experiment.complete_model()(rngs=nnx.Rngs(0))


def linear(read, name):
  return {
    'kernel': read(f'{name}.weight_v').T,
    'gain': read(f'{name}.weight_g')[:, 0],
    'bias': read(f'{name}.bias'),
  }


def convolution(read, name):
  return {
    'kernel': read(f'{name}.weight_v').reshape(TAPS, WIDTH, 2, WIDTH),
    'gain': read(f'{name}.weight_g').reshape(2, WIDTH),
    'bias': read(f'{name}.bias').reshape(2, WIDTH),
  }


def as_ours(read):
  """Parameters, or their gradients, of fairseq's model by our names."""
  parts = {}
  for body in ('encoder', 'decoder'):
    parts[f'{body}.encoding'] = {'table': read(f'{body}.embed_positions.weight')[PAD + 1 :]}
    blocks = f'{body}.stack.blocks'
    for own, name in ((0, 'fc1'), (LAYERS + 1, 'fc2')):
      parts[f'{blocks}.{own}.projection.out'] = linear(read, f'{body}.{name}')
    for i in range(LAYERS):
      layer = f'{blocks}.{i + 1}'
      parts[f'{layer}.mixer.gates'] = convolution(read, f'{body}.convolutions.{i}')
      if body == 'decoder':
        attention = f'decoder.attention.{i}'
        parts[f'{layer}.cross.q'] = linear(read, f'{attention}.in_projection')
        parts[f'{layer}.cross.out'] = linear(read, f'{attention}.out_projection')
  parts['embedding'] = {'table': read('decoder.embed_tokens.weight')}
  parts['head'] = {'bias': read('decoder.fc3.bias')}
  arrays = {f'{part}.{name}': array for part, own in parts.items() for name, array in own.items()}
  return {name: a[None] if '.blocks.' in name else a for name, a in arrays.items()}


def test_the_config_of_convs2s_equals_fairseq_and_so_do_its_gradients(theirs, ours, compared):
  parameters = dict(theirs.named_parameters(remove_duplicate=False))
  arrays = as_ours(lambda name: parameters[name].detach().numpy())
  leaves = dict(named_leaves(ours))
  assert {name: a.shape for name, a in leaves.items()} == {n: a.shape for n, a in arrays.items()}
  # All of their parameters have a place in ours.
  sizes = {id(p): p.numel() for p in parameters.values()}
  assert sum(a.size for a in arrays.values()) == sum(sizes.values()) - 2 * (PAD + 1) * WIDTH
  model = jax.tree.unflatten(
    jax.tree.structure(ours), [jnp.asarray(arrays[name]) for name in leaves]
  )
  ids = np.where(SEGMENTS, SOURCE, PAD)
  encoded = theirs.encoder(torch.tensor(ids), torch.tensor(LENGTHS))
  logits, _ = theirs.decoder(torch.tensor(TARGET), encoded)
  (logits * torch.tensor(WEIGHTS)).sum().backward()

  @jax.jit
  def weighted(model):
    tokens = Tokens.row(7, segments=jnp.asarray(SEGMENTS))
    x = model(jnp.asarray(ids), jnp.asarray(TARGET), source_tokens=tokens).x
    return (x * WEIGHTS).sum(), x

  gradients, x = jax.grad(weighted, has_aux=True)(model)
  system = 'ConvS2S', 'fairseq 0.12.2 FConvModel'
  compared(*system, x, logits.detach().numpy())
  slopes = as_ours(lambda name: parameters[name].grad.numpy())
  for name, gradient in named_leaves(gradients):
    scale = np.abs(slopes[name]).max()
    compared(*system, gradient / scale, slopes[name] / scale, of='gradients')
