"""Stacks whose layers share parameters, against loops over layers of PyTorch."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from t2x.layers import (
  MLP,
  Call,
  Causal,
  LayerNorm,
  MultiHeadAttention,
  PreNorm,
  RowLayout,
  Tokens,
  relu,
)
from t2x.models import Block, Stack, cycle, cycle_reverse, sequence
from t2x.testing.subject import perturbed

torch = pytest.importorskip('torch', reason="the extra 'references' is not installed")

WIDTH, HEADS, HIDDEN, LENGTH = 16, 2, (20, 24), 9
HEAD = WIDTH // HEADS
X = np.random.default_rng(0).normal(size=(2, LENGTH, WIDTH)).astype(np.float32)
SEGMENTS = np.asarray([[1] * 4 + [2] * 5, [1] * 2 + [2] * 4 + [0] * 3])
POSITIONS = np.asarray([[0, 1, 2, 3, 0, 1, 2, 3, 4], [0, 1, 0, 1, 2, 3, 0, 1, 2]])
WEIGHTS = np.random.default_rng(1).normal(size=X.shape) * (SEGMENTS > 0)[..., None]


def build(num_blocks, **settings):
  blocks = [
    functools.partial(
      Block,
      mixer=functools.partial(MultiHeadAttention, num_heads=HEADS),
      feed_forward=functools.partial(MLP, hidden_dim=hidden, activation=relu),
      wiring=functools.partial(PreNorm, norm=functools.partial(LayerNorm, epsilon=1e-5)),
    )
    for hidden in HIDDEN[:num_blocks]
  ]
  return perturbed(Stack(WIDTH, blocks=blocks, **settings, rngs=nnx.Rngs(0)), scale=0.1)


def layer_of(block, group):
  """A pre-norm layer of PyTorch with one parameter set of a block, and the names of its parameters in the block."""
  hidden = block.feed_forward.up.kernel.shape[-1]
  layer = torch.nn.TransformerEncoderLayer(
    WIDTH, HEADS, hidden, dropout=0.0, batch_first=True, norm_first=True
  ).double()

  def own(parameter):
    return np.asarray(parameter[...], np.float64)[group]

  mixer, mlp = block.mixer, block.feed_forward
  projections = [getattr(mixer, name) for name in 'qkv']
  values = {
    'self_attn.in_proj_weight': np.concatenate(
      [own(p.kernel).reshape(WIDTH, WIDTH).T for p in projections]
    ),
    'self_attn.in_proj_bias': np.concatenate([own(p.bias).reshape(WIDTH) for p in projections]),
    'self_attn.out_proj.weight': own(mixer.out.kernel).reshape(WIDTH, WIDTH).T,
    'self_attn.out_proj.bias': own(mixer.out.bias),
    'linear1.weight': own(mlp.up.kernel).T,
    'linear1.bias': own(mlp.up.bias),
    'linear2.weight': own(mlp.down.kernel).T,
    'linear2.bias': own(mlp.down.bias),
  }
  for name, wiring in (('norm1', block.mixer_wiring), ('norm2', block.feed_forward_wiring)):
    values |= {f'{name}.weight': own(wiring.norm.scale), f'{name}.bias': own(wiring.norm.bias)}
  layer.load_state_dict({name: torch.tensor(value) for name, value in values.items()})
  return layer


def expected(stack, order):
  """The output, and gradients of the MLP's first projection of each set and place, after a loop over layers."""
  sets = [[layer_of(block, group) for block in stack.blocks] for group in range(max(order) + 1)]
  x = torch.tensor(X, dtype=torch.float64)
  same = SEGMENTS[:, :, None] == SEGMENTS[:, None]
  hidden = ~(same & np.tril(np.ones((LENGTH, LENGTH), bool)))
  mask = torch.tensor(np.repeat(hidden, HEADS, axis=0))
  for group in order:
    for layer in sets[group]:
      x = layer(x, src_mask=mask)
  (x * torch.tensor(WEIGHTS)).sum().backward()
  gradients = [
    np.stack([layers[place].linear1.weight.grad.numpy().T for layers in sets])
    for place in range(len(stack.blocks))
  ]
  return x.detach().numpy(), gradients


# Algorithm 1 of the paper by hand: settings of the stack, and the set of each repeat.
ORDERS = {
  'sequence': (2, {'num_layers': 8, 'num_groups': 2, 'order': sequence}, [0, 0, 1, 1]),
  'cycle': (2, {'num_layers': 8, 'num_groups': 2, 'order': cycle}, [0, 1, 0, 1]),
  'cycle, 5 of 3': (1, {'num_layers': 5, 'num_groups': 3, 'order': cycle}, [0, 1, 2, 0, 1]),
  'reverse': (1, {'num_layers': 6, 'num_groups': 3, 'order': cycle_reverse}, [0, 1, 2, 2, 1, 0]),
  'in runs': (1, {'num_layers': 6, 'order': (0, 0, 1, 1, 0, 0)}, [0, 0, 1, 1, 0, 0]),
  'one again': (1, {'num_layers': 4, 'order': (0, 1, 1, 2), 'unroll': 4}, [0, 1, 1, 2]),
}


# Of these, tests/models/test_orders.py checks the order of the sets with every commit.
RARELY = ('sequence', 'in runs')


@pytest.mark.parametrize(
  'name', [pytest.param(n, marks=pytest.mark.nightly if n in RARELY else ()) for n in ORDERS]
)
def test_shared_layers_equal_a_loop_over_layers_of_pytorch(name, compared):
  """On packed rows with padding; gradients of a set are the sums over its uses."""
  num_blocks, settings, order = ORDERS[name]
  stack = build(num_blocks, **settings)
  tokens = Tokens(jnp.asarray(POSITIONS), jnp.asarray(SEGMENTS), layout=RowLayout.PACKED)

  @jax.jit
  @functools.partial(jax.grad, has_aux=True)
  def weighted(stack):
    y = stack(jnp.asarray(X), Call(tokens, Causal())).x
    return (y * WEIGHTS).sum(), y

  gradients, y = weighted(stack)
  y_expected, gradients_expected = expected(stack, order)
  present = SEGMENTS > 0
  system = 'layers shared in cycles', 'torch TransformerEncoderLayer'
  compared(*system, np.asarray(y)[present], y_expected[present], atol=1e-5)
  for block, wanted in zip(gradients.blocks, gradients_expected, strict=True):
    got = block.feed_forward.up.kernel[...]
    compared(*system, got, wanted, rtol=1e-5, atol=1e-5 * np.abs(wanted).max(), of='gradients')
