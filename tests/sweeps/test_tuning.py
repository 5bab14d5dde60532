"""Plans of the stages of a tuned sweep."""

import itertools

import numpy as np
import pytest

from t2x.base.errors import UserError
from t2x.experiments import read_config
from t2x.sweeps.plan import make_plan
from t2x.sweeps.plan_table import plan_table, tuning_table
from t2x.sweeps.records import Outcome, write_outcome, write_plan
from t2x.sweeps.report import read_results
from t2x.sweeps.stages import confirm_stages, stages
from t2x.sweeps.sweep import read_sweep
from t2x.sweeps.tune import FIRST_SEED, write_tuning
from t2x.sweeps.tuning import plan_tuning
from tests.sweeps.conftest import BASE

TUNE = """  tune = @Tune()

Tune:
  parameter = 'Cosine.peak'
  values = [1e-3, 1e-2, 3e-2]
"""
THREE = "{'gelu': {}, 'relu': {'MLP.activation': @relu}, 'low': {'Cosine.peak': 1e-3}}"
BEST = {'gelu': 1e-2, 'relu': 3e-2, 'low': 1e-2}
LINEAR = "{'gelu': {}, 'linear': {'Trainer.schedule': @LinearDecay(), 'LinearDecay.peak': 2e-3}}"


@pytest.fixture
def tuned(sweep_file):
  """`tuned(*overrides)`: a sweep with tuning."""

  def read(*overrides, variants=THREE, extra=TUNE):
    return read_sweep(sweep_file(variants, extra), overrides)

  return read


def finish(out, plan, loss):
  """Writes outcomes of the trials that have none; `loss(trial)`: a number, or a status."""
  for trial in plan.trials:
    run = out / 'trials' / trial.folder
    if (run / 'trial.json').exists():
      continue
    run.mkdir(parents=True, exist_ok=True)
    value = loss(trial)
    outcome = Outcome(status=value) if isinstance(value, str) else None
    write_outcome(run, outcome or Outcome(status='finished', metrics={'loss': value}))


def distance(best):
  """A loss whose minimum is at a value of each variant."""
  return lambda trial: abs(trial.tuned.get('Cosine.peak', 1e-2) - best[trial.variant])


@pytest.fixture(scope='module')
def stages_of(tmp_path_factory):
  """All stages of a sweep in which the best learning rate of relu is 3e-2, and 1e-2 for the others."""
  folder, found = tmp_path_factory.mktemp('tuned'), {}
  (folder / 'base.gin').write_text(BASE)
  file = folder / 'study.gin'
  lines = f"Sweep:\n  base = 'base.gin'\n  baseline = 'gelu'\n  variants = {THREE}\n  seeds = 2\n"
  file.write_text(lines + TUNE)
  for stage in stages(read_sweep(file), folder, None):
    found[stage.plan.name] = stage
    finish(folder, stage.plan, distance(BEST))
  return found


def test_stages_tune_then_compare_with_fresh_seeds(stages_of, tmp_path):
  plans = stages_of
  tune, result, untuned = (plans[name].plan for name in ('study-tune', 'study', 'study-untuned'))
  assert [*plans] == ['study-tune', 'study', 'study-untuned']
  assert (tune.tuning, result.tuning, untuned.tuning) == ('trials', 'tuned', 'untuned')
  assert {trial.seed for trial in tune.trials} == {FIRST_SEED, FIRST_SEED + 1}
  assert {trial.seed for trial in (*result.trials, *untuned.trials)} == {0, 1}
  assert {(t.seed, t.tuned_by) for t in result.trials} == {(i, FIRST_SEED + i) for i in range(2)}
  assert {trial.tuned_by for trial in (*tune.trials, *untuned.trials)} == {None}
  # relu is best at the largest value, so that all variants got one more.
  assert len(tune.trials) == 3 * 4 * 2 and len(result.trials) == len(untuned.trials) == 3 * 2
  chosen = {c.variant: (c.own, c.chosen, c.edge) for c in plans['study'].tuning.choices}
  assert chosen == {
    'gelu': (1e-2, 1e-2, ''),
    'relu': (1e-2, 3e-2, ''),
    'low': (1e-3, 1e-2, ''),
  }
  configs = plans['study'].configs
  peaks = {}
  for trial in result.trials:
    path = tmp_path / 'one.gin'
    path.write_text(configs[trial.folder])
    peaks[trial.variant] = read_config([path]).build().trainer.schedule.peak
  assert peaks == {'gelu': 1e-2, 'relu': 3e-2, 'low': 1e-2}
  # A variant with its own value shares the trials of both stages.
  folders, own = (
    {name: {trial.folder for trial in plan.trials if trial.variant == name} for name in BEST}
    for plan in (result, untuned)
  )
  assert folders['gelu'] == own['gelu'] and not folders['relu'] & own['relu']
  assert folders['low'] == folders['gelu'] and 'Cosine.peak = 0.001' in untuned.trials[-1].changes


def test_learning_rates_compile_nothing(stages_of):
  programs = [{trial.program for trial in stage.plan.trials} for stage in stages_of.values()]
  # gelu and low differ only in the learning rate; all stages have the same two programs.
  assert len(programs[0]) == 2 and programs[0] == programs[1] == programs[2]
  for stage in stages_of.values():
    assert all('Cosine.peak' in trial.numbers for trial in stage.plan.trials)
    assert not any('is not an input' in note for note in stage.notes)


def test_values_that_compile_programs_are_reported(tuned):
  sweep = tuned('Tune.parameter="AdamW.b2"', 'Tune.values=[0.9, 0.99]')
  planned = plan_tuning(sweep)
  assert [*planned.notes()] == [
    'AdamW.b2 is not an input of the compiled program: its values compile 4 programs'
  ]
  assert len({trial.program for trial in planned.plan.trials}) == 4


def test_the_first_parameter_that_a_variant_has_is_tuned(tuned):
  names = 'Tune.parameter=["LinearDecay.peak", "Cosine.peak"]'
  factors = ('Tune.values=()', 'Tune.factors=[0.5, 1, 2]')
  planned = plan_tuning(tuned(names, *factors, variants=LINEAR))
  values = {cell.variant: (cell.parameter, cell.own, [*cell.trials]) for cell in planned.cells}
  assert values['linear'] == ('LinearDecay.peak', 2e-3, [2e-3, 1e-3, 4e-3])
  assert values['gelu'][:2] == ('Cosine.peak', 1e-2)


def test_a_macro_is_tuned(sweep_file):
  file = sweep_file("{'gelu': {}}", TUNE.replace('Cosine.peak', 'rate'), base='rate = 5e-3\n')
  base = file.parent / 'base.gin'
  base.write_text(base.read_text() + 'Cosine.peak = %rate\n')
  (cell,) = plan_tuning(read_sweep(file)).cells
  assert (cell.own, len({t[FIRST_SEED].identity for t in cell.trials.values()})) == (5e-3, 3)


@pytest.mark.nightly
def test_every_point_of_the_grid_is_tuned_and_matched(tuned, tmp_path):
  variants = "{'gelu': {}, 'gated': {'Block.feed_forward': @GatedMLP, 'GatedMLP.hidden_dim': 32}}"
  match = ('Sweep.match=parameters', 'Sweep.knob=["MLP.hidden_dim", "GatedMLP.hidden_dim"]')
  sweep = tuned('Sweep.grid={"d_model": [8, 16]}', *match, variants=variants)
  best = {8: 1e-3, 16: 3e-2}
  for stage in stages(sweep, tmp_path, None):
    plan = stage.plan
    finish(tmp_path, plan, lambda t: abs(t.tuned.get('Cosine.peak', 0) - best[t.point['d_model']]))
    assert all(abs(trial.gap) < 0.01 and not trial.problem for trial in plan.trials)
    if plan.name == 'study':
      for trial in plan.trials:
        assert trial.tuned == {'Cosine.peak': best[trial.point['d_model']]}
      assert 'gated (d_model=16)  Cosine.peak' in tuning_table(stage.tuning)
      assert 'at the edge' not in tuning_table(stage.tuning), '1e-4 and 0.09 were added'


def seeds_at(best):
  """A loss whose minimum is at a value of each seed; comparison seeds have any."""
  return lambda trial: abs(trial.tuned['Cosine.peak'] - best.get(trial.seed, 0.0))


def test_each_seed_runs_at_the_value_that_its_tuning_seed_chose(tuned, tmp_path, monkeypatch):
  monkeypatch.setenv('COLUMNS', '120')
  best = {FIRST_SEED + i: value for i, value in enumerate([1e-2, 1e-2, 1e-3, 3e-2, 1e-2])}
  sweep = tuned('Sweep.seeds=5')
  tune, result, *_ = (
    finish(tmp_path, stage.plan, seeds_at(best)) or stage
    for stage in itertools.islice(stages(sweep, tmp_path, None), 2)
  )
  # 45 trials without those that low shares with gelu, 15 of the comparison.
  text = ' '.join(tune.notes[0].split())
  assert 'tuning study-tune 30 5 tuning seeds; up to 60 if' in text
  assert 'comparison study 15 at the tuned values untuned study-untuned 15 at the own' in text
  assert [(t.seed, t.tuned_by, t.tuned['Cosine.peak']) for t in result.plan.trials[:5]] == [
    (i, FIRST_SEED + i, best[FIRST_SEED + i]) for i in range(5)
  ]
  assert 'Cosine.peak 0.01 0.001 (1), 0.01 (3), 0.03 (1)' in ' '.join(result.notes[1].split())


def test_fewer_tuning_seeds_choose_for_blocks_of_seeds(tuned, tmp_path):
  best = {FIRST_SEED: 1e-2, FIRST_SEED + 1: 1e-3, FIRST_SEED + 2: 3e-2}
  for stage in itertools.islice(stages(tuned('Sweep.seeds=5', 'Tune.seeds=3'), tmp_path, None), 2):
    finish(tmp_path, stage.plan, seeds_at(best))
  assert [(t.seed, t.tuned_by - FIRST_SEED) for t in stage.plan.trials[:5]] == [
    (0, 0), (1, 1), (2, 2), (3, 0), (4, 1)
  ]  # fmt: skip
  assert [t.tuned['Cosine.peak'] for t in stage.plan.trials[:5]] == [1e-2, 1e-3, 3e-2, 1e-2, 1e-3]
  few = next(stages(tuned('Sweep.seeds=5', 'Tune.seeds=2'), tmp_path / 'few', None))
  assert 'no verdicts: they need 3 tuning seeds; increase Tune.seeds' in few.notes[0]


def test_further_seeds_of_the_baseline_are_tuned_too(tuned, tmp_path):
  rates = {f'v{i}': {'MLP.hidden_dim': 33 + i} for i in range(7)}
  sweep = tuned('Sweep.baseline_seeds=4', variants=str({'gelu': {}} | rates))
  for stage in itertools.islice(stages(sweep, tmp_path, None), 2):
    finish(tmp_path, stage.plan, distance(dict.fromkeys(sweep.variants, 1e-2)))
  found = {t.seed: t.tuned_by for t in stage.plan.trials if t.variant == 'gelu'}
  assert found == {i: FIRST_SEED + i for i in range(4)}
  assert len(stage.plan.trials) == 4 + 7 * 2


def end_of(sweep, folder, best):
  """Runs all stages; returns the choices by variant, and the number of values that each variant was tuned with."""
  for stage in stages(sweep, folder, None):
    finish(folder, stage.plan, distance(best))
    if stage.tuning is not None:
      tuning = stage.tuning
  return {choice.variant: choice for choice in tuning.choices}


def tried(choices):
  return {name: [item.value for item in choice.tried] for name, choice in choices.items()}


def test_all_grids_are_extended_until_no_value_is_at_the_edge(tuned, tmp_path):
  best = {'gelu': 1e-2, 'relu': 0.27, 'low': 1e-2}
  choices = end_of(tuned('Tune.max_trials=100'), tmp_path, best)
  # 1e-3, 1e-2 and 3e-2 continue by the factor of the last two.
  values = [1e-3, 1e-2, 3e-2, 0.09, 0.27, 0.81]
  assert tried(choices) == dict.fromkeys(best, values), 'the same values for all variants'
  assert {name: (choice.chosen, choice.problem) for name, choice in choices.items()} == {
    'gelu': (1e-2, ''),
    'relu': (0.27, ''),
    'low': (1e-2, ''),
  }


def test_the_budget_ends_the_extension_for_all_variants(tuned, tmp_path):
  # gelu and low share their trials: 12 with three values, 16 with four, 20 with five.
  choices = end_of(tuned('Tune.max_trials=19'), tmp_path, BEST | {'relu': 0.27})
  assert tried(choices) == {key: [0.001, 0.01, 0.03, 0.09] for key in BEST}
  assert choices['relu'].problem == 'the best Cosine.peak is the largest tried'
  assert choices['gelu'].problem == choices['low'].problem == ''


def test_a_natural_limit_is_not_an_edge(sweep_file, tmp_path):
  def choices(values, best, out):
    macro = 'dropout_rate = 0.1\nPreNorm.dropout_rate = %dropout_rate\n'
    extra = (
      f"  tune = @Tune()\n\nTune:\n  parameter = 'dropout_rate'\n  values = {values}\n  seeds = 1\n"
    )
    sweep = read_sweep(sweep_file("{'gelu': {}}", extra, base=macro))
    for stage in stages(sweep, tmp_path / out, None):
      finish(tmp_path / out, stage.plan, lambda t: abs(t.tuned.get('dropout_rate', 0.1) - best))
      if stage.tuning is not None:
        (choice,) = stage.tuning.choices
    return choice

  none = choices([0.0, 0.1, 0.2], 0.0, 'none')
  assert (none.chosen, none.edge, len(none.tried)) == (0.0, '', 3)
  # 0.2 and 0.4 are extended to 0.8, the last valid multiple.
  most = choices([0.2, 0.4], 0.9, 'most')
  assert [item.value for item in most.tried] == [0.2, 0.4, 0.8]
  assert (most.chosen, most.edge) == (0.8, 'largest')
  # An arithmetic step beyond 0.
  signed = choices([0.1, 0.3], 0.0, 'signed')
  assert signed.chosen < 0.1 and signed.edge == 'smallest'


def test_trials_of_both_values_are_in_the_table(tuned, tmp_path):
  table = plan_table(plan_tuning(tuned()).plan, tmp_path)
  text, numbers = (line for line in table.splitlines() if line.startswith('relu '))
  assert text == 'relu     MLP.activation = @relu; Cosine.peak = 0.001, 0.01, 0.03'
  assert numbers.split()[-1] == '0/6'


def test_candidates_are_tuned_again_and_confirmed_with_fresh_seeds(tuned, tmp_path):
  sweep = tuned('Sweep.seeds=5')

  def loss(trial):
    noise = np.random.default_rng([trial.seed, len(trial.changes)]).normal()
    return 3 + distance(BEST)(trial) + 0.01 * noise - (trial.variant == 'relu')

  def run(found):
    for stage in found:
      finish(tmp_path, stage.plan, loss)
      write_plan(tmp_path / stage.plan.name, stage.plan)
      if stage.tuning:
        write_tuning(tmp_path / stage.plan.name, stage.tuning)
      yield stage

  *_, untuned = run(stages(sweep, tmp_path, None))
  assert untuned.is_last
  *tunings, result = run(confirm_stages(sweep, tmp_path, None, 3))
  assert {stage.plan.name for stage in tunings} == {'study-confirm-tune'}
  assert {stage.name for stage in tunings} == {'confirm-tune'} and not tunings[0].is_last
  trials = result.plan.trials
  assert (result.name, result.plan.name, result.is_last) == ('confirm', 'study-confirm', True)
  assert {(t.seed, t.tuned_by) for t in trials} == {(5 + i, FIRST_SEED + 5 + i) for i in range(3)}
  assert {trial.variant for trial in trials} == {'gelu', 'relu'}
  assert {t.seed for t in tunings[0].plan.trials} == {FIRST_SEED + i for i in (5, 6, 7)}
  text = ' '.join(tunings[0].notes[0].split())
  assert 'comparison study-confirm 6 at the tuned values' in text and 'untuned' not in text
  verdicts = {row.variant: row.verdict for row in read_results(tmp_path / 'study-confirm').rows}
  assert verdicts == {'gelu': 'baseline', 'relu': 'helps'}


@pytest.mark.parametrize(
  ('overrides', 'message'),
  [
    (('Sweep.tune=@Tuner()',), 'Sweep.tune must be @Tune() or None, got @Tuner()'),
    (('Sweep.tune=@Tune',), 'Sweep.tune must be @Tune() or None, got @Tune'),
    (('Tune.value=[1]',), "Tune has no parameter 'value'; did you mean 'values'?"),
    (('x/Tune.seeds=1',), 'x/Tune.seeds: Tune has no scopes'),
    (('Tune.values=[]',), 'set exactly one of Tune.values and Tune.factors'),
    (('Tune.factors=[1, 2]',), 'set exactly one of Tune.values and Tune.factors'),
    (('Tune.values=[1]',), 'Tune.values = [1] has a single value'),
    (('Tune.values=[1, 2, 1.0]',), 'Tune.values contains 1 twice'),
    (('Tune.seeds=0',), 'Tune.seeds must be at least 1'),
    (('Tune.keep=0',), 'Tune.keep must be above 0 and at most 1'),
    (('Tune.keep=0.5',), 'Tune.keep = 0.5: each tuning seed chooses from all values'),
    (('Tune.seeds=3',), 'Tune.seeds = 3 is larger than the number of seeds, 2'),
    (('Tune.first_tuning_seed=3',), "Tune has no parameter 'first_tuning_seed'"),
    (('Sweep.first_tuning_seed=3',), "Sweep has no parameter 'first_tuning_seed'"),
    (('Tune.parameter="Trainer.seed"',), 'Tune.parameter binds Trainer.seed: set Sweep.seeds'),
    (('Tune.parameter=" "',), "Tune.parameter: ' ' cannot be used as a name"),
    (('Sweep.grid={"Cosine.peak": [1, 2]}',), "Tune.parameter = 'Cosine.peak' is also in Sweep.grid"),
    (
      ('Tune.parameter="d_model"', 'Sweep.match=parameters', 'Sweep.knob=d_model'),
      "Tune.parameter = 'd_model' is also in Sweep.knob",
    ),
    (('Sweep.seeds=[0, 1000001]',), 'contain the tuning seed 1000001'),
    (('Tune.max_trials=11',), 'Tune.max_trials = 11, but the tuning needs 12 trials'),
    (('Tune.parameter="Cosine.peek"',),
     "variant 'relu': it has no parameter Cosine.peek to tune; did you mean 'Cosine.peak'?"),
    (('Tune.parameter="MLP.activation"',), "variant 'gelu': MLP.activation = "),
    (('Tune.values=[0.1, 2000]',), "variant 'low': Cosine.peak must be above 0 and at most 1000, got 2000"),
    (('Tune.parameter="Cosine.final"', 'Tune.values=()', 'Tune.factors=[1, 2]'), 'Cosine.final'),
  ],
)  # fmt: skip
def test_mistakes_are_reported_before_anything_runs(tuned, overrides, message):
  with pytest.raises(UserError) as caught:
    plan_tuning(tuned(*overrides))
  assert caught.value.exit_code == 2 and message in str(caught.value)


def test_a_variant_without_the_parameter_is_named(tuned):
  with pytest.raises(UserError) as caught:
    plan_tuning(tuned(variants=LINEAR))
  (line,) = str(caught.value).splitlines()
  assert "variant 'linear': it has no parameter Cosine.peak to tune" in line


def test_a_budget_that_suffices_is_accepted(tuned):
  assert plan_tuning(tuned('Tune.max_trials=12')).num_trials == 12


def test_tuning_is_switched_off_or_on(tuned, tmp_path):
  (stage,) = stages(tuned('Sweep.tune=None'), tmp_path, None)
  assert stage.plan.tuning == 'none' and stage.is_last
  with pytest.raises(UserError, match=r'Tune.parameter has no effect: set Sweep.tune = @Tune\(\)'):
    tuned(extra=TUNE.replace('  tune = @Tune()\n', ''))
  with pytest.raises(UserError, match=r'Tune\.parameter must be set'):
    tuned(extra='  tune = @Tune()\n')


def test_another_metric_may_choose_than_the_verdicts_use(tuned):
  sweep = tuned('Sweep.metric=test/accuracy', 'Sweep.goal=max', 'Tune.metric=accuracy')
  planned = plan_tuning(sweep)
  assert (planned.plan.metric, planned.plan.goal) == ('accuracy', 'max')
  assert make_plan(sweep)[0].metric == 'test/accuracy'
  same = tuned('Sweep.metric=accuracy', 'Sweep.goal=max')
  assert plan_tuning(same).plan.metric == 'accuracy'
