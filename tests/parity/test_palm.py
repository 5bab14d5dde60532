"""The model of small_palm.gin against the package PaLM-pytorch: logits and gradients with the same weights."""

import functools
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from t2x.experiments import read_config
from t2x.layers.arrays import named_leaves

torch = pytest.importorskip('torch', reason="the extra 'references' is not installed")

CONFIG = Path(__file__).parents[2] / 'configs' / 'models' / 'small_palm.gin'
WIDTH, HEADS, HIDDEN, VOCAB, NUM_LAYERS = 128, 4, 384, 97, 2
HEAD_DIM = WIDTH // HEADS
# The package uses PyTorch's epsilon.
OVERRIDES = [f'num_layers={NUM_LAYERS}', f'vocab_size={VOCAB}', 'LayerNorm.epsilon=1e-5']
IDS = np.random.default_rng(0).integers(VOCAB, size=(2, 24))
BLOCK = 'body.stack.blocks.0'


def palm():
  """Returns the model of the package."""
  package = pytest.importorskip('palm_pytorch', reason="the extra 'references' is not installed")
  torch.manual_seed(0)
  return package.PaLM(
    dim=WIDTH,
    num_tokens=VOCAB,
    depth=NUM_LAYERS,
    dim_head=HEAD_DIM,
    heads=HEADS,
    ff_mult=HIDDEN // WIDTH,
  )


def converted(theirs, read):
  """Returns `read(parameter)` of each parameter of the package's model, in the names and shapes of ours."""
  embedding, *residuals, norm, _ = theirs
  layers = []
  for block in (residual.fn for residual in residuals):
    q, k, v, fused = np.split(
      read(block.fused_attn_ff_proj.weight).T, np.cumsum(block.fused_dims)[:-1], axis=1
    )
    up, gate = np.split(fused, 2, axis=1)
    layers.append(
      {
        'norm.scale': read(block.norm.gamma),
        'mixer.q.kernel': q.reshape(WIDTH, HEADS, HEAD_DIM),
        'mixer.k.kernel': k.reshape(WIDTH, 1, HEAD_DIM),
        'mixer.v.kernel': v.reshape(WIDTH, 1, HEAD_DIM),
        'mixer.out.kernel': read(block.attn_out.weight).T.reshape(HEADS, HEAD_DIM, WIDTH),
        'feed_forward.up.kernel': up,
        'feed_forward.gate.kernel': gate,
        'feed_forward.down.kernel': read(block.ff_out[1].weight).T,
      }
    )
  return {
    'embedding.table': read(embedding.weight),
    'body.final_norm.scale': read(norm.gamma),
    **{f'{BLOCK}.{name}': np.stack([layer[name] for layer in layers]) for name in layers[0]},
  }


def imported(theirs):
  """Returns the model of the config with the weights of the package's model."""
  ours = read_config([CONFIG], OVERRIDES).build().model(rngs=nnx.Rngs(0))
  arrays = converted(theirs, lambda parameter: parameter.detach().numpy())
  names, leaves = zip(*named_leaves(ours), strict=True)
  assert set(names) == arrays.keys()
  for name, leaf in zip(names, leaves, strict=True):
    assert leaf.shape == arrays[name].shape, name
  return jax.tree.unflatten(jax.tree.structure(ours), [jnp.asarray(arrays[name]) for name in names])


def test_logits_and_gradients_equal_those_of_the_package_palm_pytorch(perturbed, add_row, compared):
  theirs = perturbed(palm(), std=0.1)
  ours = imported(theirs)
  ids = torch.tensor(IDS)
  theirs_logits = theirs(ids)
  theirs_loss = torch.nn.functional.cross_entropy(
    theirs_logits[:, :-1].reshape(-1, VOCAB), ids[:, 1:].reshape(-1)
  )
  theirs_loss.backward()
  expected = converted(theirs, lambda parameter: parameter.grad.numpy())

  @functools.partial(jax.value_and_grad, has_aux=True)
  def gradient(model):
    logits = model.logits(model.hidden(jnp.asarray(IDS)).x)
    losses = -jax.nn.log_softmax(logits[:, :-1])
    return jnp.take_along_axis(losses, IDS[:, 1:, None], axis=-1).mean(), logits

  (loss, logits), gradients = jax.jit(gradient)(ours)
  difference = np.abs(logits - theirs_logits.detach().numpy()).max()
  differences = {
    name: np.abs(leaf - expected[name]).max() for name, leaf in named_leaves(gradients)
  }
  relative = {name: value / np.abs(expected[name]).max() for name, value in differences.items()}
  row = {'logits': difference, 'gradients': max(differences.values())}
  row['gradients, relative'] = max(relative.values())
  add_row('parity with PaLM-pytorch', 'small_palm', {name: f'{x:.1e}' for name, x in row.items()})
  assert float(loss) == pytest.approx(theirs_loss.item(), abs=1e-6)
  system = 'PaLM', 'palm-pytorch'
  compared(*system, logits, theirs_logits.detach().numpy())
  assert max(differences.values()) < 1e-6, differences
  for name, gradient in named_leaves(gradients):
    atol = 1e-5 * np.abs(expected[name]).max()
    compared(*system, gradient, expected[name], atol=atol, of='gradients')
