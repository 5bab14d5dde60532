"""Plain PyTorch models with the parameters of the configs in configs/: nn.Linear, nn.LayerNorm, nn.Embedding and
scaled_dot_product_attention."""

import importlib
import math

import torch
import torch.nn.functional as F
from torch import nn


class Attention(nn.Module):
  """Multi-head attention to x, or to a source."""

  def __init__(self, width: int, heads: int, bias: bool, causal: bool = False):
    super().__init__()
    self.heads, self.causal = heads, causal
    self.q, self.k, self.v, self.out = (nn.Linear(width, width, bias=bias) for _ in range(4))

  def forward(self, x, source=None):
    """x [batch, length, width] -> the same shape."""
    source = x if source is None else source

    def split(y):
      return y.unflatten(-1, (self.heads, -1)).transpose(1, 2)

    q, k, v = split(self.q(x)), split(self.k(source)), split(self.v(source))
    y = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
    return self.out(y.transpose(1, 2).flatten(2))


class Block(nn.Module):
  """Attention, optional cross-attention and a feed-forward layer, with norms before or after them."""

  def __init__(self, width, heads, hidden, *, act, pre, causal=False, cross=False, bias=True):
    super().__init__()
    self.act, self.pre = act, pre
    self.attention = Attention(width, heads, bias, causal)
    self.cross = Attention(width, heads, bias) if cross else None
    self.up, self.down = nn.Linear(width, hidden), nn.Linear(hidden, width)
    self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2 + cross))

  def forward(self, x, source=None):
    """x [batch, length, width] -> the same shape."""
    branches = [self.attention]
    if self.cross is not None:
      branches.append(lambda y: self.cross(y, source))
    branches.append(lambda y: self.down(self.act(self.up(y))))
    for norm, branch in zip(self.norms, branches, strict=True):
      x = x + branch(norm(x)) if self.pre else norm(x + branch(x))
    return x


def tanh_gelu(x):
  """The tanh approximation of GELU."""
  return F.gelu(x, approximate='tanh')


def _init(module):
  for parameter in module.parameters():
    if parameter.ndim > 1:
      nn.init.normal_(parameter, std=0.02)


class GPT(nn.Module):
  """GPT-2 with a tied head."""

  def __init__(self, width, layers, heads, hidden, vocab, length):
    super().__init__()
    self.tokens, self.positions = nn.Embedding(vocab, width), nn.Embedding(length, width)
    self.blocks = nn.ModuleList(
      Block(width, heads, hidden, act=tanh_gelu, pre=True, causal=True) for _ in range(layers)
    )
    self.norm = nn.LayerNorm(width)
    _init(self)

  def forward(self, batch):
    """The mean loss of a batch."""
    tokens = batch['tokens']
    inputs = F.pad(tokens[:, :-1], (1, 0), value=1)
    x = self.tokens(inputs) + self.positions.weight[: tokens.shape[1]]
    for block in self.blocks:
      x = block(x)
    logits = F.linear(self.norm(x), self.tokens.weight)
    return F.cross_entropy(logits.flatten(0, 1).float(), tokens.flatten())


class BERT(nn.Module):
  """BERT's encoder with its masked-LM head, which reads the masked positions only."""

  def __init__(self, width, layers, heads, hidden, vocab, length):
    super().__init__()
    self.tokens, self.positions = nn.Embedding(vocab, width), nn.Embedding(length, width)
    self.blocks = nn.ModuleList(
      Block(width, heads, hidden, act=F.gelu, pre=False) for _ in range(layers)
    )
    self.norm, self.head_norm = nn.LayerNorm(width), nn.LayerNorm(width)
    self.transform, self.bias = nn.Linear(width, width), nn.Parameter(torch.zeros(vocab))
    _init(self)

  def forward(self, batch):
    """The mean loss of a batch."""
    tokens, places = batch['tokens'], batch['masked_positions']
    x = self.norm(self.tokens(tokens) + self.positions.weight[: tokens.shape[1]])
    for block in self.blocks:
      x = block(x)
    x = torch.gather(x, 1, places[..., None].expand(-1, -1, x.shape[-1]))
    x = self.head_norm(F.gelu(self.transform(x)))
    logits = F.linear(x, self.tokens.weight, self.bias)
    return F.cross_entropy(logits.flatten(0, 1).float(), batch['labels'].flatten())


class EncoderDecoder(nn.Module):
  """The original Transformer with one table for source, target and output."""

  def __init__(self, width, layers, heads, hidden, vocab, length):
    super().__init__()
    self.tokens = nn.Embedding(vocab, width)
    angles = torch.arange(length)[:, None] * torch.exp(
      torch.arange(0, width, 2) * (-math.log(10000.0) / width)
    )
    self.register_buffer('positions', torch.cat([angles.sin(), angles.cos()], dim=1))
    settings = {'act': F.relu, 'pre': False, 'bias': False}
    self.encoder = nn.ModuleList(Block(width, heads, hidden, **settings) for _ in range(layers))
    self.decoder = nn.ModuleList(
      Block(width, heads, hidden, causal=True, cross=True, **settings) for _ in range(layers)
    )
    _init(self)

  def forward(self, batch):
    """The mean loss of a batch."""
    targets = batch['targets']

    def embed(tokens):
      x = self.tokens(tokens) * self.tokens.weight.shape[1] ** 0.5
      return x + self.positions[: tokens.shape[1]]

    source, x = embed(batch['source']), embed(F.pad(targets[:, :-1], (1, 0), value=1))
    for block in self.encoder:
      source = block(source)
    for block in self.decoder:
      x = block(x, source)
    logits = F.linear(x, self.tokens.weight)
    return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


class ViT(nn.Module):
  """A ViT that averages its tokens."""

  def __init__(self, width, layers, heads, hidden, patch, patches, classes):
    super().__init__()
    self.patches = nn.Conv2d(1, width, patch, stride=patch)
    self.positions = nn.Parameter(torch.zeros(patches, width))
    self.blocks = nn.ModuleList(
      Block(width, heads, hidden, act=tanh_gelu, pre=True) for _ in range(layers)
    )
    self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, classes)

  def forward(self, batch):
    """The mean loss of a batch."""
    x = self.patches(batch['image']).flatten(2).transpose(1, 2) + self.positions
    for block in self.blocks:
      x = block(x)
    return F.cross_entropy(self.head(self.norm(x).mean(dim=1)), batch['label'])


class Timm(nn.Module):
  """A classifier of timm, built when it is used; `change` replaces parts of it."""

  def __init__(self, module: str, name: str, change=None, **settings):
    super().__init__()
    self.model = getattr(importlib.import_module(f'timm.models.{module}'), name)(**settings)
    if change is not None:
      change(self.model)

  def forward(self, batch):
    return F.cross_entropy(self.model(batch['image']), batch['label'])


def _small_images(model):
  """A stem of 3 x 3 without a pool, for images of 32 x 32."""
  model.conv1 = nn.Conv2d(3, 64, 3, padding=1, bias=False)
  model.maxpool = nn.Identity()


def _one_downsampling_less(model):
  """The first stage keeps the grid of the stem."""
  model.stages[0].downsample = nn.Identity()


def resnet():
  from timm.layers import GroupNorm
  from timm.models.resnet import BasicBlock

  return Timm(
    'resnet',
    'ResNet',
    _small_images,
    block=BasicBlock,
    layers=[2, 2, 2, 2],
    num_classes=10,
    norm_layer=GroupNorm,
  )


def _of_images(batch: int):
  return {'image': (None, (batch, 3, 32, 32)), 'label': (10, (batch,))}


MODELS = {
  'gpt': (lambda: GPT(256, 6, 4, 1024, 8192, 256), {'tokens': (8192, (8, 256))}),
  'small_gpt': (lambda: GPT(128, 4, 4, 512, 272, 64), {'tokens': (272, (12, 64))}),
  'bert': (
    lambda: BERT(256, 6, 4, 1024, 8192, 128),
    {
      'tokens': (8192, (16, 128)),
      'masked_positions': (128, (16, 20)),
      'labels': (8192, (16, 20)),
    },
  ),
  'encoder_decoder': (
    lambda: EncoderDecoder(256, 4, 4, 1024, 8192, 64),
    {'source': (8192, (32, 64)), 'targets': (8192, (32, 64))},
  ),
  'vit': (
    lambda: ViT(128, 6, 4, 512, 4, 49, 10),
    {'image': (None, (64, 1, 28, 28)), 'label': (10, (64,))},
  ),
  'resnet': (resnet, _of_images(8)),
  'vit_tiny': (
    lambda: Timm(
      'vision_transformer',
      'VisionTransformer',
      img_size=32,
      patch_size=4,
      num_classes=10,
      embed_dim=192,
      num_heads=3,
    ),
    _of_images(16),
  ),
  'swin': (
    lambda: Timm(
      'swin_transformer',
      'SwinTransformer',
      img_size=32,
      patch_size=2,
      num_classes=10,
      embed_dim=64,
      depths=(2, 2, 2),
      num_heads=(2, 4, 8),
      window_size=4,
      drop_path_rate=0.0,
    ),
    _of_images(16),
  ),
  'convnext': (
    lambda: Timm(
      'convnext',
      'ConvNeXt',
      _one_downsampling_less,
      patch_size=2,
      num_classes=10,
      depths=(2, 2, 2, 2),
      dims=(32, 64, 128, 256),
    ),
    _of_images(16),
  ),
}


def random_batch(name: str) -> dict[str, torch.Tensor]:
  """A batch for a model: integers below a limit, or normal values where there is no limit."""
  torch.manual_seed(0)
  shapes = MODELS[name][1]
  return {
    key: torch.randn(shape) if limit is None else torch.randint(limit, shape)
    for key, (limit, shape) in shapes.items()
  }
