"""The mutations of the nightly script fit the code."""

from pathlib import Path

import pytest

from tests.mutations.__main__ import outcome, places
from tests.mutations.entries import MUTATIONS, Mutation

ROOT = Path(__file__).parents[1]


def test_the_text_of_each_mutation_occurs_once():
  found = {mutation.name: places(mutation.find) for mutation in MUTATIONS}
  assert {name: paths for name, paths in found.items() if len(paths) != 1} == {}
  assert len(found) == len(MUTATIONS) >= 40
  packages = {path.relative_to(ROOT / 't2x').parts[0] for (path,) in found.values()}
  expected = 'layers models decode data tasks train sweeps parallel interop config plan'
  assert packages >= set(expected.split())


def test_the_tests_of_each_mutation_exist_and_its_code_compiles():
  for mutation in MUTATIONS:
    for word in mutation.tests.split():
      assert (ROOT / word.partition('::')[0]).is_file(), mutation
    (path,) = places(mutation.find)
    compile(path.read_text().replace(mutation.find, mutation.replacement), str(path), 'exec')


@pytest.mark.parametrize(
  ('find', 'expected'),
  [
    ('return 1', 'killed'),
    ('return 2', 'survived'),
    ('return', 'its text is in 2 places: correct its entry'),
  ],
)
def test_a_mutation_survives_if_no_test_fails(tmp_path, find, expected):
  (tmp_path / 't2x').mkdir()
  # Without this file an installed t2x would come first.
  (tmp_path / 't2x' / '__init__.py').touch()
  module = tmp_path / 't2x' / 'module.py'
  module.write_text('def one():\n  return 1\n\n\ndef two():\n  return 2\n')
  text = (
    'from t2x.module import one\n\n\ndef test_a_mutation_fails_a_test():\n  assert one() == 1\n'
  )
  (tmp_path / 'test_module.py').write_text(text)
  before = module.read_text()
  assert outcome(Mutation('name', find, 'return 3', 'test_module.py'), tmp_path) == expected
  assert module.read_text() == before
