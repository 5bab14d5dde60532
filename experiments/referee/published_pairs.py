"""Verdicts on published pairs of modded_nanogpt.csv, and on a second sample of verdicts of our own studies.

python -m experiments.referee.published_pairs   # writes results/pairs.csv and results/second_samples.csv, 5 s

A pair: two groups of a record folder of track 1, a baseline and a change, with equal steps and at least four runs each.
Each is one comparison of its own, with runs paired by their number, and a margin of 1 % of compute (0.0015 nats).
"""

import csv
from collections.abc import Mapping
from pathlib import Path

from experiments.referee.equal_groups import NATS_PER_PERCENT, read_groups
from t2x.statistics.comparisons import Sample, compare

FOLDER = Path(__file__).parent
# Record folder, steps, baseline, variant.
PAIRS = (
  ('2025-12-31_GatesToCompiledAdam', '1845', '12-29-baseline', '12-31-gates-to-adam'),
  ('2026-02-16_FlattenForward', '1490', 'prior', 'pr233'),
  ('2026-02-28_TransposeCopyBackward', '1490', 'baseline', 'this_pr'),
  ('2026-03-22_VarlenMaxDocs', '1490', 'baseline', 'combined'),
  ('2026-04-22_MuddFormer', '1430', 'baseline-s1430', 'this_pr_v1'),
  ('2026-04-22_MuddFormer', '1415', 'this_pr_v1-s1415', 'this_pr_v2'),
  ('2026-04-29_XSAGatedLayers', '1450', 'baseline-s1410', 'this_pr_v1-s1410'),
  ('2026-05-20_BigramsSignTrick', '1480', 'baseline', 'pr299'),
  ('2026-05-27-MuddGatedAndDC', '1335', 'xsa-baseline-s1335', 'this_pr_v1'),
  ('2026-07-13_PrefixTokenPrediction', '1375', 'baseline-1375', 'prefix-1375'),
  ('2026-07-17_FP8DownProjection', '1390', 'baseline', 'this_pr'),
)
# Study, first sample, a second one with fresh seeds, baseline.
SAMPLES = (
  ('narang2021', 'core', 'core_confirm', 'vanilla'),
  ('narang2021', 'tiny_steps', 'tiny_again', 'vanilla'),
)


def pairs() -> list[dict[str, object]]:
  """Returns one row per published pair."""
  groups, rows = read_groups(), []
  for folder, steps, baseline, variant in PAIRS:
    sides = [groups[f'track_1_short/{folder}/{name}', steps] for name in (variant, baseline)]
    samples = [Sample(dict(enumerate(losses))) for losses in sides]
    (result,) = compare([(samples[0], samples[1])], 'min', margin=NATS_PER_PERCENT)
    row = {'record': folder, 'steps': steps, 'variant': variant, 'baseline': baseline}
    row |= {'runs': f'{len(sides[0])} and {len(sides[1])}', 'verdict': result.verdict}
    row |= {'difference': f'{result.difference:+.4f}', 'interval': result.interval_text('+.4f')}
    rows.append(row | {'p': f'{result.p:.2g}', 'more_runs': result.more_seeds or ''})
  return rows


def read_sample(path: Path, metric: str) -> Mapping[str, Sample]:
  """Returns the finished trials of a results.csv by variant."""
  values: dict[str, dict[int, float]] = {}
  with path.open() as file:
    for row in csv.DictReader(file):
      if row['metric'] == metric and row['status'] == 'finished':
        values.setdefault(row['variant'], {})[int(row['seed'])] = float(row['value'])
  return {variant: Sample(of) for variant, of in values.items()}


def second_samples() -> list[dict[str, object]]:
  """Returns one row for each verdict of a first sample whose variant has a second one."""
  rows = []
  for study, first, second, baseline in SAMPLES:
    verdicts = []
    for name in (first, second):
      samples = read_sample(FOLDER.parent / study / 'results' / name / 'results.csv', 'loss')
      variants = [variant for variant in samples if variant != baseline]
      results = compare([(samples[v], samples[baseline]) for v in variants], 'min')
      verdicts.append(dict(zip(variants, results, strict=True)))
    for variant, result in verdicts[0].items():
      again = verdicts[1].get(variant)
      if again is not None and result.verdict in ('helps', 'hurts'):
        row = {
          'study': study,
          'first': first,
          'second': second,
          'variant': variant,
          'verdict': result.verdict,
        }
        rows.append(
          row
          | {
            'again': again.verdict,
            'p': f'{result.p_corrected:.2g}',
            'p_again': f'{again.p_corrected:.2g}',
          }
        )
  return rows


def main() -> None:
  """Writes and prints both tables."""
  for name, rows in (('pairs', pairs()), ('second_samples', second_samples())):
    with (FOLDER / 'results' / f'{name}.csv').open('w', newline='') as file:
      writer = csv.DictWriter(file, [*rows[0]], lineterminator='\n')
      writer.writeheader()
      writer.writerows(rows)
    print(*(' '.join(map(str, row.values())) for row in rows), sep='\n')


if __name__ == '__main__':
  main()
