"""The config.json of released models, written by transformers of many versions, is read.

Those of CLIP, Command R, ConvNeXt, DeiT, DistilBERT, ResNet, SigLIP, Swin, Switch and Whisper have the defaults of
transformers; none was compared with the released files. The parameters of some are counted, which the published number
checks.
"""

import json
from pathlib import Path

import jax
import pytest
from tiny_models import shapes

from t2x.interop import FAMILIES

RELEASED = json.loads(Path(__file__).with_name('released_configs.json').read_text())


def test_every_family_has_a_released_model():
  assert {config['model_type'] for config in RELEASED.values()} == set(FAMILIES)


@pytest.mark.parametrize('name', RELEASED)
def test_a_released_config_is_read(name):
  config = RELEASED[name]
  family = FAMILIES[config['model_type']]
  assert family.gin(family.read(config, 'config.json')).startswith('\n')


# Numbers of parameters on the models' pages, each tied tensor counted once. DINO also has a mask token.
PUBLISHED = {
  'gpt2': 124_439_808,
  'Llama-3.1-8B': 8_030_261_248,
  'SmolLM2-135M': 134_515_008,
  'Mixtral-8x7B-v0.1': 46_702_792_704,
  'Qwen3-30B-A3B': 30_532_122_624,
  'openai/clip-vit-base-patch32': 151_277_313,
  'google/siglip-base-patch16-224': 203_155_970,
  'Qwen2-0.5B': 494_032_768,
  'Qwen3-0.6B': 596_049_920,
  'gemma-2-2b': 2_614_341_888,
  'gemma-3-1b-it': 999_885_952,
  'OLMo-2-0425-1B': 1_484_916_736,
  'Mistral-7B-v0.1': 7_241_732_096,
  'phi-2': 2_779_683_840,
  'Phi-3-mini-4k-instruct': 3_821_079_552,
  'Mamba-Codestral-7B-v0.1': 7_285_403_648,
  'ModernBERT-base': 149_655_232,
  'facebook/dinov2-base': 86_580_480 - 768,
  'facebook/dinov2-giant': 1_136_480_768 - 1536,
  'facebook/dinov3-vits16-pretrain-lvd1689m': 21_596_544 - 384,
  'SmolLM3-3B': 3_075_098_624,
}


@pytest.mark.parametrize('name', PUBLISHED)
def test_a_released_model_has_its_published_number_of_parameters(name):
  family = FAMILIES[RELEASED[name]['model_type']]
  model = shapes(family.gin(family.read(RELEASED[name], 'config.json')))
  assert sum(leaf.size for leaf in jax.tree.leaves(model)) == PUBLISHED[name]
