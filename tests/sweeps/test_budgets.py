"""A knob is moved to where a quantity is nearest its target; budgets that cannot be matched are refused."""

import numpy as np
import pytest

from t2x.base.errors import UserError
from t2x.config import calls
from t2x.experiments import read_config
from t2x.sweeps.budgets import solve
from t2x.sweeps.plan import make_plan
from t2x.sweeps.sweep import read_sweep
from t2x.sweeps.tuning import plan_tuning


@pytest.fixture
def plan(sweep_file):
  """`plan(variants, extra, base)`: the first trial of each variant of a sweep, and all configs by folder."""

  def plan(variants, extra='', base=''):
    made, configs = make_plan(read_sweep(sweep_file(variants, extra, base)))
    return {trial.variant: trial for trial in reversed(made.trials)}, configs

  return plan


def nearest(measure, target, limit=5000):
  values = np.arange(1, limit)
  return values[np.argmin([abs(measure(int(v)) - target) for v in values])]


@pytest.mark.parametrize(
  'measure',
  [lambda v: 7 * v + 1000, lambda v: v * v, lambda v: 1e3 * np.sqrt(v)],
  ids=['linear', 'square', 'root'],
)
@pytest.mark.parametrize('start', [1, 40, 900])
@pytest.mark.parametrize('target', [2200.0, 9100.0])
def test_the_nearest_integer(measure, start, target):
  found = solve(measure, start, target, tolerance=0.0)
  assert abs(found.deviation) == pytest.approx(
    abs(measure(int(nearest(measure, target))) / target - 1), abs=1e-12
  )
  assert found.deviation == measure(found.value) / target - 1


def test_a_start_within_the_tolerance_stays():
  assert solve(lambda v: 100.0 * v, 100, 10_050.0, tolerance=0.01).value == 100


@pytest.mark.parametrize('fixed', [1e3, 5e5])
def test_few_values_are_tried(fixed):
  tried = []
  solve(lambda v: tried.append(v) or fixed + 3 * v, 256, 1_000_000.0, tolerance=0.001)
  assert len(tried) < 8


def test_values_that_are_refused_are_passed_over():
  def measure(value):
    if value % 3:
      raise UserError('layers do not divide')
    return 10.0 * value

  assert solve(measure, 6, 121.0, tolerance=0.01).value == 12


def test_an_unreachable_budget_gives_the_nearest_value_and_its_gap():
  found = solve(lambda v: 1000.0 + v, 50, 500.0, tolerance=0.01)
  assert (found.value, found.deviation) == (1, 1001 / 500 - 1)


def test_a_budget_without_any_valid_value_is_an_error():
  def measure(value):
    raise UserError('no')

  with pytest.raises(UserError, match='cannot be built'):
    solve(measure, 3, 1.0, tolerance=0.01)


def test_tokens_are_matched_by_steps(plan):
  variants = "{'gelu': {}, 'large': {'Trainer.batch_size': 64}, 'odd': {'Trainer.batch_size': 24}}"
  found, _ = plan(variants, "  match = 'tokens'\n  knob = 'Trainer.num_steps'\n")
  # 12 steps of 32 images.
  assert {name: trial.num_steps for name, trial in found.items()} == {
    'gelu': 12,
    'large': 6,
    'odd': 16,
  }
  assert all(trial.gap == 0 and not trial.problem for trial in found.values())


TWO = "{'gelu': {}, 'relu': {'MLP.activation': @relu}}"
GRID = """  match = 'tokens'
  knob = 'Trainer.num_steps'
  grid = {'Trainer.batch_size': [32, 64, 24]}
"""


def test_a_grid_of_batch_sizes_has_equal_tokens_with_one_budget(sweep_file):
  def steps(extra):
    made, configs = make_plan(read_sweep(sweep_file(TWO, GRID + extra)))
    assert not any(trial.problem for trial in made.trials)
    for trial in made.trials:
      assert f'num_steps = {trial.num_steps}' in configs[trial.folder]
    return {(t.variant, t.point['Trainer.batch_size']): t.num_steps for t in made.trials}

  equal = {32: 12, 64: 6, 24: 16}
  assert steps('  one_budget = True\n') == {
    (variant, batch): n for variant in ('gelu', 'relu') for batch, n in equal.items()
  }
  assert set(steps('').values()) == {12}


def test_learning_rates_are_tuned_at_each_batch_size_with_equal_tokens(sweep_file):
  tune = """  one_budget = True
  tune = @Tune()
Tune.parameter = 'Cosine.peak'
Tune.values = [0.003, 0.01, 0.03]
"""
  planned = plan_tuning(read_sweep(sweep_file(TWO, GRID + tune)))
  points = {
    (t.variant, t.point['Trainer.batch_size'], t.tuned['Cosine.peak']): t.num_steps
    for t in planned.plan.trials
  }
  assert len(points) == 2 * 3 * 3
  assert all(n * batch == 12 * 32 for (_, batch, _), n in points.items())


@pytest.mark.parametrize(
  ('extra', 'reason'),
  [
    ('  one_budget = True\n', 'there is no Sweep.grid'),
    ("  one_budget = True\n  match = None\n  grid = {'d_model': [16, 32]}\n", 'match is None'),
  ],
)
def test_one_budget_without_effect_is_refused(sweep_file, extra, reason):
  with pytest.raises(UserError, match=f'Sweep.one_budget has no effect: .*{reason}'):
    read_sweep(sweep_file(TWO, extra))


def test_equal_steps_of_other_batches_are_refused_with_their_deviation(plan):
  found, configs = plan("{'gelu': {}, 'large': {'Trainer.batch_size': 64}}")
  large = found['large']
  assert large.problem == '64 examples per step, and the baseline 32: Sweep.match is steps'
  assert large.gap == 1.0 and large.folder not in configs
  # Other tokens of the same images are equal steps.
  found, _ = plan("{'gelu': {}, 'coarse': {'PatchEmbedding.patch_size': 4}}")
  coarse = found['coarse']
  assert coarse.tokens_per_step < found['gelu'].tokens_per_step and not coarse.problem


TWO_SCOPES = """
Stack.blocks = [@a/Block, @b/Block]
num_layers = 2
a/MLP.hidden_dim = 32
b/MLP.hidden_dim = 48
"""


def test_a_knob_in_several_scopes_is_ambiguous_without_its_scope(plan, tmp_path):
  variants = "{'gelu': {}, 'thin': {'MultiHeadAttention.use_bias': False, 'd_model': 12}}"
  match = "  match = 'parameters'\n  knob = '{}'\n"
  found, _ = plan(variants, match.format('MLP.hidden_dim'), TWO_SCOPES)
  problem = found['thin'].problem
  assert problem.endswith(
    'MLP.hidden_dim has several values: a/MLP.hidden_dim = 32, b/MLP.hidden_dim = 48: '
    'add a scope to the name'
  )
  found, configs = plan(variants, match.format('b/MLP.hidden_dim'), TWO_SCOPES)
  thin = found['thin']
  assert thin.knob.startswith('b/MLP.hidden_dim = ') and not thin.problem
  path = tmp_path / 'thin.gin'
  path.write_text(configs[thin.folder])
  widths = {
    call.values['hidden_dim'] for call in calls(read_config([path]).root) if call.part.name == 'MLP'
  }
  assert widths == {32, int(thin.knob.partition(' = ')[2])}
