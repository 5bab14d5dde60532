"""Rotary fields of config.json, compared with the arithmetic of transformers."""

import json

import pytest
from tiny_models import write_folder

from t2x.interop import HFModel


@pytest.mark.parametrize('fraction', [0.5, 0.7, 0.74, 1.0])
def test_the_number_of_rotated_features_is_rounded_down(tmp_path, fraction):
  """transformers 5.23 rotates `int(head_dim * partial_rotary_factor)` features."""
  config = write_folder(tmp_path, 'gpt_neox') | {'rotary_pct': fraction}
  (tmp_path / 'config.json').write_text(json.dumps(config))
  head_dim = config['hidden_size'] // config['num_attention_heads']
  expected = int(head_dim * fraction) / head_dim
  assert f'RoPE.fraction = {expected}\n' in HFModel(tmp_path).gin
