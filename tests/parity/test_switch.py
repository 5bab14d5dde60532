"""The whole Switch Transformer, an encoder-decoder whose second layers have experts, against transformers."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from t2x.layers import (
  MLP,
  MultiHeadAttention,
  PreNorm,
  RMSNorm,
  SwitchFeedForward,
  T5Bias,
  TokenEmbedding,
  Tokens,
  relu,
)
from t2x.layers.arrays import named_leaves
from t2x.models import Block, Decoder, Encoder, EncoderDecoder, Stack, TiedHead

torch = pytest.importorskip('torch', reason="the extra 'references' is not installed")
transformers = pytest.importorskip('transformers', reason="the extra 'references' is not installed")

part = functools.partial
WIDTH, HEADS, SIZE, HIDDEN, EXPERTS, VOCAB = 16, 4, 6, 20, 4, 30
SYSTEM = 'Switch Transformer', 'transformers SwitchTransformersForConditionalGeneration'
# Of both lengths, an expert has ceil(length / 4) = 3 slots.
SLOTS = 3
RANDOM = np.random.default_rng(0)
SOURCE, TARGET = RANDOM.integers(1, VOCAB, (3, 11)), RANDOM.integers(1, VOCAB, (3, 9))
SOURCE_SEGMENTS = (np.arange(11) < np.array([7, 11, 4])[:, None]).astype(np.int32)
SEGMENTS = (np.arange(9) < np.array([9, 5, 8])[:, None]).astype(np.int32)
WEIGHTS = (RANDOM.normal(size=(3, 9, VOCAB)) * SEGMENTS[..., None]).astype(np.float32)


def theirs(perturbed):
  torch.manual_seed(0)
  config = transformers.SwitchTransformersConfig(
    vocab_size=VOCAB,
    d_model=WIDTH,
    d_kv=SIZE,
    d_ff=HIDDEN,
    expert_capacity=SLOTS,
    num_layers=2,
    num_sparse_encoder_layers=1,
    num_decoder_layers=4,
    num_sparse_decoder_layers=2,
    num_heads=HEADS,
    num_experts=EXPERTS,
    relative_attention_num_buckets=8,
    relative_attention_max_distance=10,
    attn_implementation='eager',
  )
  return perturbed(transformers.SwitchTransformersForConditionalGeneration(config), std=0.1)


def ours():
  attention = part(
    MultiHeadAttention, num_heads=HEADS, head_dim=SIZE, use_bias=False, out_bias=False, scale=1.0
  )
  dense = part(MLP, hidden_dim=HIDDEN, activation=relu, use_bias=False)
  sparse = part(SwitchFeedForward, num_experts=EXPERTS, hidden_dim=HIDDEN, capacity_factor=1.0)
  block = part(Block, mixer=attention, wiring=part(PreNorm, norm=RMSNorm))

  def body(kind, num_layers, bidirectional, **settings):
    blocks = [part(block, feed_forward=one, **settings) for one in (dense, sparse)]
    bias = part(T5Bias, num_heads=HEADS, num_buckets=8, max_distance=10)
    return part(
      kind,
      stack=part(Stack, num_layers=num_layers, blocks=blocks),
      encoding=part(bias, bidirectional=bidirectional),
      final_norm=RMSNorm,
    )

  return EncoderDecoder(
    d_model=WIDTH,
    embedding=part(TokenEmbedding, vocab_size=VOCAB),
    encoder=body(Encoder, 2, True),
    decoder=body(Decoder, 4, False, cross=attention),
    head=part(TiedHead, scaled=True),
    rngs=nnx.Rngs(0),
  )


def attention(theirs, read):
  def heads(linear):
    return read(linear.weight).T.reshape(WIDTH, HEADS, SIZE)

  inputs = {f'{name}.kernel': heads(getattr(theirs, name)) for name in 'qkv'}
  return inputs | {'out.kernel': read(theirs.o.weight).T.reshape(HEADS, SIZE, WIDTH)}


def feed_forward(theirs, read):
  names = {'up': 'wi', 'down': 'wo'}
  if not hasattr(theirs, 'router'):
    return {f'{own}.kernel': read(getattr(theirs, name).weight).T for own, name in names.items()}
  experts = [theirs.experts[f'expert_{i}'] for i in range(EXPERTS)]
  return {'router.kernel': read(theirs.router.classifier.weight).T} | {
    f'expert.{own}.kernel': np.stack([read(getattr(e, name).weight).T for e in experts])
    for own, name in names.items()
  }


def of_layer(layers, read):
  """The arrays of a layer: self-attention, in the decoder cross-attention, and a feed-forward layer."""
  mixer, *cross, last = layers
  found = {
    'mixer': attention(mixer.SelfAttention, read),
    'feed_forward': feed_forward(last.mlp, read),
  }
  norms = {'mixer': mixer, 'feed_forward': last}
  if cross:
    norms['cross'] = cross[0]
    found['cross'] = attention(cross[0].EncDecAttention, read)
  arrays = {f'{name}.{n}': a for name, part in found.items() for n, a in part.items()}
  scales = {f'{name}_wiring.norm.scale': read(one.layer_norm.weight) for name, one in norms.items()}
  return arrays | scales


def converted(theirs, read):
  """Returns `read(parameter)` of each parameter of their model, in the names and shapes of ours."""
  arrays = {'embedding.table': read(theirs.shared.weight)}
  for side in ('encoder', 'decoder'):
    stack = getattr(theirs, side)
    bias = stack.block[0].layer[0].SelfAttention.relative_attention_bias.weight
    arrays[f'{side}.encoding.table'] = read(bias)
    arrays[f'{side}.final_norm.scale'] = read(stack.final_layer_norm.weight)
    for place in (0, 1):
      layers = [of_layer(block.layer, read) for block in stack.block[place::2]]
      names = f'{side}.stack.blocks.{place}'
      arrays |= {f'{names}.{n}': np.stack([one[n] for one in layers]) for n in layers[0]}
  return arrays


def test_the_switch_transformer_equals_that_of_transformers(perturbed, compared):
  """Logits and the gradients of all parameters, where tokens are dropped in encoder and decoder."""
  reference, model = theirs(perturbed), ours()
  arrays = converted(reference, lambda parameter: parameter.detach().numpy())
  names = [name for name, _ in named_leaves(model)]
  assert set(names) == arrays.keys()
  model = jax.tree.unflatten(jax.tree.structure(model), [jnp.asarray(arrays[n]) for n in names])
  source_tokens = Tokens.row(11, segments=jnp.asarray(SOURCE_SEGMENTS))
  target_tokens = Tokens.row(9, segments=jnp.asarray(SEGMENTS))

  def loss(model):
    inputs = jnp.asarray(SOURCE), jnp.asarray(TARGET)
    out = model(*inputs, source_tokens=source_tokens, target_tokens=target_tokens)
    return (out.x * WEIGHTS).sum(), out

  gradients, out = jax.jit(jax.grad(loss, has_aux=True))(model)
  expected = reference(
    input_ids=torch.tensor(SOURCE),
    attention_mask=torch.tensor(SOURCE_SEGMENTS).long(),
    decoder_input_ids=torch.tensor(TARGET),
    decoder_attention_mask=torch.tensor(SEGMENTS).long(),
    use_cache=False,
  ).logits
  (expected * torch.tensor(WEIGHTS)).sum().backward()
  is_token = SEGMENTS.astype(bool)
  compared(*SYSTEM, out.x[is_token], expected.detach().numpy()[is_token])
  # An expert without tokens has no gradient in PyTorch.
  for parameter in reference.parameters():
    parameter.grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
  wanted = converted(reference, lambda parameter: parameter.grad.numpy())
  for name, leaf in named_leaves(gradients):
    atol = 1e-5 * np.abs(wanted[name]).max()
    compared(*SYSTEM, leaf, wanted[name], atol=atol, of='gradients')
  dropped, choices = out.aux.metrics['dropped_tokens']
  assert choices == SOURCE_SEGMENTS.sum() + 2 * SEGMENTS.sum()
  assert dropped > 0
