"""Verdicts on the variants of a sweep, against scipy and statsmodels called directly."""

import dataclasses
import math

import numpy as np
import pytest
from scipy import stats
from statsmodels.stats.multitest import multipletests
from statsmodels.stats.power import TTestPower
from statsmodels.stats.weightstats import ttost_paired

from t2x.statistics import comparisons, two_way
from t2x.statistics.comparisons import MAX_SEEDS, Sample, compare


def sample(values, diverged=0):
  return Sample({seed: float(value) for seed, value in enumerate(values)}, diverged)


BASELINE = sample([3.0, 3.2, 3.1, 2.9, 3.3])
# Differences -0.5, -0.4, -0.6, -0.5, -0.5: mean -0.5, sd sqrt(0.005).
BETTER = sample([2.5, 2.8, 2.5, 2.4, 2.8])
# Differences 0.1, -0.2, 0.3, 0, 0: mean 0.04.
ALIKE = sample([3.1, 3.0, 3.4, 2.9, 3.3])


def numbers(side):
  return [*side.values.values()]


def test_two_comparisons_are_paired_t_tests():
  better, alike = compare([(BETTER, BASELINE), (ALIKE, BASELINE)], 'min')
  p = [stats.ttest_rel(numbers(side), numbers(BASELINE)).pvalue for side in (BETTER, ALIKE)]
  np.testing.assert_allclose([better.p, alike.p], p, rtol=1e-9)
  # Stepping down with independent comparisons is the method of Holm and Sidak.
  np.testing.assert_allclose(
    [better.p_corrected, alike.p_corrected],
    multipletests(p, method='holm-sidak')[1],
    rtol=1e-6,
  )
  # d_z = -0.5 / sqrt(0.005); Hedges: gamma(2) / (sqrt(2) gamma(1.5)) = 2 / sqrt(2 pi).
  expected = -0.5 / math.sqrt(0.005) * 2 / math.sqrt(2 * math.pi)
  np.testing.assert_allclose(better.effect, expected, rtol=1e-9)
  assert (better.verdict, alike.verdict) == ('helps', 'inconclusive')
  assert better.more_seeds == 0
  assert compare([(BETTER, BASELINE)], 'max')[0].verdict == 'hurts'


def test_the_correction_never_decreases_from_one_p_value_to_the_next():
  noise = np.array([-1.0, 1.0, -1.0, 1.0, 0.0])
  error = np.std(noise, ddof=1) / math.sqrt(5)

  def with_p(p):
    """Differences from the baseline whose paired t test has this p-value."""
    return sample(numbers(BASELINE) + noise + error * stats.t.isf(p / 2, 4))

  p = [0.04, 0.01, 0.5, 0.03]
  found = [item.p_corrected for item in compare([(with_p(x), BASELINE) for x in p], 'min')]
  # 1 - 0.99 ** 4, 1 - 0.97 ** 3, then 1 - 0.96 ** 2, which is below the second one, and 0.5.
  np.testing.assert_allclose(found, [0.087327, 0.039404, 0.5, 0.087327], rtol=1e-5)
  np.testing.assert_allclose(found, multipletests(p, method='holm-sidak')[1], rtol=1e-6)


def test_intervals_are_simultaneous():
  (alone,) = compare([(ALIKE, BASELINE)], 'min')
  test = stats.ttest_rel(numbers(ALIKE), numbers(BASELINE))
  np.testing.assert_allclose([alone.low, alone.high], test.confidence_interval(0.95), rtol=1e-3)
  both = compare([(ALIKE, BASELINE), (BETTER, BASELINE)], 'min')[0]
  expected = test.confidence_interval(math.sqrt(0.95))
  np.testing.assert_allclose([both.low, both.high], expected, rtol=1e-3)


def test_missing_comparisons_count_in_the_correction():
  one = compare([(BETTER, BASELINE)] + [(Sample({}), BASELINE)] * 9, 'min')
  np.testing.assert_allclose(one[0].p_corrected, 1 - (1 - one[0].p) ** 10, rtol=1e-6)
  assert one[1].p_corrected is None
  assert one[1].verdict == 'inconclusive'


def many(generator, effects, seeds=5, noise=0.1):
  shared = generator.normal(size=seeds)
  baseline = sample(shared + noise * generator.normal(size=seeds))
  return [
    (sample(shared + effect + noise * generator.normal(size=seeds)), baseline) for effect in effects
  ]


def test_ten_comparisons_share_their_estimate_of_the_noise():
  """A difference of 4 standard deviations is far from significant in paired tests after correction."""
  found = compare(many(np.random.default_rng(0), [0.4] + [0.0] * 19), 'min')
  assert found[0].verdict == 'hurts' and found[0].p_other > 0.05
  assert [one.verdict for one in found[1:]] == ['inconclusive'] * 19
  assert all(one.low < 0 < one.high for one in found[1:])


def test_points_of_a_grid_are_corrected_together():
  generator = np.random.default_rng(0)
  first, second = many(generator, [0.4] + [0.0] * 19), many(generator, [0.0] * 20)
  alone, together = compare(first, 'min')[0], compare(first + second, 'min')[0]
  assert together.p == alone.p
  assert 1.5 < together.p_corrected / alone.p_corrected < 2.5
  assert together.high - together.low > alone.high - alone.low


def test_same_is_the_equivalence_test_of_statsmodels():
  baseline = sample([3.0, 3.2, 3.1, 2.9, 3.3])
  alike = sample([3.01, 3.18, 3.1, 2.93, 3.29])
  for margin in (0.019, 0.03):
    p = ttost_paired(np.array(numbers(alike)), np.array(numbers(baseline)), -margin, margin)[0]
    (one,) = compare([(alike, baseline)], 'min', margin=margin)
    assert (one.verdict == 'same') == (p <= 0.05), margin
  assert one.verdict == 'same' and one.more_seeds == 0
  assert compare([(alike, baseline)], 'min')[0].verdict == 'inconclusive'
  many_others = [(ALIKE, BASELINE)] * 40
  crowd = compare([(alike, baseline), *many_others], 'min', margin=0.03)
  assert crowd[0].verdict == 'inconclusive'


def test_a_significant_difference_within_the_margin_is_the_same():
  shifted = sample([3.01, 3.211, 3.109, 2.91, 3.31])
  assert compare([(shifted, BASELINE)], 'min')[0].verdict == 'hurts'
  assert compare([(shifted, BASELINE)], 'min', margin=0.1)[0].verdict == 'same'


def shifted(difference, noise):
  """A variant that differs from the baseline by this mean, with a standard deviation of `noise` of the differences."""
  pattern = np.array([-1.0, 1.0, -1.0, 1.0, 0.0])
  return sample(np.array(numbers(BASELINE)) + difference + noise * pattern)


def test_helping_needs_a_difference_of_at_least_the_margin():
  p = compare([(shifted(-0.5, 0.05), BASELINE)], 'min')[0].p
  assert p < 1e-3
  for margin, verdict in ((0.4, 'helps'), (0.499, 'helps'), (0.501, 'inconclusive'), (0.7, 'same')):
    (one,) = compare([(shifted(-0.5, 0.05), BASELINE)], 'min', margin=margin)
    assert (one.verdict, one.p) == (verdict, p), margin
    assert one.note == ('below the margin' if verdict == 'inconclusive' else '')
  assert compare([(shifted(0.5, 0.05), BASELINE)], 'min', margin=0.501)[0].verdict == 'inconclusive'


def test_a_margin_does_not_concern_divergence_rates():
  (one,) = compare([(Sample({}, diverged=5), BASELINE)], 'min', margin=10.0)
  assert (one.verdict, one.by_rates) == ('hurts', True) and 'below the margin' not in one.note


def test_the_interval_of_a_verdict_by_stepping_down_is_bounded_by_zero():
  """Of two comparisons the second is tested at the full level, and its interval has the level of two."""
  first, second = shifted(-2.0, 0.05), shifted(-0.5, 0.365)
  for sign, better, text in ((1, 'helps', '-1.07 to < 0'), (-1, 'hurts', '> 0 to +1.07')):
    sides = [
      tuple(sample(sign * np.array(numbers(side))) for side in (variant, BASELINE))
      for variant in (first, second)
    ]
    found = compare(sides, 'min')
    assert [item.verdict for item in found] == [better] * 2
    assert found[1].low < 0 < found[1].high and 0.025 < found[1].p_corrected <= 0.05
    assert 0 in found[1].interval and found[1].interval_text('+.3g') == text
    # The single-step interval of the first one says more than 0, and a withheld verdict has no bound of 0.
    assert found[0].interval == (found[0].low, found[0].high) and '0 to' not in found[
      0
    ].interval_text('+.3g')
    withheld = found[1].without_verdict('not tuned')
    assert withheld.interval == (withheld.low, withheld.high)


def test_an_interval_of_survivors_is_not_that_of_a_verdict_by_divergence_rates():
  survivors = Sample({0: 3.0, 1: 3.3}, diverged=18)
  many_seeds = sample(np.linspace(2.9, 3.1, 20))
  (one,) = compare([(survivors, many_seeds)], 'min')
  assert (one.verdict, one.by_rates) == ('hurts', True)
  assert one.low < 0 < one.high and one.interval == (one.low, one.high)


def test_equal_runs_are_the_same():
  (one,) = compare([(BASELINE, BASELINE)], 'min')
  assert (one.difference, one.p, one.verdict, one.more_seeds) == (0.0, 1.0, 'inconclusive', None)
  assert compare([(BASELINE, BASELINE)], 'min', margin=0.01)[0].verdict == 'same'


def test_seeds_needed_for_the_margin_use_an_upper_bound_of_the_variance():
  (one,) = compare([(ALIKE, BASELINE)], 'min', margin=0.2)
  differences = np.array([0.1, -0.2, 0.3, 0.0, 0.0])
  std = differences.std(ddof=1) * math.sqrt(4 / stats.chi2.ppf(0.2, 4))
  needed = TTestPower().solve_power(0.2 / std, alpha=0.05, power=0.8)
  assert one.more_seeds == math.ceil(needed) - 5
  naive = TTestPower().solve_power(0.2 / differences.std(ddof=1), alpha=0.05, power=0.8)
  assert one.more_seeds > math.ceil(naive) - 5


def test_seeds_needed_without_a_margin_use_a_lower_bound_of_the_difference():
  values = sample([3.2, 3.2, 3.4, 2.95, 3.4])
  (one,) = compare([(values, BASELINE)] + [(ALIKE, BASELINE)] * 0, 'min', level=0.001)
  differences = np.array(numbers(values)) - numbers(BASELINE)
  std = differences.std(ddof=1)
  bound = differences.mean() - stats.t.ppf(0.8, 4) * std / math.sqrt(5)
  needed = TTestPower().solve_power(bound / std, alpha=0.001, power=0.8)
  assert abs(one.more_seeds - (math.ceil(needed) - 5)) <= 1, 'a normal approximation'
  # The bound of the difference of these is zero: no number of seeds is known to suffice.
  assert compare([(ALIKE, BASELINE)], 'min')[0].more_seeds is None


def test_a_tiny_margin_needs_more_seeds_than_anyone_has():
  (one,) = compare([(ALIKE, BASELINE)], 'min', margin=1e-4)
  assert one.more_seeds == MAX_SEEDS + 1


def test_a_constant_difference_is_judged_by_the_sign_test():
  shifted = sample([value + 0.1 for value in numbers(BASELINE)])
  (one,) = compare([(shifted, BASELINE)], 'min', margin=0.2)
  assert one.p == 2**-4
  assert (one.verdict, one.more_seeds, one.effect) == ('inconclusive', 1, None)
  eight = [sample(np.arange(8) / 8 + shift) for shift in (0.25, 0)]
  assert compare([tuple(eight)], 'min')[0].verdict == 'hurts'


def test_one_pair_is_inconclusive():
  (one,) = compare([(sample([1.0]), BASELINE)], 'min')
  assert (one.pairs, one.difference, one.p, one.more_seeds) == (1, -2.0, None, None)
  assert one.verdict == 'inconclusive'


def test_only_seeds_that_both_have_are_compared():
  shifted = Sample({seed + 2: value for seed, value in BETTER.values.items()})
  (one,) = compare([(shifted, BASELINE)], 'min')
  assert one.pairs == 3
  # Seeds 2, 3, 4: 2.5 - 3.1, 2.8 - 2.9, 2.5 - 3.3.
  np.testing.assert_allclose(one.difference, -0.5, rtol=1e-12)


def test_a_variant_that_diverges_more_does_not_help():
  some = Sample({seed: BETTER.values[seed] for seed in range(4)}, diverged=1)
  (one,) = compare([(some, BASELINE)], 'min')
  assert one.p <= 0.05
  assert one.verdict == 'inconclusive'
  assert one.note == '1 of 5 seeds diverged'
  p = stats.ttest_rel([2.5, 2.8, 2.5, 2.4], [3.0, 3.2, 3.1, 2.9]).pvalue
  np.testing.assert_allclose(one.p, 2 * p, rtol=1e-9)
  # The other way: what survives of the baseline does not make the variant worse.
  (one,) = compare([(BASELINE, some)], 'min')
  assert one.p <= 0.05 and one.verdict == 'inconclusive'


@pytest.mark.parametrize('goal', ['min', 'max'])
def test_divergence_decides_in_both_directions(goal):
  always = Sample({}, diverged=5)
  (hurts,) = compare([(always, BASELINE)], goal)
  # Of 10 fair coins, 5 given ones heads and 5 tails, or the reverse: the supremum of Barnard's test.
  np.testing.assert_allclose(hurts.p, 2.0**-9, rtol=1e-6)
  assert hurts.verdict == 'hurts' and '5 of 5 seeds diverged' in hurts.note
  (helps,) = compare([(BASELINE, always)], goal)
  assert helps.verdict == 'helps' and helps.p == hurts.p
  # Also among 21 comparisons.
  others = many(np.random.default_rng(0), [0.0] * 20)
  found = compare([(always, others[0][1]), *others], goal)
  assert found[0].verdict == 'hurts' and found[0].p_corrected > 10 * found[0].p


def test_the_baseline_diverging_too_is_no_evidence():
  always = Sample({}, diverged=5)
  (one,) = compare([(always, always)], 'min')
  assert (one.p, one.verdict) == (None, 'inconclusive')


def test_a_variant_that_diverges_more_is_not_the_same():
  values = {seed: value + 1e-4 * seed for seed, value in BASELINE.values.items() if seed}
  (one,) = compare([(Sample(values, diverged=1), BASELINE)], 'min', margin=0.5)
  assert one.verdict == 'inconclusive'


@pytest.mark.parametrize(('planned', 'chosen'), [(6, 'paired'), (7, 'two_way')])
def test_the_plan_chooses_the_test_and_failures_do_not(planned, chosen):
  """Two of the variants diverge: the others keep the test of their plan, and the other test is beside it."""
  pairs = many(np.random.default_rng(1), [0.3] * (planned - 2))
  failed = (Sample({}, diverged=5), pairs[0][1])
  found = compare([failed, failed, *pairs], 'min')[2:]
  values = np.array([numbers(pairs[0][1]), *(numbers(variant) for variant, _ in pairs)])
  expected = getattr(two_way, chosen)(values)
  np.testing.assert_allclose([item.p for item in found], expected.p, rtol=1e-9)
  p = [stats.ttest_rel(side, values[0]).pvalue for side in values[1:]]
  if chosen == 'two_way':
    corrected = multipletests([*p, 1, 1], method='holm')[1][:-2]
    np.testing.assert_allclose([item.p_other for item in found], corrected, rtol=1e-9)
  else:
    np.testing.assert_allclose([item.p for item in found], p, rtol=1e-9)
    assert all(item.p_other not in (None, item.p_corrected) for item in found)


def test_holm_is_that_of_statsmodels():
  p = np.random.default_rng(0).random((20, 6)) ** 3
  expected = [multipletests(row, method='holm')[1] for row in p]
  np.testing.assert_allclose(two_way.holm(p), expected, rtol=1e-12)


def test_a_single_comparison_has_no_other_test():
  assert compare([(BETTER, BASELINE)], 'min')[0].p_other is None


# Accuracies of runs that learn or do not.
LEARNED, FAILED = sample([0.981, 0.978, 0.98]), sample([0.1, 0.099, 0.103])
SOME = sample([0.98, 0.102, 0.979])


def test_all_seeds_against_none_is_no_verdict_where_other_variants_learn_sometimes():
  """0 of 3 against 3 of 3 seeds, among three comparisons: p of the t test below 0.01."""
  first, *_ = compare([(LEARNED, FAILED), (SOME, FAILED), (SOME, FAILED)], 'max')
  assert first.p_corrected < 0.01
  assert (first.verdict, first.withheld) == ('withheld', 'too few seeds')
  # 1.25 times the range of 0.88, 0.003, 0.876.
  assert first.note.startswith('with 3 seeds this difference must exceed 1.1,')
  assert first.more_seeds == 1, 'four seeds need no guard'
  # The same with a bound of failures: rates of 0 and 3 of 3 are compared by an exact test.
  always, never = Sample(LEARNED.values), Sample({}, diverged=3)
  exact = compare([(always, never)] * 3, 'max')[0]
  np.testing.assert_allclose(exact.p, 2 * 0.5**6, rtol=1e-6)
  assert exact.verdict == 'inconclusive'


def test_the_guard_names_the_comparison_whose_seeds_differ_most():
  variants = [(LEARNED, FAILED), (SOME, FAILED), (sample([0.1, 0.1, 0.11]), FAILED)]
  first, *_ = compare(variants, 'max', names=['learned', 'some, depth = 2', 'other'])
  assert first.note.endswith('1.25 times the range over the seeds of some, depth = 2')


# Whether the runs of a baseline with 20 seeds learn, and those of eight variants with five, all with probability 0.35.
OF_BASELINE = '00101110100010011110'
OF_VARIANTS = ('11000', '11111', '01001', '10011', '00000', '11100', '01000', '00100')


def runs_that_learn(of_baseline):
  generator = np.random.default_rng(0)
  baseline, *variants = (
    sample(np.where(np.array([*runs]) == '1', 0.98, 0.1) + 0.003 * generator.normal(size=len(runs)))
    for runs in (of_baseline, *OF_VARIANTS)
  )
  return [(variant, baseline) for variant in variants]


def test_more_seeds_of_the_baseline_decide_only_what_pairs_or_a_permutation_test_confirm():
  """All five runs of one of eight variants learn by chance, and have no noise to test with."""
  one = compare(runs_that_learn(OF_BASELINE), 'max')[1]
  assert one.p_corrected <= 0.05, 'the test of the means alone'
  assert (one.verdict, one.withheld) == ('withheld', 'too few seeds')
  assert one.note == (
    'neither the 5 paired seeds alone nor a permutation test of the seeds confirms it'
  )
  # Where none of 20 learn, all of five are no chance.
  assert compare(runs_that_learn('0' * 20), 'max')[1].verdict == 'helps'


def test_three_seeds_decide_if_every_variant_has_little_noise():
  close = sample([0.103, 0.098, 0.104])
  helps, *others = compare([(LEARNED, FAILED), (close, FAILED), (close, FAILED)], 'max')
  assert helps.verdict == 'helps' and not helps.note
  assert {item.verdict for item in others} == {'inconclusive'}


def test_four_seeds_decide_among_few_variants_that_learn_sometimes():
  learned, failed = (sample([*numbers(side), side.values[0]]) for side in (LEARNED, FAILED))
  some = sample([0.98, 0.101, 0.979, 0.1])
  assert compare([(learned, failed), (some, failed)], 'max')[0].verdict == 'helps'
  many_others = [(learned, failed)] + [(some, failed)] * 19
  assert compare(many_others, 'max')[0].verdict == 'inconclusive'


def test_two_seeds_give_no_verdict():
  two = [sample([value, value + 1e-6 * value]) for value in (0.9, 0.1)]
  (one,) = compare([tuple(two)], 'max')
  assert one.p <= 0.05 and one.verdict == 'withheld'
  assert one.note == '2 seeds are too few for a verdict' and one.more_seeds >= 1


def test_a_lower_level_is_stricter():
  (one,) = compare([(BETTER, BASELINE)], 'min', level=1e-5)
  assert one.verdict == 'inconclusive' and one.low < -1 < 0 < one.high


# Accuracies that saturate: two variants without noise have all the weight of the two-way model.
SATURATED = ([0.995, 1, 0.995], [1, 0.995, 1], [1, 1, 1], [1, 1, 1])


@pytest.mark.filterwarnings('error')
def test_accuracies_that_saturate_have_verdicts_and_the_other_test():
  baseline, *variants = map(sample, SATURATED)
  found = compare([(variant, baseline) for variant in variants], 'max')
  p = [stats.ttest_rel(side, SATURATED[0]).pvalue for side in SATURATED[1:]]
  np.testing.assert_allclose([item.p for item in found], p, rtol=1e-9)
  assert all(0 < item.p_other <= 1 for item in found)


@pytest.mark.filterwarnings('error')
@pytest.mark.parametrize('rows', [4, 8, 12])
def test_accuracies_of_mostly_perfect_models_have_p_values(rows):
  generator = np.random.default_rng(rows)
  for seeds in (2, 3, 5, 10) * 25:
    values = 1 - 0.005 * (generator.random((rows, seeds)) < generator.choice([0.1, 0.3, 0.5]))
    baseline, *variants = map(sample, values)
    for item in compare([(variant, baseline) for variant in variants], 'max', margin=0.01):
      assert item.p is not None and item.p_corrected is not None
      # A single comparison whose differences vary has no other test.
      assert all(p is None or 0 <= p <= 1 for p in (item.p, item.p_corrected, item.p_other))
      assert math.isfinite(item.low) and math.isfinite(item.high)


def test_a_crash_of_a_number_that_decides_nothing_costs_no_verdict(monkeypatch):
  def crash(*_):
    raise np.linalg.LinAlgError('Singular matrix')

  expected = compare([(BETTER, BASELINE), (ALIKE, BASELINE)], 'min', margin=0.2)
  monkeypatch.setattr(two_way, 'two_way', crash)
  monkeypatch.setattr(comparisons, '_more_seeds', crash)
  with (
    pytest.warns(UserWarning, match='two-way model cannot be computed: LinAlgError: Singular'),
    pytest.warns(UserWarning, match='number of further seeds cannot be computed'),
  ):
    found = compare([(BETTER, BASELINE), (ALIKE, BASELINE)], 'min', margin=0.2)
  for one, other in zip(found, expected, strict=True):
    assert one == dataclasses.replace(
      other, p_other=None, more_seeds=0 if one.verdict != 'inconclusive' else None
    )
