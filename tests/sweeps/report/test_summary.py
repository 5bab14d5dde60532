"""The result of a sweep as a sentence."""

import dataclasses

from t2x.sweeps.report import read_results
from t2x.sweeps.report.looks import Look
from t2x.sweeps.report.markdown import method
from t2x.sweeps.report.summary import looks, sentence, stability


def test_the_sentence_has_metric_baseline_counts_seeds_and_budget(sweep, change_plan):
  folder = sweep(diverged=('', 0), failed=('', 0))
  assert sentence(read_results(folder)) == (
    'Against the baseline vanilla by loss (lower is better), of 4 variants, 1 helps, 1 hurts, and for 2 '
    'the data cannot tell (inconclusive); 5 seeds each; matched parameters, largest deviation 0.80 %.'
  )
  change_plan(folder, margin=0.1, matched='')
  text = sentence(read_results(folder))
  assert '1 hurts, 2 are the same (within 0.1), and for 0 the data cannot tell' in text
  assert text.endswith('5 seeds each; no budget was matched.')


def test_the_sentence_of_a_partial_grid(sweep):
  points = [{'Stack.num_layers': 2}, {'Stack.num_layers': 4}]
  folder = sweep(points=points, effects={'vanilla': 0.0, 'geglu': -0.12}, seeds=3, ended=8)
  text = sentence(read_results(folder))
  assert text.startswith('So far, against the baseline vanilla')
  assert 'of 2 comparisons (1 variant at 2 points of the grid), 1 helps, 0 hurt' in text


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
  row = results.rows[1]
  size = (
    f'{row.comparison.difference:+.3g} ({row.comparison.low:+.3g} to {row.comparison.high:+.3g})'
  )
  assert sentence(results) == (
    f'geglu helps against the baseline vanilla by loss (lower is better): {size}; 5 seeds each; '
    'matched parameters, largest deviation 0.20 %.'
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
  assert (
    'of 4 variants, 0 help, 1 hurts, for 1 the data cannot tell (inconclusive), and for 2 the verdict is '
    f'withheld ({reason}); ' in sentence(dataclasses.replace(results, rows=rows))
  )
