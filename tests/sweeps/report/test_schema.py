"""`t2x report --json` has the content that its schema documents, and no other."""

import dataclasses
import json
from importlib import resources

import jsonschema
import pytest

from t2x.cli import main
from t2x.sweeps.published import Published
from t2x.sweeps.records import read_plan, write_plan
from t2x.sweeps.report import read_results, report_data
from t2x.sweeps.report.fit import Estimate, Fit, Size
from t2x.sweeps.tune import Choice, Tried, Tuning, write_tuning


@pytest.fixture(scope='module')
def validator():
  text = (resources.files('t2x.sweeps.report') / 'report.schema.json').read_text()
  schema = json.loads(text)
  jsonschema.Draft202012Validator.check_schema(schema)
  return jsonschema.Draft202012Validator(schema)


@pytest.mark.parametrize(
  'settings',
  [{}, {'ended': 0}, {'seeds': 1}, {'points': ({'Stack.num_layers': 2}, {'Stack.num_layers': 4})}],
)
def test_reports_match_the_schema(sweep, validator, capsys, settings):
  folder = sweep(**settings)
  for _ in range(2):  # The second report lists the first.
    assert main(['report', str(folder), '--json']) == 0
    data = json.loads(capsys.readouterr().out)
    validator.validate(data)
  assert len(data['rows']) == 5 * len(settings.get('points', [0]))


def test_tuning_published_results_and_laws_match_the_schema(sweep, validator):
  folder = sweep(diverged=('', 0))
  plan = read_plan(folder)
  values = {name: float(number) for number, name in enumerate(plan.variants)}
  published = Published(values=values, goal='min', label='loss', groups={'two': ('geglu', 'relu')})
  write_plan(folder, dataclasses.replace(plan, published=published, tuning='tuned'))
  tried = Tried(value=0.1, mean=1.0, n=2, metrics={'0': 1.0, '1': 1.1})
  choices = tuple(
    Choice(variant=v, point={}, parameter='p', own=0.1, chosen=0.1, edge='', tried=(tried,))
    for v in plan.variants
  )
  tuning = Tuning(metric='loss', goal='min', seeds=(1, 2), keep=1.0, trials=8, choices=choices)
  write_tuning(folder, tuning)
  number = Estimate(1.0, 0.5, 1.5)
  size = Size('a', 1000, 2000.0, (2.0, float('nan')), used=True)
  curve = {'name': '', 'x': [1.0], 'value': [1.0], 'low': [0.5], 'high': [1.5]}
  fit = Fit('', ('parameters',), 2, (number,) * 3, (size,), (number,), (curve,))
  data = json.loads(json.dumps(report_data(read_results(folder), [fit])))
  validator.validate(data)
  assert data['tuning'] and data['published'] and data['scaling'][0]['sizes'][0]['mean'] is None


def test_unknown_and_missing_fields_are_refused(sweep, validator):
  data = json.loads(json.dumps(report_data(read_results(sweep()))))
  for broken in (data | {'more': 1}, {k: v for k, v in data.items() if k != 'rows'}):
    assert not validator.is_valid(broken)
  data['rows'][0]['verdict'] = 'good'
  assert not validator.is_valid(data)
