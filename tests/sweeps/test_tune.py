"""Settings of `Sweep.tune`, and the choice of a value from outcomes."""

import dataclasses
import json

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


def choose(losses, plan=PLAN, own=1e-3):
  seeds = max(map(len, losses.values()))
  return cell([*losses], seeds, own).choice(plan, outcomes(losses))


def values(choice):
  """The value of each tuning seed, in order."""
  return [choice.values[str(FIRST_SEED + i)] for i in range(len(choice.values))]


def test_each_tuning_seed_chooses_a_value_independent_of_the_others():
  losses = {1e-4: [3.0, 2.0, 2.0], 1e-3: [2.0, 2.8, 2.1], 1e-2: [2.2, 2.3, 1.9]}
  choice = choose(losses)
  assert values(choice) == [1e-3, 1e-4, 1e-2] and choice.text == '0.0001 (1), 0.001 (1), 0.01 (1)'
  for changed in range(3):
    others = {value: list(of_seed) for value, of_seed in losses.items()}
    others[1e-4][changed] = 1.0
    moved = values(choose(others))
    assert moved[changed] == 1e-4
    assert [v for i, v in enumerate(moved) if i != changed] == [
      v for i, v in enumerate(values(choice)) if i != changed
    ]
  higher = dataclasses.replace(PLAN, goal='max')
  assert values(choose(losses, higher)) == [1e-4, 1e-3, 1e-3]


def test_the_edge_is_that_of_the_best_mean_over_all_tuning_seeds():
  choice = choose({1e-4: [3.0, 3.0], 1e-3: [2.0, 2.8], 1e-2: [2.2, 2.3]})
  assert (choice.chosen, choice.own, choice.edge, choice.note) == (1e-2, 1e-3, 'largest', '')
  assert not choice.lost
  assert values(choice) == [1e-3, 1e-2]
  assert [(item.value, item.n) for item in choice.tried] == [(1e-4, 2), (1e-3, 2), (1e-2, 2)]
  assert choice.tried[1].mean == pytest.approx(2.4)
  higher = dataclasses.replace(PLAN, goal='max')
  assert choose({1e-4: [3.0], 1e-3: [2.0], 1e-2: [2.2]}, higher).edge == 'smallest'
  # Two of three seeds choose the smallest value, whose mean is not the best.
  inside = choose({1e-4: [2.0, 2.0, 9.0], 1e-3: [2.1, 2.1, 2.1], 1e-2: [2.2, 2.2, 2.2]})
  assert values(inside) == [1e-4, 1e-4, 1e-3] and (inside.chosen, inside.edge) == (1e-3, '')


@pytest.mark.parametrize(
  ('values', 'valid', 'edge'),
  [
    # The best value is the last one that is valid, included: nothing lies beyond it.
    ([0.5, 1.0], lambda value: 0 <= value <= 1, ''),
    ([0.5, 1.0], lambda value: 0 <= value < 2, 'largest'),
    ([1, 2], lambda value: value <= 2, ''),
    ([1, 2], lambda value: value <= 3, 'largest'),
    ([0.0, -0.5], lambda value: -0.5 <= value <= 1, ''),
    ([0.0, -0.5], lambda value: -1 <= value <= 1, 'smallest'),
  ],
)
def test_a_value_at_an_included_limit_is_no_edge(values, valid, edge):
  """`values`: the best one last."""
  found = dataclasses.replace(cell(values, 1, values[0]), accepts=valid)
  losses = {value: [float(-i)] for i, value in enumerate(values)}
  choice = found.choice(PLAN, outcomes(losses))
  assert (choice.chosen, choice.edge) == (values[-1], edge)


def test_a_tie_goes_to_the_own_value():
  tie = {1e-4: [2.0], 1e-3: [2.0], 1e-2: [2.0]}
  for own, expected in ((1e-3, 1e-3), (1e-2, 1e-2), (5.0, 1e-4)):
    choice = choose(tie, own=own)
    assert choice.chosen == expected and values(choice) == [expected]


def test_values_that_diverged_rank_last():
  limit = dataclasses.replace(PLAN, failed_above=5.0)
  losses = {1e-4: [3.0, 3.0], 1e-3: [1.0, 'diverged'], 1e-2: [1.0, 9.0], 1e-1: ['failed', 'failed']}
  choice = choose(losses, limit)
  assert choice.chosen == 1e-4 and values(choice) == [1e-3, 1e-4]
  lost = [(item.n, item.diverged, item.failed) for item in choice.tried]
  assert lost == [(2, 0, 0), (1, 1, 0), (1, 1, 0), (0, 0, 2)]
  assert choice.note == 'ranks last, as trials failed: 0.1'
  # Among values that all diverged with a seed, the mean of the others decides.
  assert choose({1e-3: [2.0, 'diverged'], 1e-2: [1.0, 'diverged']}).chosen == 1e-2


def test_the_own_value_remains_where_no_trial_finished():
  choice = choose({1e-4: ['diverged'], 1e-2: ['failed']})
  assert (choice.chosen, choice.edge, values(choice)) == (1e-3, '', [1e-3])
  assert choice.lost and choice.problem == 'no tuning trial finished' and not choice.note
  choice = choose({1e-4: [2.0, 'diverged'], 1e-2: [3.0, 'diverged']})
  assert (choice.chosen, values(choice)) == (1e-4, [1e-4, 1e-3])
  assert choice.note == 'no value finished with 1 of 2 tuning seeds: own value'


def test_a_value_that_cannot_run_counts_as_failed():
  made = cell((1e-3, 1e-2), 1)
  first = made.trials[1e-2][FIRST_SEED]
  made.trials[1e-2][FIRST_SEED] = dataclasses.replace(first, problem='more parameters')
  choice = made.choice(PLAN, outcomes({1e-3: [2.0]}))
  assert (choice.chosen, choice.tried[1].failed) == (1e-3, 1)
  assert choice.note == 'ranks last, as trials failed: 0.01'


def test_a_choice_waits_for_all_trials():
  losses = {1e-4: [3.0, 3.0], 1e-3: [2.0, 2.0], 1e-2: [2.1]}
  assert cell([*losses], 2).choice(PLAN, outcomes(losses)) is None
  losses[1e-2].append(2.2)
  assert cell([*losses], 2).choice(PLAN, outcomes(losses)) is not None


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


def sweep(seeds=5, **settings):
  tune = Tune(parameter='peak', values=(1.0, 2.0), seeds=settings.pop('tuning_seeds', None))
  names = {f'v{i}': {} for i in range(8)}
  settings = {'base': 'base.gin', 'variants': {'a': {}} | names, 'baseline': 'a'} | settings
  return Sweep(**settings, tune=tune, seeds=seeds)


def test_each_seed_has_a_tuning_seed_unless_there_are_fewer():
  def count(sweep):
    return [len(sweep.tuning_seeds_of(name)) for name in ('a', 'v0')]

  assert count(sweep()) == [5, 5] and sweep().tuning_seeds_of('a')[0] == FIRST_SEED
  assert count(sweep(tuning_seeds=5)) == [5, 5] and count(sweep(tuning_seeds=3)) == [3, 3]
  assert count(sweep(baseline_seeds=20)) == [20, 5]
  assert count(sweep(baseline_seeds=20, tuning_seeds=5)) == [20, 5]
  with pytest.raises(UserError, match=r'Tune\.seeds = 6 is larger than the number of seeds, 5'):
    sweep(tuning_seeds=6)
  with pytest.raises(UserError, match=r'Tune\.seeds = 3 with Sweep\.baseline_seeds'):
    sweep(tuning_seeds=3, baseline_seeds=20)


def test_the_seeds_of_tuning_and_comparison_differ():
  for tuned in (sweep(100), sweep(baseline_seeds=50)):
    assert not {*tuned.seeds_of('a')} & {*tuned.tuning_seeds_of('a')}
  with pytest.raises(UserError, match='the seeds of the sweep contain the tuning seed 1000002'):
    sweep([0, 1, 2, FIRST_SEED + 2])


def test_the_file_is_read_as_written(tmp_path):
  choice = choose({100: [3.0, 2.0], 1000: [2.0, 'diverged']}, own=100)
  tuning = TuningFile(
    metric='loss', goal='min', seeds=(FIRST_SEED,), keep=1.0, trials=4, choices=(choice,)
  )
  write_tuning(tmp_path, tuning)
  assert read_tuning(tmp_path) == tuning
  assert tuning.of('relu', {}) == choice and tuning.of('relu', {'layers': 2}) is None
  path = tmp_path / 'tuning.json'
  text = path.read_text()
  old = json.loads(text)
  del old['choices'][0]['values']
  path.write_text(json.dumps(old | {'keep': 0.5}))
  assert read_tuning(tmp_path).choices[0].values == {}, 'a file of an older version'
  path.write_text(text.replace('"chosen": 100', '"chosen": "100"'))
  with pytest.raises(Damaged, match=r'choices\[0\] has a value that is not a number'):
    read_tuning(tmp_path)
  path.unlink()
  with pytest.raises(UserError, match='run `t2x sweep` to write it'):
    read_tuning(tmp_path)
