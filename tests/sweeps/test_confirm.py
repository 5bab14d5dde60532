"""`t2x sweep --confirm`: the candidates with fresh seeds."""

import collections
import dataclasses
import json

import numpy as np
import pytest

from t2x.base.errors import UserError
from t2x.cli import main
from t2x.sweeps.plan import make_plan
from t2x.sweeps.records import (
  Outcome,
  read_outcome,
  read_plan,
  write_outcome,
  write_plan,
)
from t2x.sweeps.stages import confirm_stages
from t2x.sweeps.sweep import read_sweep

TWO = "{'gelu': {}, 'relu': {'MLP.activation': @relu}}"


def finish(folder, plan):
  """Writes outcomes: all variants except the baseline have a lower loss, except with three layers."""
  write_plan(folder, plan)
  names = [*dict.fromkeys(trial.variant for trial in plan.trials)]
  for trial in plan.trials:
    noise = np.random.default_rng([trial.seed, names.index(trial.variant)]).normal()
    same = trial.variant == plan.baseline or trial.point.get('Stack.num_layers') == 3
    outcome = Outcome(status='finished', metrics={'loss': 3 - (not same) + 0.05 * noise})
    run = folder.parent / 'trials' / trial.folder
    run.mkdir(parents=True, exist_ok=True)
    write_outcome(run, outcome)


def test_candidates_get_fresh_seeds_and_a_report_of_their_own(
  sweep_file, tmp_path, capsys, monkeypatch
):
  file, out = sweep_file(TWO, extra='  max_seeds = 10\n'), tmp_path / 'out'
  file.write_text(file.read_text().replace('seeds = 2\n', 'seeds = 5\n'))
  finish(out / 'study', make_plan(read_sweep(file))[0])
  ran = []
  monkeypatch.setattr(
    't2x.sweeps.runners.InProcess.run', lambda self, trials, folder, on_end: ran.extend(trials)
  )
  command = ['sweep', str(file), '--out', str(out), '--confirm', '--processes', '1']
  assert main([*command, '--seeds', '4']) == 0
  plan = read_plan(out / 'study-confirm')
  cells = {(trial.variant, trial.seed) for trial in plan.trials}
  assert cells == {(variant, seed) for variant in ('gelu', 'relu') for seed in range(5, 9)}
  assert {(trial.variant, trial.seed) for trial in ran} == cells
  assert plan.max_seeds is None and plan.name == 'study-confirm'
  finish(out / 'study-confirm', plan)
  capsys.readouterr()
  assert main(['report', str(out / 'study-confirm'), '--json']) == 0
  rows = json.loads(capsys.readouterr().out)['rows']
  assert [(row['variant'], row['verdict'], row['n']) for row in rows] == [
    ('gelu', 'baseline', 4),
    ('relu', 'helps', 4),
  ]


def test_only_the_points_at_which_a_variant_is_a_candidate_run_again(sweep_file, tmp_path):
  sweep = read_sweep(
    sweep_file(TWO, extra="  max_seeds = 9\n  grid = {'Stack.num_layers': [2, 3]}\n"),
    ['Sweep.seeds=5'],
  )
  finish(tmp_path / 'study', make_plan(sweep)[0])
  (stage,) = confirm_stages(sweep, tmp_path, None, None)
  cells = [(t.variant, t.point['Stack.num_layers'], t.seed) for t in stage.plan.trials]
  assert cells == [(name, 2, seed) for name in ('gelu', 'relu') for seed in range(5, 10)]
  assert (stage.plan.name, stage.plan.max_seeds) == ('study-confirm', None)
  assert stage.configs.keys() == {trial.folder for trial in stage.plan.trials}


@pytest.mark.parametrize(
  ('others', 'seeds', 'of_baseline'),
  [(8, 8, 20), pytest.param(8, 20, 20, marks=pytest.mark.nightly), (3, 8, 8)],
)
def test_many_candidates_keep_the_seeds_of_the_baseline(
  sweep_file, tmp_path, others, seeds, of_baseline
):
  rates = {f'v{i}': {'Cosine.peak': 1e-3 * (i + 2)} for i in range(8)}
  sweep = read_sweep(
    sweep_file(str({'gelu': {}} | rates), extra='  baseline_seeds = 20\n'), ['Sweep.seeds=5']
  )
  plan, _ = make_plan(sweep)
  names = ['gelu', *rates][: 1 + others]
  trials = tuple(trial for trial in plan.trials if trial.variant in names)
  finish(tmp_path / 'study', dataclasses.replace(plan, trials=trials))
  (stage,) = confirm_stages(sweep, tmp_path, None, seeds)
  confirmed = stage.plan.trials
  counts = collections.Counter(trial.variant for trial in confirmed)
  assert counts == dict.fromkeys(names, seeds) | {'gelu': of_baseline}
  assert min(trial.seed for trial in confirmed) == 20


def test_nothing_to_confirm_is_an_error(sweep_file, tmp_path):
  sweep = read_sweep(
    sweep_file(TWO, extra="  grid = {'Stack.num_layers': [3]}\n"), ['Sweep.seeds=5']
  )
  plan, _ = make_plan(sweep)
  finish(tmp_path / 'study', plan)
  with pytest.raises(UserError, match='no variant helps or hurts'):
    next(confirm_stages(sweep, tmp_path, None, None))
  (tmp_path / 'trials' / plan.trials[0].folder / 'trial.json').unlink()
  with pytest.raises(UserError, match=r'9 of 10 trials ended.*before --confirm'):
    next(confirm_stages(sweep, tmp_path, None, None))


def test_an_engine_runs_the_trials_of_the_confirmation(sweep_file, tmp_path, monkeypatch):
  file, out = sweep_file(TWO), tmp_path / 'out'
  file.write_text(file.read_text().replace('seeds = 2\n', 'seeds = 5\n'))
  finish(out / 'study', make_plan(read_sweep(file))[0])
  logs = []

  def start(self, groups, folder):
    logs.append(self.logs)
    for trial in (trial for group in groups for trial in group):
      write_outcome(folder / trial.folder, Outcome(status='finished', metrics={'loss': trial.seed}))
    return [lambda: True for _ in groups]

  monkeypatch.setattr('t2x.sweeps.engines.Slurm.start', start)
  monkeypatch.setattr('t2x.sweeps.engines.time.sleep', lambda seconds: None)
  command = ['sweep', str(file), '--out', str(out), '--confirm', '--runner', 'slurm']
  main(command)
  assert logs == [out / 'study-confirm' / 'slurm']
  trials = read_plan(out / 'study-confirm').trials
  assert {(trial.variant, trial.seed) for trial in trials} == {
    (variant, seed) for variant in ('gelu', 'relu') for seed in range(5, 10)
  }
  ended = [read_outcome(out / 'trials' / trial.folder) for trial in trials]
  assert [outcome.metrics['loss'] for outcome in ended] == [trial.seed for trial in trials]
