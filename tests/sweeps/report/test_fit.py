"""`t2x report --fit`: scaling laws of sweep folders."""

import dataclasses
import json
import sys

import numpy as np
import pytest

from t2x.cli import main
from t2x.sweeps.records import Outcome, Plan, Trial, read_plan, write_outcome, write_plan

SIZES = (20_000, 60_000, 200_000, 600_000, 2_000_000)
STEPS = (100, 300, 900)


def loss(parameters, tokens):
  return 1.7 + 60 * parameters**-0.35 + 200 * tokens**-0.4


@pytest.fixture
def scaling(tmp_path):
  """`scaling(sizes, steps, seeds)`: a folder whose variants are sizes, with a grid of steps."""

  def make(sizes=SIZES, steps=STEPS, seeds=3, status='finished', **settings):
    trials = []
    for parameters in sizes:
      for num_steps in steps:
        for seed in range(seeds):
          identity = f'{parameters:08}{num_steps:04}'
          trials.append(
            Trial(
              variant=f'n{parameters}',
              point={'Trainer.num_steps': num_steps} if len(steps) > 1 else {},
              seed=seed,
              identity=identity,
              folder=f'{identity}-{seed}',
              parameters=parameters,
              tokens_per_step=1000,
              num_steps=num_steps,
            )
          )
    plan = {
      'name': 'study', 'baseline': trials[0].variant, 'metric': 'loss', 'goal': 'min', 'matched': '',
      'config': '', 'versions': {}, 'commit': '', 'trials': tuple(trials),
    }  # fmt: skip
    write_plan(tmp_path / 'study', Plan(**plan | settings))
    generator = np.random.default_rng(0)
    for trial in trials:
      value = loss(trial.parameters, 1000 * trial.num_steps) * np.exp(0.002 * generator.normal())
      metrics = {settings.get('metric', 'loss'): value}
      last = status if trial is trials[-1] else 'finished'
      folder = tmp_path / 'trials' / trial.folder
      folder.mkdir(parents=True)
      write_outcome(folder, Outcome(status=last, metrics=metrics, made_by={'jax': '1'}))
    return tmp_path / 'study'

  return make


@pytest.fixture
def fit(capsys):
  """`fit(folder, *options)` runs `t2x report --fit` and returns the exit code, stdout and stderr."""

  def run(folder, *options):
    code = main(['report', str(folder), '--fit', *options])
    return code, *capsys.readouterr()

  return run


def test_the_law_of_two_variables_predicts_larger_sizes(scaling, fit):
  folder = scaling()
  code, out, _ = fit(folder, '--json', '--hold-out', 'n2000000', '--predict', '2e7,9e6')
  assert code == 0
  (law,) = json.loads(out)['scaling']
  assert law['formula'] == 'L = E + A N^-alpha + B D^-beta'
  constants = {item['name']: item for item in law['constants']}
  for name, true in {'E': 1.7, 'alpha': 0.35, 'beta': 0.4}.items():
    assert constants[name]['low'] < true < constants[name]['high']
  held_out = [size for size in law['sizes'] if not size['used']]
  assert [size['parameters'] for size in held_out] == [2e6, 2e6, 2e6, 2e7]
  for size in held_out:
    true = loss(size['parameters'], size['tokens'])
    assert size['prediction']['value'] == pytest.approx(true, rel=0.02)
  assert held_out[-1]['mean'] is None and len(law['curves']) == 4


def test_the_law_of_one_variable_is_printed_and_plotted(scaling, fit):
  folder = scaling(steps=(300,))
  code, out, _ = fit(folder, '--hold-out', 'n2000000', '--predict', '2e7')
  assert code == 0
  assert 'L = E + A N^-alpha (L: loss, N: parameters), fitted to 4 sizes with 3 seeds each' in out
  assert 'n2000000' in out and 'not used for the fit' in out and 'not measured' in out
  assert (folder / 'scaling.png').read_bytes().startswith(b'\x89PNG')
  text = (folder / 'report.md').read_text()
  assert '## Scaling law' in text and 'alpha' in text
  assert '"formula":"L = E + A N^-alpha"' in (folder / 'report.html').read_text()


def test_tokens_may_be_the_only_variable(scaling, fit):
  code, out, _ = fit(scaling(sizes=(20_000,), steps=(*STEPS, 2700)))
  assert code == 0 and 'L = E + B D^-beta' in out


def test_sizes_that_do_not_determine_the_law_are_noted(scaling, fit, change_trial):
  folder = scaling(steps=(300,))
  for number, size in enumerate(SIZES):
    for seed in range(3):
      metrics = {'loss': 2.0 - 1e-5 * number + 0.01 * seed * (-1) ** number}
      change_trial(folder, f'{size:08}0300-{seed}', metrics=metrics)
  code, out, _ = fit(folder)
  assert code == 0 and 'the interval of alpha includes 0' in out
  assert 'the interval of alpha includes 0' in (folder / 'report.html').read_text()


def test_each_variant_may_have_its_law(scaling, fit):
  folder = scaling(sizes=(20_000, 60_000), steps=(*STEPS, 2700))
  code, out, _ = fit(folder, '--by-variant', '--hold-out', 'Trainer.num_steps=2700', '--json')
  assert code == 2, 'three sizes remain'
  code, out, _ = fit(folder, '--by-variant', '--json')
  assert [law['variant'] for law in json.loads(out)['scaling']] == ['n20000', 'n60000']


@pytest.mark.parametrize(
  ('settings', 'options', 'message'),
  [
    ({'sizes': SIZES[:3], 'steps': (300,)}, [], 'has 3 of the 4 sizes'),
    ({'sizes': SIZES[:1], 'steps': (300,)}, [], 'has 1 of the 4 sizes'),
    ({'sizes': SIZES[:2]}, [], 'has 2 numbers of parameters and 3 of tokens'),
    ({'seeds': 2}, [], 'needs at least 3 seeds'),
    ({'status': 'diverged'}, [], "variant 'n2000000', seed 2"),
    ({'goal': 'max'}, [], 'needs a positive metric for which lower is better'),
    ({'metric': 'accuracy', 'goal': 'max'}, [], "not 'accuracy'"),
    ({}, ['--hold-out', 'n7'], "--hold-out 'n7' is neither a variant nor AXIS=VALUE"),
    ({}, ['--predict', '2e7'], '--predict needs PARAMETERS,TOKENS'),
    ({}, ['--by-variant'], 'has 3 of the 4 sizes'),
    ({}, ['--watch'], 'remove --watch'),
  ],
)
def test_sweeps_without_a_law_are_refused(scaling, fit, settings, options, message):
  code, _, error = fit(scaling(**settings), *options)
  assert code == 2
  assert message in error and error.count('\n') == 1


def test_equal_sizes_and_tokens_that_follow_parameters_are_refused(scaling, fit, change_plan):
  folder = scaling(sizes=SIZES, steps=(300,))
  trials = read_plan(folder).trials
  change_plan(folder, trials=tuple(dataclasses.replace(t, parameters=1000) for t in trials))
  code, _, error = fit(folder)
  assert code == 2 and 'has two results at 1,000 parameters' in error
  follow = tuple(dataclasses.replace(t, num_steps=t.parameters // 100) for t in trials)
  change_plan(folder, trials=follow)
  code, _, error = fit(folder)
  assert code == 2 and 'has 5 of the 6 sizes' in error


def test_options_of_the_law_need_fit(scaling, capsys):
  folder = scaling(steps=(300,))
  for options in (['--by-variant'], ['--hold-out', 'n20000'], ['--predict', '1e6']):
    assert main(['report', str(folder), *options]) == 2
    assert f'{options[0]} has no effect without --fit' in capsys.readouterr().err
  with pytest.raises(SystemExit) as error:
    main(['report', str(folder), '--fit', '--predict', 'many'])
  assert error.value.code == 2


def test_without_matplotlib_there_is_no_picture(scaling, fit, monkeypatch):
  monkeypatch.setitem(sys.modules, 'matplotlib.figure', None)
  folder = scaling(steps=(300,))
  code, _, error = fit(folder)
  assert code == 0 and 'scaling.png was not written' in error
  assert not (folder / 'scaling.png').exists()
