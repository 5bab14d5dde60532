"""Every field of every family's config.json is validated, and adds only a value to the gin config."""

import json
import math
import random

import pytest
from tiny_models import CONFIGS, imported, write_folder

from t2x.base.errors import UserError
from t2x.config import GinText, parse_files
from t2x.interop import FAMILIES, HFModel

INJECTION = '1e-5\n# modules in: evil\nimport modeling_evil\nx = 1'
STRANGE = [
  None,
  True,
  False,
  *(-1, 0, 10**9, 10**12, 10**400),
  *(-0.5, 1e-40, 1.0, 1e300, math.nan, math.inf, -math.inf),
  *('', 'gelu', '@evil', '%evil', '{vocab_size}', '\ud800', 'x' * 10**5, INJECTION),
  *([], [1, 2], [[['global'], 10**9]], [['local', 3]], [None, {}], [[]] * 3),
  *({}, {'0': 'a'}, {'rope_type': 'linear'}, {'rope_type': [], 'rope_theta': INJECTION}),
  {'type': 'linear', 'factor': math.inf},
  {'rope_type': 'llama3', 'factor': 8.0, 'low_freq_factor': INJECTION},
]


@pytest.fixture(scope='module', params=FAMILIES)
def folder(request, tmp_path_factory):
  path = tmp_path_factory.mktemp(request.param) / 'theirs'
  return path, write_folder(path, request.param)


def test_every_family_has_a_tiny_model():
  assert set(CONFIGS) == set(FAMILIES)


def with_field(folder, name, value):
  path, config = folder
  (path / 'config.json').write_text(json.dumps(config | {name: value}))
  return path


def test_a_tiny_model_is_imported(folder):
  path, config = folder
  (path / 'config.json').write_text(json.dumps(config))
  assert imported(path)[1] == []


@pytest.mark.parametrize('count', [4, pytest.param(len(STRANGE), marks=pytest.mark.nightly)])
def test_a_strange_value_is_refused_with_its_name_or_is_a_value(folder, count):
  path, config = folder
  draw = random.Random(0)
  for name in [*FAMILIES[config['model_type']].declared, 'architectures', 'model_type']:
    for value in [INJECTION, *draw.sample(STRANGE, count)]:
      try:
        source = HFModel(with_field(folder, name, value))
      except UserError as error:
        message = str(error)
        assert message.startswith(f'{path}/config.json: ')
        assert len(message) < 1000
        assert message.isprintable()
        if name not in ('architectures', 'attention_types', 'image_size', 'patch_size'):
          assert name in message
        continue
      assert 'evil' not in source.gin
      assert not parse_files([GinText(source.gin, 'x')]).findings


@pytest.mark.slow
@pytest.mark.nightly
def test_a_size_that_is_possible_fits_or_is_refused(folder):
  path, config = folder
  for name in FAMILIES[config['model_type']].declared:
    try:
      imported(with_field(folder, name, 3))
    except UserError as error:
      assert str(path) in str(error)
