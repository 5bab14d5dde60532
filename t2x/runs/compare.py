"""Compares runs: a page with their states, learning curves and config differences, or a figure of their curves."""

from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from t2x.base.drawing import COLORS, DASHES, SUFFIXES, drawn
from t2x.base.errors import UserError, first_line, printable
from t2x.base.files import check_output_file, output_file
from t2x.base.html_page import html_page
from t2x.base.json_files import rounded
from t2x.base.suggestions import did_you_mean
from t2x.config import Resolved, differences
from t2x.run_folder.lines import curve_names, run_lines, sampled
from t2x.runs.folders import Run, read_run

# Maximum number of points of a curve on the page.
MAX_POINTS = 400


def write_comparison(folders: Sequence[Path], out: Path, metric: str | None = None) -> list[str]:
  """Writes a page that compares runs, or a figure of their learning curves.

  Args:
    folders: the run folders; differences of configs are relative to the first.
    out: the HTML file of the page, or the SVG, PDF or PNG file of the figure.
    metric: SPLIT/NAME of the metric of the figure, such as 'eval/loss'; None: the one that the page shows first.

  Returns:
    A line for each damaged file and for different tokenizers, which the page also shows.

  Raises:
    UserError: a folder is not a run folder or is given twice, no run has the metric, or the file cannot be written.
  """
  _check(folders)
  is_figure = out.suffix in SUFFIXES
  if metric is not None and not is_figure:
    raise UserError(f'--metric has no effect on {out}: the page has all metrics')
  check_output_file('--out', out)
  data = comparison(folders)
  if is_figure:
    _draw(data, out, metric)
    return data['problems']
  with output_file('--out', out) as file:
    file.write(page(data))
  return data['problems']


def _draw(data: Mapping[str, Any], out: Path, metric: str | None) -> None:
  """Draws the curves of one metric."""
  names = ['/'.join(key) for key in data['metrics']]
  if not names:
    raise UserError('the runs have no metrics to draw')
  metric = metric or names[0]
  if metric not in names:
    raise UserError(f"--metric: no run has '{metric}'{did_you_mean(metric, names)}")
  split, _, name = metric.partition('/')
  with drawn([out], 5.5, 3.2) as figure:
    axes = figure.subplots()
    for number, run in enumerate(data['runs']):
      curve = run['splits'].get(split, {'steps': [], 'values': {}})
      points = zip(curve['steps'], curve['values'].get(name, ()), strict=False)
      x, y = [], []
      for step, value in points:
        if value is not None:
          x.append(step)
          y.append(value)
      dash = DASHES[number // len(COLORS) % len(DASHES)]
      color = COLORS[number % len(COLORS)]
      # A single point is a dot, also at an end of the axis.
      dot = {'marker': 'o', 'markersize': 4, 'clip_on': False} if len(x) == 1 else {}
      axes.plot(x, y, color=color, linestyle=dash, label=run['name'], **dot)
    axes.margins(x=0)
    axes.set_xlabel('steps')
    axes.set_ylabel(f'{name} ({split})')
    axes.legend(fontsize=7)


def comparison(folders: Sequence[Path]) -> dict[str, Any]:
  """Returns the content of the page.

  Returns:
    runs: for each run its name, the fields of `Run`, and its curves by split: steps, seconds of
      training (None if unknown), and values by metric (None if not finite).
    metrics: [split, name] of each metric, those with several points first.
    differences: path, value in the first config that can be read, and value in each run ('' if it does not
      differ there) of each setting that differs.
    reference: index of this config; None if no config can be read.
    problems: a line for each damaged or missing file, and for each run whose tokenizer differs from that of the first.
  """
  _check(folders)
  problems: list[str] = []
  names = _names(folders)
  splits = [_curves(folder, problems) for folder in folders]
  problems += [
    f'{name}: no metrics' for name, curves in zip(names, splits, strict=True) if not curves
  ]
  problems += _tokenizers(names, folders)
  configs = [_config(name, folder, problems) for name, folder in zip(names, folders, strict=True)]
  runs = [
    _row(name, read_run(folder)) | {'splits': curves, 'has_config': config is not None}
    for name, folder, curves, config in zip(names, folders, splits, configs, strict=True)
  ]
  reference = next((i for i, config in enumerate(configs) if config is not None), None)
  return {
    'runs': runs,
    'metrics': _metrics(splits),
    'differences': [] if reference is None else _differences(configs, reference),
    'reference': reference,
    'problems': [printable(problem) for problem in problems],
  }


def _check(folders: Sequence[Path]) -> None:
  if not folders:
    raise UserError('no runs to compare: give one or several run folders')
  resolved: dict[Path, Path] = {}
  for folder in folders:
    if not any((folder / name).exists() for name in ('config.gin', 'metrics.jsonl')):
      raise UserError(f'{folder} is not a run folder: it has neither config.gin nor metrics.jsonl')
    before = resolved.setdefault(folder.resolve(), folder)
    if before is not folder:
      raise UserError(f'{folder} is the same run folder as {before}: give it once')


def _names(folders: Sequence[Path]) -> list[str]:
  """Returns the paths without the folders that all have in common."""
  parts = [folder.resolve().parts for folder in folders]
  common = 0
  while len({part[: common + 1] for part in parts}) == 1 and all(
    len(p) > common + 1 for p in parts
  ):
    common += 1
  return [printable('/'.join(part[common:])) for part in parts]


def _tokenizers(names: Sequence[str], folders: Sequence[Path]) -> list[str]:
  """Returns a line for each run whose tokenizer differs from that of the first run that has one."""
  from t2x.data import load_tokenizer

  problems, first = [], None
  for name, folder in zip(names, folders, strict=True):
    if not (folder / 'tokenizer').exists():
      continue
    try:
      fingerprint = load_tokenizer(folder / 'tokenizer').fingerprint
    except UserError as error:
      problems.append(f'{name}: its tokenizer cannot be read: {first_line(error)}')
      continue
    if first is None:
      first = name, fingerprint
    elif first[1] != fingerprint:
      problems.append(
        f'{name}: its tokenizer differs from that of {first[0]}, so losses, perplexities and accuracies per token '
        'cannot be compared; bits_per_byte can'
      )
  return problems


def _row(name: str, run: Run) -> dict[str, Any]:
  values = {'best': run.best, 'last': run.last, 'train_loss': run.train_loss}
  return {
    'name': name,
    'state': run.state,
    'reason': run.reason,
    'step': run.step,
    'num_steps': run.num_steps,
    'metric': printable(run.metric),
    'best_step': run.best_step,
    'host': run.host,
  } | {key: rounded(value, 6) for key, value in values.items()}


def _config(name: str, folder: Path, problems: list[str]) -> Resolved | None:
  from t2x.experiments import resolve

  try:
    if not (folder / 'config.gin').is_file():
      raise UserError(f'{name} has no config.gin')
    return resolve(folder)
  except UserError as error:
    more = len(str(error).splitlines()) - 1
    problems.append(
      f'{name}: its config cannot be compared: {first_line(error)}'
      + (f' (and {more} more)' if more else '')
    )
    return None


def _differences(configs: Sequence[Resolved | None], reference: int) -> list[dict[str, Any]]:
  first = configs[reference]
  assert first is not None
  rows: dict[str, dict[str, Any]] = {}
  for index, config in enumerate(configs):
    if config is None or config is first:
      continue
    for path, before, after in differences(first, config):
      empty = {'path': path, 'first': before, 'values': [''] * len(configs)}
      rows.setdefault(path, empty)['values'][index] = after
  return list(rows.values())


def _curves(folder: Path, problems: list[str]) -> dict[str, Any]:
  """Returns the curves of a run by split, at most `MAX_POINTS` points each and always the last."""
  curves, (by_split, _) = {}, run_lines(folder, problems)
  for split, lines in by_split.items():
    stride = -(-len(lines) // MAX_POINTS)
    indices = range((len(lines) - 1) % stride, len(lines), stride)
    curves[split] = sampled(lines, indices, curve_names(lines, lambda _: True), 6)
  return curves


def _metrics(runs: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
  """Returns (split, name) of all metrics: those drawn as curves first, evaluations before training, losses on top."""
  points: dict[tuple[str, str], int] = {}
  for splits in runs:
    for split, curve in splits.items():
      for name in curve['values']:
        points[split, name] = max(points.get((split, name), 0), len(curve['steps']))

  def rank(key: tuple[str, str]) -> tuple[bool, bool, bool, bool, str]:
    split, name = key
    is_rate = name.endswith('_per_second') or name in ('learning_rate', 'mfu')
    return points[key] < 2, is_rate, name != 'loss', split != 'eval', name

  return sorted(points, key=rank)


def page(data: Mapping[str, Any]) -> str:
  """Returns the HTML page for the result of `comparison`."""
  own, base = resources.files('t2x.runs'), resources.files('t2x.base')
  names = ', '.join(run['name'] for run in data['runs'])
  return html_page(
    body=own / 'compare.html',
    title=f'Runs: {names}',
    styles=(base / 'page.css', own / 'compare.css'),
    scripts=(base / 'core.js', base / 'charts.js', own / 'compare.js'),
    data=data,
  )
