"""Show, Attend and Tell against its equations in PyTorch, with every parameter and its gradient."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from applying import moved
from flax import nnx

from t2x.layers import (
  AdditiveScores,
  Call,
  Causal,
  DoublyStochastic,
  GatedContext,
  MaxoutOutput,
  MeanVectors,
  SourceAttention,
  SourceSequence,
  StateBeforeDecoder,
  StateOutput,
  Tokens,
  linear,
  relu,
  tanh,
)

torch = pytest.importorskip('torch', reason="the extra 'references' is not installed")

part = functools.partial
WIDTH, LENGTH, CELLS, PENALTY = 6, 5, 4, 0.7
rng = np.random.default_rng(0)
X, WEIGHTS = (rng.normal(size=(3, LENGTH, WIDTH)).astype(np.float32) for _ in range(2))
GRID = rng.normal(size=(3, CELLS, WIDTH)).astype(np.float32)
PRESENT = np.arange(LENGTH) < np.asarray([[5], [3], [4]])

# The paper's gate is one number, its scores and initial states have tanh, and its output reads the word and the context
# (equation 7); https://github.com/sgrvinod/a-PyTorch-Tutorial-to-Image-Captioning has these instead.
VARIANTS = {
  'paper': ({'gate_dim': 1}, tanh, part(MaxoutOutput, num_pieces=1)),
  'gates of features': ({'gate_dim': WIDTH}, relu, StateOutput),
}


def decoder(variant):
  gate, activation, output = VARIANTS[variant]
  scores = part(AdditiveScores, activation=activation)
  attention = part(SourceAttention, head_dim=5, scores=scores, use_bias=True)
  network = part(
    StateBeforeDecoder,
    attention=part(GatedContext, attention=attention, **gate),
    initial=part(MeanVectors, activation=linear if activation is relu else tanh),
    output=output,
  )
  return moved(
    DoublyStochastic(WIDTH, sublayer=network, weight=PENALTY, rngs=nnx.Rngs(0)), scale=0.3
  )


def arrays_of(decoder):
  """The arrays of a decoder, or of its gradient."""
  own = decoder.sublayer
  gate, attention, cell = own.attention.gate, own.attention.attention, own.cell
  arrays = {
    'initial': own.initial.bridge.kernel,
    'initial bias': own.initial.bridge.bias,
    'gate': gate.kernel,
    'gate bias': gate.bias,
    'q': attention.q.kernel,
    'q bias': attention.q.bias,
    'k': attention.k.kernel,
    'w': attention.scores.w,
    'inputs': cell.inputs.kernel,
    'inputs bias': cell.inputs.bias,
    'state': cell.state.kernel,
  }
  if isinstance(own.out, MaxoutOutput):
    arrays |= {'out': own.out.kernel, 'out bias': own.out.bias}
  return {name: np.asarray(array[...], np.float64) for name, array in arrays.items()}


def lstm(arrays, x, context, h, c):
  """A step of torch.nn.LSTMCell, from the arrays of the decoder: gates [inputs, 4, width]."""
  cell = torch.nn.LSTMCell(2 * WIDTH, WIDTH).double()
  rows = torch.cat([arrays['inputs'], arrays['state']]).reshape(3 * WIDTH, 4 * WIDTH).T
  bias = arrays['inputs bias'].reshape(-1)
  weights = {
    'weight_ih': rows[:, : 2 * WIDTH],
    'weight_hh': rows[:, 2 * WIDTH :],
    'bias_ih': bias,
    'bias_hh': torch.zeros_like(bias),
  }
  return torch.func.functional_call(cell, weights, (torch.cat([x, context], dim=1), (h, c)))


def expected(variant, arrays):
  """The outputs, the attention of each word and the loss with the penalty."""
  x, grid, activation = arrays['x'], arrays['grid'], VARIANTS[variant][1]
  states = torch.einsum('bd,dne->bne', grid.mean(dim=1), arrays['initial'])
  states = states + arrays['initial bias']
  h, c = (states if activation is relu else torch.tanh(states)).unbind(dim=1)
  outputs, alphas = [], []
  for t in range(LENGTH):
    pairs = grid @ arrays['k'] + (h @ arrays['q'] + arrays['q bias'])[:, None]
    pairs = torch.relu(pairs) if activation is relu else torch.tanh(pairs)
    alpha = torch.softmax(pairs @ arrays['w'][0], dim=1)
    beta = torch.sigmoid(h @ arrays['gate'] + arrays['gate bias'])
    context = beta * (alpha[..., None] * grid).sum(dim=1)
    new = lstm(arrays, x[:, t], context, h, c)
    own = torch.tensor(PRESENT[:, t, None])
    h, c = (torch.where(own, a, b) for a, b in zip(new, (h, c), strict=True))
    y = h
    if 'out' in arrays:
      of_h, of_x, of_context = arrays['out'][:, :, 0]
      y = h @ of_h + x[:, t] @ of_x + context @ of_context + arrays['out bias'][0]
    outputs.append(y)
    alphas.append(alpha)
  y, alpha = torch.stack(outputs, dim=1), torch.stack(alphas, dim=1)
  present = torch.tensor(PRESENT[..., None], dtype=torch.float64)
  read = (alpha * present).sum(dim=1)
  loss = (y * present * torch.tensor(WEIGHTS)).sum() + PENALTY * ((1 - read) ** 2).mean()
  return y, alpha, loss


@pytest.mark.parametrize(
  'variant', ['paper', pytest.param('gates of features', marks=pytest.mark.nightly)]
)
def test_a_captioner_with_attention_equals_the_equations_of_the_paper(compared, variant):
  ours = decoder(variant)
  inputs = {'x': X, 'grid': GRID}
  tensors = {
    name: torch.tensor(np.float64(array), requires_grad=True)
    for name, array in (arrays_of(ours) | inputs).items()
  }
  y, alpha, loss = expected(variant, tensors)
  loss.backward()
  present = jnp.asarray(PRESENT[..., None], jnp.float32)

  @jax.jit
  def found(part, x, grid):
    tokens = Tokens.row(LENGTH, segments=jnp.asarray(PRESENT, jnp.int32), right_padded=True)
    source = SourceSequence(grid, Tokens.row(CELLS))
    call = Call(tokens, Causal(), source=source, record=frozenset({'probabilities'}))
    result = part(x, call)
    penalty = result.aux.losses['doubly_stochastic'].mean()
    return (result.x * WEIGHTS * present).sum() + penalty, result

  (loss_here, result), gradients = jax.value_and_grad(found, (0, 1, 2), has_aux=True)(ours, X, GRID)
  check = part(compared, 'Show, Attend and Tell', 'PyTorch: equations, torch.nn.LSTMCell')
  check(result.x * present, (y.detach().numpy() * PRESENT[..., None]))
  own = PRESENT[..., None]
  check(result.recorded['probabilities'][:, 0] * own, alpha.detach().numpy() * own)
  check(loss_here, loss.item())
  of_inputs = {'x': gradients[1], 'grid': gradients[2]}
  for name, gradient in (arrays_of(gradients[0]) | of_inputs).items():
    check(gradient, tensors[name].grad.numpy(), of='gradients')
