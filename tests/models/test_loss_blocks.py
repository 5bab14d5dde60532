"""The loss in blocks of tokens: against NumPy in float64 and the loss of all logits at once."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from halved import Halved

from t2x.base.hyperparameters import Hyperparameter
from t2x.base.step import in_step
from t2x.layers import TokenEmbedding, normal
from t2x.models import LMHead, TiedHead, heads
from t2x.models.heads import tokens_per_block
from t2x.train.logs.flops import _multiply_adds

WIDTH, VOCAB, CAP = 8, 23, 2.0
SETTINGS = {'smoothing': 0.1, 'z_loss': 1e-2}


def build(head=TiedHead, **settings):
  made = head(WIDTH, VOCAB, use_bias=True, soft_cap=CAP, rngs=nnx.Rngs(0), **settings)
  embedding = TokenEmbedding(WIDTH, vocab_size=VOCAB, init=normal(1.0), rngs=nnx.Rngs(1))
  return made, embedding


def examples(length=10, batch=3):
  """Hidden vectors, labels, and weights of packed rows, of which some are 0."""
  rng = np.random.default_rng(0)
  x = jnp.asarray(rng.normal(size=(batch, length, WIDTH)), jnp.float32)
  labels = jnp.asarray(rng.integers(0, VOCAB, (batch, length)), jnp.int32)
  return (
    x,
    labels,
    jnp.asarray(rng.random((batch, length)) * (rng.random(length) < 0.7), jnp.float32),
  )


def sums_and_gradients(model, x, labels, weights, **settings):
  """The sums, and the gradient of twice the loss with respect to model, x and weights."""

  def loss(model, x, weights):
    head, embedding = model
    sums = head.cross_entropy(x, embedding, labels, weights, **settings)
    return 2 * sums['loss'][0], sums

  gradients, sums = jax.grad(loss, argnums=(0, 1, 2), has_aux=True)(model, x, weights)
  return sums, gradients


def assert_equal(actual, expected, tolerance=1e-6):
  for a, b in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
    a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
    np.testing.assert_allclose(a, b, rtol=0, atol=tolerance * max(1.0, np.abs(b).max()))


def test_sums_and_gradients_equal_float64():
  (head, embedding), (x, labels, weights) = build(chunk=4), examples()
  sums, (model, dx, dweights) = sums_and_gradients(
    (head, embedding), x, labels, weights, **SETTINGS
  )
  table, h, w = (np.asarray(a, np.float64) for a in (embedding.table[...], x, weights))
  smoothing, z_loss = SETTINGS['smoothing'], SETTINGS['z_loss']
  squashed = np.tanh(h @ table.T / CAP)
  logits = CAP * squashed
  normaliser = np.log(np.exp(logits).sum(-1))
  targets = (1 - smoothing) * np.eye(VOCAB)[np.asarray(labels)] + smoothing / VOCAB
  losses = normaliser - (targets * logits).sum(-1) + z_loss * normaliser**2
  p = np.exp(logits - normaliser[..., None])
  d_logits = (1 + 2 * z_loss * normaliser)[..., None] * p - targets
  d_logits *= 2 * w[..., None] * (1 - squashed**2)
  hits = (logits.argmax(-1) == labels) * w
  expected = {
    'accuracy': (hits.sum(), w.sum()),
    'loss': ((losses * w).sum(), w.sum()),
    'z_loss': ((z_loss * normaliser**2 * w).sum(), w.sum()),
  }
  assert_equal(sums, expected)
  assert_equal(dx, d_logits @ table)
  assert_equal(dweights, 2 * losses)
  assert_equal(model[1].table[...], np.einsum('blv,bld->vd', d_logits, h))
  assert_equal(model[0].bias[...], d_logits.sum((0, 1)))


@pytest.mark.parametrize('head', [TiedHead, LMHead])
def test_bfloat16_gradients_are_as_accurate_as_those_of_all_logits(head):
  x, labels, weights = examples(length=64)

  def gradients(dtype, chunk):
    model = jax.tree.map(lambda a: a.astype(dtype), build(head, chunk=chunk))
    _, (model, dx, _) = sums_and_gradients(model, x.astype(dtype), labels, weights, **SETTINGS)
    assert {leaf.dtype for leaf in jax.tree.leaves((model, dx))} == {jnp.dtype(dtype)}
    return [np.asarray(leaf, np.float64) for leaf in jax.tree.leaves((model, dx))]

  exact = gradients(jnp.float32, None)
  for chunk in (None, 4):
    for a, b in zip(gradients(jnp.bfloat16, chunk), exact, strict=True):
      np.testing.assert_allclose(a, b, rtol=0, atol=0.02 * np.abs(b).max())


def test_hyperparameters_that_vary_between_trials_equal_numbers():
  """With the gradient inside `vmap`, as trials that share a program compute it."""
  smoothing, z_loss = Hyperparameter('smoothing'), Hyperparameter('z_loss')
  model, arrays = build(chunk=4), examples()

  def trial(scalars):
    with in_step(scalars=scalars):
      return sums_and_gradients(model, *arrays, smoothing=smoothing, z_loss=z_loss)

  values = {'smoothing': jnp.array([0.1, 0.3]), 'z_loss': jnp.array([1e-2, 1e-3])}
  trials = jax.jit(jax.vmap(trial))(values)
  for i in range(2):
    numbers = {name: float(array[i]) for name, array in values.items()}
    expected = sums_and_gradients(build(chunk=None), *arrays, **numbers)
    assert_equal(jax.tree.map(lambda a, i=i: a[i], trials), expected)


def test_logits_are_computed_once():
  def multiply_adds(chunk):
    traced = jax.make_jaxpr(sums_and_gradients)(build(LMHead, chunk=chunk), *examples(length=12))
    return _multiply_adds(traced.jaxpr).full

  assert multiply_adds(4) == multiply_adds(None)


def test_evaluation_computes_no_gradient():
  def primitives(chunk):
    head, embedding = build(LMHead, chunk=chunk)
    traced = jax.make_jaxpr(lambda *a: head.cross_entropy(a[0], embedding, *a[1:]))(
      *examples(length=12)
    )
    return _multiply_adds(traced.jaxpr).full

  assert primitives(4) == primitives(None) == 3 * 12 * WIDTH * VOCAB


def test_the_blocks_of_a_size_are_equal_and_at_most_256_mib():
  # 2,048 tokens: GPT-2's logits are 393 MiB, those of a vocabulary of 8,192 are 64 MiB.
  assert tokens_per_block(8, 256, 50257) == 128
  assert tokens_per_block(8, 256, 8192) is None
  assert tokens_per_block(32, 1024, 50304) == 41
  assert tokens_per_block(1, 2, 2**26) == 1
  assert tokens_per_block(1, 3, 2**28) == 1


def test_blocks_are_larger_on_gpus():
  with in_step(target='gpu'):
    assert tokens_per_block(8, 256, 50257) is None
    assert tokens_per_block(32, 1024, 50304) == 256


def test_small_logits_are_computed_at_once_by_default(monkeypatch):
  arrays = examples(length=12, batch=4)

  def traced(layout=None, **settings):
    model = build(LMHead, **settings)
    with in_step(layout=layout):
      return str(jax.make_jaxpr(functools.partial(sums_and_gradients, **SETTINGS))(model, *arrays))

  whole = traced(chunk=None)
  assert traced() == traced(chunk='auto') == whole
  # Four tokens of each row are a block, of four rows or of the two of a device.
  monkeypatch.setitem(heads.BLOCK_BYTES, 'cpu', 4 * 4 * 4 * VOCAB)
  assert traced() == traced(chunk=4) != whole
  assert traced(Halved()) == traced(Halved(), chunk=None)
  monkeypatch.setitem(heads.BLOCK_BYTES, 'cpu', 3 * 2 * 4 * 12)
  assert traced(Halved()) == traced(Halved(), chunk=3)
