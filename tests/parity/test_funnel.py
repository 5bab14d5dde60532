"""Funnel-Transformer against transformers: pooled queries, the class token, truncation, upsampling, relative terms."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from t2x.layers import (
  MLP,
  FromSource,
  FunnelPositions,
  LayerNorm,
  MultiHeadAttention,
  PostNorm,
  TokenEmbedding,
  Tokens,
)
from t2x.layers.arrays import named_leaves
from t2x.models import Block, Encoder, Funnel, LanguageModel, Stack, SublayerBlock, TiedHead

torch = pytest.importorskip('torch', reason="the extra 'references' is not installed")
transformers = pytest.importorskip('transformers', reason="the extra 'references' is not installed")

WIDTH, HEADS, HIDDEN, VOCAB = 16, 2, 24, 30
SIZES, DECODER = (2, 2, 3), 2
SYSTEM = 'Funnel-Transformer', 'transformers FunnelForMaskedLM'
part = functools.partial
norm = part(LayerNorm, epsilon=1e-9)


def ours(second, separate, truncate):
  positions = part(FunnelPositions, num_heads=HEADS, separate_first=separate, second=second)
  attention, mlp = part(MultiHeadAttention, num_heads=HEADS), part(MLP, hidden_dim=HIDDEN)
  wiring = part(PostNorm, norm=norm)
  block = part(Block, mixer=attention, feed_forward=mlp, wiring=wiring, encoding=positions)
  sublayers = {'mixer': part(FromSource, sublayer=attention), 'feed_forward': mlp}
  pooling = part(SublayerBlock, sublayers=sublayers, wiring=wiring)
  # The first layer of a later stage is its pooling layer.
  numbers = [SIZES[0], *(size - 1 for size in SIZES[1:])]
  funnel = part(
    Funnel,
    stages=[part(Stack, num_layers=n, blocks=[block]) for n in numbers],
    pooling=part(Stack, num_layers=1, blocks=[pooling]),
    pair_encoding=positions,
    decoder=part(Stack, num_layers=DECODER, blocks=[block]),
    separate_first=separate,
    truncate=truncate,
  )
  return LanguageModel(
    d_model=WIDTH,
    embedding=part(TokenEmbedding, vocab_size=VOCAB),
    body=part(Encoder, stack=funnel, input_norm=norm),
    head=part(TiedHead, use_bias=True),
    rngs=nnx.Rngs(0),
  )


def theirs(separate, truncate):
  """Every parameter perturbed by N(0, 0.1)."""
  config = transformers.FunnelConfig(
    vocab_size=VOCAB,
    block_sizes=list(SIZES),
    num_decoder_layers=DECODER,
    d_model=WIDTH,
    n_head=HEADS,
    d_head=WIDTH // HEADS,
    d_inner=HIDDEN,
    separate_cls=separate,
    truncate_seq=truncate,
  )
  torch.manual_seed(0)
  model = transformers.FunnelForMaskedLM(config).eval()
  with torch.no_grad():
    for parameter in model.parameters():
      parameter.add_(torch.randn(parameter.shape) * 0.1)
  return model


def arrays(tensors, second):
  """The values, or gradients, of their parameters by the names of ours; their queries have no bias."""
  get = dict(tensors)
  heads = (HEADS, WIDTH // HEADS)

  def norm(name, their):
    return {f'{name}.scale': get.pop(f'{their}.weight'), f'{name}.bias': get.pop(f'{their}.bias')}

  def linear(name, their, shape=(-1,), inputs=None):
    kernel = get.pop(f'{their}.weight').T
    bias = get.pop(f'{their}.bias', np.zeros(kernel.shape[1], np.float32))
    return {
      f'{name}.kernel': kernel.reshape(*(inputs or kernel.shape[:1]), *shape),
      f'{name}.bias': bias.reshape(shape),
    }

  def layer(their):
    attention = f'{their}.attention'
    types = get.pop(f'{attention}.seg_embed')
    positions = {
      'r.kernel': get.pop(f'{attention}.r_kernel'),
      'content_bias': get.pop(f'{attention}.r_w_bias'),
      'position_bias': get.pop(f'{attention}.r_r_bias'),
      'type_bias': get.pop(f'{attention}.r_s_bias'),
      # Theirs has the vector of another text first.
      'types': types[1:] if second is None else types[::-1],
    }
    others = {
      **linear('mixer.q', f'{attention}.q_head', heads),
      **linear('mixer.k', f'{attention}.k_head', heads),
      **linear('mixer.v', f'{attention}.v_head', heads),
      **linear('mixer.out', f'{attention}.post_proj', inputs=heads),
      **norm('mixer_wiring.norm', f'{attention}.layer_norm'),
      **linear('feed_forward.up', f'{their}.ffn.linear_1'),
      **linear('feed_forward.down', f'{their}.ffn.linear_2'),
      **norm('feed_forward_wiring.norm', f'{their}.ffn.layer_norm'),
    }
    return positions, others

  def stacked(name, layers):
    whole = [others | {f'encoding.{n}': v for n, v in own.items()} for own, others in layers]
    return {f'{name}.blocks.0.{n}': np.stack([one[n] for one in whole]) for n in whole[0]}

  found = {
    'embedding.table': get.pop('funnel.embeddings.word_embeddings.weight'),
    **norm('body.input_norm', 'funnel.embeddings.layer_norm'),
    'head.bias': get.pop('lm_head.bias'),
  }
  for i, size in enumerate(SIZES):
    layers = [layer(f'funnel.encoder.blocks.{i}.{n}') for n in range(size)]
    if i:
      positions, others = layers.pop(0)
      found |= {f'body.stack.encodings.{i - 1}.{n}': v for n, v in positions.items()}
      found |= {f'body.stack.poolings.{i - 1}.blocks.0.{n}': v[None] for n, v in others.items()}
    found |= stacked(f'body.stack.stages.{i}', layers)
  layers = [layer(f'funnel.decoder.layers.{n}') for n in range(DECODER)]
  found |= stacked('body.stack.decoder', layers)
  assert not get, list(get)
  return found


@pytest.mark.parametrize(
  ('length', 'second', 'separate', 'truncate'),
  [
    pytest.param(16, None, True, True, marks=pytest.mark.nightly),
    (13, 'second', True, True),
    pytest.param(15, None, True, False, marks=pytest.mark.nightly),
    (14, 'second', False, False),
  ],
)
def test_logits_and_gradients_equal_funnel_of_transformers(
  length, second, separate, truncate, compared
):
  """Of rows with padding, whose outputs at tokens are compared. No pair holds a token and padding."""
  rng = np.random.default_rng(0)
  ids = rng.integers(1, VOCAB, (3, length))
  lengths = np.array([length, 8 + separate, 4 + separate])
  is_token = np.arange(length) < lengths[:, None]
  weights = (rng.normal(size=(3, length, VOCAB)) * is_token[..., None]).astype(np.float32)
  is_second = np.arange(length) >= length // 3
  model = theirs(separate, truncate)
  out = model(
    input_ids=torch.tensor(ids),
    attention_mask=torch.tensor(is_token.astype(np.float32)),
    token_type_ids=torch.tensor(np.broadcast_to(is_second * (second is not None), ids.shape) * 1),
  ).logits
  (out * torch.tensor(weights)).sum().backward()
  values = arrays({name: p.detach().numpy() for name, p in model.named_parameters()}, second)
  shapes = jax.eval_shape(lambda: ours(second, separate, truncate))
  names = [name for name, _ in named_leaves(shapes)]
  assert sorted(names) == sorted(values)
  mine = jax.tree.unflatten(
    jax.tree.structure(shapes), [jnp.asarray(values[name]) for name in names]
  )
  marks = {} if second is None else {second: jnp.asarray(is_second)[None]}
  tokens = Tokens.row(length, segments=jnp.asarray(is_token, jnp.int32), marks=marks)

  def loss(model):
    logits = model(jnp.asarray(ids), tokens=tokens).x
    return (logits * weights).sum(), logits

  (_, logits), slopes = jax.jit(jax.value_and_grad(loss, has_aux=True))(mine)
  wanted = out.detach().numpy()
  scale = np.abs(wanted[is_token]).max()
  compared(*SYSTEM, logits[is_token], wanted[is_token], atol=1e-5 * max(1.0, scale))
  gradients = arrays(
    {
      name: np.zeros(p.shape, np.float32) if p.grad is None else p.grad.numpy()
      for name, p in model.named_parameters()
    },
    second,
  )
  largest = max(np.abs(g).max() for g in gradients.values())
  for name, slope in named_leaves(slopes):
    expected = gradients[name]
    if name.endswith('.q.bias'):
      continue
    if name.endswith('.k.bias'):
      # It changes all scores of a query by the same number.
      assert max(np.abs(slope).max(), np.abs(expected).max()) < 1e-5 * largest
      continue
    atol = 1e-5 * max(np.abs(expected).max(), 1e-2 * largest)
    compared(*SYSTEM, slope, expected, atol=atol, of='gradients')
