"""Layer-wise decay of the learning rate of vision transformers against timm, by name of the parameter."""

import re
from pathlib import Path

import numpy as np
import pytest

from t2x.experiments import read_config
from t2x.train import Group, LayerDecay
from t2x.train.groups import Groups
from t2x.train.params import Blueprint

reason = "the extra 'references' is not installed"
timm = pytest.importorskip('timm', reason=reason)
param_groups_layer_decay = pytest.importorskip('timm.optim', reason=reason).param_groups_layer_decay

MODELS = Path(__file__).parents[2] / 'configs' / 'models'
DECAY, DEPTH = 0.7, 3
# The stem is below the first layer, and the head above the last, which has the norm.
GROUPS = (
  Group(match='(embedding|positions).*', rate=DECAY ** (DEPTH + 1)),
  Group(match=r'body\.stack.*', rate=LayerDecay(DECAY, top=DECAY)),
  Group(match=r'body\.final_norm.*', rate=DECAY),
)
NAMES = {
  'patch_embed.proj': 'embedding.projection',
  'cls_token': 'embedding.class_token',
  'dist_token': 'embedding.registers',
  'pos_embed': 'positions.table',
  'head_dist': 'teacher_head.out',
  'head': 'head.out',
  'norm': 'body.final_norm',
  'norm1': 'mixer_wiring.norm',
  'norm2': 'feed_forward_wiring.norm',
  'attn.qkv': 'mixer.q',
  'attn.proj': 'mixer.out',
  'mlp.fc1': 'feed_forward.up',
  'mlp.fc2': 'feed_forward.down',
}


def our_rate(rates, theirs):
  """The rate of a parameter of timm; those of queries, keys and values are one parameter there."""
  block = re.match(r'blocks\.(\d+)\.', theirs)
  path, _, last = theirs[block.end() if block else 0 :].rpartition('.')
  if last in ('weight', 'bias'):
    is_norm = 'norm' in path
    name = f'{NAMES[path]}.{"bias" if last == "bias" else "scale" if is_norm else "kernel"}'
  else:
    name = NAMES[last]
  name = f'body.stack.blocks.0.{name}' if block else name
  rate = np.broadcast_to(np.ravel(rates.get(name, 1.0)), DEPTH)
  return rate[int(block[1]) if block else 0]


@pytest.mark.parametrize(
  ('file', 'model'), [('vit_s16', 'VisionTransformer'), ('deit_ti16', 'VisionTransformerDistilled')]
)
def test_factors_of_all_parameters_equal_timm(file, model):
  overrides = ['d_model=24', f'num_layers={DEPTH}', 'MLP.hidden_dim=48', 'Classifier.num_classes=5']
  overrides += ['MultiHeadAttention.num_heads=3']
  shapes = read_config([MODELS / f'{file}.gin'], overrides).build().shapes()
  infos = Blueprint(shapes).infos
  rates = Groups(GROUPS, infos).rates
  module = timm.models.deit if 'Distilled' in model else timm.models.vision_transformer
  theirs = getattr(module, model)(
    embed_dim=24, depth=DEPTH, num_heads=3, num_classes=5, mlp_ratio=2
  )
  names = {id(parameter): name for name, parameter in theirs.named_parameters()}
  factors = {
    names[id(parameter)]: group['lr_scale']
    for group in param_groups_layer_decay(theirs, layer_decay=DECAY)
    for parameter in group['params']
  }
  assert sorted(factors) == sorted(names.values())
  for name, factor in factors.items():
    assert our_rate(rates, name) == pytest.approx(factor, rel=1e-6), name
