"""Settings of `Sweep.tune`, and the choice of a value from outcomes."""

import dataclasses

import pytest

from t2x.base.errors import UserError
from t2x.base.json_files import Damaged
from t2x.sweeps.records import Outcome, Plan, Trial
from t2x.sweeps.sweep import Sweep
from t2x.sweeps.tune import FIRST_SEED, Tune, read_tuning, write_tuning
from t2x.sweeps.tune import Tuning as TuningFile
from t2x.sweeps.tuning import Cell

VALUES = (1e-4, 1e-3, 1e-2, 1e-1)
PLAN = Plan(
  name='study-tune',
  baseline='gelu',
  metric='loss',
  goal='min',
  matched='',
  config='',
  versions={},
  commit='',
  trials=(),
)


def cell(values=VALUES, seeds=4, own=1e-3):
  def trial(value, seed):
    folder = f'{value:g}-{seed}'
    return Trial(
      variant='relu',
      point={},
      seed=seed,
      identity=f'{value:g}',
      folder=folder,
      tuned={'peak': value},
    )

  def of_value(value):
    return {FIRST_SEED + i: trial(value, FIRST_SEED + i) for i in range(seeds)}

  return Cell('relu', {}, 'peak', own, {value: of_value(value) for value in values})


def outcomes(losses):
  """`losses`: value -> loss of each seed, 'diverged' or 'failed'; seeds that are missing have not ended."""

  def outcome_of(trial):
    of_value = losses[trial.tuned['peak']]
    seed = trial.seed - FIRST_SEED
    if seed >= len(of_value):
      return None
    if isinstance(of_value[seed], str):
      return Outcome(status=of_value[seed])
    return Outcome(status='finished', metrics={'loss': of_value[seed]})

  return outcome_of


def choose(losses, plan=PLAN, own=1e-3, **settings):
  seeds = max(map(len, losses.values()))
  tune = Tune(parameter='peak', values=[*losses], seeds=seeds, **settings)
  return cell([*losses], seeds, own).schedule(tune, plan, outcomes(losses))


def test_the_best_mean_over_the_tuning_seeds_is_chosen():
  trials, choice = choose({1e-4: [3.0, 3.0], 1e-3: [2.0, 2.8], 1e-2: [2.2, 2.3]})
  assert len(trials) == 6
  assert (choice.chosen, choice.own, choice.edge, choice.lost) == (1e-2, 1e-3, 'largest', False)
  assert [(item.value, item.n) for item in choice.tried] == [(1e-4, 2), (1e-3, 2), (1e-2, 2)]
  assert choice.tried[1].mean == pytest.approx(2.4)
  higher = dataclasses.replace(PLAN, goal='max')
  assert choose({1e-4: [3.0], 1e-3: [2.0], 1e-2: [2.2]}, higher)[1].edge == 'smallest'
  assert choose({1e-4: [3.0], 1e-3: [2.0], 1e-2: [2.2]})[1].edge == ''


def test_a_tie_goes_to_the_own_value():
  tie = {1e-4: [2.0], 1e-3: [2.0], 1e-2: [2.0]}
  assert choose(tie)[1].chosen == 1e-3
  assert choose(tie, own=1e-2)[1].chosen == 1e-2
  assert choose(tie, own=5.0)[1].chosen == 1e-4


def test_values_that_diverged_rank_last():
  limit = dataclasses.replace(PLAN, failed_above=5.0)
  losses = {1e-4: [3.0, 3.0], 1e-3: [1.0, 'diverged'], 1e-2: [1.0, 9.0], 1e-1: ['failed', 'failed']}
  _, choice = choose(losses, limit)
  assert choice.chosen == 1e-4
  lost = [(item.n, item.diverged, item.failed) for item in choice.tried]
  assert lost == [(2, 0, 0), (1, 1, 0), (1, 1, 0), (0, 0, 2)]
  # Among values that all diverged with a seed, the mean of the others decides.
  assert choose({1e-3: [2.0, 'diverged'], 1e-2: [1.0, 'diverged']})[1].chosen == 1e-2


def test_without_a_finished_trial_the_own_value_remains():
  _, choice = choose({1e-4: ['diverged'], 1e-2: ['failed']})
  assert (choice.chosen, choice.edge) == (1e-3, '')
  assert choice.lost and choice.problem == 'no tuning trial finished'


def test_a_value_that_cannot_run_counts_as_failed():
  made = cell((1e-3, 1e-2), 1)
  first = made.trials[1e-2][FIRST_SEED]
  made.trials[1e-2][FIRST_SEED] = dataclasses.replace(first, problem='more parameters')
  tune = Tune(parameter='peak', values=(1e-3, 1e-2), seeds=1)
  _, choice = made.schedule(tune, PLAN, outcomes({1e-3: [2.0]}))
  assert (choice.chosen, choice.tried[1].failed) == (1e-3, 1)


def test_halving_trains_more_seeds_of_the_best_values():
  losses = {1e-4: [3.0], 1e-3: [2.0, 2.5], 1e-2: [2.1, 2.2], 1e-1: [2.9]}
  tune = Tune(parameter='peak', values=VALUES, seeds=4, keep=0.5)
  trials, choice = cell().schedule(tune, PLAN, outcomes(losses))
  seeds = [trial.seed - FIRST_SEED for trial in trials]
  # The third round would have a single value.
  assert [*tune.sizes(4)] == [4, 2] and seeds == [0, 0, 0, 0, 1, 1]
  assert {trial.tuned['peak'] for trial in trials[4:]} == {1e-3, 1e-2}
  assert choice.chosen == 1e-2, 'the mean of both rounds decides'
  assert [item.n for item in choice.tried] == [1, 2, 2, 1]


def test_halving_waits_for_the_round():
  losses = {1e-4: [3.0], 1e-3: [2.0], 1e-2: [], 1e-1: [2.9]}
  tune = Tune(parameter='peak', values=VALUES, seeds=2, keep=0.5)
  trials, choice = cell().schedule(tune, PLAN, outcomes(losses))
  assert len(trials) == 4 and choice is None
  losses[1e-2] = [2.1]
  trials, choice = cell().schedule(tune, PLAN, outcomes(losses))
  assert len(trials) == 6 and choice is None


@pytest.mark.parametrize(
  ('settings', 'sizes'),
  [
    ({'seeds': 3}, [6, 6, 6]),
    ({'seeds': 4, 'keep': 0.5}, [6, 3, 2]),
    ({'seeds': 2, 'keep': 0.5}, [6, 3]),
    ({'seeds': 9, 'keep': 0.9}, [6, 5, 4, 3, 2]),
    ({'seeds': 5, 'keep': 0.3}, [6, 2]),
  ],
)
def test_sizes_of_the_rounds(settings, sizes):
  assert [*Tune(parameter='peak', values=(1, 2), **settings).sizes(6)] == sizes
  assert [*Tune(parameter='peak', values=(1, 2), seeds=9, keep=0.1).sizes(30)] == [30, 3]


def test_factors_are_multiples_of_the_own_value():
  tune = Tune(parameter='peak', factors=(3.0, 1.0, 0.3))
  assert tune.grid(1e-3) == [3e-4, 1e-3, 3e-3]
  assert tune.grid(100) == [30, 100, 300] and all(type(x) is int for x in tune.grid(100))
  assert tune.grid(5) == [1.5, 5, 15]
  own = 0.1 + 1e-16
  assert own in tune.grid(own)
  assert Tune(parameter='peak', values=(3.0, 1.0)).grid(7.0) == [1.0, 3.0]


def test_grids_continue_at_their_ends():
  def extended(ends, **numbers):
    tune = Tune(parameter='peak', **numbers).extended(ends)
    return [*(tune.values or tune.factors)]

  both = ('smallest', 'largest')
  assert extended(('largest',), values=(3e-2, 1e-2)) == [1e-2, 3e-2, 0.09]
  assert extended(both, factors=(0.5, 1, 4)) == [0.25, 0.5, 1, 4, 16]
  assert extended(both, values=(2, 4, 8)) == [1, 2, 4, 8, 16]
  assert extended(both, values=(0, 0.1, 0.3)) == [-0.1, 0, 0.1, 0.3, 0.9]
  assert extended(both, values=(-1.0, 2.0)) == [-4.0, -1.0, 2.0, 5.0]


def test_the_seeds_of_tuning_and_comparison_differ():
  tune = Tune(parameter='peak', values=(1.0, 2.0), seeds=3)
  settings = {'base': 'base.gin', 'variants': {'a': {}}, 'baseline': 'a', 'tune': tune}
  assert not {*Sweep(**settings, seeds=100).seed_list} & {*tune.seed_list}
  with pytest.raises(UserError, match='the seeds of the sweep contain the tuning seed 1000002'):
    Sweep(**settings, seeds=[0, FIRST_SEED + 2])


def test_the_file_is_read_as_written(tmp_path):
  _, choice = choose({100: [3.0, 2.0], 1000: [2.0, 'diverged']}, own=100)
  tuning = TuningFile(
    metric='loss', goal='min', seeds=(FIRST_SEED,), keep=1.0, trials=4, choices=(choice,)
  )
  write_tuning(tmp_path, tuning)
  assert read_tuning(tmp_path) == tuning
  assert tuning.of('relu', {}) == choice and tuning.of('relu', {'layers': 2}) is None
  path = tmp_path / 'tuning.json'
  path.write_text(path.read_text().replace('"chosen": 100', '"chosen": "100"'))
  with pytest.raises(Damaged, match=r'choices\[0\] has a value that is not a number'):
    read_tuning(tmp_path)
  path.unlink()
  with pytest.raises(UserError, match='run `t2x sweep` to write it'):
    read_tuning(tmp_path)
