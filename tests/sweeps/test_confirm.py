"""`t2x sweep --confirm`: the candidates with fresh seeds."""

import dataclasses
import json

import numpy as np
import pytest

from t2x.base.errors import UserError
from t2x.cli import main
from t2x.sweeps.confirm import confirmation, keep
from t2x.sweeps.plan import make_plan
from t2x.sweeps.records import (
  Outcome,
  Plan,
  Trial,
  read_outcome,
  read_plan,
  write_outcome,
  write_plan,
)
from t2x.sweeps.sweep import Sweep, read_sweep

TWO = "{'gelu': {}, 'relu': {'MLP.activation': @relu}}"
EFFECTS = {'gelu': 0.0, 'relu': -1.0, 'gated': 0.0}
SWEEP = Sweep(
  base='base.gin', variants={name: {} for name in EFFECTS}, baseline='gelu', max_seeds=9
)


def finish(folder, plan, effects=None):
  """Writes outcomes: relu has a lower loss, except with three layers."""
  write_plan(folder, plan)
  for trial in plan.trials:
    noise = np.random.default_rng(
      [trial.seed, [*(effects or EFFECTS)].index(trial.variant)]
    ).normal()
    effect = 0.0 if trial.point.get('layers') == 3 else (effects or EFFECTS)[trial.variant]
    outcome = Outcome(status='finished', metrics={'loss': 3 + effect + 0.05 * noise})
    run = folder.parent / 'trials' / trial.folder
    run.mkdir(parents=True, exist_ok=True)
    write_outcome(run, outcome)


def made_up(seeds, variants=tuple(EFFECTS), layers=(2, 3)):
  trials = tuple(
    Trial(
      variant=variant,
      point={'layers': depth},
      seed=seed,
      identity=f'{variant}{depth}',
      folder=f'{variant}{depth}-{seed}',
    )
    for depth in layers
    for variant in variants
    for seed in seeds
  )
  return Plan(
    name='study',
    baseline='gelu',
    metric='loss',
    goal='min',
    matched='',
    config='',
    versions={},
    commit='',
    trials=trials,
  )


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


def test_only_the_points_at_which_a_variant_is_a_candidate_run_again(tmp_path):
  finish(tmp_path / 'study', made_up(range(5)))
  fresh, cells = confirmation(SWEEP, tmp_path / 'study')
  assert (fresh.only, fresh.seed_list, fresh.max_seeds) == (('relu',), (5, 6, 7, 8, 9), None)
  plan = made_up(fresh.seed_list, ('gelu', 'relu'))
  confirmed, configs = keep(plan, {trial.folder: 'config' for trial in plan.trials}, cells)
  assert confirmed == dataclasses.replace(
    made_up(fresh.seed_list, ('gelu', 'relu'), layers=(2,)), name='study-confirm'
  )
  assert configs.keys() == {trial.folder for trial in confirmed.trials}


def test_many_candidates_keep_the_seeds_of_the_baseline(tmp_path):
  effects = {'gelu': 0.0} | {f'v{i}': -1.0 for i in range(8)}
  sweep = Sweep(
    base='b.gin', variants={name: {} for name in effects}, baseline='gelu', baseline_seeds=20
  )
  finish(tmp_path / 'study', made_up(range(5), tuple(effects), layers=(2,)), effects)
  fresh, _ = confirmation(sweep, tmp_path / 'study', 8)
  assert fresh.seed_list == tuple(range(5, 13)) and len(fresh.seeds_of('gelu')) == 20
  assert confirmation(sweep, tmp_path / 'study', 20)[0].baseline_seeds is None
  finish(tmp_path / 'study', made_up(range(5), tuple(effects)[:4], layers=(2,)), effects)
  assert confirmation(sweep, tmp_path / 'study', 8)[0].baseline_seeds is None


def test_nothing_to_confirm_is_an_error(tmp_path):
  finish(tmp_path / 'study', made_up(range(5)))
  outcome = tmp_path / 'trials' / 'gelu2-0' / 'trial.json'
  outcome.unlink()
  with pytest.raises(UserError, match=r'29 of 30 trials ended.*before --confirm'):
    confirmation(SWEEP, tmp_path / 'study')
  finish(tmp_path / 'study', made_up(range(5), layers=(3,)))
  with pytest.raises(UserError, match='no variant helps or hurts'):
    confirmation(SWEEP, tmp_path / 'study')


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
