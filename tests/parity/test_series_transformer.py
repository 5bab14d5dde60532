"""The Transformer for time series of configs/models, at a small width, against transformers."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t2x.experiments import read_config
from tests.helpers.renamed import model_of

torch = pytest.importorskip('torch', reason="the extra 'references' is not installed")
transformers = pytest.importorskip('transformers', reason="the extra 'references' is not installed")

FILE = Path(__file__).parents[2] / 'configs' / 'models' / 'small_series_transformer.gin'
WIDTH, HEADS, CONTEXT, HORIZON, CHANNELS, LAGS = 16, 2, 9, 4, 2, [1, 2, 5]
PAST = CONTEXT + max(LAGS)
SPLIT = HEADS, WIDTH // HEADS
rng = np.random.default_rng(0)
SERIES = (rng.normal(size=(3, PAST, CHANNELS)) * [1, 50] + [0, 300]).astype(np.float32)
FUTURE = (rng.normal(size=(3, HORIZON, CHANNELS)) * [1, 50] + [0, 300]).astype(np.float32)
MISSING = rng.uniform(size=SERIES.shape) < 0.2
CALENDAR = np.stack(
  [rng.integers(0, n, (3, PAST + HORIZON)) for n in (7, 24)], axis=-1, dtype=np.int32
)
OVERRIDES = [
  f'channels={CHANNELS}',
  f'context={CONTEXT}',
  f'horizon={HORIZON}',
  f'lags={LAGS}',
  f'd_model={WIDTH}',
  'MLP.hidden_dim=24',
]


def attention(own, name, theirs):
  for letter in 'qkv':
    own.linear(f'{name}.{letter}', f'{theirs}.{letter}_proj', outputs=SPLIT)
  own.linear(f'{name}.out', f'{theirs}.out_proj', inputs=SPLIT)


def rename(own):
  for side in ('encoder', 'decoder'):

    def layer(own, name, theirs, side=side):
      attention(own, f'{name}.mixer', f'{theirs}.self_attn')
      own.norm(f'{name}.mixer_wiring.norm', f'{theirs}.self_attn_layer_norm')
      if side == 'decoder':
        attention(own, f'{name}.cross', f'{theirs}.encoder_attn')
        own.norm(f'{name}.cross_wiring.norm', f'{theirs}.encoder_attn_layer_norm')
      own.linear(f'{name}.feed_forward.up', f'{theirs}.fc1')
      own.linear(f'{name}.feed_forward.down', f'{theirs}.fc2')
      own.norm(f'{name}.feed_forward_wiring.norm', f'{theirs}.final_layer_norm')

    values = f'model.{side}.value_embedding.value_projection'
    own.linear(f'{side}_values', values, bias=False)
    own.norm(f'{side}.input_norm', f'model.{side}.layernorm_embedding')
    layers = [f'model.{side}.layers.{n}' for n in range(2)]
    own.stacked(f'{side}.stack.blocks.0', layer, layers)
  names = [f'parameter_projection.proj.{n}' for n in range(3)]
  kernels = [own.left.pop(f'{name}.weight').T for name in names]
  own.found['out.kernel'] = jnp.stack(kernels, axis=-1)
  own.found['out.bias'] = jnp.stack([own.left.pop(f'{name}.bias') for name in names], axis=-1)


def reference(perturbed, kind='TimeSeriesTransformer', **settings):
  config = getattr(transformers, f'{kind}Config')(
    prediction_length=HORIZON,
    context_length=CONTEXT,
    input_size=CHANNELS,
    lags_sequence=LAGS,
    num_time_features=2,
    scaling='mean',
    d_model=WIDTH,
    encoder_layers=2,
    decoder_layers=2,
    encoder_attention_heads=HEADS,
    decoder_attention_heads=HEADS,
    encoder_ffn_dim=24,
    decoder_ffn_dim=24,
    **settings,
  )
  return perturbed(getattr(transformers, f'{kind}ForPrediction')(config), 0.1).double()


def inputs():
  """The arguments of the reference: missing values are 0, and fields of the calendar from -1/2 to 1/2."""
  features = CALENDAR / np.array([6.0, 23.0]) - 0.5
  arrays = {
    'past_values': np.where(MISSING, 0, SERIES),
    'past_time_features': features[:, :PAST],
    'past_observed_mask': ~MISSING,
    'future_time_features': features[:, PAST:],
  }
  return {name: torch.tensor(array).double() for name, array in arrays.items()}


def check(compared, system, theirs, overrides):
  out = theirs(**inputs(), future_values=torch.tensor(FUTURE).double())
  out.loss.backward()
  parameters = {name: p for name, p in theirs.named_parameters() if p.requires_grad}
  shapes = read_config([FILE], [*OVERRIDES, *overrides]).build().shapes()

  def ours(arrays):
    model = model_of(shapes, rename, arrays)
    out = model(jnp.where(MISSING, jnp.nan, SERIES), jnp.asarray(CALENDAR), jnp.asarray(FUTURE))
    # The likelihood of the reference is that of all channels.
    losses = model.distribution.loss(out.x, jnp.asarray(FUTURE), out.heads['scale'])
    return losses.sum(axis=-1).mean(), out

  arrays = {n: jnp.asarray(p.detach().numpy(), jnp.float32) for n, p in parameters.items()}
  (value, own), slopes = jax.jit(jax.value_and_grad(ours, has_aux=True))(arrays)
  compared(*system, own.heads['scale'], out.scale.numpy(), rtol=1e-5, atol=0)
  freedom, loc, scale = (p.detach().numpy() for p in out.params)
  unit = out.scale.numpy()
  wanted = np.stack([freedom, loc * unit, scale * unit], axis=-1)
  compared(*system, own.x, wanted, rtol=1e-5, atol=1e-4)
  compared(*system, value, out.loss.detach().numpy(), rtol=1e-5, atol=0)
  largest = max(np.abs(p.grad.numpy()).max() for p in parameters.values())
  for name, parameter in parameters.items():
    wanted = parameter.grad.numpy()
    # Key biases have no gradient: what is compared are rounding errors.
    atol = max(1e-5 * np.abs(wanted).max(), 1e-7 * largest)
    compared(*system, slopes[name], wanted, atol=atol, of='gradients')


def test_losses_and_gradients_equal_the_time_series_transformer_of_transformers(
  compared, perturbed
):
  system = 'Time Series Transformer', 'transformers TimeSeriesTransformerForPrediction'
  check(compared, system, reference(perturbed), [])


def test_losses_and_gradients_equal_informer_of_transformers_with_all_keys_sampled(
  compared, perturbed, monkeypatch
):
  """Its encoder with a third of the queries; its sparse decoder, whose choice depends on later ones, is replaced."""
  settings = {'kind': 'Informer', 'distil': False, 'sampling_factor': 1}
  theirs = reference(perturbed, attention_type='prob', **settings)
  theirs.model.decoder = reference(perturbed, attention_type='full', **settings).model.decoder
  monkeypatch.setattr(torch, 'randint', lambda low, high, shape: torch.arange(*shape))
  overrides = [
    'Encoder.stack=@encoder/Stack',
    'encoder/Stack.blocks=[@encoder/Block]',
    'encoder/Stack.num_layers=2',
    'encoder/Block.mixer=@ProbSparseAttention',
    'encoder/Block.feed_forward=@MLP',
    'encoder/Block.wiring=@PostNorm',
    f'ProbSparseAttention.num_heads={HEADS}',
    'ProbSparseAttention.factor=1',
  ]
  check(compared, ('Informer', 'transformers InformerForPrediction'), theirs, overrides)


def test_paths_of_locations_equal_those_of_transformers(monkeypatch, perturbed, compared):
  """A sample replaced by the location makes paths deterministic: ours come from a cache, theirs are decoded anew."""
  theirs = reference(perturbed)
  theirs.config.num_parallel_samples = 2
  monkeypatch.setattr(torch.distributions.StudentT, 'sample', lambda self, *_: self.loc)
  wanted = theirs.generate(**inputs()).sequences.numpy()
  arrays = {name: p.detach().numpy() for name, p in theirs.named_parameters() if p.requires_grad}
  arrays = {name: jnp.asarray(array, jnp.float32) for name, array in arrays.items()}
  model = model_of(read_config([FILE], OVERRIDES).build().shapes(), rename, arrays)
  monkeypatch.setattr(
    type(model.distribution), 'sample', lambda self, parameters, key: parameters[..., 1]
  )
  series = jnp.where(MISSING, jnp.nan, SERIES)
  paths = model.sample(series, jnp.asarray(CALENDAR), num_samples=2, key=jax.random.key(0))
  scale = np.abs(wanted).max(axis=(0, 1, 2))
  compared(
    'Time Series Transformer',
    'transformers TimeSeriesTransformerForPrediction',
    paths / scale,
    wanted / scale,
  )
