"""PatchTST of configs/models, at a small width, against transformers, with missing values in the context."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t2x.domains.series import Forecast
from t2x.experiments import read_config
from tests.helpers.renamed import model_of

torch = pytest.importorskip('torch', reason="the extra 'references' is not installed")
transformers = pytest.importorskip('transformers', reason="the extra 'references' is not installed")

FILE = Path(__file__).parents[2] / 'configs' / 'models' / 'small_patchtst.gin'
WIDTH, HEADS, CONTEXT, HORIZON, CHANNELS, PATCHES = 16, 2, 30, 5, 3, 5
rng = np.random.default_rng(0)
PAST = (rng.normal(size=(4, CONTEXT, CHANNELS)) * [1, 5, 20] + [0, 3, 1000]).astype(np.float32)
FUTURE = (rng.normal(size=(4, HORIZON, CHANNELS)) * [1, 5, 20] + [0, 3, 1000]).astype(np.float32)
MISSING = rng.uniform(size=PAST.shape) < 0.2
OVERRIDES = [
  f'context={CONTEXT}',
  f'horizon={HORIZON}',
  f'd_model={WIDTH}',
  f'MultiHeadAttention.num_heads={HEADS}',
  'MLP.hidden_dim=24',
  'SeriesPatches.patch_length=8',
  'SeriesPatches.stride=5',
  f'LearnedPositions.max_length={PATCHES}',
  'LayerNorm.epsilon=1e-5',
]


def rename(own):
  encoder, split = 'model.encoder', (HEADS, WIDTH // HEADS)
  own.linear('network.embedding.projection', f'{encoder}.embedder.input_embedding')
  own.take('network.body.encoding.table', f'{encoder}.positional_encoder.position_enc')

  def layer(own, name, theirs):
    for letter in 'qkv':
      own.linear(f'{name}.mixer.{letter}', f'{theirs}.self_attn.{letter}_proj', outputs=split)
    own.linear(f'{name}.mixer.out', f'{theirs}.self_attn.out_proj', inputs=split)
    own.linear(f'{name}.feed_forward.up', f'{theirs}.ff.0')
    own.linear(f'{name}.feed_forward.down', f'{theirs}.ff.3')
    own.norm(f'{name}.mixer_wiring.norm', f'{theirs}.norm_sublayer1')
    own.norm(f'{name}.feed_forward_wiring.norm', f'{theirs}.norm_sublayer3')

  own.stacked('network.body.stack.blocks.0', layer, [f'{encoder}.layers.{n}' for n in (0, 1)])
  # One projection for each parameter of the distribution.
  names = sorted(name[: -len('.weight')] for name in own.left if name.endswith('.weight'))
  kernels = [own.left.pop(f'{name}.weight').T for name in names]
  own.found['out.kernel'] = jnp.stack(kernels, axis=-1)
  own.found['out.bias'] = jnp.stack([own.left.pop(f'{name}.bias') for name in names], axis=-1)


@pytest.mark.parametrize('loss', ['mse', 'nll'])
def test_forecasts_losses_and_gradients_equal_patchtst_of_transformers(compared, perturbed, loss):
  config = transformers.PatchTSTConfig(
    num_input_channels=CHANNELS,
    context_length=CONTEXT,
    prediction_length=HORIZON,
    patch_length=8,
    patch_stride=5,
    num_hidden_layers=2,
    d_model=WIDTH,
    num_attention_heads=HEADS,
    ffn_dim=24,
    ff_dropout=0.1,
    norm_type='layernorm',
    positional_encoding_type='random',
    pooling_type=None,
    scaling='std',
    loss=loss,
    distribution_output='student_t',
  )
  theirs = perturbed(transformers.PatchTSTForPrediction(config), 0.1).double()
  # transformers scales what stands in place of missing values; with their mean it is 0, as ours.
  sums = np.where(MISSING, 0, PAST).sum(axis=1, keepdims=True)
  means = sums / (~MISSING).sum(axis=1, keepdims=True)
  out = theirs(
    past_values=torch.tensor(np.where(MISSING, means, PAST)).double(),
    past_observed_mask=torch.tensor(~MISSING),
    future_values=torch.tensor(FUTURE).double(),
  )
  out.loss.backward()
  distribution = '@PointForecast()' if loss == 'mse' else '@StudentT()'
  overrides = [*OVERRIDES, f'Forecaster.distribution={distribution}']
  shapes = read_config([FILE], overrides).build().shapes()
  parameters = dict(theirs.named_parameters())
  task = Forecast(context=CONTEXT, horizon=HORIZON)
  batch = {'series': jnp.where(MISSING, jnp.nan, PAST), 'future': jnp.asarray(FUTURE)}
  batch |= {'scale': jnp.ones((4, CHANNELS)), 'weight': jnp.ones(4)}

  def ours(arrays):
    model = model_of(shapes, rename, arrays)
    out = model(jnp.where(MISSING, jnp.nan, PAST))
    # PatchTST reads values in units of their standard deviation. The likelihood of transformers is that
    # of all channels.
    total, weight = task.sums(model, batch, None).metrics['loss']
    return total / weight * (CHANNELS if loss == 'nll' else 1), out

  arrays = {n: jnp.asarray(p.detach().numpy(), jnp.float32) for n, p in parameters.items()}
  (value, own), slopes = jax.jit(jax.value_and_grad(ours, has_aux=True))(arrays)
  system = 'PatchTST', 'transformers PatchTSTForPrediction'
  compared(*system, own.heads['loc'], out.loc.numpy(), atol=1e-3)
  compared(*system, own.heads['scale'], out.scale.numpy(), rtol=1e-5, atol=0)
  compared(*system, value, out.loss.detach().numpy(), rtol=1e-5, atol=0)
  if loss == 'mse':
    wanted = out.prediction_outputs.detach().numpy()
    compared(*system, own.x[..., 0], wanted, rtol=1e-5, atol=1e-5)
  largest = max(np.abs(p.grad.numpy()).max() for p in parameters.values())
  for name, parameter in parameters.items():
    wanted = parameter.grad.numpy()
    # Key biases have no gradient: what is compared are rounding errors.
    atol = max(1e-5 * np.abs(wanted).max(), 1e-7 * largest)
    compared(*system, slopes[name], wanted, atol=atol, of='gradients')
