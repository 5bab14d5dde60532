"""Stochastic depth against timm's DropPath in the blocks of DeiT and Swin: where it acts, its rates, its values."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from t2x.layers import MLP, Call, MultiHeadAttention, PreNorm, Tokens
from t2x.layers.keys import row_keys
from t2x.models import Block, Stack, Stages

timm = pytest.importorskip('timm', reason="the extra 'references' is not installed")
torch = pytest.importorskip('torch', reason="the extra 'references' is not installed")

ROWS = 4096
part = functools.partial


class Recording(PreNorm):
  """Appends the factor of its branch in each layer to a list."""

  factors: list = []

  def __call__(self, x, sublayer, key=None, keep=None):
    jax.debug.callback(lambda keep: self.factors.append(np.asarray(keep)), keep, ordered=True)
    return super().__call__(x, sublayer, key, keep)


def our_factors(rate, *depths):
  """The factors [branches, rows] of the branches, in the order of the layers of all stages."""
  block = part(
    Block,
    mixer=part(MultiHeadAttention, num_heads=1),
    feed_forward=part(MLP, hidden_dim=2),
    wiring=Recording,
  )
  stages = [part(Stack, num_layers=n, blocks=[block], stochastic_depth=rate) for n in depths]
  stack = Stages(2, stages=stages, rngs=nnx.Rngs(0))
  Recording.factors.clear()
  tokens = Tokens.row(4, grid=(2, 2))
  call = Call(tokens, key=row_keys(jax.random.key(0), ROWS))
  jax.block_until_ready(jax.jit(lambda x: stack(x, call).x)(jnp.ones((ROWS, 4, 2))))
  jax.effects_barrier()
  return np.stack([keep.reshape(ROWS) for keep in Recording.factors])


def their_factors(model):
  """The same of timm's blocks; a branch without DropPath has the factor 1."""
  torch.manual_seed(0)
  blocks = [block for stage in getattr(model, 'layers', [model]) for block in stage.blocks]
  paths = [path for block in blocks for path in (block.drop_path1, block.drop_path2)]
  ones = torch.ones(ROWS, 1, 1)
  return np.stack([path.train()(ones).reshape(ROWS).numpy() for path in paths])


def check_same_distribution(ours, theirs, compared):
  """Equal values and, to five standard deviations, equal means and uncorrelated branches."""
  assert ours.shape == theirs.shape
  for own, their in zip(ours, theirs, strict=True):
    values = np.unique(own), np.unique(their)
    compared('stochastic depth', 'timm DropPath', *values, rtol=1e-6, atol=0)
    difference = (own == 0).mean() - (their == 0).mean()
    assert abs(difference) < 5 * np.sqrt(2 * 0.25 / ROWS)
  for factors in (ours, theirs):
    varying = factors[factors.std(axis=1) > 0]
    correlations = np.corrcoef(varying) - np.eye(len(varying))
    assert np.abs(correlations).max() < 5 / np.sqrt(ROWS)


def test_each_branch_of_each_row_is_dropped_as_in_deit(compared):
  deit = timm.models.VisionTransformer(
    img_size=4, patch_size=2, in_chans=1, embed_dim=8, depth=4, num_heads=1, drop_path_rate=0.3
  )
  check_same_distribution(our_factors(0.3, 4), their_factors(deit), compared)


def test_the_rates_grow_through_all_stages_as_in_swin(compared):
  swin = timm.models.SwinTransformer(
    img_size=8,
    patch_size=2,
    in_chans=1,
    embed_dim=8,
    depths=(1, 2),
    num_heads=(1, 1),
    window_size=2,
    drop_path_rate=0.2,
  )
  check_same_distribution(our_factors(0.2, 1, 2), their_factors(swin), compared)
