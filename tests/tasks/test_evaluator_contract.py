"""Contract of evaluators: outputs without information score at most chance and NaN scores worst, and no score depends
on the number of rows per batch, their padding, or the number of devices."""

import json
import math

import evaluator_cases
import numpy as np
import pytest
import tiny_tasks
from eight_devices import run_on_eight_devices
from evaluator_cases import CASES, evaluate, inference_of

from t2x.config import catalogue
from t2x.experiments import registry
from t2x.tasks import FewShot


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
  path = tmp_path_factory.mktemp('data')
  with pytest.MonkeyPatch.context() as patch:
    patch.setenv('T2X_CACHE', str(path / 'cache'))
    tiny_tasks.write_data(path)
    yield path


@pytest.fixture(scope='module', params=CASES)
def evaluated(request, folder):
  """The name of a case, its programs for 24 rows, and what they compute with random parameters."""
  inference = inference_of(request.param, folder, 24)
  return request.param, inference, evaluate(inference)


def test_every_evaluator_that_a_config_can_name_has_a_case():
  interfaces = catalogue.interfaces(registry())
  parts = {one.cls.__name__: {part.name for part in one.parts} for one in interfaces}
  evaluators = [case.evaluator for case in CASES.values()]
  assert {type(one).__name__ for one in evaluators} == parts['Evaluator']
  scorings = {type(s).__name__ for e in evaluators if isinstance(e, FewShot) for s in e.scoring}
  assert scorings == parts['Scoring']


@pytest.mark.slow
@pytest.mark.filterwarnings('ignore::RuntimeWarning')
def test_no_information_is_at_most_chance_and_nan_is_worst(evaluated):
  name, inference, (metrics, _) = evaluated
  case = CASES[name]
  scores = {*case.higher, *case.lower}
  assert scores <= metrics.keys() and all(math.isfinite(metrics[score]) for score in scores)
  constant, _ = evaluate(inference, np.zeros_like)
  broken, _ = evaluate(inference, lambda array: np.full_like(array, np.nan))
  for score, chance in case.higher.items():
    assert constant[score] <= chance + 1e-9, score
    assert not broken[score] > case.worst.get(score, 0) + 1e-9, score
  for score, chance in case.lower.items():
    assert constant[score] >= chance, score
    assert not broken[score] < max(metrics[score], constant[score]), score
  for score in metrics.keys() - scores - set(case.other):
    assert metrics[score] == constant[score] == broken[score], score


def assert_equal(one, other):
  """Compares metrics up to rounding, and samples."""
  assert one[0].keys() == other[0].keys() and one[1] == other[1]
  for name, value in one[0].items():
    wanted = other[0][name]
    assert value == (
      wanted if isinstance(wanted, str) else pytest.approx(wanted, rel=1e-4, abs=1e-6)
    ), name


@pytest.mark.slow
def test_scores_do_not_depend_on_the_batch_and_its_padding(evaluated, folder):
  name, _, expected = evaluated
  assert_equal(evaluate(inference_of(name, folder, 5)), expected)


@pytest.mark.nightly
def test_scores_do_not_depend_on_the_number_of_devices(folder):
  done = run_on_eight_devices(evaluator_cases.__file__, folder, *CASES, seconds=1800)
  found = [json.loads(line) for line in done.stdout.splitlines()]
  for name, result in zip(CASES, found, strict=True):
    assert_equal(result, json.loads(json.dumps(evaluate(inference_of(name, folder, 24)))))
