"""Every variant of every study resolves, and is traced at night."""

import csv
import functools
import io
import sys
from pathlib import Path

import pytest

from t2x.experiments import read_config
from t2x.sweeps.sweep import read_sweep
from t2x.train import check_experiment

STUDIES = Path(__file__).parents[2] / 'experiments'
# Variants and seeds.
SWEEPS = {
  'positions/causal_lm': (7, 8),
  'positions/masked_lm': (7, 8),
  'positions/more_causal_lm': (11, 5),
  'positions/more_masked_lm': (10, 5),
  'norm_and_warmup/sweep': (4, 6),
  'norm_and_warmup/deep': (9, 3),
  'norm_and_warmup/deep_warmup': (9, 3),
  'patterns/patterns': (7, 3),
  'long_range/recall_sweep': (17, 3),
  'long_range/pixels_sweep': (17, 3),
  'long_range/listops_sweep': (17, 3),
  'vit_regularisation/sweep': (7, 8),
  'attention_basics/scale': (2, 8),
  'attention_basics/heads': (6, 8),
  'attention_basics/mask_rate': (5, 8),
  'scaling/sweep': (5, 3),
  'switches/sweep': (14, 5),
  'tokenizers/sweep': (7, 3),
  'experts/sweep': (15, 3),
  'before_transformers/rates': (5, 1),
  'before_transformers/copying': (5, 3),
  'before_transformers/dates': (3, 3),
  'before_transformers/examples': (2, 3),
  'before_transformers/examples_rates': (2, 1),
  'before_transformers/recall': (3, 3),
  'before_transformers/recall_rates': (3, 1),
  'before_transformers/translation': (3, 3),
  'before_transformers/translation_tuning': (3, 1),
  'few_labels/labels_100': (2, 3),
  'few_labels/labels_1000': (2, 3),
  'few_labels/labels_8000': (2, 3),
  'architectures/architectures': (6, 3),
  'architectures/architectures_full': (6, 5),
  'architectures/distillation': (2, 3),
  'architectures/images': (6, 3),
  'architectures/images_full': (6, 5),
  'architectures/rates': (6, 1),
  'architectures/unlabelled': (2, 3),
  'objectives/pretraining': (10, 3),
  'objectives/pretraining_full': (10, 5),
  'objectives/sentiment': (12, 3),
  'objectives/sentiment_full': (12, 5),
  'objectives/words': (12, 3),
  'objectives/words_full': (12, 5),
  'video/digit': (4, 3),
  'video/direction': (4, 3),
}
# Sweeps with the trials of another one: they differ in the metric.
OTHER_METRICS = {
  'positions/causal_lm_2x': 'positions/causal_lm',
  'positions/causal_lm_4x': 'positions/causal_lm',
  'positions/masked_lm_2x': 'positions/masked_lm',
  'positions/masked_lm_4x': 'positions/masked_lm',
  'positions/more_causal_lm_2x': 'positions/more_causal_lm',
  'positions/more_causal_lm_4x': 'positions/more_causal_lm',
  'positions/more_masked_lm_2x': 'positions/more_masked_lm',
  'positions/more_masked_lm_4x': 'positions/more_masked_lm',
  'attention_basics/mask_rate_at_40': 'attention_basics/mask_rate',
  'before_transformers/copying_100': 'before_transformers/copying',
  'before_transformers/dates_4': 'before_transformers/dates',
  'before_transformers/recall_10': 'before_transformers/recall',
}


@functools.cache
def sweep_of(name):
  return read_sweep(STUDIES / f'{name}.gin')


@pytest.mark.parametrize('name', SWEEPS)
def test_every_variant_resolves_at_every_point(name):
  sweep = sweep_of(name)
  assert (len(sweep.variants), len(sweep.seed_list)) == SWEEPS[name]
  configs = {arm.title: read_config(arm.files, arm.bindings).build() for arm in sweep.arms()}
  # No two are the same experiment.
  assert len({repr(config) for config in configs.values()}) == len(configs)


@pytest.mark.parametrize(
  ('whole', 'name'),
  [
    ('experts/sweep', 'experts/rates'),
    ('experts/sweep', 'experts/number_and_k'),
    ('objectives/sentiment', 'objectives/sentiment_pairs'),
    ('objectives/words', 'objectives/words_pairs'),
  ],
)
def test_sweeps_of_a_study_share_trials(whole, name):
  sweep, other = sweep_of(whole), sweep_of(name)
  trials = {(arm.variant, arm.files, arm.bindings) for arm in sweep.arms()}
  assert trials.issuperset((arm.variant, arm.files, arm.bindings) for arm in other.arms())
  assert {*sweep.seed_list} <= {*other.seed_list}


def test_every_feed_forward_layer_resolves_over_the_base():
  sweep = sweep_of('feed_forward/sweep')
  base = read_config(sweep.base_files, sweep.shared)
  configs = [read_config(arm.files, arm.bindings, base=base).build() for arm in sweep.arms()]
  assert len({repr(config) for config in configs}) == 5
  assert all(config.evaluations == {} for config in configs)


@pytest.mark.parametrize('name', OTHER_METRICS)
def test_another_metric_reuses_the_trials(name):
  sweep, other = sweep_of(name), sweep_of(OTHER_METRICS[name])
  assert list(sweep.arms()) == list(other.arms())
  evaluation, _, metric = sweep.metric.partition('/')
  arm = next(sweep.arms())
  assert evaluation in read_config(arm.files, arm.bindings).build().evaluations
  assert (metric, sweep.margin) == (other.metric.rpartition('/')[2], other.margin)
  assert sweep.metric != other.metric


def test_the_pre_norm_sweep_reuses_trials():
  arms = {(arm.files, arm.bindings) for arm in sweep_of('norm_and_warmup/sweep').arms()}
  own = [(arm.files, arm.bindings) for arm in sweep_of('norm_and_warmup/pre_norm').arms()]
  assert len(own) == 12 and arms.issuperset(own)


# The smallest point of the grid: the others have more of the same layers, or of the same images.
@pytest.mark.nightly
@pytest.mark.parametrize('name', SWEEPS)
def test_every_variant_shapes(name):
  arms = {}
  for arm in sweep_of(name).arms():
    arms.setdefault(arm.variant, arm)
  assert arms.keys() == {*sweep_of(name).names}
  for variant, arm in arms.items():
    report = check_experiment(read_config(arm.files, arm.bindings).build())
    assert 'parameters' in report, variant


@pytest.mark.parametrize('study', sorted({name.split('/')[0] for name in SWEEPS}))
def test_the_readme_names_the_commands(study):
  text = (STUDIES / study / 'README.md').read_text()
  for name in SWEEPS:
    if name.startswith(f'{study}/'):
      assert f't2x sweep experiments/{name}.gin' in text
  assert '## Results' in text and 'Power' in text


@pytest.mark.parametrize('path', sorted(STUDIES.glob('*/results/*/results.csv')), ids=str)
def test_stored_results_are_complete(path):
  """Kept results have the same seeds for all variants, of which the baseline may have more, and those of a sweep file
  have the variants that it runs."""
  rows = [*csv.DictReader(io.StringIO(path.read_text()))]
  axes = [*rows[0]][2 : [*rows[0]].index('seed')]
  seeds = {}
  for row in rows:
    cell = row['variant'], *(row[axis] for axis in axes)
    seeds.setdefault(cell, set()).add(row['seed'])
  common = set.intersection(*seeds.values())
  more = {cell[0] for cell, of_cell in seeds.items() if of_cell != common}
  assert common and len(more) <= 1
  name = f'{path.parents[2].name}/{path.parent.name}'
  if name in SWEEPS | OTHER_METRICS:
    assert {cell[0] for cell in seeds} == {*sweep_of(name).names}


def test_stored_gradients_are_complete(monkeypatch):
  monkeypatch.syspath_prepend(str(STUDIES / 'norm_and_warmup'))
  import gradients

  results = STUDIES / 'norm_and_warmup' / 'results'
  text = (results / 'gradients.csv').read_text()
  lines = list(csv.DictReader(io.StringIO(text)))
  seeds, depths = len(gradients.SEEDS), gradients.DEPTHS
  assert len(lines) == len(gradients.WIRINGS) * seeds * sum(depths)
  for line in lines:
    line |= {'depth': int(line['depth']), 'layer': int(line['layer'])}
    line['second_matrix'] = float(line['second_matrix'])
  assert gradients.table(lines) == (results / 'gradients.md').read_text()
  sys.modules.pop('gradients')
