"""A small seeded part of the config fuzz in mutate.py, whose whole takes a quarter of an hour."""

import importlib.util
from pathlib import Path

import pytest

pytestmark = pytest.mark.nightly

spec = importlib.util.spec_from_file_location('mutate', Path(__file__).with_name('mutate.py'))
mutate = importlib.util.module_from_spec(spec)
spec.loader.exec_module(mutate)


def assert_handled(results):
  failures = [f'{what}: {reason}' for what, *end in results if (reason := mutate.problem(*end))]
  assert not failures


@pytest.mark.slow
def test_a_config_with_a_changed_token_is_checked_or_refused():
  assert_handled(mutate.token_mutations(count=30, seed=20))


@pytest.mark.slow
def test_odd_values_are_refused_where_the_range_of_a_parameter_excludes_them():
  assert_handled(mutate.odd_settings(part=0.04, seed=20))


def test_the_fuzzer_distinguishes_failures_from_refusals():
  assert mutate.problem(0, '') is None
  assert mutate.problem(2, 't2x: x.gin:1: no part named') is None
  assert mutate.problem(1, 'KeyError') == 'exit code 1: KeyError'
  assert mutate.problem(2, '') == 'no message'
  assert mutate.problem(2, 'Traceback (most recent call last):\n') == 'a traceback'
