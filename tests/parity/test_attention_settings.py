"""Settings of attention against transformers and x-transformers: outputs and all gradients."""

import functools

import jax.numpy as jnp
import numpy as np
import pytest
from applying import applied
from flax import nnx
from torch_arrays import linear

from t2x.layers import (
  ALiBi,
  Causal,
  GatedHeads,
  MultiHeadAttention,
  PerHead,
  RMSNorm,
  ScalarGatedHeads,
  Tokens,
  ones,
  silu,
)

torch = pytest.importorskip('torch', reason="the extra 'references' is not installed")
transformers = pytest.importorskip('transformers', reason="the extra 'references' is not installed")

WIDTH, HEADS, SIZE, LENGTH = 24, 6, 4, 9
X = np.random.default_rng(0).normal(size=(2, LENGTH, WIDTH)).astype(np.float32)
part = functools.partial


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


def x_scales(theirs, get, **names):
  """Scales of norms of x-transformers, which add 1 to their parameters."""
  # Gradients are read after the values.
  return {
    f'{ours}_norm.norms.scale': get(module.gamma) + (module.gamma.grad is None)
    for ours, module in names.items()
  }


PER_HEAD = part(PerHead, norm=part(RMSNorm, epsilon=1e-12))


@pytest.mark.parametrize('parts', ['qk', 'k', 'v'])
def test_norms_with_a_scale_per_head_equal_x_transformers(parts, equal):
  flags = {'qk_rmsnorm': parts == 'qk', 'k_rmsnorm': parts == 'k', 'value_rmsnorm': parts == 'v'}
  theirs = x_attention(**flags)
  modules = {
    part: getattr(theirs, {'q': 'q_rmsnorm', 'k': 'k_rmsnorm', 'v': 'value_rmsnorm'}[part])
    for part in parts
  }
  norms = dict.fromkeys(parts, PER_HEAD)
  check_x(
    equal,
    theirs,
    {'qk_norm': norms},
    lambda get: x_scales(theirs, get, **modules),
  )


def test_norms_of_values_without_a_scale_equal_gemma_3n(equal):
  """Other norms of queries and keys, one of values without a scale, keys of two heads."""
  from transformers.models.gemma3n import modeling_gemma3n as gemma

  config = transformers.Gemma3nTextConfig(
    hidden_size=WIDTH,
    num_attention_heads=HEADS,
    num_key_value_heads=2,
    head_dim=SIZE,
    num_hidden_layers=1,
    num_kv_shared_layers=0,
    layer_types=['full_attention'],
    attn_implementation='eager',
  )
  theirs = gemma.Gemma3nTextAttention(config, 0)
  # No rotation: cosines of 1.
  angles = torch.ones(1, LENGTH, SIZE), torch.zeros(1, LENGTH, SIZE)
  mask = torch.zeros(LENGTH, LENGTH).masked_fill(
    torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(1), -1e30
  )
  ours = MultiHeadAttention(
    WIDTH,
    num_heads=HEADS,
    num_kv_heads=2,
    use_bias=False,
    out_bias=False,
    scale=1.0,
    qk_norm={'q': RMSNorm, 'k': RMSNorm, 'v': part(RMSNorm, use_scale=False)},
    rngs=nnx.Rngs(0),
  )

  def arrays(get):
    found = {'out.kernel': get(theirs.o_proj.weight).T}
    for name, module in (('q', theirs.q_proj), ('k', theirs.k_proj), ('v', theirs.v_proj)):
      found[f'{name}.kernel'] = split(get(module.weight).T, module.weight.shape[0] // SIZE)
    for name in 'qk':
      found[f'{name}_norm.scale'] = get(getattr(theirs, f'{name}_norm').weight)
    return found

  equal(
    None,
    'transformers Gemma3nTextAttention',
    theirs,
    ours,
    arrays,
    lambda module: module(torch.tensor(X), position_embeddings=angles, attention_mask=mask)[0],
    attended,
  )
