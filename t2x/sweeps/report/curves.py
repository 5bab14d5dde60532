"""Learning curves of all runs, subsampled to limit the size of the page."""

from collections.abc import Sequence
from typing import Any

from t2x.base.json_files import rounded
from t2x.run_folder.lines import Lines, RunLines, curve_names, sampled
from t2x.sweeps.report.results import Results

# Largest total number of values of all curves, about 8 bytes each on the page.
MAX_NUMBERS = 250_000
MAX_POINTS = 200
HIDDEN = ('learning_rate', 'mfu')


def curves(results: Results) -> dict[str, Any]:
  """Returns the learning curves of all trials that have started.

  Returns:
    metrics: names '<split>/<metric>': those with several points first, the metric of the sweep on top.
    steps: lists of steps, to which runs refer by index.
    runs: row (index into `results.rows`), seed, status, work (FLOPs per step), and by split: steps
      (index), seconds (None if unknown) and values by metric (None if not finite).
  """
  lines_by_run = results.lines
  limit = _max_points(list(lines_by_run.values()))
  strides = {
    split: max(1, -(-max(len(run.get(split, ())) for run in lines_by_run.values()) // limit))
    for split in {split for run in lines_by_run.values() for split in run}
  }
  steps: dict[tuple[int, ...], int] = {}
  metrics: dict[str, None] = {}
  runs = []
  for index, row in enumerate(results.rows):
    for entry in row.entries:
      splits = {}
      for split, lines in lines_by_run.get(entry.folder, {}).items():
        splits[split] = drawn = _subsample(lines, strides[split])
        drawn['steps'] = steps.setdefault(tuple(drawn['steps']), len(steps))
        metrics |= dict.fromkeys(f'{split}/{name}' for name in drawn['values'])
      if splits:
        work = rounded(entry.trial.flops_per_token * entry.trial.tokens_per_step, 15)
        run = {'row': index, 'seed': entry.trial.seed, 'status': entry.status, 'work': work}
        runs.append(run | {'splits': splits})
  # A single evaluation at the end is not a curve.
  several = {s for run in lines_by_run.values() for s, lines in run.items() if len(lines) > 1}

  def rank(metric: str) -> tuple[bool, bool, bool, str]:
    split, _, name = metric.partition('/')
    return split not in several, name != results.plan.metric, split != 'eval', name

  order = sorted(metrics, key=rank)
  return {'metrics': order, 'steps': [list(item) for item in steps], 'runs': runs}


def _max_points(runs: Sequence[RunLines]) -> int:
  """Returns the largest number of points per curve."""
  columns = sum(len(_names(lines)) + 1 for run in runs for lines in run.values())
  return max(8, min(MAX_POINTS, MAX_NUMBERS // max(1, columns)))


def _names(lines: Lines) -> list[str]:
  return curve_names(lines, lambda name: name not in HIDDEN and not name.endswith('_per_second'))


def _subsample(lines: Lines, stride: int) -> dict[str, Any]:
  """Returns every `stride`-th line and the last, so that runs with equal schedules have equal steps."""
  indices = sorted({*range(0, len(lines), stride), len(lines) - 1})
  return sampled(lines, indices, _names(lines), 5)
