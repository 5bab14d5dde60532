"""Settings of heads, norms, gates and biases against transformers and x-transformers: outputs and all gradients."""

import functools

import jax.numpy as jnp
import numpy as np
import pytest
from applying import applied
from flax import nnx
from torch_arrays import linear

from t2x.layers import (
  DotProductScores,
  GatedMLP,
  LayerNorm,
  Linear,
  MultiHeadAttention,
  RMSNorm,
  RoPE,
  Sandwich,
  TokenEmbedding,
  Window,
  gelu,
  gelu_exact,
  ones,
)
from t2x.models import (
  Block,
  Decoder,
  LanguageModel,
  LMHead,
  MaskedLMHead,
  Stack,
  TiedHead,
)

torch = pytest.importorskip('torch', reason="the extra 'references' is not installed")
transformers = pytest.importorskip('transformers', reason="the extra 'references' is not installed")

WIDTH, HEADS, SIZE, LENGTH, VOCAB = 24, 6, 4, 9, 13
X = np.random.default_rng(0).normal(size=(2, LENGTH, WIDTH)).astype(np.float32)
part = functools.partial


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
    scale, builder = 0.3, part(LayerNorm, epsilon=1e-5, use_bias=False)
  else:
    config = transformers.GraniteConfig(**settings, logits_scaling=8.0, embedding_multiplier=1.0)
    theirs = transformers.GraniteForCausalLM(config)
    scale, builder = 1 / 8, part(RMSNorm, epsilon=1e-6)
  head = part(TiedHead if tied else LMHead, logit_scale=scale)
  ours = Head(head, nnx.Rngs(0))
  ours.norm = builder(WIDTH, rngs=nnx.Rngs(0))

  def arrays(get):
    found = {'norm.scale': get(theirs.model.norm.weight)}
    if tied:
      return found | {'embedding.table': get(theirs.lm_head.weight)}
    # The table of the embedding is not read.
    table = np.zeros((VOCAB, WIDTH), np.float32)
    return found | linear('head.out', theirs.lm_head, get) | {'embedding.table': table}

  reference = f'transformers {type(theirs).__name__}'
  equal(None, reference, theirs, ours, arrays, run_heads, lambda m: m(m.norm(jnp.asarray(X))))


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


def run_ids(theirs):
  return theirs(torch.tensor(IDS), use_cache=False).logits


IDS = np.random.default_rng(1).integers(1, VOCAB, size=(2, LENGTH))


GEMMA_HEADS, GEMMA_SIZE = 4, 6


def like_gemma(layers, heads, size, window):
  """A decoder with norms before and after sublayers."""
  attention = part(
    MultiHeadAttention,
    num_heads=heads,
    num_kv_heads=2,
    head_dim=size,
    use_bias=False,
    out_bias=False,
    scale=1 / 3,
    scores=part(DotProductScores, soft_cap=2.0),
  )
  block = part(
    Block,
    mixer=attention,
    feed_forward=part(GatedMLP, hidden_dim=20, activation=gelu),
    wiring=part(Sandwich, norm=RMSNorm),
  )
  blocks = [part(block, pattern=Window(window)), block]
  return LanguageModel(
    d_model=WIDTH,
    embedding=part(TokenEmbedding, vocab_size=VOCAB, scaled=True),
    body=part(
      Decoder,
      stack=part(Stack, num_layers=layers, blocks=blocks),
      encoding=RoPE,
      final_norm=RMSNorm,
    ),
    head=part(TiedHead, soft_cap=3.0),
    rngs=nnx.Rngs(0),
  )


def gemma_arrays(theirs, get):
  """Parameters of Gemma 2; gradients are read after the values."""

  def scale(module):
    # They add 1 to their parameters.
    return get(module.weight) + (module.weight.grad is None)

  def of(layer):
    found = {
      'mixer_wiring.norm.scale': scale(layer.input_layernorm),
      'mixer_wiring.branch_norm.scale': scale(layer.post_attention_layernorm),
      'feed_forward_wiring.norm.scale': scale(layer.pre_feedforward_layernorm),
      'feed_forward_wiring.branch_norm.scale': scale(layer.post_feedforward_layernorm),
    }
    for name in 'qkv':
      kernel = get(getattr(layer.self_attn, f'{name}_proj').weight).T
      found[f'mixer.{name}.kernel'] = kernel.reshape(WIDTH, -1, GEMMA_SIZE)
    found['mixer.out.kernel'] = get(layer.self_attn.o_proj.weight).T.reshape(
      GEMMA_HEADS, GEMMA_SIZE, WIDTH
    )
    for name in ('gate', 'up', 'down'):
      found |= linear(f'feed_forward.{name}', getattr(layer.mlp, f'{name}_proj'), get)
    return found

  model = theirs.model
  found = {
    'embedding.table': get(model.embed_tokens.weight),
    'body.final_norm.scale': scale(model.norm),
  }
  for place in (0, 1):
    of_place = [of(layer) for layer in model.layers[place::2]]
    for name in of_place[0]:
      found[f'body.stack.blocks.{place}.{name}'] = np.stack([one[name] for one in of_place])
  return found


def test_norms_before_and_after_sublayers_equal_gemma_2(equal):
  """With its windows, soft caps, scaled embeddings and gates."""
  layers, window = 4, 4
  config = transformers.Gemma2Config(
    vocab_size=VOCAB,
    hidden_size=WIDTH,
    intermediate_size=20,
    num_hidden_layers=layers,
    num_attention_heads=GEMMA_HEADS,
    num_key_value_heads=2,
    head_dim=GEMMA_SIZE,
    query_pre_attn_scalar=9,
    sliding_window=window,
    attn_logit_softcapping=2.0,
    final_logit_softcapping=3.0,
    pad_token_id=0,
    attn_implementation='eager',
  )
  theirs = transformers.Gemma2ForCausalLM(config)
  ours = like_gemma(layers, GEMMA_HEADS, GEMMA_SIZE, window)
  equal(
    None,
    'transformers Gemma2ForCausalLM',
    theirs,
    ours,
    part(gemma_arrays, theirs),
    run_ids,
    lambda module: module(jnp.asarray(IDS)).x,
  )


def test_gated_mlp_with_biases_equals_x_transformers(equal):
  from x_transformers.x_transformers import FeedForward

  theirs = FeedForward(WIDTH, mult=2, glu=True)
  ours = GatedMLP(
    WIDTH, hidden_dim=2 * WIDTH, activation=gelu_exact, use_bias=True, rngs=nnx.Rngs(0)
  )

  def arrays(get):
    projection, down = theirs.ff[0].proj, theirs.ff[-1]
    kernels = np.split(get(projection.weight).T, 2, axis=1)
    biases = np.split(get(projection.bias), 2)
    found = linear('down', down, get)
    for name, kernel, bias in zip(('up', 'gate'), kernels, biases, strict=True):
      found |= {f'{name}.kernel': kernel, f'{name}.bias': bias}
    return found

  equal(
    None,
    'x-transformers 2.31.10 FeedForward',
    theirs,
    ours,
    arrays,
    lambda module: module(torch.tensor(X)),
    lambda module: applied(module, jnp.asarray(X))[0],
  )
