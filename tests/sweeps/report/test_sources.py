"""Verdicts over trials of different code or data are withheld, also in the printed sentence."""

import dataclasses
import json

import pytest

from t2x.sweeps.records import read_plan, write_plan
from t2x.sweeps.report import read_results
from t2x.sweeps.report.summary import sentence

EFFECTS = {'vanilla': 0.0, 'geglu': -0.4, 'rezero': 0.15}
CHANGE = 'module attn: aaa -> bbb'


@pytest.fixture
def reported(sweep, tmp_path):
  """`reported(made_by, accept)` reads a sweep whose trials have recorded `made_by(trial)`; accepts `accept(trial)`."""
  folder = sweep(effects=EFFECTS, diverged=('', 0), failed=('', 0))

  def read(made_by, changed=lambda trial: ()):
    plan = read_plan(folder)
    trials = []
    for trial in plan.trials:
      path = tmp_path / 'trials' / trial.folder / 'trial.json'
      content = json.loads(path.read_text())
      content['made_by'] = {'jax': '1'} | made_by(trial)
      path.write_text(json.dumps(content))
      lines = changed(trial)
      trials.append(dataclasses.replace(trial, changed=lines, accepted=bool(lines)))
    write_plan(folder, dataclasses.replace(plan, trials=tuple(trials)))
    return read_results(folder)

  return read


def verdicts(results):
  return {row.variant: row.verdict for row in results.rows}


@pytest.mark.parametrize('name', ['module attn', 'data TextFiles()'])
def test_a_verdict_over_two_digests_is_withheld_in_the_sentence(reported, name):
  results = reported(lambda t: {name: 'bbb' if (t.variant, t.seed) == ('geglu', 4) else 'aaa'})
  assert verdicts(results) == {'vanilla': 'baseline', 'geglu': 'withheld', 'rezero': 'hurts'}
  reason = f'trials with different code, data or defaults: {name} is aaa and bbb'
  assert f'for geglu the verdict is withheld ({reason})' in sentence(results)


def test_a_baseline_with_other_code_withholds_the_verdicts_of_all_that_share_it(reported):
  results = reported(
    lambda t: {} if t.variant == 'rezero' else {'module attn': t.variant},
  )
  assert verdicts(results) == {'vanilla': 'baseline', 'geglu': 'withheld', 'rezero': 'hurts'}


def test_modules_of_one_variant_only_are_no_difference(reported):
  results = reported(lambda t: {'module attn': 'aaa'} if t.variant == 'geglu' else {})
  assert verdicts(results)['geglu'] == 'helps'


def test_accepted_trials_are_named_and_have_a_verdict_if_all_are_equal(reported):
  results = reported(
    lambda t: {'module attn': 'aaa'} if t.variant == 'geglu' else {},
    lambda t: (CHANGE,) if t.variant == 'geglu' else (),
  )
  assert verdicts(results)['geglu'] == 'helps'
  note = f'5 trials are from before a change (--accept-changed): {CHANGE}'
  assert sentence(results).endswith(f'; {note}.')
  assert results.warning() == f'{note}.'


def test_accepted_trials_with_other_defaults_need_a_baseline_with_the_same_ones(reported):
  change = ('Experiment.trainer.log_every: 7 -> 4',)
  all_changed = reported(lambda t: {}, lambda t: change)
  assert verdicts(all_changed)['geglu'] == 'helps'
  some = reported(lambda t: {}, lambda t: change if t.variant == 'geglu' else ())
  assert verdicts(some) == {'vanilla': 'baseline', 'geglu': 'withheld', 'rezero': 'hurts'}
  assert change[0] in sentence(some)
