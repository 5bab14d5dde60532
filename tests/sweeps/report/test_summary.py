"""The result of a sweep as a sentence."""

import dataclasses

import pytest

from t2x.sweeps.records import read_plan
from t2x.sweeps.report import read_results
from t2x.sweeps.report.looks import Look
from t2x.sweeps.report.markdown import method
from t2x.sweeps.report.summary import looks, sentence, stability

CAUTION = 'the intervals leave out the noise of the evaluated examples'


def size_of(row):
  c = row.comparison
  return f'{c.difference:+.3g} (95 % interval {c.low:+.3g} to {c.high:+.3g})'


def test_the_sentence_names_the_variant_its_difference_the_other_verdicts_and_a_caution(
  sweep, change_plan
):
  folder = sweep(diverged=('', 0), failed=('', 0))
  results = read_results(folder)
  assert sentence(results) == (
    'Of 4 variants, geglu helps against the baseline vanilla by loss (lower is better): '
    f'{size_of(results.rows[1])}; rezero hurts; relu and fixup are inconclusive; 5 seeds each; '
    f'matched parameters, largest deviation 0.80 %; {CAUTION}.'
  )
  change_plan(folder, margin=0.1, matched='')
  text = sentence(read_results(folder))
  assert 'rezero hurts; relu and fixup are the same (within 0.1); 5 seeds' in text
  assert text.endswith(f'5 seeds each; no budget was matched; {CAUTION}.')


def test_the_largest_effect_comes_first(sweep):
  both = {'vanilla': 0.0, 'a': -0.12, 'b': -0.3, 'c': -0.2}
  results = read_results(sweep(effects=both))
  assert sentence(results).startswith(
    'Of 3 variants, 3 help against the baseline vanilla by loss (lower is better), most b: '
    f'{size_of(results.rows[2])}, then a and c; 5 seeds each; '
  )


@pytest.mark.parametrize(
  ('effects', 'start'),
  [
    ({'a': 0.2, 'b': 0.3}, 'Of 2 variants, none helps against {}, and b hurts most: {}, then a; '),
    (
      {'a': 0.0, 'b': 0.3},
      'Of 2 variants, none helps against {}, and b hurts: {}; a is inconclusive',
    ),
    (
      {'a': 0.0, 'b': 0.001},
      'Of 2 variants, none helps or hurts verifiably against {}; the largest difference is that of ',
    ),
  ],
)
def test_a_sweep_without_help_leads_with_the_largest_difference(sweep, effects, start):
  results = read_results(sweep(effects={'vanilla': 0.0} | effects, diverged=('', 0)))
  baseline = 'the baseline vanilla by loss (lower is better)'
  assert sentence(results).startswith(start.format(baseline, size_of(results.rows[2])))


def test_many_variants_are_counted(sweep):
  effects = {'vanilla': 0.0} | {f'v{number}': 0.2 + 0.01 * number for number in range(7)}
  text = sentence(read_results(sweep(effects=effects, seeds=3)))
  assert 'v6 hurts most: ' in text and ', then 6 others; ' in text


def test_a_sweep_in_which_nothing_is_certain_says_so_once(sweep):
  effects = {'vanilla': 0.0, 'a': 0.0, 'b': 0.001}
  text = sentence(read_results(sweep(effects=effects, diverged=('', 0))))
  assert text.startswith('Of 2 variants, none helps or hurts verifiably against ')
  assert '; all of them are inconclusive; 5 seeds each; ' in text


def test_the_sentence_of_a_partial_grid(sweep):
  points = [{'Stack.num_layers': 2}, {'Stack.num_layers': 4}]
  folder = sweep(points=points, effects={'vanilla': 0.0, 'geglu': -0.12}, seeds=4, ended=12)
  text = sentence(read_results(folder))
  assert text.startswith(
    'No verdict yet against the baseline vanilla by loss (lower is better): 12 of 16 trials '
  )
  assert 'helps' not in text and 'inconclusive' not in text


def test_the_sentence_of_a_grid_with_failed_trials(sweep, change_trial):
  points = [{'Stack.num_layers': 2}, {'Stack.num_layers': 4}]
  folder = sweep(points=points, effects={'vanilla': 0.0, 'geglu': -0.12}, seeds=4)
  for trial in read_plan(folder).trials[12:]:
    change_trial(folder, trial.folder, status='failed', metrics={})
  text = sentence(read_results(folder))
  assert text.startswith(
    'Of 2 comparisons (1 variant at 2 points of the grid), geglu (num_layers = 2) helps '
  )
  assert 'geglu (num_layers = 4) is inconclusive' in text


def test_stability_has_the_mean_and_the_range_of_tau(sweep):
  results = read_results(sweep(diverged=('', 0), failed=('', 0)))
  (line,) = stability(results)
  taus = results.rankings[0].taus
  assert len(taus) == 10
  assert (
    f'mean {sum(taus) / 10:.2f}, range {min(taus):.2f} to {max(taus):.2f} over 10 pairs' in line
  )


def test_a_single_seed_has_no_stability(sweep):
  assert not stability(read_results(sweep(seeds=1)))


def test_earlier_reports_are_listed(sweep):
  results = read_results(sweep())
  assert looks(results) == 'none before this report'
  seen = dataclasses.replace(results, looks=[Look(seeds=(0, 1), date='2026-11-23')])
  assert looks(seen) == '2 seeds on 2026-11-23'


def test_a_single_comparison_is_named_with_its_size(sweep):
  folder = sweep(effects={'vanilla': 0.0, 'geglu': -0.12})
  results = read_results(folder)
  assert sentence(results) == (
    f'geglu helps against the baseline vanilla by loss (lower is better): {size_of(results.rows[1])}; 5 seeds each; '
    f'matched parameters, largest deviation 0.20 %; {CAUTION}.'
  )
  assert method(results) == 'Verdict: paired t tests of the only comparison (level 0.05).'


def test_reasons_without_a_verdict_are_in_the_sentence(sweep):
  results = read_results(sweep())
  reason = 'not tuned: the best Cosine.peak is the largest tried'
  rows = [
    row.without_verdict(reason if row.variant in ('geglu', 'relu') else '') for row in results.rows
  ]
  assert [row.verdict for row in rows] == [
    'baseline', 'withheld', 'hurts', 'withheld', 'inconclusive',
  ]  # fmt: skip
  text = sentence(dataclasses.replace(results, rows=rows))
  assert text.startswith('Of 4 variants, none helps against ') and 'and rezero hurts: ' in text
  assert f'fixup is inconclusive; for geglu and relu the verdict is withheld ({reason}); ' in text
