"""Settings of heads, norms, gates and biases against transformers and x-transformers: outputs and all gradients."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from applying import applied
from flax import nnx

from t2x.layers import (
  ALiBi,
  Causal,
  GatedHeads,
  LayerNorm,
  Linear,
  MultiHeadAttention,
  RMSNorm,
  ScalarGatedHeads,
  TokenEmbedding,
  Tokens,
  gelu_exact,
  ones,
  silu,
)
from t2x.layers.arrays import named_leaves
from t2x.models import LMHead, MaskedLMHead, TiedHead

torch = pytest.importorskip('torch', reason="the extra 'parity' is not installed")
transformers = pytest.importorskip('transformers', reason="the extra 'parity' is not installed")

WIDTH, HEADS, SIZE, LENGTH, VOCAB = 24, 6, 4, 9, 13
X = np.random.default_rng(0).normal(size=(2, LENGTH, WIDTH)).astype(np.float32)
part = functools.partial


@pytest.fixture
def equal(compared, perturbed):
  """`equal(system, reference, theirs, ours, arrays, run, apply)`: equal outputs and gradients of all parameters.

  Args:
    system, reference: see `compared`.
    theirs: module of PyTorch, whose parameters are perturbed.
    ours: module of t2x.
    arrays: `arrays(get)` returns the parameters by the names of ours; `get` reads a parameter, or its gradient.
    run: maps their module to an output, `apply` maps ours to one.
  """

  def check(system, reference, theirs, ours, arrays, run, apply):
    theirs = perturbed(theirs, std=0.1)
    expected = run(theirs)
    weights = np.random.default_rng(5).normal(size=expected.shape).astype(np.float32)
    (expected * torch.tensor(weights)).sum().backward()
    values = arrays(lambda parameter: parameter.detach().numpy())
    names = [name for name, _ in named_leaves(ours)]
    assert set(names) == values.keys()
    leaves = [jnp.asarray(values[name]).reshape(leaf.shape) for name, leaf in named_leaves(ours)]
    ours = jax.tree.unflatten(jax.tree.structure(ours), leaves)

    def weighted(ours):
      y = apply(ours)
      return (y * weights).sum(), y

    gradients, y = jax.jit(jax.grad(weighted, has_aux=True))(ours)
    compared(system, reference, y, expected.detach().numpy())
    wanted = arrays(lambda parameter: parameter.grad.numpy())
    largest = max(np.abs(w).max() for w in wanted.values())
    for name, leaf in named_leaves(gradients):
      want = wanted[name].reshape(leaf.shape)
      # Key biases have no gradient: what is compared are rounding errors.
      atol = max(1e-5 * np.abs(want).max(), 1e-7 * largest)
      compared(system, reference, leaf, want, atol=atol, of='gradients')

  return check


def linear(name, module, get):
  """Kernel and bias of a projection."""
  arrays = {f'{name}.kernel': get(module.weight).T}
  return arrays if module.bias is None else arrays | {f'{name}.bias': get(module.bias)}


class Head(nnx.Module):
  """A head and the embedding that it reads."""

  def __init__(self, head, rngs):
    self.embedding = TokenEmbedding(WIDTH, vocab_size=VOCAB, rngs=rngs)
    self.head = head(WIDTH, VOCAB, rngs=rngs)

  def __call__(self, x):
    return self.head(x, self.embedding)


# Biases of the projection and of the vocabulary, apart.
@pytest.mark.parametrize(('transform', 'vocab'), [(False, True), (True, False)])
def test_masked_lm_head_without_a_bias_equals_modern_bert(transform, vocab, equal):
  from transformers.models.modernbert import modeling_modernbert as modern

  config = transformers.ModernBertConfig(
    hidden_size=WIDTH, classifier_bias=transform, norm_bias=False, classifier_activation='gelu'
  )
  theirs = torch.nn.Sequential(
    modern.ModernBertPredictionHead(config), torch.nn.Linear(WIDTH, VOCAB, bias=vocab)
  )
  head = part(
    MaskedLMHead,
    activation=gelu_exact,
    norm=part(LayerNorm, epsilon=config.norm_eps, use_bias=False),
    transform_bias=transform,
    use_bias=vocab,
  )

  def arrays(get):
    first, decoder = theirs
    found = {
      **linear('head.transform', first.dense, get),
      'head.norm.scale': get(first.norm.weight),
      'embedding.table': get(decoder.weight),
    }
    return found | ({'head.bias': get(decoder.bias)} if vocab else {})

  equal(
    None,
    'transformers ModernBertPredictionHead',
    theirs,
    Head(head, nnx.Rngs(0)),
    arrays,
    lambda module: module(torch.tensor(X)),
    lambda module: module(jnp.asarray(X)),
  )


def run_heads(theirs):
  """Logits of a causal language model of transformers without layers, of embedded tokens."""
  return theirs(inputs_embeds=torch.tensor(X)).logits


@pytest.mark.parametrize('tied', [True, False])
def test_scaled_logits_equal_granite_and_cohere(tied, equal):
  settings = {
    'hidden_size': WIDTH,
    'num_attention_heads': 2,
    'num_key_value_heads': 2,
    'num_hidden_layers': 0,
    'vocab_size': VOCAB,
    'pad_token_id': 0,
    'tie_word_embeddings': tied,
  }
  if tied:
    theirs = transformers.CohereForCausalLM(transformers.CohereConfig(**settings, logit_scale=0.3))
    scale, norm = 0.3, part(LayerNorm, epsilon=1e-5, use_bias=False)
  else:
    config = transformers.GraniteConfig(**settings, logits_scaling=8.0, embedding_multiplier=1.0)
    theirs = transformers.GraniteForCausalLM(config)
    scale, norm = 1 / 8, part(RMSNorm, epsilon=1e-6)
  head = part(TiedHead if tied else LMHead, logit_scale=scale)
  ours = Head(head, nnx.Rngs(0))
  ours.norm = norm(WIDTH, rngs=nnx.Rngs(0))

  def arrays(get):
    found = {'norm.scale': get(theirs.model.norm.weight)}
    if tied:
      return found | {'embedding.table': get(theirs.lm_head.weight)}
    # The table of the embedding is not read.
    table = np.zeros((VOCAB, WIDTH), np.float32)
    return found | linear('head.out', theirs.lm_head, get) | {'embedding.table': table}

  reference = f'transformers {type(theirs).__name__}'
  equal(None, reference, theirs, ours, arrays, run_heads, lambda m: m(m.norm(jnp.asarray(X))))


def split(x, num=HEADS):
  """Splits the outputs [..., num * SIZE] of a kernel or a bias into heads."""
  return x.reshape(*x.shape[:-1], num, -1)


def attended(ours):
  return applied(ours, jnp.asarray(X), tokens=Tokens.row(LENGTH), pattern=Causal())[0]


def test_max_exponent_of_alibi_equals_mpt(equal):
  from transformers.models.mpt import modeling_mpt as mpt

  config = transformers.MptConfig(d_model=WIDTH, n_heads=HEADS)
  theirs = mpt.MptAttention(config, 0)
  bias = mpt.build_mpt_alibi_tensor(HEADS, LENGTH, alibi_bias_max=6)
  future = torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(1)
  ours = MultiHeadAttention(
    WIDTH, num_heads=HEADS, use_bias=False, out_bias=False, rngs=nnx.Rngs(0)
  )
  encoding = ALiBi(WIDTH, num_heads=HEADS, max_exponent=6.0, rngs=nnx.Rngs(0))

  def arrays(get):
    kernels = np.split(get(theirs.Wqkv.weight).T, 3, axis=1)
    found = {f'{n}.kernel': split(k) for n, k in zip('qkv', kernels, strict=True)}
    return found | linear('out', theirs.out_proj, get)

  def apply(ours):
    return applied(ours, jnp.asarray(X), pattern=Causal(), encoding=encoding)[0]

  equal(
    'ALiBi',
    'transformers MptAttention',
    theirs,
    ours,
    arrays,
    lambda module: module(torch.tensor(X), bias, attention_mask=future)[0],
    apply,
  )


def test_factor_of_alibi_equals_falcon(equal):
  from transformers.models.falcon import modeling_falcon as falcon

  config = transformers.FalconConfig(
    hidden_size=WIDTH,
    num_attention_heads=HEADS,
    alibi=True,
    multi_query=False,
    bias=True,
    new_decoder_architecture=False,
    attn_implementation='eager',
  )
  theirs = falcon.FalconAttention(config, 0)
  # The reference rounds slopes to bfloat16; those of six heads are powers of two.
  mask = torch.ones(2, LENGTH)
  bias = falcon.build_alibi_tensor(mask, HEADS, torch.float32)
  future = torch.zeros(LENGTH, LENGTH).masked_fill(
    torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(1), -1e30
  )
  ours = MultiHeadAttention(WIDTH, num_heads=HEADS, rngs=nnx.Rngs(0))
  encoding = ALiBi(WIDTH, num_heads=HEADS, factor=SIZE**-0.5, rngs=nnx.Rngs(0))

  def arrays(get):
    found = linear('out', theirs.dense, get)
    kernel = get(theirs.query_key_value.weight).T.reshape(WIDTH, HEADS, 3, SIZE)
    biases = get(theirs.query_key_value.bias).reshape(HEADS, 3, SIZE)
    for i, name in enumerate('qkv'):
      found |= {f'{name}.kernel': kernel[:, :, i], f'{name}.bias': biases[:, i]}
    return found

  def apply(ours):
    return applied(ours, jnp.asarray(X), pattern=Causal(), encoding=encoding)[0]

  equal(
    'ALiBi',
    'transformers FalconAttention',
    theirs,
    ours,
    arrays,
    lambda module: module(torch.tensor(X), bias, future)[0],
    apply,
  )


def test_norm_without_scale_equals_olmo(equal):
  from transformers.models.olmo import modeling_olmo as olmo

  theirs = torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), olmo.OlmoLayerNorm(WIDTH))

  class Normed(nnx.Module):
    def __init__(self, rngs):
      axes, init = ('embed', 'embed'), ones()
      self.linear = Linear((WIDTH,), (WIDTH,), axes, init=init, rngs=rngs)
      self.norm = LayerNorm(WIDTH, epsilon=1e-5, use_bias=False, use_scale=False, rngs=rngs)

  equal(
    None,
    'transformers OlmoLayerNorm',
    theirs,
    Normed(nnx.Rngs(0)),
    lambda get: linear('linear', theirs[0], get),
    lambda module: module(torch.tensor(X)),
    lambda module: module.norm(module.linear(jnp.asarray(X))),
  )


def x_attention(**settings):
  """Attention of x-transformers, which has no biases."""
  from x_transformers.x_transformers import Attention

  return Attention(dim=WIDTH, dim_head=SIZE, heads=HEADS, causal=True, **settings)


def x_arrays(theirs, get):
  """The projections of `x_attention`."""
  names = {'q': theirs.to_q, 'k': theirs.to_k, 'v': theirs.to_v}
  found = {
    f'{n}.kernel': split(get(m.weight).T, m.weight.shape[0] // SIZE) for n, m in names.items()
  }
  return found | {'out.kernel': get(theirs.to_out.weight).T}


def check_x(equal, theirs, mixer, more):
  """Compares attention of x-transformers with ours; `more(get)` are the other parameters."""
  settings = {'num_heads': HEADS, 'use_bias': False, 'out_bias': False} | mixer
  ours = MultiHeadAttention(WIDTH, **settings, rngs=nnx.Rngs(0))
  equal(
    None,
    'x-transformers 2.31.10 Attention',
    theirs,
    ours,
    lambda get: x_arrays(theirs, get) | more(get),
    lambda module: module(torch.tensor(X)),
    attended,
  )


def test_gates_with_silu_equal_x_transformers(equal):
  theirs = x_attention(gate_values=True, swiglu_values=True)
  gates = part(GatedHeads, activation=silu)
  check_x(
    equal,
    theirs,
    {'head_outputs': gates},
    lambda get: linear('head_outputs.gate', theirs.to_v_gate, get),
  )


def test_gates_with_biases_equal_x_transformers(equal):
  theirs = x_attention(gate_value_heads=True)
  gates = part(ScalarGatedHeads, bias_init=ones())
  check_x(
    equal,
    theirs,
    {'head_outputs': gates},
    lambda get: linear('head_outputs.gate', theirs.to_v_head_gate, get),
  )
