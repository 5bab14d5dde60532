"""Largest differences between parts and the code of other people with the same weights, on random inputs.

    python -m venv other && other/bin/pip install --no-deps x-transformers==2.31.10 hyper-connections==0.4.11 \\
      admin-torch==0.1.0 torchscale==0.3.0 fairscale==0.4.13 einops torch-einops-utils einx frozendict loguru
    PYTHONPATH=$PWD:other/lib/python3.11/site-packages python experiments/switches/references.py

Needs PyTorch (extra `references`). All weights are perturbed, because initial zeros and ones hide errors. float32.
"""

import functools
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

import admin_torch
import jax
import jax.numpy as jnp
import numpy as np
import torch
import x_transformers
from flax import nnx
from hyper_connections import HyperConnections
from x_transformers.x_transformers import Attention

from t2x import layers
from t2x.layers.building import at_position
from t2x.models import Block, Stack

# torchscale imports stochastic depth from timm, which needs torchvision; it is not used here.
for name in ('timm', 'timm.models', 'timm.models.layers'):
  sys.modules.setdefault(name, types.ModuleType(name))
sys.modules['timm.models.layers'].drop_path = None  # type: ignore[attr-defined]
from torchscale.architecture.config import EncoderConfig  # noqa: E402
from torchscale.architecture.encoder import EncoderLayer  # noqa: E402

WIDTH, HEADS, LENGTH, BATCH = 48, 4, 11, 2
HEAD_DIM = WIDTH // HEADS
X = np.random.default_rng(0).normal(size=(BATCH, LENGTH, WIDTH)).astype(np.float32)
part = functools.partial


def perturbed(module: torch.nn.Module) -> torch.nn.Module:
  """Adds noise to all parameters."""
  rng = np.random.default_rng(1)
  for parameter in module.parameters():
    parameter.data += torch.tensor(0.3 * rng.normal(size=parameter.shape), dtype=torch.float32)
  return module.eval()


def copy(variable: Any, value: torch.Tensor | np.ndarray) -> None:
  """Copies a value into a parameter of the same size."""
  value = value.detach().numpy() if isinstance(value, torch.Tensor) else value
  variable[...] = jnp.asarray(value).reshape(variable[...].shape)


def largest(ours: Any, theirs: torch.Tensor) -> float:
  """Returns the largest absolute difference."""
  return float(np.abs(np.asarray(ours) - theirs.detach().numpy()).max())


def call(pattern: layers.Pattern) -> layers.Call:
  return layers.Call(layers.Tokens.row(LENGTH), pattern)


# One attention layer.


def copy_attention(ours: Any, theirs: Any) -> None:
  for name, linear in (('q', theirs.to_q), ('k', theirs.to_k), ('v', theirs.to_v)):
    copy(getattr(ours, name).kernel, linear.weight.T)
  copy(ours.out.kernel, theirs.to_out.weight.T)


def attention(
  theirs: dict[str, Any], ours: dict[str, Any], more: Callable[[Any, Any], None]
) -> float:
  """Compares an attention layer; `more` copies the parameters other than projections."""
  module = perturbed(
    Attention(WIDTH, heads=HEADS, dim_head=HEAD_DIM, causal=True, flash=False, **theirs)
  )
  mine = layers.MultiHeadAttention(
    WIDTH, num_heads=HEADS, use_bias=False, out_bias=False, rngs=nnx.Rngs(0), **ours
  )
  copy_attention(mine, module)
  more(mine, module)
  return largest(mine(jnp.asarray(X), call(layers.Causal())).x, module(torch.tensor(X)))


def copy_talking(ours: Any, theirs: Any) -> None:
  before = theirs.attend.pre_softmax_talking_heads.weight[:, :, 0, 0].T.detach().numpy()
  copy(ours.scores.before, np.eye(HEADS) + before)  # It adds the mixed scores to the scores.
  copy(ours.scores.after, theirs.attend.post_softmax_talking_heads.weight[:, :, 0, 0].T)


def copy_norms(ours: Any, theirs: Any) -> None:
  # RMSNorm(x) is sqrt(head_dim) times x / |x|.
  copy(ours.q_norm.scale, theirs.qk_norm_q_scale[0, 0] * HEAD_DIM**-0.5)
  copy(ours.k_norm.scale, theirs.qk_norm_k_scale[0, 0] * HEAD_DIM**-0.5)


def qk_norm() -> float:
  """x-transformers has a scale of each head; with equal heads it is the norm of `qk_norm`."""

  def share(ours, theirs):
    for scale in (theirs.qk_norm_q_scale, theirs.qk_norm_k_scale):
      scale.data[:] = scale.data[:1].clone()
    copy_norms(ours, theirs)

  norm = part(layers.RMSNorm, epsilon=1e-12)
  return attention({'qk_norm': True, 'qk_norm_dim_scale': True}, {'qk_norm': norm}, share)


def attention_parts() -> Iterator[tuple[str, str, float]]:
  scores = layers.DotProductScores
  name = 'x-transformers 2.31.10 Attention'
  yield (
    'DotProductScores.soft_cap',
    name,
    attention(
      {'softclamp_logits': True, 'logit_softclamp_value': 2.0},
      {'scores': part(scores, soft_cap=2.0)},
      lambda ours, theirs: None,
    ),
  )
  yield (
    'DotProductScores.sink',
    name,
    attention(
      {'head_learned_sink': True},
      {'scores': part(scores, sink=layers.zeros())},
      lambda ours, theirs: copy(ours.scores.sink, theirs.attend.head_attn_sink),
    ),
  )
  yield (
    'TalkingHeads',
    name,
    attention(
      {'pre_talking_heads': True, 'post_talking_heads': True},
      {'scores': layers.TalkingHeads},
      copy_talking,
    ),
  )
  for kind, headwise in ((layers.GatedHeads, False), (layers.ScalarGatedHeads, True)):
    yield (
      kind.__name__,
      name,
      attention(
        {'gate_values': True, 'gate_values_headwise': headwise},
        {'head_outputs': kind},
        lambda ours, theirs: copy(ours.head_outputs.gate.kernel, theirs.to_v_gate.weight.T),
      ),
    )
  yield 'MultiHeadAttention.qk_norm = @RMSNorm', name, qk_norm()


# Two pre-norm layers of x-transformers.


def copy_norm(ours: Any, theirs: Any) -> None:
  copy(ours.scale, theirs.gamma + float(theirs.unit_offset))


def decoder(
  theirs: dict[str, Any],
  mixer: Callable[..., Any],
  feed_forward: Callable[..., Any],
  wiring: Callable[..., Any],
) -> float:
  """Compares a decoder of two layers, with its final norm."""
  module = perturbed(
    x_transformers.Decoder(dim=WIDTH, depth=2, heads=HEADS, attn_dim_head=HEAD_DIM, **theirs)
  )
  norm = part(layers.LayerNorm, epsilon=1e-5, use_bias=False)
  block = part(Block, mixer=mixer, feed_forward=feed_forward, wiring=part(wiring, norm=norm))
  stack = Stack(WIDTH, num_layers=2, blocks=[block], rngs=nnx.Rngs(0))
  stacked = [jax.tree.map(lambda a, i=i: a[i], stack.blocks[0]) for i in range(2)]
  for i, layer in enumerate(stacked):
    for name, (norms, sublayer, _) in zip(
      layer.names, module.layers[2 * i : 2 * i + 2], strict=True
    ):
      ours, wired = vars(layer)[name], vars(layer)[f'{name}_wiring']
      copy_norm(wired.norm, norms[0])
      if norms[1] is not None:
        copy_norm(wired.branch_norm, norms[1])
      ours = getattr(ours, 'sublayer', ours)
      sublayer = getattr(sublayer, 'fn', sublayer)
      if name == 'mixer':
        copy_attention(ours, sublayer)
      else:
        copy(ours.up.kernel, sublayer.ff[0][0].weight.T)
        copy(ours.down.kernel, sublayer.ff[-1].weight.T)
  stack.blocks[0] = jax.tree.map(lambda *a: jnp.stack(a), *stacked)
  final = layers.LayerNorm(WIDTH, epsilon=1e-5, use_bias=False, rngs=nnx.Rngs(0))
  copy_norm(final, module.final_norm)
  return largest(final(stack(jnp.asarray(X), call(layers.Causal())).x), module(torch.tensor(X)))


def decoders() -> Iterator[tuple[str, str, float]]:
  mixer = part(layers.MultiHeadAttention, num_heads=HEADS, use_bias=False, out_bias=False)
  feed_forward = part(
    layers.MLP, hidden_dim=4 * WIDTH, use_bias=False, activation=layers.gelu_exact
  )
  settings = {'ff_no_bias': True}
  name = 'x-transformers 2.31.10 Decoder, 2 layers'
  yield 'PreNorm', name, decoder(settings, mixer, feed_forward, layers.PreNorm)
  yield (
    'Sandwich',
    name,
    decoder(settings | {'sandwich_norm': True}, mixer, feed_forward, layers.Sandwich),
  )
  shift = [part(layers.TokenShift, sublayer=sublayer) for sublayer in (mixer, feed_forward)]
  yield (
    'TokenShift',
    name,
    decoder(settings | {'shift_tokens': 1}, *shift, layers.PreNorm),
  )
  residual = {'add_value_residual': True, 'learned_value_residual_mix': False}
  with_values = part(mixer, values=layers.ValueResidual)
  yield (
    'ValueResidual',
    name,
    decoder(settings | residual, with_values, feed_forward, layers.PreNorm),
  )


# Wirings.


def hyper_connections() -> float:
  streams = 4
  weight = np.random.default_rng(2).normal(size=(WIDTH, WIDTH)).astype(np.float32) / 4
  theirs = perturbed(HyperConnections(streams, dim=WIDTH, layer_index=1))
  norm = part(layers.RMSNorm, epsilon=1e-12)
  ours = layers.DynamicHyperConnections(WIDTH, num_streams=streams, norm=norm, rngs=nnx.Rngs(0))
  copy(ours.stream_norm.scale, theirs.norm.gamma + 1)
  copy(ours.read, theirs.static_alpha[:, 0])
  copy(ours.mix, theirs.static_alpha[:, 1:].detach().numpy() - np.eye(streams))
  copy(ours.write, theirs.static_beta)
  copy(ours.read_projection, theirs.dynamic_alpha_fn[:, 0])
  copy(ours.mix_projection, theirs.dynamic_alpha_fn[:, 1:])
  copy(ours.write_projection, theirs.dynamic_beta_fn)
  copy(ours.width_scale, theirs.dynamic_alpha_scale)
  copy(ours.depth_scale, theirs.dynamic_beta_scale)
  x = np.random.default_rng(3).normal(size=(BATCH, LENGTH, streams, WIDTH)).astype(np.float32)
  flat = torch.tensor(x).permute(0, 2, 1, 3).reshape(BATCH * streams, LENGTH, WIDTH)
  h, add = theirs(flat)
  normed = torch.nn.functional.normalize(h, dim=-1) * WIDTH**0.5
  y = add(normed @ torch.tensor(weight)).reshape(BATCH, streams, LENGTH, WIDTH)
  mine = ours(jnp.asarray(x), lambda h: layers.Result(h @ weight)).x
  return largest(mine, y.permute(0, 2, 1, 3))


def torchscale_layer(wiring: Callable[..., Any], ours: dict[str, Any], **theirs: Any) -> float:
  """Compares an encoder layer of a stack of 6."""
  config = EncoderConfig(
    encoder_embed_dim=WIDTH,
    encoder_attention_heads=HEADS,
    encoder_ffn_embed_dim=3 * WIDTH,
    encoder_layers=6,
    activation_fn='relu',
    dropout=0.0,
    flash_attention=False,
    **theirs,
  )
  module = perturbed(EncoderLayer(config, 0))
  norm = part(layers.LayerNorm, epsilon=1e-5)
  mixer = part(layers.MultiHeadAttention, num_heads=HEADS)
  feed_forward = part(layers.MLP, hidden_dim=3 * WIDTH, activation=layers.relu)
  if ours:
    mixer = part(mixer, head_outputs=part(layers.NormedHeads, norm=norm))
    feed_forward = part(feed_forward, norm=norm)
  block = part(Block, mixer=mixer, feed_forward=feed_forward, wiring=part(wiring, norm=norm))
  stack = Stack(WIDTH, num_layers=6, blocks=[block], rngs=nnx.Rngs(0))
  layer = jax.tree.map(lambda a: a[0], stack.blocks[0])
  for name, linear in (
    ('mixer.q', module.self_attn.q_proj),
    ('mixer.k', module.self_attn.k_proj),
    ('mixer.v', module.self_attn.v_proj),
    ('mixer.out', module.self_attn.out_proj),
    ('feed_forward.up', module.ffn.fc1),
    ('feed_forward.down', module.ffn.fc2),
  ):
    target = functools.reduce(getattr, name.split('.'), layer)
    copy(target.kernel, linear.weight.T)
    copy(target.bias, linear.bias)
  norms = [
    (layer.mixer_wiring.norm, module.self_attn_layer_norm),
    (layer.feed_forward_wiring.norm, module.final_layer_norm),
  ]
  if ours:
    norms += [
      (layer.mixer.head_outputs.norm, module.self_attn.inner_attn_ln),
      (layer.feed_forward.norm, module.ffn.ffn_layernorm),
    ]
  for mine, other in norms:
    copy(mine.scale, other.weight)
    copy(mine.bias, other.bias)
  expected, _ = module(torch.tensor(X), None)
  return largest(layer(jnp.asarray(X), call(layers.Full())).x, expected)


def admin() -> float:
  residual = admin_torch.as_module(12, as_parameter=True, embed_dim=WIDTH)
  norm = torch.nn.LayerNorm(WIDTH, eps=1e-6)
  linear = torch.nn.Linear(WIDTH, WIDTH, bias=False)
  x = torch.tensor(X)
  expected = norm(residual(x, linear(x)))
  with at_position(num_layers=6, num_branches=2):
    ours = layers.Admin(WIDTH, rngs=nnx.Rngs(0))
  weight = linear.weight.detach().numpy().T
  return largest(ours(jnp.asarray(X), lambda h: layers.Result(h @ weight)).x, expected)


def wirings() -> Iterator[tuple[str, str, float]]:
  yield 'DynamicHyperConnections', 'hyper-connections 0.4.11', hyper_connections()
  name = 'torchscale 0.3.0 EncoderLayer'
  settings = {'encoder_normalize_before': False, 'deepnorm': True}
  yield 'DeepNorm', name, torchscale_layer(layers.DeepNorm, {}, **settings)
  settings = {'encoder_normalize_before': True, 'subln': True}
  yield 'NormedHeads, MLP.norm', name, torchscale_layer(layers.PreNorm, {'inner': True}, **settings)
  yield 'Admin', 'admin-torch 0.1.0', admin()


def main() -> None:
  torch.manual_seed(0)
  print('| part | reference | largest difference |\n|---|---|---|')
  for name, reference, difference in (*attention_parts(), *decoders(), *wirings()):
    print(f'| `{name}` | {reference} | {difference:.1e} |')


if __name__ == '__main__':
  main()
