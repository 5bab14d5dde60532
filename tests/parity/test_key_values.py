"""Attention with other keys and values, in decoders against transformers: logits, gradients and decoding."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from applying import check_decoding
from flax import nnx

from t2x.layers import (
  DifferentialHeads,
  GatedMLP,
  LatentKeyValues,
  LowRankQueries,
  MultiHeadAttention,
  PreNorm,
  RMSNorm,
  RoPE,
  SharedValues,
  TokenEmbedding,
  Tokens,
)
from t2x.layers.arrays import named_leaves
from t2x.models import Block, Decoder, LanguageModel, LMHead, Stack

torch = pytest.importorskip('torch', reason="the extra 'parity' is not installed")
transformers = pytest.importorskip('transformers', reason="the extra 'parity' is not installed")

WIDTH, HEADS, HIDDEN, VOCAB, LAYERS, LENGTH = 16, 4, 20, 30, 3, 9
ROTATED, PLAIN, VALUE, RANK, LOW_RANK = 4, 8, 6, 10, 5
IDS = np.random.default_rng(0).integers(1, VOCAB, size=(2, LENGTH))
# The second row ends with padding.
SEGMENTS = (np.arange(LENGTH) < np.array([LENGTH, 6])[:, None]).astype(np.int32)
WEIGHTS = np.random.default_rng(1).normal(size=(2, LENGTH, VOCAB)) * SEGMENTS[..., None]
partial = functools.partial


def decoder(mixer, interleaved):
  """A Llama-like decoder with this attention."""
  settings = {'num_heads': HEADS, 'use_bias': False, 'out_bias': False} | mixer
  attention = partial(MultiHeadAttention, **settings)
  mlp = partial(GatedMLP, hidden_dim=HIDDEN, activation=jax.nn.silu, use_bias=False)
  block = partial(Block, mixer=attention, feed_forward=mlp, wiring=partial(PreNorm, norm=RMSNorm))
  body = partial(
    Decoder,
    stack=partial(Stack, num_layers=LAYERS, blocks=[block]),
    encoding=partial(RoPE, interleaved=interleaved),
    final_norm=RMSNorm,
  )
  embedding = partial(TokenEmbedding, vocab_size=VOCAB)
  return LanguageModel(d_model=WIDTH, embedding=embedding, body=body, head=LMHead, rngs=nnx.Rngs(0))


def converted(theirs, read, attention):
  """Returns `read(parameter)` of each parameter of their model, in the names and shapes of ours.

  Args:
    attention: maps the attention of a layer and a function (module) -> kernel [inputs, outputs] to named arrays.
  """

  def kernel(linear):
    return read(linear.weight).T

  layers = [
    {
      'mixer_wiring.norm.scale': read(layer.input_layernorm.weight),
      'feed_forward_wiring.norm.scale': read(layer.post_attention_layernorm.weight),
      'feed_forward.up.kernel': kernel(layer.mlp.up_proj),
      'feed_forward.gate.kernel': kernel(layer.mlp.gate_proj),
      'feed_forward.down.kernel': kernel(layer.mlp.down_proj),
      **{f'mixer.{n}': a for n, a in attention(layer.self_attn, kernel, read).items()},
    }
    for layer in theirs.model.layers
  ]
  return {
    'embedding.table': read(theirs.model.embed_tokens.weight),
    'body.final_norm.scale': read(theirs.model.norm.weight),
    'head.out.kernel': kernel(theirs.lm_head),
    **{f'body.stack.blocks.0.{n}': np.stack([layer[n] for layer in layers]) for n in layers[0]},
  }


def check(system, reference, theirs, ours, attention, compared):
  """Compares logits and gradients of all parameters on padded rows; returns our model with their parameters."""
  arrays = converted(theirs, lambda parameter: parameter.detach().numpy(), attention)
  names = [name for name, _ in named_leaves(ours)]
  assert set(names) == arrays.keys()
  ours = jax.tree.unflatten(jax.tree.structure(ours), [jnp.asarray(arrays[n]) for n in names])
  tokens = Tokens(jnp.arange(LENGTH)[None], jnp.asarray(SEGMENTS))

  @partial(jax.value_and_grad, has_aux=True)
  def gradient(model):
    logits = model.logits(model.hidden(jnp.asarray(IDS), tokens=tokens).x)
    return (logits * WEIGHTS).sum(), logits

  (_, logits), gradients = jax.jit(gradient)(ours)
  expected = theirs(torch.tensor(IDS), attention_mask=torch.tensor(SEGMENTS)).logits
  (expected * torch.tensor(WEIGHTS, dtype=torch.float32)).sum().backward()
  is_token = SEGMENTS.astype(bool)
  compared(system, reference, logits[is_token], expected.detach().numpy()[is_token])
  wanted = converted(theirs, lambda parameter: parameter.grad.numpy(), attention)
  for name, leaf in named_leaves(gradients):
    atol = 1e-5 * np.abs(wanted[name]).max()
    compared(system, reference, leaf, wanted[name], atol=atol, of='gradients')
  return ours


def heads(kernel, num, first=0):
  """Splits [inputs, num * size] into heads, with the features from `first` on first."""
  split = kernel.reshape(kernel.shape[0], num, -1)
  return np.concatenate([split[..., first:], split[..., :first]], axis=-1)


def latent_attention(theirs, kernel, read):
  latent, rotated = np.split(kernel(theirs.kv_a_proj_with_mqa), [RANK], axis=1)
  k, v = np.split(heads(kernel(theirs.kv_b_proj), HEADS), [PLAIN], axis=-1)
  arrays = {
    'key_values.latent.kernel': latent,
    'key_values.rotated.kernel': rotated,
    'key_values.norm.scale': read(theirs.kv_a_layernorm.weight),
    'key_values.k.kernel': k,
    'key_values.v.kernel': v,
    'out.kernel': kernel(theirs.o_proj).reshape(HEADS, VALUE, WIDTH),
  }
  # They rotate the last features of a query.
  if theirs.q_proj is not None:
    return arrays | {'q.kernel': heads(kernel(theirs.q_proj), HEADS, PLAIN)}
  return arrays | {
    'q.down.kernel': kernel(theirs.q_a_proj),
    'q.norm.scale': read(theirs.q_a_layernorm.weight),
    'q.up.kernel': heads(kernel(theirs.q_b_proj), HEADS, PLAIN),
  }


@pytest.mark.parametrize('low_rank', [None, LOW_RANK])
def test_latent_attention_equals_deepseek_v2(low_rank, perturbed, compared):
  config = transformers.DeepseekV2Config(
    vocab_size=VOCAB,
    hidden_size=WIDTH,
    intermediate_size=HIDDEN,
    num_hidden_layers=LAYERS,
    first_k_dense_replace=LAYERS,
    num_attention_heads=HEADS,
    kv_lora_rank=RANK,
    q_lora_rank=low_rank,
    qk_nope_head_dim=PLAIN,
    qk_rope_head_dim=ROTATED,
    v_head_dim=VALUE,
    attn_implementation='eager',
  )
  theirs = perturbed(transformers.DeepseekV2ForCausalLM(config), std=0.1)
  mixer = {
    'head_dim': ROTATED + PLAIN,
    'value_dim': VALUE,
    'queries': low_rank and partial(LowRankQueries, rank=low_rank),
    'key_values': partial(LatentKeyValues, rank=RANK, rotated_dim=ROTATED),
  }
  names = 'Multi-head latent attention', 'transformers DeepseekV2ForCausalLM'
  ours = check(*names, theirs, decoder(mixer, True), latent_attention, compared)
  check_decoding(ours)
  assert sum(leaf.nbytes for leaf in jax.tree.leaves(ours.init_cache(2, LENGTH).layers)) == (
    LAYERS * 2 * LENGTH * (ROTATED + RANK) * 4
  )


def differential_attention(theirs, kernel, read):
  # A value head is one of the first half and its partner of the second half.
  first, second = np.split(heads(kernel(theirs.v_proj), KV_HEADS), 2, axis=1)
  return {
    'q.kernel': heads(kernel(theirs.q_proj), PAIRED),
    'key_values.k.kernel': heads(kernel(theirs.k_proj), KV_HEADS),
    'key_values.v.kernel': np.concatenate([first, second], axis=-1),
    'out.kernel': kernel(theirs.o_proj).reshape(PAIRED // 2, 2 * SIZE, WIDTH),
    **{f'head_outputs.{n}': read(getattr(theirs, f'lambda_{n}')) for n in ('q1', 'k1', 'q2', 'k2')},
  }


# Two value heads, each of two key heads, each of two queries.
PAIRED, KV_HEADS = 8, 4
SIZE = WIDTH // PAIRED


def test_differential_attention_equals_diff_llama(perturbed, compared):
  config = transformers.DiffLlamaConfig(
    vocab_size=VOCAB,
    hidden_size=WIDTH,
    intermediate_size=HIDDEN,
    num_hidden_layers=LAYERS,
    num_attention_heads=PAIRED,
    num_key_value_heads=KV_HEADS,
    rms_norm_eps=1e-6,
    attn_implementation='eager',
  )
  theirs = perturbed(transformers.DiffLlamaForCausalLM(config), std=0.1)
  mixer = {
    'num_heads': PAIRED,
    'num_kv_heads': KV_HEADS,
    'value_dim': 2 * SIZE,
    'key_values': SharedValues,
    'head_outputs': DifferentialHeads,
  }
  names = 'Differential attention', 'transformers DiffLlamaForCausalLM'
  check_decoding(check(*names, theirs, decoder(mixer, False), differential_attention, compared))
