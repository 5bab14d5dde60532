"""Trials of a sweep: what they are, what they cost, and that budgets are equal."""

import sys

import jax
import pytest
from flax import nnx

from t2x.base.errors import UserError
from t2x.config import calls
from t2x.experiments import read_config
from t2x.sweeps.cost import cost_of
from t2x.sweeps.plan import make_plan
from t2x.sweeps.plan_table import plan_table
from t2x.sweeps.records import Outcome, read_plan, write_outcome, write_plan
from t2x.sweeps.report import write_report
from t2x.sweeps.sweep import read_sweep
from t2x.tasks import ImageClassification
from t2x.train import AdamW

PARAMETERS = """
  match = 'parameters'
  knob = ['MLP.hidden_dim', 'GatedMLP.hidden_dim']
"""


@pytest.fixture
def plan(sweep_file):
  """`plan(extra, *overrides)`: the plan of the sweep with more lines."""

  def plan(extra='', *overrides, step_seconds=None, **replaced):
    file = sweep_file(extra=extra, **replaced)
    return make_plan(read_sweep(file, overrides), step_seconds)

  return plan


def by_variant(made):
  return {trial.variant: trial for trial in made.trials}


def count(text, tmp_path):
  """Parameters of a config, counted by tracing its construction."""
  path = tmp_path / 'one.gin'
  path.write_text(text)
  build = read_config([path]).build().model
  model = jax.eval_shape(lambda: build(rngs=nnx.Rngs(0)))
  return sum(leaf.size for leaf in jax.tree.leaves(model))


def test_every_variant_has_every_seed_and_its_bindings(plan, tmp_path):
  made, configs = plan()
  assert [(t.variant, t.seed) for t in made.trials] == [
    (variant, seed) for variant in ('gelu', 'relu', 'gated') for seed in (0, 1)
  ]
  assert by_variant(made)['relu'].changes == ('MLP.activation = @relu',)
  assert by_variant(made)['relu'].unused == ()
  assert by_variant(made)['gated'].unused == ('MLP.activation', 'MLP.hidden_dim')
  for trial in made.trials:
    text = configs[trial.folder]
    assert f'seed = {trial.seed}' in text
    assert trial.parameters == count(text, tmp_path)
  assert len({trial.identity for trial in made.trials}) == 3
  assert len(configs) == 6


def test_selected_variants_are_run_with_the_baseline(plan):
  made, configs = plan('', 'Sweep.only=["gated"]')
  assert [trial.variant for trial in made.trials] == ['gelu', 'gelu', 'gated', 'gated']
  _, every = plan('')
  assert configs == {one.folder: every[one.folder] for one in made.trials}


def test_parameters_are_matched_by_the_knob_that_a_variant_has(plan):
  made, _ = plan(PARAMETERS)
  found = by_variant(made)
  assert found['relu'].knob == ''
  assert found['gated'].knob.startswith('GatedMLP.hidden_dim = ')
  for trial in made.trials:
    assert abs(trial.parameters / found['gelu'].parameters - 1) <= 0.01
    assert trial.gap == trial.parameters / found['gelu'].parameters - 1
  # The knob's binding stands in the place of the one that it moved.
  assert len(found['gated'].changes) == 3


def test_training_flops_are_matched_by_steps(plan):
  made, _ = plan("  match = 'flops'\n  knob = 'Trainer.num_steps'\n", 'Trainer.num_steps=1000')
  found = by_variant(made)
  flops = {n: t.flops_per_token * t.tokens_per_step * t.num_steps for n, t in found.items()}
  assert found['gated'].num_steps < 1000
  assert flops['gated'] == pytest.approx(flops['gelu'], rel=0.01)


def test_seconds_are_matched_as_measured(plan):
  def step_seconds(config, identity):
    return 3.0 if any(call.part.name == 'GatedMLP' for call in calls(config.root)) else 1.0

  made, _ = plan(
    "  match = 'seconds'\n  knob = 'Trainer.num_steps'\n",
    'Trainer.num_steps=300',
    step_seconds=step_seconds,
  )
  assert by_variant(made)['gated'].num_steps == 100


def test_values_of_a_knob_that_cannot_be_built_are_skipped(plan, monkeypatch):
  tried = []

  def cost(experiment):
    tried.append(experiment)
    # The baseline, two variants, and what the search tries first.
    return cost_of(experiment) if len(tried) != 4 else 1 // 0

  monkeypatch.setattr('t2x.sweeps.plan.cost_of', cost)
  made, _ = plan(PARAMETERS)
  gated = by_variant(made)['gated']
  assert gated.knob and not gated.problem and len(tried) > 4


def test_an_unreachable_budget_is_reported_and_not_run(plan, tmp_path):
  made, configs = plan("  match = 'parameters'\n  knob = 'MLP.hidden_dim'\n")
  gated = by_variant(made)['gated']
  # Nor does its config lie where a sweep that runs it would take it for its own.
  assert gated.folder not in configs and len(configs) == 4
  (tmp_path / gated.folder).mkdir()
  write_outcome(tmp_path / gated.folder, Outcome(status='finished'))
  assert (
    'more parameters than the baseline, and it has no parameter MLP.hidden_dim to adjust'
    in gated.problem
  )
  table = plan_table(made, tmp_path)
  text, row = (line for line in table.splitlines() if line.startswith('gated  '))
  assert 'Block.feed_forward = @GatedMLP' in text
  assert row.split()[5:7] == ['unmatched', '-']
  assert 'gated is not run: ' in table and '4 of 4 trials to run, 2 programs to compile' in table


def test_a_variant_with_other_steps_is_reported_where_steps_must_match(plan):
  made, _ = plan('', variants="{'gelu': {}, 'long': {'Trainer.num_steps': 24}}")
  assert 'steps' in by_variant(made)['long'].problem


def test_macros_of_the_sweep_file_hold_for_trials_whose_base_knows_them(plan):
  variants = "{'gelu': {}, 'warm': {'Cosine.warmup_steps': %warm}}"
  file = '\nwarm = %steps\nsteps = 6\ncount = %number\nnumber = 1\nSweep.seeds = %count\n'
  base = 'Trainer.num_steps = %steps\nsteps = 12\n'
  made, configs = plan(file, base=base, variants=variants)
  assert {trial.num_steps for trial in made.trials} == {6}
  assert 'warmup_steps = 6' in configs[by_variant(made)['warm'].folder]
  # What `Sweep` alone uses is nothing to them.
  assert len(made.trials) == 2 and 'number' not in made.config


def test_a_macro_that_only_the_other_bindings_know_holds_too(plan):
  file = '\nwarm = 3\nSweep.seeds = %warm\nCosine.warmup_steps = %warm\n'
  made, _ = plan(file)
  assert 'warmup_steps = %warm' in made.config and len(made.trials) == 9


@pytest.mark.parametrize(
  ('metric', 'goal', 'found'),
  [
    ('loss', None, 'min'),
    ('far/loss', None, 'min'),
    ('accuracy', None, 'max'),
    ('accuracy', 'min', 'min'),
    ('perplexity', 'min', 'min'),
  ],
)
def test_the_task_declares_the_direction_of_its_metric(plan, monkeypatch, metric, goal, found):
  monkeypatch.setattr(ImageClassification, 'best_metric', 'accuracy')
  monkeypatch.setattr(ImageClassification, 'best_mode', 'max')
  overrides = [f'Sweep.metric="{metric}"', f'Sweep.goal={goal}']
  made, _ = plan('', *overrides, variants="{'gelu': {}}")
  assert made.goal == found


def test_a_grid_has_a_baseline_at_every_point(plan):
  made, _ = plan("  grid = {'d_model': [16, 32]}\n" + PARAMETERS)
  assert len(made.trials) == 3 * 2 * 2
  for width in (16, 32):
    here = [t for t in made.trials if t.point == {'d_model': width}]
    assert here[0].variant == 'gelu'
    assert all(abs(t.parameters / here[0].parameters - 1) <= 0.01 for t in here)


def test_a_grid_of_references_and_lists_is_stored_completely(plan, tmp_path):
  shapes = "'ImageClassification.image_shape': [(8, 8, 1)], 'Trainer.writers': [[]]"
  made, _ = plan(
    f"  grid = {{'MLP.activation': [@gelu, @relu], {shapes}}}\n",
    variants="{'gelu': {}, 'narrow': {'d_model': 8}}",
  )
  assert made.trials[0].point == {
    'MLP.activation': '@gelu',
    'ImageClassification.image_shape': '(8, 8, 1)',
    'Trainer.writers': '[]',
  }
  assert 'MLP.activation=@relu' in plan_table(made, tmp_path)
  write_plan(tmp_path / 'kept', made)
  assert read_plan(tmp_path / 'kept') == made
  write_report(tmp_path / 'kept')
  assert 'activation = @relu' in (tmp_path / 'kept' / 'report.md').read_text()


def test_a_variant_in_a_file_binds_no_axis_but_by_what_it_includes(plan, tmp_path):
  grid = "  grid = {'d_model': [16, 32]}\n"
  variants = "{'gelu': {}, 'own': 'own.gin'}"
  (tmp_path / 'own.gin').write_text("include 'base.gin'\nMLP.hidden_dim = 8\n")
  made, _ = plan(grid, variants=variants)
  assert len(made.trials) == 8
  (tmp_path / 'own.gin').write_text('d_model = 8\n')
  with pytest.raises(UserError, match=r"variants\['own'\] binds d_model, an axis of Sweep.grid"):
    plan(grid, variants=variants)


def test_equal_variants_are_one_trial(plan):
  made, configs = plan('', variants="{'gelu': {}, 'same': {'MLP.activation': @gelu}}")
  assert len({trial.folder for trial in made.trials}) == 2 == len(configs)


def test_a_plan_of_long_names_and_many_changes_fits_the_terminal(plan, tmp_path, monkeypatch):
  variants = """{
    'gelu': {},
    'a_variant_with_a_long_name_and_many_changes': {
      'MLP.activation': @relu, 'Cosine.peak': 3e-3, 'AdamW.weight_decay': 0.1, 'Trainer.clip_norm': None,
      'Trainer.ema_decay': 0.9,
    },
  }"""
  made, _ = plan('  grid = {"d_model": [16, 32]}\n', variants=variants)
  for width in (80, 100, 200):
    monkeypatch.setenv('COLUMNS', str(width))
    table = plan_table(made, tmp_path, later=4)
    assert max(map(len, table.splitlines())) <= width
    assert '4 trials in the stages that follow' in table
    text = ' '.join(table.split())
    assert 'AdamW.weight_decay = 0.1; Trainer.clip_norm = None; Trainer.ema_decay = 0.9' in text


def test_equal_variants_are_marked_in_the_table(plan, tmp_path):
  made, _ = plan(
    '',
    variants="{'gelu': {}, 'same': {'MLP.activation': @gelu}, 'relu': {'MLP.activation': @relu}}",
  )
  lines = plan_table(made, tmp_path).splitlines()
  assert 'gelu and same have the same config and share their trials' in lines


@pytest.mark.parametrize(
  ('seconds', 'text'),
  [(6.0, '6 s'), (300.0, '5 minutes'), (5400.0, '90 minutes'), (3.6e6, '1,000.0 hours')],
)
def test_the_estimated_time_has_a_readable_unit(plan, tmp_path, seconds, text):
  made, _ = plan()
  first, *others = made.trials
  flops = first.flops_per_token * first.tokens_per_step * first.num_steps
  seconds *= flops / sum(t.flops_per_token * t.tokens_per_step * t.num_steps for t in others)
  (tmp_path / first.folder).mkdir()
  write_outcome(tmp_path / first.folder, Outcome(status='finished', seconds=seconds))
  assert f'estimated time {text} in one process' in plan_table(made, tmp_path)


def test_a_binding_without_effect_is_refused(plan, tmp_path):
  (tmp_path / 'own.gin').write_text('MLP.hidden_dim = 8\n')
  variants = "{'gelu': {}, 'own': 'own.gin', 'dict': {'MLP.hidden_dim': 24}}"
  with pytest.raises(UserError) as caught:
    plan('\nMLP.hidden_dim = 16\n', variants=variants)
  # What the variant binds itself wins over the sweep file, what its file binds does not.
  (line,) = str(caught.value).splitlines()
  assert (
    f"variant 'own': MLP.hidden_dim = 8 ({tmp_path}/own.gin:1) has no effect: overridden by "
    in line
  )
  assert f'overridden by MLP.hidden_dim = 16 ({tmp_path}/study.gin or --gin)' in line
  (tmp_path / 'own.gin').write_text('Cosine.warmup_steps = 4\n')
  made, _ = plan('\nMLP.hidden_dim = 16\n', variants=variants)
  assert by_variant(made)['dict'].parameters > by_variant(made)['own'].parameters


def test_a_scoped_binding_of_the_sweep_file_hides_no_variant(plan):
  base = '\nExperiment.model = @x/VisionTransformer\n'
  variants = "{'gelu': {}, 'wide': {'MLP.hidden_dim': 64}}"
  with pytest.raises(
    UserError, match=r"variant 'wide': MLP.hidden_dim = 64 has no effect: overridden by x/MLP"
  ):
    plan('\nx/MLP.hidden_dim = 16\n', variants=variants, base=base)
  made, _ = plan('', variants=variants, base=base + 'x/MLP.hidden_dim = 16\n')
  assert by_variant(made)['wide'].parameters > by_variant(made)['gelu'].parameters


def test_a_gin_file_as_a_variant_equals_its_bindings_in_a_mapping(plan, tmp_path):
  base = '\nExperiment.model = @x/VisionTransformer\nx/MLP.hidden_dim = 16\n'
  (tmp_path / 'file.gin').write_text('MLP.hidden_dim = 64\n')
  variants = "{'gelu': {}, 'mapping': {'MLP.hidden_dim': 64}, 'file': 'file.gin'}"
  made = by_variant(plan('', variants=variants, base=base)[0])
  assert made['file'].parameters == made['mapping'].parameters > made['gelu'].parameters
  assert made['file'].identity == made['mapping'].identity


def test_a_scoped_binding_of_the_sweep_file_hides_no_part_of_a_variant(plan):
  base = '\nStack.blocks = [@a/Block, @Block]\nnum_layers = 2\n'
  variants = "{'gelu': {}, 'wide': {'MLP.hidden_dim': 64}}"
  with pytest.raises(
    UserError, match=r'MLP.hidden_dim = 64 has no effect for some parts: overridden by a/MLP'
  ):
    plan('\na/MLP.hidden_dim = 16\n', variants=variants, base=base)


def test_annotations_decide_which_variants_share_a_program(plan):
  variants = """{
    'gelu': {'PreNorm.dropout_rate': 0.1, 'Stack.stochastic_depth': 0.1},
    'dropout': {'PreNorm.dropout_rate': 0.3, 'Stack.stochastic_depth': 0.1},
    'depth': {'PreNorm.dropout_rate': 0.1, 'Stack.stochastic_depth': 0.2},
    'none': {'PreNorm.dropout_rate': 0.1, 'Stack.stochastic_depth': 0.0},
    'b2': {'PreNorm.dropout_rate': 0.1, 'Stack.stochastic_depth': 0.1, 'AdamW.b2': 0.9},
  }"""
  made, _ = plan(variants=variants)
  found = by_variant(made)
  programs = {name: trial.program for name, trial in found.items()}
  assert programs['gelu'] == programs['dropout'] == programs['depth']
  assert len({programs['gelu'], programs['none'], programs['b2']}) == 3
  assert found['depth'].numbers == {'PreNorm.dropout_rate': 0.1, 'Stack.stochastic_depth': 0.2}
  assert found['none'].numbers == found['b2'].numbers == {}


def test_a_hyperparameter_at_its_default_shares_the_program(plan):
  default = AdamW().weight_decay
  variants = (
    f"{{'gelu': {{'AdamW.weight_decay': {default}}}, 'more': {{'AdamW.weight_decay': 0.3}}}}"
  )
  made, _ = plan(variants=variants)
  assert len({trial.program for trial in made.trials}) == 1 and default


def test_more_seeds_keep_the_trials_that_were(plan):
  few, _ = plan()
  many, _ = plan('', 'Sweep.seeds=4')
  assert {t.folder for t in few.trials} < {t.folder for t in many.trials}


def test_the_baseline_may_have_more_seeds(plan):
  variants = "{'gelu': {}, " + ', '.join(f"'v{i}': {{}}" for i in range(7)) + '}'
  made, _ = plan('', 'Sweep.baseline_seeds=4', 'Sweep.seeds=[3, 1]', variants=variants)
  seeds = {}
  for trial in made.trials:
    seeds.setdefault(trial.variant, []).append(trial.seed)
  assert seeds.pop('gelu') == [3, 1, 4, 5] and set(map(tuple, seeds.values())) == {(3, 1)}


def test_a_variant_may_be_a_file(plan, tmp_path):
  (tmp_path / 'wide.gin').write_text('d_model = 32\n')
  made, _ = plan('', variants="{'gelu': {}, 'wide': 'wide.gin'}")
  found = by_variant(made)
  assert found['wide'].parameters > found['gelu'].parameters
  assert found['wide'].changes[0].endswith('wide.gin')


def test_a_plan_is_stored_completely(plan, tmp_path):
  made, _ = plan(PARAMETERS)
  write_plan(tmp_path / 'kept', made)
  assert read_plan(tmp_path / 'kept') == made
  with pytest.raises(UserError, match=r'did you mean .*kept'):
    read_plan(tmp_path)


@pytest.mark.parametrize(
  ('variants', 'overrides', 'lines'),
  [
    ("{'gelu': {}, 'a': {'MLP.actvation': @relu}}", (), ["variant 'a': MLP has no parameter 'actvation'"]),
    ("{'gelu': {}, 'a': {'MLP.hidden_dim': 'x'}}", (), ["variant 'a': MLP.hidden_dim must be an integer"]),
    ("{'gelu': {}, 'a': {'MultiHeadAttention.num_heads': 3}}", (), ["variant 'a': "]),
    ("{'gelu': {}, 'a': {'GatedMLP.hidden_dim': 3}}", (), ['nothing uses GatedMLP.hidden_dim']),
    ("{'gelu': {}, 'a': {'Cosine.warmup_steps': 99}}", (), ["variant 'a': Cosine.warmup_steps = 99"]),
    ("{'relu': {}}", (), ["Sweep.baseline = 'gelu' is not one of relu"]),
    ("{'gelu': 3}", (), ["Sweep.variants['gelu'] must be a dict of bindings or a gin file"]),
    ("{'gelu': 'no.gin'}", (), ["there is no file 'no.gin'"]),
    ("{'gelu': {}}", ('Sweep.sedes=3',), ["Sweep has no parameter 'sedes'; did you mean 'seeds'?"]),
    ("{'gelu': {}, 'relu': {}}", ('Sweep.only=["rulu"]',),
     ["Sweep.only contains 'rulu', which is not in Sweep.variants; did you mean 'relu'?"]),
    ("{'gelu': {}}", ('Sweep.seeds=0',), ['Sweep.seeds must be at least 1']),
    ("{'gelu': {}}", ('Sweep.seeds=[]',), ['Sweep.seeds must not be empty']),
    ("{'gelu': {}}", ('Sweep.seeds=[1, 1]',), ['contains a seed twice']),
    ("{'gelu': {}}", ('Sweep.grid={"d_model": [2, 4, 2]}',), ["Sweep.grid['d_model'] contains 2 twice"]),
    ("{'gelu': {}, 'a': {'d_model': 8}}", ('Sweep.grid={"d_model": [2, 4]}',), ["['a'] binds d_model, an axis"]),
    ("{'gelu': {}, 'a': {'Trainer.seed': 8}}", (), ["['a'] binds Trainer.seed: set Sweep.seeds instead"]),
    ("{'gelu': {}}", ('Sweep.grid={"Trainer.seed": [0, 1]}',), ["binds Trainer.seed: set Sweep.seeds instead"]),
    ("{'gelu': {}, 'a': {'MLP.hidden_dim': 0}}", (), ["variant 'a': MLP.hidden_dim must be at least 1"]),
    ("{'gelu': {}, 'a': {'num_layers': 0}}", (), ["variant 'a': ", 'Stack.unroll must be at least 1']),
    ("{'gelu': {}, 'a': {'MultiHeadAttention.num_heads': 3}}", (), ["variant 'a': "]),
    ("{'gelu': {}, 'a': {}, 'a': {'d_model': 8}}", (), ["study.gin:4: syntax error: the dict has the key 'a' twice"]),
    ("{'gelu': {}}\n\nimport json\n\nSweep:\n", (),
     ['study.gin:6: import json: imports of a sweep file have no effect on trials']),
    ("{'gelu': {}}", ('Sweep.goal=high',), ["Sweep.goal must be 'min', 'max' or None"]),
    ("{'gelu': {}}", ('Sweep.metric=accuracy',), ["Sweep.goal is missing: set it to 'min' or 'max' for 'accuracy'"]),
    ("{'gelu': {}}", ('Sweep.match=flops',), ["Sweep.match = 'flops' needs Sweep.knob"]),
    ("{'gelu': {}}", ('Sweep.knob=d_model',), ['has no effect']),
    ("{'gelu': {}}", ('Sweep.match=flops', 'Sweep.knob=["d_model", "MLP.hiden_dim"]'),
     ["there is no parameter or macro 'MLP.hiden_dim'; did you mean 'MLP.hidden_dim'?"]),
    ("{'gelu': {}}", ('Sweep.match=flops', 'Sweep.knob=dmodel'),
     ["there is no parameter or macro 'dmodel'; did you mean 'd_model'?"]),
    ("{'gelu': {}}\n\nMLP.actvation = @relu\n\nSweep:\n", (), ["study.gin or --gin: MLP has no parameter 'actvation'"]),
    ("{'gelu': {}}", ('x=%y', 'y=%x', 'Sweep.seeds=%x'), ['macro %x refers to itself']),
    ("{'gelu': {}, 'a\\x1b[31m': {}}", (), ["Sweep.variants: 'a\\x1b[31m' cannot be used as a name"]),
    ("{'gelu': {}, '\\u202ea': {}}", (), ["Sweep.variants: '\\u202ea' cannot be used as a name"]),
    ("{'gelu': {}, 'a': 'b\\n.gin'}", (), ["Sweep.variants: 'b\\n.gin' cannot be used as a name"]),
    ("{'gelu': {}, 'gelu ': {'d_model': 8}}", (), ["Sweep.variants: 'gelu ' cannot be used as a name"]),
    ("{'gelu': {}, '': {'d_model': 8}}", (), ["Sweep.variants: '' cannot be used as a name"]),
    ("{'gelu': {}, 'a': {1: 8}}", (), ["Sweep.variants['a'] binds 1, which is not a name"]),
    ("{'gelu': {}}", ('Sweep.metric=""',), ["Sweep.metric must not be empty, got ''"]),
    ("{'gelu': {}}", ('Sweep.metric="lo\\x07ss"',), ["Sweep.metric: 'lo\\x07ss' cannot be used as a name"]),
    ("{'gelu': {}}", ('Sweep.base=[]',), ['Sweep.base must not be empty, got []']),
    ("{'gelu': {}}", ('Sweep.seeds=[-1]',), ['Sweep.seeds must be at least 0 and at most 4294967295, got -1']),
    ("{'gelu': {}}", ('Sweep.seeds=[0, 4294967296]',), ['Sweep.seeds must be at least 0 and at most 4294967295']),
    ("{'gelu': {}}", ('Trainer.seed=3',), ['Trainer.seed: set Sweep.seeds instead']),
    ("{'gelu': {}}", ('big/Trainer.seed=3',), ['big/Trainer.seed: set Sweep.seeds instead']),
    ("{'gelu': {}}", ('big/Sweep.seeds=3',), ['big/Sweep.seeds: Sweep has no scopes']),
    ("{'gelu': {}}", ('Sweep.max_seeds=1',), ['Sweep.max_seeds = 1 is smaller than the number of seeds, 2']),
    ("{'gelu': {}}", ('Sweep.baseline_seeds=1',), ['Sweep.baseline_seeds = 1 is smaller than the number of seeds, 2']),
    ("{'gelu': {}, 'a': {}}", ('Sweep.baseline_seeds=20',),
     ['Sweep.baseline_seeds = 20 has no effect: with fewer than 7 variants']),
    ("{'gelu': {}}", ('Sweep.margin=0',), ['Sweep.margin must be above 0']),
    ("{'gelu': {}}", ('Sweep.metric=accuracy', 'Sweep.goal=max', 'Sweep.failed_above=3'),
     ["Sweep.failed_above has no effect: a higher 'accuracy' is better"]),
    ("{'gelu': {}}", ('Sweep.failed_below=0.2',), ["Sweep.failed_below has no effect: a lower 'loss' is better"]),
    ("{'gelu': {}}", ('Sweep.tolerance=-0.1',), ['Sweep.tolerance must be at least 0 and below 1']),
    ("{'gelu': {}}", ('Sweep.grid={"Cosine.peak": [1, 1.0]}',), ["Sweep.grid['Cosine.peak'] contains 1 twice"]),
    ("{'gelu': {}}", ('Sweep.grid={"MLP.activation": [@gelu, "@gelu"]}',),
     ["Sweep.grid['MLP.activation'] contains @gelu twice"]),
    ("{'gelu': {}}", ('Sweep.grid={"d_model": [8, 16]}', 'Sweep.match=parameters', 'Sweep.knob=d_model'),
     ["Sweep.grid['d_model'] is also in Sweep.knob"]),
  ],
)  # fmt: skip
def test_mistakes_are_errors_before_any_trial(plan, variants, overrides, lines):
  with pytest.raises(UserError) as caught:
    plan('', *overrides, variants=variants)
  assert caught.value.exit_code == 2
  for line in lines:
    assert line in str(caught.value)


def test_the_seed_is_the_parameter_annotated_as_one(plan, tmp_path, monkeypatch):
  monkeypatch.setattr(sys, 'path', [*sys.path])
  monkeypatch.setenv('T2X_TRUST', str(tmp_path))
  (tmp_path / 'own_trainer.py').write_text(
    'import dataclasses\n'
    'from t2x.base.ranges import TrialSeed\n'
    'from t2x.train import Trainer\n'
    '@dataclasses.dataclass(frozen=True, kw_only=True)\n'
    'class OwnTrainer(Trainer):\n'
    '  seed: TrialSeed = 3\n'
  )
  own = 'import own_trainer\nExperiment.trainer = @own/OwnTrainer()\nOwnTrainer:\n  num_steps = 12\n  batch_size = 32\n'
  made, configs = plan(base=own, variants="{'gelu': {}}")
  assert len({trial.identity for trial in made.trials}) == 1
  for trial in made.trials:
    (tmp_path / 'trial.gin').write_text(configs[trial.folder])
    assert read_config([tmp_path / 'trial.gin']).build().trainer.seed == trial.seed
