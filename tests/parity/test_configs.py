"""The config.json that transformers writes for each family is read, with every field that it can have."""

import json

import pytest

from t2x.interop import FAMILIES

transformers = pytest.importorskip('transformers', reason="the extra 'references' is not installed")


# Fields whose defaults in transformers are not supported, with those of the released models.
SETTINGS = {
  'deberta-v2': {
    'norm_rel_ebd': 'layer_norm',
    'pos_att_type': ['p2c', 'c2p'],
    'position_biased_input': False,
    'relative_attention': True,
    'share_att_key': True,
  }
}


@pytest.mark.parametrize('every_field', [False, True])
@pytest.mark.parametrize('model_type', FAMILIES)
def test_files_written_by_transformers_are_read(model_type, every_field, tmp_path):
  family = FAMILIES[model_type]
  config = transformers.CONFIG_MAPPING[model_type](**SETTINGS.get(model_type, {}))
  config.save_pretrained(tmp_path)
  if every_field:
    config.to_json_file(tmp_path / 'config.json', use_diff=False)
  given = json.loads((tmp_path / 'config.json').read_text())
  for architecture in family.architectures:
    fields = family.read(given | {'architectures': [architecture]}, 'config.json')
    assert family.gin(fields).startswith('\n')


@pytest.mark.parametrize('model_type', FAMILIES)
def test_defaults_match_transformers(model_type):
  family = FAMILIES[model_type]
  settings = SETTINGS.get(model_type, {})
  config = transformers.CONFIG_MAPPING[model_type](**settings)
  given = json.loads(config.to_json_string(use_diff=False))
  absent = family.gin(family.read(settings, 'config.json'))
  assert family.gin(family.read(given, 'config.json')) == absent
