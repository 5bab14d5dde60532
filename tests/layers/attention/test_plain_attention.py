"""Attention with its defaults is the program of plain_attention.py, which is its formula."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from equations import equations
from flax import nnx
from jax.interpreters.partial_eval import dce_jaxpr
from plain_attention import plain_attention

from t2x.base.step import plain_operations
from t2x.layers import Call, Causal, MultiHeadAttention, RoPE, Tokens, normal

BATCH, LENGTH, WIDTH = 2, 8, 16
POSITIONS = jnp.arange(LENGTH)[None]
SEGMENTS = jnp.asarray([[1, 1, 1, 2, 2, 2, 0, 0], [1] * LENGTH])
ROPE = RoPE(WIDTH, rngs=nnx.Rngs(0))


@pytest.fixture(scope='module')
def attention():
  built = MultiHeadAttention(
    WIDTH, num_heads=4, num_kv_heads=2, kernel_init=normal(0.5), rngs=nnx.Rngs(0)
  )
  for name in ('q', 'k', 'v', 'out'):
    bias = getattr(built, name).bias
    bias[...] = jax.random.normal(jax.random.key(len(bias[...].shape)), bias[...].shape)
  return built


def arrays(attention):
  parts = {name: getattr(attention, name) for name in ('q', 'k', 'v', 'out')}
  return {name: (part.kernel[...], part.bias[...]) for name, part in parts.items()}


def ours(attention, projections, x, segments):
  graph, state = nnx.split(attention)
  state = nnx.to_pure_dict(state)
  for name, (kernel, bias) in projections.items():
    state[name] = {'kernel': kernel, 'bias': bias}
  merged = nnx.merge(graph, nnx.State(state))
  with plain_operations():
    return merged(x, Call(Tokens(POSITIONS, segments=segments), Causal(), encoding=ROPE)).x


def computed(function, *arguments):
  """The equations of a program that compute something, with their static parameters, in order."""
  traced = jax.make_jaxpr(function)(*arguments).jaxpr
  jaxpr, _ = dce_jaxpr(traced, [True] * len(traced.outvars), instantiate=True)
  found = []
  for e in equations(jaxpr):
    inputs = [v.aval.str_short() for v in e.invars if hasattr(v, 'aval') and v.aval.size]
    outputs = [v.aval.str_short() for v in e.outvars if v.aval.size]
    name = e.primitive.name
    # The name of the output, and arrays without elements: keys without tokens.
    if name == 'name' or not outputs or (name in ('split', 'concatenate') and inputs == outputs):
      continue
    params = {k: str(v) for k, v in e.params.items() if 'jaxpr' not in k and 'jvp' not in k}
    found.append((name, inputs, outputs, params))
  return found


@pytest.mark.parametrize('segments', [None, SEGMENTS], ids=['rows', 'packed'])
@pytest.mark.parametrize('backward', [False, True], ids=['forward', 'backward'])
def test_the_defaults_of_attention_are_the_plain_program(attention, segments, backward):
  x = jax.random.normal(jax.random.key(0), (BATCH, LENGTH, WIDTH))

  def program(function):
    if backward:
      return jax.grad(lambda p, x: jnp.sin(function(p, x)).sum(), (0, 1))
    return function

  own = program(lambda p, x: ours(attention, p, x, segments))
  plain = program(lambda p, x: plain_attention(p, x, POSITIONS, segments))
  expected = computed(plain, arrays(attention), x)
  assert computed(own, arrays(attention), x) == expected
  assert {'dot_general', 'custom_jvp_call' if not backward else 'exp'} <= {e[0] for e in expected}


@pytest.mark.parametrize('segments', [None, SEGMENTS], ids=['rows', 'packed'])
def test_the_plain_program_is_the_formula_in_float64(attention, segments):
  projections = arrays(attention)
  x = jax.random.normal(jax.random.key(0), (BATCH, LENGTH, WIDTH))
  (q, k, v), (kernel, bias) = (
    [
      np.einsum('bld,dhe->blhe', np.float64(x), np.float64(projections[name][0]))
      + np.float64(projections[name][1])
      for name in 'qkv'
    ],
    map(np.float64, projections['out']),
  )
  numbers = np.ones((BATCH, LENGTH)) if segments is None else np.asarray(segments)
  expected = np.zeros(x.shape)
  for row, i in np.ndindex(BATCH, LENGTH):
    keys = [j for j in range(i + 1) if numbers[row, i] == numbers[row, j] != 0]
    for head in range(4 if keys else 0):
      # A complex number for each pair of features, turned by its position.
      query, *others = (
        (a[:2] + 1j * a[2:]) * np.exp(1j * place * 10000.0 ** (-np.arange(2) / 2))
        for a, place in [(q[row, i, head], i), *((k[row, j, head // 2], j) for j in keys)]
      )
      weights = np.exp([(query.conj() @ other).real / 2 for other in others])
      expected[row, i] += weights / weights.sum() @ v[row, keys, head // 2] @ kernel[head]
    expected[row, i] += bias
  found = plain_attention(projections, x, POSITIONS, segments)
  np.testing.assert_allclose(found, expected, atol=2e-5)
