"""Learning curves of all runs, thinned out so that the page that holds them stays small."""

from collections.abc import Sequence
from typing import Any

from t2x.sweeps.json_files import is_number
from t2x.sweeps.report.results import Results, RunLines

# Numbers of all curves together, about 8 bytes each on the page.
MOST_NUMBERS = 250_000
MOST_POINTS = 200
# Larger numbers may round to infinity.
_LARGEST = 1e300
UNSEEN = ('step', 'split', 'learning_rate')


def curves(results: Results) -> dict[str, Any]:
  """The curves of every trial that has begun.

  Returns:
    metrics: names, '<split>/<metric>', those with curves first, the deciding one before the others.
    steps: lists of steps, which runs refer to.
    runs: row (index into `results.rows`), seed, status, work (FLOPs of a step), and by split:
      steps (index), seconds (None where unknown) and values by metric (None where not finite).
  """
  told = results.lines
  limit = _points(list(told.values()))
  strides = {
    split: max(1, -(-max(len(one.get(split, ())) for one in told.values()) // limit))
    for split in {split for one in told.values() for split in one}
  }
  steps: dict[tuple[int, ...], int] = {}
  metrics: dict[str, None] = {}
  runs = []
  for index, row in enumerate(results.rows):
    for entry in row.entries:
      splits = {}
      for split, lines in told.get(entry.folder, {}).items():
        splits[split] = one = _thinned(lines, strides[split])
        one['steps'] = steps.setdefault(tuple(one['steps']), len(steps))
        metrics |= dict.fromkeys(f'{split}/{name}' for name in one['values'])
      if splits:
        work = _short(entry.trial.flops_per_token * entry.trial.tokens_per_step, 15)
        run = {'row': index, 'seed': entry.trial.seed, 'status': entry.status, 'work': work}
        runs.append(run | {'splits': splits})
  # One evaluation at the end is a dot and no curve.
  drawn = {split for one in told.values() for split, lines in one.items() if len(lines) > 1}

  def rank(metric: str) -> tuple[bool, bool, bool, str]:
    split, _, name = metric.partition('/')
    return split not in drawn, name != results.plan.metric, split != 'eval', name

  order = sorted(metrics, key=rank)
  return {'metrics': order, 'steps': [list(one) for one in steps], 'runs': runs}


def _points(runs: Sequence[RunLines]) -> int:
  """How many points a curve may have."""
  columns = sum(len(_names(lines)) + 1 for one in runs for lines in one.values())
  return max(8, min(MOST_POINTS, MOST_NUMBERS // max(1, columns)))


def _names(lines: list[dict[str, Any]]) -> list[str]:
  return [
    name
    for name in dict.fromkeys(name for line in lines for name in line)
    if name not in (*UNSEEN, 'seconds')
    and not name.endswith('_per_second')
    and any(is_number(line.get(name)) for line in lines)
  ]


def _thinned(lines: list[dict[str, Any]], stride: int) -> dict[str, Any]:
  """Every `stride`-th line and the last: the same steps for runs of one schedule."""
  names = _names(lines)
  kept = [line for index, line in enumerate(lines) if not index % stride or index == len(lines) - 1]
  return {
    'steps': [line['step'] for line in kept],
    'seconds': [_short(line['seconds'], 4) for line in kept],
    'values': {name: [_short(line.get(name), 5) for line in kept] for name in names},
  }


def _short(value: Any, digits: int) -> float | int | None:
  if not is_number(value) or abs(value) > _LARGEST:
    return None
  short = float(f'{value:.{digits}g}')
  return int(short) if short.is_integer() else short
