"""Attention with other keys and values, in decoders against transformers: logits, gradients and decoding; DeepSeek-V3
as a whole."""

import functools

import deepseek_v3
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
from t2x.models import Block, Decoder, LanguageModel, LMHead, Stack, Stages

torch = pytest.importorskip('torch', reason="the extra 'references' is not installed")
transformers = pytest.importorskip('transformers', reason="the extra 'references' is not installed")

WIDTH, HEADS, HIDDEN, VOCAB, LAYERS, LENGTH = 16, 4, 20, 30, 3, 9
ROTATED, PLAIN, VALUE, RANK, LOW_RANK = 4, 8, 6, 10, 5
GATED = 'gate', 'up', 'down'
IDS = np.random.default_rng(0).integers(1, VOCAB, size=(2, LENGTH))
# The second row ends with padding.
SEGMENTS = (np.arange(LENGTH) < np.array([LENGTH, 6])[:, None]).astype(np.int32)
WEIGHTS = np.random.default_rng(1).normal(size=(2, LENGTH, VOCAB)) * SEGMENTS[..., None]
partial = functools.partial


def decoder(mixer, interleaved, experts=None):
  """A Llama-like decoder with this attention; layers after the first have these experts."""
  settings = {'num_heads': HEADS, 'use_bias': False, 'out_bias': False} | mixer
  attention = partial(MultiHeadAttention, **settings)
  mlp = partial(GatedMLP, hidden_dim=HIDDEN, activation=jax.nn.silu, use_bias=False)
  block = partial(Block, mixer=attention, wiring=partial(PreNorm, norm=RMSNorm))

  def stack(num_layers, feed_forward):
    return partial(Stack, num_layers=num_layers, blocks=[partial(block, feed_forward=feed_forward)])

  whole = stack(LAYERS, mlp)
  if experts is not None:
    whole = partial(Stages, stages=[stack(1, mlp), stack(LAYERS - 1, experts)], merge=None)
  encoding = partial(RoPE, interleaved=interleaved)
  body = partial(Decoder, stack=whole, encoding=encoding, final_norm=RMSNorm)
  embedding = partial(TokenEmbedding, vocab_size=VOCAB)
  return LanguageModel(d_model=WIDTH, embedding=embedding, body=body, head=LMHead, rngs=nnx.Rngs(0))


def kernel_of(read):
  """Returns the function (module) -> kernel [inputs, outputs]."""
  return lambda linear: read(linear.weight).T


def gated_mlp(theirs, read):
  kernels = {name: kernel_of(read)(getattr(theirs, f'{name}_proj')) for name in GATED}
  return {f'{name}.kernel': kernel for name, kernel in kernels.items()}


def stacked(prefix, layers, read, attention, feed_forward=gated_mlp):
  """The arrays of successive layers."""
  arrays = [
    {
      'mixer_wiring.norm.scale': read(layer.input_layernorm.weight),
      'feed_forward_wiring.norm.scale': read(layer.post_attention_layernorm.weight),
      **{f'feed_forward.{n}': a for n, a in feed_forward(layer.mlp, read).items()},
      **{f'mixer.{n}': a for n, a in attention(layer.self_attn, kernel_of(read), read).items()},
    }
    for layer in layers
  ]
  return {f'{prefix}.blocks.0.{n}': np.stack([one[n] for one in arrays]) for n in arrays[0]}


def ends(theirs, read):
  return {
    'embedding.table': read(theirs.model.embed_tokens.weight),
    'body.final_norm.scale': read(theirs.model.norm.weight),
    'head.out.kernel': kernel_of(read)(theirs.lm_head),
  }


def converted(theirs, read, attention):
  """Returns `read(parameter)` of each parameter of their model, in the names and shapes of ours.

  Args:
    attention: maps the attention of a layer and a function (module) -> kernel [inputs, outputs] to named arrays.
  """
  return ends(theirs, read) | stacked('body.stack', theirs.model.layers, read, attention)


def check(system, reference, theirs, ours, converted, compared):
  """Compares logits and gradients of all parameters on padded rows; returns our model with their parameters.

  Args:
    converted: maps their model and `read` to the arrays that it reads, by our names.
  """
  arrays = converted(theirs, lambda parameter: parameter.detach().numpy())
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
  wanted = converted(theirs, lambda parameter: parameter.grad.numpy())
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
  convert = partial(converted, attention=latent_attention)
  ours = check(*names, theirs, decoder(mixer, True), convert, compared)
  check_decoding(ours)
  assert sum(leaf.nbytes for leaf in jax.tree.leaves(ours.init_cache(2, LENGTH).layers)) == (
    LAYERS * 2 * LENGTH * (ROTATED + RANK) * 4
  )


def store_load(gate, inputs, outputs):
  """Puts in the place of the bias's gradient, which it has not, what moves it: the choices of tokens."""
  chosen = outputs[-1][torch.tensor(SEGMENTS.astype(bool).reshape(-1))]
  load = torch.bincount(chosen.reshape(-1), minlength=deepseek_v3.EXPERTS)
  gate.e_score_correction_bias.grad = load.float()


def test_deepseek_v3_equals_that_of_transformers(perturbed, compared):
  """The first layer is dense."""
  config = transformers.DeepseekV3Config(
    vocab_size=VOCAB,
    hidden_size=WIDTH,
    intermediate_size=HIDDEN,
    num_hidden_layers=LAYERS,
    first_k_dense_replace=1,
    num_attention_heads=HEADS,
    num_key_value_heads=HEADS,
    kv_lora_rank=RANK,
    q_lora_rank=LOW_RANK,
    qk_nope_head_dim=PLAIN,
    qk_rope_head_dim=ROTATED,
    v_head_dim=VALUE,
    num_mtp_layers=0,
    attn_implementation='eager',
    **deepseek_v3.SETTINGS,
  )
  theirs = perturbed(transformers.DeepseekV3ForCausalLM(config), std=0.1)
  dense, *sparse = theirs.model.layers
  torch.manual_seed(0)
  for layer in sparse:
    layer.mlp.gate.e_score_correction_bias.copy_(0.1 * torch.randn(deepseek_v3.EXPERTS))
    layer.mlp.gate.register_forward_hook(store_load)
  mixer = {
    'head_dim': ROTATED + PLAIN,
    'value_dim': VALUE,
    'queries': partial(LowRankQueries, rank=LOW_RANK),
    'key_values': partial(LatentKeyValues, rank=RANK, rotated_dim=ROTATED),
  }

  def convert(theirs, read):
    first = stacked('body.stack.stages.0', [dense], read, latent_attention)
    rest = stacked('body.stack.stages.1', sparse, read, latent_attention, deepseek_v3.in_t2x)
    return ends(theirs, read) | first | rest

  ours = decoder(mixer, True, deepseek_v3.experts())
  names = "DeepSeek-V3's experts", 'transformers DeepseekV3ForCausalLM'
  check_decoding(check(*names, theirs, ours, convert, compared))


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
  convert = partial(converted, attention=differential_attention)
  check_decoding(check(*names, theirs, decoder(mixer, False), convert, compared))
