"""Position encodings and scores against PyTorch: XLNet, DETR, CoPE's published code."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from applying import applied
from flax import nnx

from t2x.layers import (
  MLP,
  AddressPositions,
  CoPE,
  LayerNorm,
  MultiHeadAttention,
  PostNorm,
  Sinusoidal,
  Tokens,
  XLPositions,
  gelu_exact,
)
from t2x.layers.arrays import named_leaves
from t2x.models import Block, Decoder, Segments, Stack

torch = pytest.importorskip('torch', reason="the extra 'references' is not installed")
transformers = pytest.importorskip('transformers', reason="the extra 'references' is not installed")

WIDTH, HEADS, SIZE, HIDDEN, LAYERS = 24, 3, 8, 40, 2
BATCH, LENGTH, NUMBER, MEMORY = 2, 5, 4, 7
RNG = np.random.default_rng(0)


def xlnet(memory):
  """A causal XLNet without an embedding table, with perturbed parameters."""
  config = transformers.XLNetConfig(
    vocab_size=11,
    d_model=WIDTH,
    n_layer=LAYERS,
    n_head=HEADS,
    d_inner=HIDDEN,
    ff_activation='gelu',
    attn_type='uni',
    mem_len=memory,
    dropout=0.0,
    layer_norm_eps=1e-3,
  )
  model = transformers.XLNetModel(config)
  generator = torch.Generator().manual_seed(0)
  with torch.no_grad():
    for parameter in model.parameters():
      parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.2)
  return model.eval()


def parameters_of(model):
  """The parameters of an XLNet by t2x's names, as [layers, ...]."""
  names = {
    'encoding.r.kernel': 'rel_attn.r',
    'encoding.content_bias': 'rel_attn.r_w_bias',
    'encoding.position_bias': 'rel_attn.r_r_bias',
    'mixer.q.kernel': 'rel_attn.q',
    'mixer.k.kernel': 'rel_attn.k',
    'mixer.v.kernel': 'rel_attn.v',
    'mixer.out.kernel': 'rel_attn.o',
    'mixer_wiring.norm.scale': 'rel_attn.layer_norm.weight',
    'mixer_wiring.norm.bias': 'rel_attn.layer_norm.bias',
    'feed_forward.up.kernel': 'ff.layer_1.weight',
    'feed_forward.up.bias': 'ff.layer_1.bias',
    'feed_forward.down.kernel': 'ff.layer_2.weight',
    'feed_forward.down.bias': 'ff.layer_2.bias',
    'feed_forward_wiring.norm.scale': 'ff.layer_norm.weight',
    'feed_forward_wiring.norm.bias': 'ff.layer_norm.bias',
  }

  def stacked(ours, theirs):
    layers = []
    for layer in model.layer:
      array = layer.get_parameter(theirs)
      if ours == 'mixer.out.kernel':
        array = array.permute(1, 2, 0)
      if ours.startswith('feed_forward.') and ours.endswith('kernel'):
        array = array.T
      layers.append(array)
    return torch.stack(layers)

  return {f'stack.stack.blocks.0.{ours}': stacked(ours, theirs) for ours, theirs in names.items()}


def transformer_xl(memory, parameters):
  def norm(d_model, *, rngs):
    return LayerNorm(d_model, epsilon=1e-3, rngs=rngs)

  def block(d_model, *, rngs):
    return Block(
      d_model,
      mixer=lambda d, rngs: MultiHeadAttention(
        d, num_heads=HEADS, use_bias=False, out_bias=False, rngs=rngs
      ),
      feed_forward=lambda d, rngs: MLP(d, hidden_dim=HIDDEN, activation=gelu_exact, rngs=rngs),
      wiring=lambda d, rngs: PostNorm(d, norm=norm, rngs=rngs),
      encoding=lambda d, rngs: XLPositions(d, num_heads=HEADS, rngs=rngs),
      rngs=rngs,
    )

  def stack(d_model, *, rngs):
    return Stack(d_model, num_layers=LAYERS, blocks=[block], rngs=rngs)

  model = Decoder(
    WIDTH,
    stack=lambda d, rngs: Segments(d, stack=stack, length=LENGTH, memory=memory, rngs=rngs),
    rngs=nnx.Rngs(0),
  )
  assert {name for name, _ in named_leaves(model)} == set(parameters)
  leaves = [jnp.asarray(parameters[name].detach().numpy()) for name, _ in named_leaves(model)]
  return jax.tree.unflatten(jax.tree.structure(model), leaves)


@pytest.mark.parametrize('memory', [MEMORY, pytest.param(2, marks=pytest.mark.nightly)])
def test_transformer_xl_equals_the_xlnet_of_transformers_with_memory(memory, compared):
  """Outputs, and gradients of all parameters, over four segments with the memory of each layer."""
  theirs = xlnet(memory)
  x = RNG.normal(size=(BATCH, NUMBER * LENGTH, WIDTH)).astype(np.float32)
  weights = RNG.normal(size=x.shape).astype(np.float32)
  outputs, mems = [], None
  for segment in torch.tensor(x).split(LENGTH, dim=1):
    out = theirs(inputs_embeds=segment, mems=mems, use_mems=True)
    outputs.append(out.last_hidden_state)
    mems = out.mems
  expected = torch.cat(outputs, dim=1)
  (expected * torch.tensor(weights)).sum().backward()

  parameters = parameters_of(theirs)
  ours = transformer_xl(memory, parameters)
  y = jax.jit(lambda model: model(jnp.asarray(x)).x)(ours)
  system = 'Transformer-XL', 'transformers XLNetModel'
  compared(*system, y, expected.detach().numpy())
  gradients = jax.jit(jax.grad(lambda model: (model(jnp.asarray(x)).x * weights).sum()))(ours)
  for layer in theirs.layer:
    for parameter in layer.parameters():
      if parameter.grad is not None:
        parameter.data = parameter.grad
  theirs_gradients = parameters_of(theirs)
  for name, gradient in named_leaves(gradients):
    wanted = theirs_gradients[name].detach().numpy()
    compared(*system, gradient, wanted, atol=1e-5 * np.abs(wanted).max(), of='gradients')


X = RNG.normal(size=(2, 9, WIDTH)).astype(np.float32)
PADDED = np.arange(9) < np.array([9, 6])[:, None]


def split_heads(weight):
  return jnp.asarray(weight.detach().numpy().T.reshape(WIDTH, HEADS, SIZE))


def test_addresses_equal_the_attention_of_detr(same_gradient):
  from transformers.models.detr import modeling_detr

  torch.manual_seed(0)
  config = transformers.DetrConfig(attn_implementation='eager')
  theirs = modeling_detr.DetrSelfAttention(config, WIDTH, HEADS).eval()
  ours = MultiHeadAttention(WIDTH, num_heads=HEADS, rngs=nnx.Rngs(0))
  for name, linear in (('q', theirs.q_proj), ('k', theirs.k_proj), ('v', theirs.v_proj)):
    getattr(ours, name).kernel[...] = split_heads(linear.weight)
    getattr(ours, name).bias[...] = jnp.asarray(linear.bias.detach().numpy()).reshape(HEADS, SIZE)
  ours.out.kernel[...] = jnp.asarray(
    theirs.o_proj.weight.detach().numpy().T.reshape(HEADS, SIZE, -1)
  )
  ours.out.bias[...] = jnp.asarray(theirs.o_proj.bias.detach().numpy())

  encoding = AddressPositions(WIDTH, rngs=nnx.Rngs(0))
  tokens = Tokens.row(9, segments=jnp.asarray(PADDED, jnp.int32))
  table = np.asarray(Sinusoidal(WIDTH, rngs=nnx.Rngs(0)).embed(jnp.zeros_like(X), Tokens.row(9)))
  mask = torch.where(torch.tensor(PADDED)[:, None, None], 0.0, -1e30)
  same_gradient(
    'positions in queries and keys only',
    'transformers DetrSelfAttention',
    X,
    lambda x: theirs(x, mask, torch.tensor(table))[0],
    lambda x: applied(ours, x, tokens=tokens, encoding=encoding)[0],
    PADDED,
    rtol=1e-7,
    atol=1e-5,
  )


def published_cope(query, attn_logits, pos_emb):
  """The code in appendix A of https://arxiv.org/abs/2405.18719; `pos_emb` is [head_dim, positions]."""
  gates = torch.sigmoid(attn_logits)
  pos = gates.flip(-1).cumsum(dim=-1).flip(-1)
  pos = pos.clamp(max=pos_emb.shape[-1] - 1)
  pos_ceil = pos.ceil().long()
  pos_floor = pos.floor().long()
  logits_int = torch.matmul(query, pos_emb)
  logits_ceil = logits_int.gather(-1, pos_ceil)
  logits_floor = logits_int.gather(-1, pos_floor)
  w = pos - pos_floor
  return logits_ceil * w + logits_floor * (1 - w)


# More positions than keys, and fewer, where positions are clipped.
@pytest.mark.parametrize('positions', [12, 3])
def test_cope_equals_its_published_code(positions, compared):
  """The terms of the scores, and the gradients of queries, keys and vectors."""
  q, k = (RNG.normal(size=(2, 9, HEADS, SIZE)).astype(np.float32) for _ in range(2))
  table = RNG.normal(size=(positions, SIZE)).astype(np.float32)
  weights = RNG.normal(size=(2, HEADS, 9, 9)).astype(np.float32)
  mask = np.tril(np.ones((9, 9), bool))
  leaves = [torch.tensor(a, requires_grad=True) for a in (q, k, table)]
  queries, keys = (a.transpose(1, 2) for a in leaves[:2])
  logits = queries @ keys.transpose(2, 3) / SIZE**0.5
  logits = logits.masked_fill(~torch.tensor(mask), -torch.inf)
  expected = published_cope(queries, logits, leaves[2].T)
  (expected * torch.tensor(weights * mask)).sum().backward()

  encoding = CoPE(WIDTH, head_dim=SIZE, max_positions=positions, rngs=nnx.Rngs(0))
  row = Tokens.row(9)

  def terms(q, k, table):
    visible = jnp.asarray(mask)[None, None]
    with_table = jax.tree.map(lambda _: table, encoding)
    return with_table.scores(q, k, row, row, scale=SIZE**-0.5, visible=visible)

  arrays = [jnp.asarray(a) for a in (q, k, table)]
  ours = np.asarray(terms(*arrays))
  system = 'CoPE', 'PyTorch, the published code'
  compared(*system, ours[:, :, mask], expected.detach().numpy()[:, :, mask])
  gradients = jax.grad(lambda *a: (terms(*a) * weights * mask).sum(), (0, 1, 2))(*arrays)
  for gradient, leaf in zip(gradients, leaves, strict=True):
    wanted = leaf.grad.numpy()
    atol = 1e-5 * np.abs(wanted).max()
    compared(*system, gradient, wanted, rtol=1e-7, atol=atol, of='gradients')
