"""Training objectives against PyTorch in float64."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from applying import moved
from flax import nnx
from loss_terms import gradient

from t2x.data import Bytes, TextFiles
from t2x.domains.retrieval import Contrastive, Tower, TwoTower
from t2x.layers import MLP, MultiHeadAttention, PreNorm, RMSNorm, TokenEmbedding, param, relu
from t2x.models import Block, Decoder, Encoder, LanguageModel, MultiTokenHead, Output, Stack
from t2x.samples import BabelDates
from t2x.tasks import CausalLM, MultiTokenPrediction
from t2x.train.params import Blueprint

torch = pytest.importorskip('torch', reason="the extra 'references' is not installed")

WIDTH, HEADS, VOCAB, LENGTH, DEPTH = 8, 2, 264, 10, 2
# Packed documents, one of them shorter than the depth, and padding.
SEGMENTS = np.array([[1] * 10, [1] * 4 + [2] + [3] * 5, [1] * 3 + [2] * 2 + [0] * 5, [0] * 10])


def named(model):
  return Blueprint(jax.eval_shape(lambda: model)).params(model)


BLOCK = functools.partial(
  Block,
  mixer=functools.partial(MultiHeadAttention, num_heads=HEADS, use_bias=False, out_bias=False),
  feed_forward=functools.partial(MLP, hidden_dim=12, activation=relu, use_bias=False),
  wiring=functools.partial(PreNorm, norm=RMSNorm),
)
STACK = functools.partial(Stack, num_layers=1, blocks=[BLOCK])


def multi_token_model():
  body = functools.partial(Decoder, stack=STACK, final_norm=RMSNorm)
  model = LanguageModel(
    d_model=WIDTH,
    embedding=functools.partial(TokenEmbedding, vocab_size=VOCAB),
    body=body,
    head=functools.partial(MultiTokenHead, depth=DEPTH, body=body),
    rngs=nnx.Rngs(0),
  )
  return moved(model, scale=0.1)


def norm(p, name, x):
  return torch.nn.functional.rms_norm(x, x.shape[-1:], p[f'{name}.scale'].reshape(-1), 1e-6)


def body(p, name, x, mask):
  """A pre-norm Transformer layer without positions or biases, and a final norm."""
  block = f'{name}.stack.blocks.0'
  y = norm(p, f'{block}.mixer_wiring.norm', x)
  q, k, v = (
    torch.einsum('bld,dhe->bhle', y, p[f'{block}.mixer.{part}.kernel'][0]) for part in 'qkv'
  )
  y = torch.nn.functional.scaled_dot_product_attention(q, k, v, mask)
  x = x + torch.einsum('bhle,hed->bld', y, p[f'{block}.mixer.out.kernel'][0])
  y = norm(p, f'{block}.feed_forward_wiring.norm', x)
  y = torch.relu(y @ p[f'{block}.feed_forward.up.kernel'][0])
  return norm(p, f'{name}.final_norm', x + y @ p[f'{block}.feed_forward.down.kernel'][0])


def expected_losses(p, ids):
  """The summed cross-entropy of the next token and of `DEPTH` further tokens, token by token (DeepSeek-V3's
  equations 21 to 25)."""
  same = torch.tensor((SEGMENTS[:, :, None] == SEGMENTS[:, None, :]).copy())
  mask = (same & torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril())[:, None]
  inputs = np.array(
    [
      [
        ids[b, i - 1] if i and SEGMENTS[b, i] == SEGMENTS[b, i - 1] else Bytes().ids.bos_id
        for i in range(LENGTH)
      ]
      for b in range(len(ids))
    ]
  )
  table = p['embedding.table']
  h, losses = body(p, 'body', table[torch.tensor(inputs)], mask), []
  for ahead in range(DEPTH + 1):
    if ahead:
      module, known = f'head.ahead.{ahead - 1}', np.roll(ids, 1 - ahead, axis=1)
      pair = (
        norm(p, f'{module}.hidden_norm', h),
        norm(p, f'{module}.token_norm', table[torch.tensor(known)]),
      )
      kernel = p[f'{module}.projection.kernel'].reshape(2 * WIDTH, WIDTH)
      h = body(p, f'{module}.body', torch.cat(pair, dim=-1) @ kernel, mask)
    log_p = torch.log_softmax(h @ table.T, dim=-1)
    losses.append(
      -sum(
        log_p[b, i, ids[b, i + ahead]]
        for b in range(len(ids))
        for i in range(LENGTH - ahead)
        if SEGMENTS[b, i] and SEGMENTS[b, i] == SEGMENTS[b, i + ahead]
      )
    )
  return losses


def test_multi_token_prediction_equals_the_equations_of_deepseek_v3_with_gradients(compared):
  model = multi_token_model()
  ids = np.random.default_rng(2).integers(5, 260, (4, LENGTH))
  positions = np.array([[np.sum(row[:i] == row[i]) for i in range(LENGTH)] for row in SEGMENTS])
  batch = {'tokens': ids, 'segments': SEGMENTS, 'positions': positions}
  task = CausalLM(
    source=TextFiles(train='none'),
    tokenizer=Bytes(),
    length=LENGTH,
    auxiliaries={'mtp': MultiTokenPrediction(weight=0.3)},
  )
  task.check_model(model)
  grads, metrics = gradient(task, model, jax.tree.map(lambda a: jnp.asarray(a, jnp.int32), batch))
  p = {
    name: torch.tensor(np.asarray(array), dtype=torch.float64, requires_grad=True)
    for name, array in named(model).items()
  }
  main, *further = expected_losses(p, ids)
  count = np.count_nonzero(SEGMENTS)
  (main / count + 0.3 / DEPTH * sum(further) / count).backward()
  system = ('multi-token prediction', 'PyTorch, equations 21 to 25 in float64')
  for name, loss in zip(('loss', 'mtp_loss_1', 'mtp_loss_2'), (main, *further), strict=True):
    compared(*system, metrics[name][0], loss.item(), rtol=1e-5, atol=0)
  assert float(metrics['mtp'][0] / metrics['mtp'][1]) == pytest.approx(
    0.3 / DEPTH * sum(further).item() / count, rel=1e-5
  )
  ours = named(grads)
  assert ours.keys() == p.keys()
  for name, parameter in p.items():
    compared(*system, ours[name], parameter.grad.numpy(), of='gradients')
  micro, _ = gradient(task, model, jax.tree.map(lambda a: jnp.asarray(a, jnp.int32), batch), 2)
  for name, array in named(micro).items():
    np.testing.assert_allclose(array, ours[name], atol=1e-5, err_msg=name)


class Given(nnx.Module):
  """A tower that returns features, which have a gradient."""

  def __init__(self, features, rngs):
    init = nnx.initializers.constant(features)
    self.features = param(init, features.shape, (None, None), rngs, kind='table')

  def __call__(self, inputs, tokens, key):
    return Output(self.features[...])


def small_clip(transformers):
  """A CLIPModel after the backward pass of its loss, its pooled features by encoder, and its output."""
  small = {
    'hidden_size': 16,
    'intermediate_size': 24,
    'num_hidden_layers': 1,
    'num_attention_heads': 2,
  }
  config = transformers.CLIPConfig(
    text_config=small | {'vocab_size': 40, 'max_position_embeddings': 12, 'eos_token_id': 39},
    vision_config=small | {'hidden_size': 20, 'image_size': 8, 'patch_size': 4},
    projection_dim=12,
    logit_scale_init_value=np.log(1 / 0.07),
  )
  torch.manual_seed(0)
  clip = transformers.CLIPModel(config).eval()
  with torch.no_grad():
    for parameter in clip.parameters():
      parameter += 0.1 * torch.randn_like(parameter)
  pooled = {}
  for name in ('text_model', 'vision_model'):

    def keep(module, inputs, output, name=name):
      output.pooler_output.retain_grad()
      pooled[name] = output.pooler_output

    getattr(clip, name).register_forward_hook(keep)
  theirs = clip(
    input_ids=torch.randint(0, 39, (6, 9)), pixel_values=torch.randn(6, 3, 8, 8), return_loss=True
  )
  theirs.loss.backward()
  return clip, pooled, theirs


@pytest.mark.parametrize('padding', [0, 2])
def test_the_contrastive_loss_equals_that_of_clip_with_gradients(compared, padding):
  """CLIPModel's own loss of its pooled features; rows of padding change nothing."""
  transformers = pytest.importorskip('transformers')
  clip, pooled, theirs = small_clip(transformers)
  tower = functools.partial(
    Tower,
    d_model=8,
    embedding=functools.partial(TokenEmbedding, vocab_size=264),
    body=functools.partial(Encoder, stack=STACK),
  )
  model = TwoTower(a=tower, b=tower, dim=12, rngs=nnx.Rngs(0))
  assert float(model.log_factor[...]) == pytest.approx(np.log(1 / 0.07))
  sides = {'a': ('text_model', clip.text_projection), 'b': ('vision_model', clip.visual_projection)}
  for name, (part, projection) in sides.items():
    features = np.pad(pooled[part].detach().numpy(), ((0, padding), (0, 0)), constant_values=3.0)
    setattr(model, name, Given(jnp.asarray(features), nnx.Rngs(0)))
    kernel = jnp.asarray(projection.weight.detach().numpy().T)
    ours = getattr(model, f'{name}_projection')
    ours.kernel = param(
      nnx.initializers.constant(kernel), kernel.shape, ('embed', None), nnx.Rngs(0), kind='table'
    )
  model.log_factor[...] = jnp.asarray(clip.logit_scale.detach().numpy())

  task = Contrastive(source=BabelDates(), tokenizer=Bytes(), source_length=4, target_length=5)
  batch = {name: jnp.ones(s.shape, s.dtype) for name, s in task.spec(6 + padding).items()}
  batch['weight'] = jnp.asarray([1] * 6 + [0] * padding, jnp.int32)
  grads, metrics = gradient(task, model, batch)
  loss, weight = metrics['loss']
  system = ('contrastive loss of CLIP', 'transformers CLIPModel')
  compared(*system, loss / weight, theirs.loss.item())
  closest = (theirs.logits_per_text.argmax(dim=1) == torch.arange(6)).sum().item()
  assert [float(x) for x in metrics['accuracy']] == [closest, 6]
  compared(*system, grads.log_factor[...], clip.logit_scale.grad.numpy(), of='gradients')
  for name, (part, projection) in sides.items():
    side = getattr(grads, name).features[...]
    compared(*system, side[:6], pooled[part].grad.numpy(), of='gradients')
    np.testing.assert_array_equal(side[6:], np.zeros_like(side[6:]))
    kernel = getattr(grads, f'{name}_projection').kernel[...]
    compared(*system, kernel, projection.weight.grad.numpy().T, of='gradients')
