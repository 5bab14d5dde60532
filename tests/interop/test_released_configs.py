"""The config.json of released models, written by transformers of many versions, is read.

Those of CLIP, Command R, ConvNeXt, DeiT, DistilBERT, ResNet, SigLIP, Swin, Switch and Whisper have the defaults of
transformers and were not compared with the released files.
"""

import json
from pathlib import Path

import pytest

from t2x.interop import FAMILIES

RELEASED = json.loads(Path(__file__).with_name('released_configs.json').read_text())


def test_every_family_has_a_released_model():
  assert {config['model_type'] for config in RELEASED.values()} == set(FAMILIES)


@pytest.mark.parametrize('name', RELEASED)
def test_a_released_config_is_read(name):
  config = RELEASED[name]
  family = FAMILIES[config['model_type']]
  assert family.gin(family.read(config, 'config.json')).startswith('\n')
