"""The loss that heads compute from hidden vectors: against PyTorch and NumPy, and in chunks."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from t2x.base.errors import UserError
from t2x.layers import TokenEmbedding, normal
from t2x.models import (
  Classifier,
  Encoder,
  LanguageModel,
  LMHead,
  MaskedLMHead,
  MixtureOfSoftmaxes,
  Pooler,
  SequenceClassifier,
  TiedHead,
  TokenClassifier,
)
from t2x.models.losses import classification_sums, cross_entropy

torch = pytest.importorskip('torch', reason="the extra 'references' is not installed")

WIDTH, VOCAB = 8, 23
HEADS = {
  'tied': functools.partial(TiedHead, use_bias=True),
  'capped': functools.partial(TiedHead, soft_cap=0.5),
  'projection': functools.partial(LMHead, use_bias=True, init=normal(1.0)),
  'masked': MaskedLMHead,
  'mixture': functools.partial(MixtureOfSoftmaxes, num_softmaxes=3),
  'sequence': functools.partial(
    SequenceClassifier, classifier=functools.partial(Classifier, num_classes=2)
  ),
}
# Where each head has its chunk.
CHUNKED = {
  'mixture': lambda chunk: {'head': functools.partial(TiedHead, chunk=chunk)},
  'sequence': lambda chunk: {'language_head': functools.partial(TiedHead, chunk=chunk)},
}


def head(name, chunk=None):
  settings = CHUNKED.get(name, lambda chunk: {'chunk': chunk})(chunk)
  return HEADS[name](WIDTH, VOCAB, **settings, rngs=nnx.Rngs(0))


def table():
  return TokenEmbedding(WIDTH, vocab_size=VOCAB, init=normal(1.0), rngs=nnx.Rngs(1))


def examples(length=10, batch=3, seed=0):
  """Hidden vectors, labels, and weights of which some are 0."""
  rng = np.random.default_rng(seed)
  x = jnp.asarray(rng.normal(size=(batch, length, WIDTH)), jnp.float32)
  labels = jnp.asarray(rng.integers(0, VOCAB, (batch, length)), jnp.int32)
  return x, labels, jnp.asarray(rng.random((batch, length)) < 0.8, jnp.float32)


@functools.partial(jax.jit, static_argnames=('smoothing', 'z_loss'))
def gradients(model, x, labels, weights, **settings):
  """The sums of a head and an embedding, and the gradient of the loss with respect to all arrays."""

  def loss(model, x):
    head, embedding = model
    sums = head.cross_entropy(x, embedding, labels, weights, **settings)
    return sums['loss'][0], sums

  gradient, sums = jax.grad(loss, argnums=(0, 1), has_aux=True)(model, x)
  return sums, gradient


@pytest.mark.parametrize('smoothing', [0.0, 0.1])
def test_the_loss_equals_pytorchs_with_label_smoothing(smoothing, compared):
  rng = np.random.default_rng(0)
  logits = (rng.normal(size=(40, VOCAB)) * 3).astype(np.float32)
  labels = rng.integers(0, VOCAB, 40)
  expected = torch.nn.functional.cross_entropy(
    torch.tensor(logits), torch.tensor(labels), label_smoothing=smoothing, reduction='none'
  )
  loss = cross_entropy(jnp.asarray(logits), jnp.asarray(labels), smoothing)
  system = 'label smoothing', 'torch cross_entropy'
  compared(*system, loss, expected.numpy(), rtol=1e-5, atol=1e-6)


def test_the_z_loss_equals_float64(compared):
  rng = np.random.default_rng(0)
  logits, labels = rng.normal(size=(4, 5, VOCAB)) * 3 + 2, rng.integers(0, VOCAB, (4, 5))
  weights = (rng.random((4, 5)) < 0.7).astype(np.float64)
  normaliser = np.log(np.exp(logits).sum(-1))
  losses = normaliser - np.take_along_axis(logits, labels[..., None], -1)[..., 0]
  added = 1e-2 * normaliser**2
  arrays = jnp.asarray(logits, jnp.float32), jnp.asarray(labels), jnp.asarray(weights, jnp.float32)
  sums = classification_sums(*arrays, z_loss=1e-2)
  system, total = ('z-loss', 'NumPy, float64'), ((losses + added) * weights).sum()
  compared(*system, sums['loss'][0], total, rtol=1e-6, atol=0)
  np.testing.assert_allclose(sums['z_loss'], ((added * weights).sum(), weights.sum()), rtol=1e-6)
  assert 'z_loss' not in classification_sums(*arrays)


def test_the_soft_cap_equals_transformers_gemma2():
  transformers = pytest.importorskip('transformers')
  config = transformers.Gemma2Config(
    vocab_size=VOCAB,
    hidden_size=WIDTH,
    intermediate_size=4,
    num_hidden_layers=1,
    num_attention_heads=1,
    num_key_value_heads=1,
    head_dim=4,
    final_logit_softcapping=0.3,
  )
  torch.manual_seed(0)
  model = transformers.Gemma2ForCausalLM(config).eval()
  with torch.no_grad():
    ids = torch.arange(10)[None] % VOCAB
    x, expected = model.model(ids).last_hidden_state, model(ids).logits
  made = TiedHead(WIDTH, VOCAB, soft_cap=0.3, rngs=nnx.Rngs(0))
  embedding = table()
  embedding.table[...] = jnp.asarray(model.lm_head.weight.detach().numpy())
  logits = made.logits(jnp.asarray(x.numpy()), embedding)
  np.testing.assert_allclose(logits, expected.numpy(), atol=1e-6)
  # Far from linear.
  assert np.abs(logits - embedding.attend(jnp.asarray(x.numpy()))).max() > 1e-3


@pytest.mark.parametrize('name', HEADS)
def test_a_head_has_the_loss_of_its_logits(name):
  made, embedding, (x, labels, weights) = head(name), table(), examples()
  settings = {'smoothing': 0.1} if name == 'mixture' else {'smoothing': 0.1, 'z_loss': 1e-2}
  sums = made.cross_entropy(x, embedding, labels, weights, **settings)
  expected = classification_sums(made.logits(x, embedding), labels, weights, **settings)
  assert sums.keys() == expected.keys()
  for key, value in expected.items():
    np.testing.assert_array_equal(sums[key], value)


@pytest.mark.parametrize(
  ('name', 'chunk'), [*((name, 4) for name in HEADS), ('tied', 1), ('tied', 64)]
)
def test_chunks_have_the_loss_and_gradients_of_whole_logits(name, chunk):
  settings = {'smoothing': 0.1} if name == 'mixture' else {'smoothing': 0.1, 'z_loss': 1e-2}
  whole, in_chunks = (
    gradients((head(name, size), table()), *examples(), **settings) for size in (None, chunk)
  )
  for a, b in zip(jax.tree.leaves(in_chunks), jax.tree.leaves(whole), strict=True):
    np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-6 * max(1.0, float(jnp.abs(b).max())))


def test_chunks_accumulate_the_gradient_of_bfloat16_parameters_in_float32():
  """Rounded once, not after each of 512 chunks: a sum of many equal terms in bfloat16 stops growing."""
  x, labels, weights = examples(length=512, batch=1)
  x = jnp.abs(x)

  def gradient(chunk, dtype):
    model = jax.tree.map(lambda a: a.astype(dtype), (head('projection', chunk), table()))
    _, (model, _) = gradients(model, x.astype(dtype), labels, weights)
    return np.asarray(model[0].out.kernel[...], np.float64)

  expected = gradient(None, jnp.float32)
  error = np.abs(gradient(1, jnp.bfloat16) - expected).max() / np.abs(expected).max()
  assert error < 0.01


def test_chunks_need_the_memory_of_their_own_logits():
  length, vocab = 512, 4096
  embedding = jax.eval_shape(lambda: TokenEmbedding(WIDTH, vocab_size=vocab, rngs=nnx.Rngs(0)))
  tokens = jax.ShapeDtypeStruct((2, length), jnp.int32)
  arrays = jax.ShapeDtypeStruct((2, length, WIDTH), jnp.float32), tokens

  def memory(chunk):
    made = jax.eval_shape(lambda: LMHead(WIDTH, vocab, chunk=chunk, rngs=nnx.Rngs(0)))
    weights = jax.ShapeDtypeStruct((2, length), jnp.float32)
    compiled = gradients.lower((made, embedding), *arrays, weights).compile()
    return compiled.memory_analysis().temp_size_in_bytes

  logits = 4 * 2 * length * vocab
  assert memory(None) > logits
  assert memory(32) < logits / 2


def test_a_mixture_refuses_a_z_loss_that_would_be_zero():
  with pytest.raises(UserError, match='z_loss has no effect on MixtureOfSoftmaxes'):
    x, labels, weights = examples()
    head('mixture').cross_entropy(x, table(), labels, weights, z_loss=1e-4)


def test_heads_declare_their_outputs():
  made = {name: head(name) for name in HEADS}
  assert {name: set(one.outputs) for name, one in made.items()} == {
    'tied': {'token logits'},
    'capped': {'token logits'},
    'projection': {'token logits'},
    'masked': {'token logits'},
    'mixture': {'token logits'},
    'sequence': {'token logits', 'class logits'},
  }
  tokens = TokenClassifier(WIDTH, VOCAB, num_classes=3, rngs=nnx.Rngs(0))
  assert (tokens.outputs, tokens.num_classes) == ({'classes per token'}, 3)
  assert made['sequence'].num_classes == 2 and made['tied'].num_classes is None


def test_logits_of_a_model_that_returns_vectors_are_an_error(make):
  model = LanguageModel(
    d_model=WIDTH,
    embedding=functools.partial(TokenEmbedding, vocab_size=VOCAB),
    body=functools.partial(Encoder, stack=make.stack()),
    head=Pooler,
    rngs=nnx.Rngs(0),
  )
  x, labels, weights = examples()
  assert model.spec.outputs == {'vectors'}
  with pytest.raises(UserError, match='@Pooler computes vectors, not logits for each token'):
    model.cross_entropy(x, labels, weights)
  with pytest.raises(UserError, match='@Pooler computes vectors, not logits for each token'):
    model.logits(x)


def test_the_gradient_of_the_logits_has_no_scatter():
  logits, labels = jnp.zeros((2, 3, 5)), jnp.zeros((2, 3), int)
  loss = functools.partial(classification_sums, weights=jnp.ones((2, 3)))
  traced = str(jax.make_jaxpr(jax.grad(lambda x: loss(x, labels)['loss'][0]))(logits))
  assert 'scatter' not in traced
