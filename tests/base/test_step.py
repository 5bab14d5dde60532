"""Values that a step passes to its parts."""

from pathlib import Path

import jax

from t2x.base.step import in_step, target
from t2x.layers.products import on_one_cpu

ROOT = Path(__file__).parents[2]


def test_the_target_is_this_machine_unless_a_program_is_traced_for_another():
  assert target() == jax.default_backend() == 'cpu'
  with in_step(target='tpu'):
    with in_step(step=3):
      assert target() == 'tpu'
    assert on_one_cpu() is False
  assert on_one_cpu() is True


def test_layers_and_models_ask_for_the_target_only():
  files = [path for part in ('layers', 'models') for path in (ROOT / 't2x' / part).rglob('*.py')]
  assert files
  assert not [path for path in files if 'default_backend' in path.read_text()]
