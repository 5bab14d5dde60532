"""Draws the verdicts of the sweeps of a study from its stored reports, `results/NAME/report.md`.

    python experiments/verdicts.py experiments/positions   # results/verdicts.png; needs the extra report

Differences and intervals are those of the reports, as are verdicts unless `verdicts.txt` beside a report has later ones
(`experiments/statistics/recorded.py`). A verdict is also withheld if the report has the best value of the variant or of
the baseline at an edge of its grid: reports that are older than this check have another verdict there.
"""

import argparse
import dataclasses
import io
import re
import statistics
from collections.abc import Iterator
from pathlib import Path

# Verdicts in the order of legends and tables.
COLORS = {
  'helps': '#1a7f37',
  'hurts': '#bc4c00',
  'same': '#0969da',
  'inconclusive': '#8c959f',
  'withheld': '#8250df',
}
# The sentence of a report that names its baseline, metric and direction.
_COMPARED = re.compile(
  r'[Aa]gainst (?:the baseline )?`?(?P<baseline>[^\s`]+)`? by (?P<metric>\S+) \((?P<better>lower|higher) is better\)'
)


@dataclasses.dataclass(frozen=True)
class Comparison:
  """A variant beside the baseline, at a point of the grid.

  Attributes:
    variant: name of the variant.
    point: values of the grid, such as `rate = 0.1`; empty without a grid.
    difference: mean difference from the baseline; None if no seed finished in both.
    interval: its simultaneous interval; None without one.
    verdict: one of `COLORS`.
    seeds: number of seeds of the variant.
  """

  variant: str
  point: str
  difference: float | None
  interval: tuple[float, float] | None
  verdict: str
  seeds: int

  @property
  def label(self) -> str:
    return f'{self.variant} ({self.point})' if self.point else self.variant


@dataclasses.dataclass(frozen=True)
class Report:
  """A stored report.

  Attributes:
    name: name of its folder.
    baseline: name of the baseline.
    metric: the compared metric.
    better: `lower` or `higher`.
    level: coverage of the intervals, such as `95 %`.
    exploratory: whether the report calls its verdicts exploratory.
    comparisons: those of its verdicts, without the baseline.
  """

  name: str
  baseline: str
  metric: str
  better: str
  level: str
  exploratory: bool
  comparisons: tuple[Comparison, ...]

  @property
  def seeds(self) -> str:
    """Number of seeds of the variants, or their range."""
    numbers = sorted({c.seeds for c in self.comparisons if c.seeds})
    return ' to '.join(map(str, dict.fromkeys([numbers[0], numbers[-1]]))) if numbers else '0'


def read_report(path: Path) -> Report:
  """Returns the verdicts of `report.md` in a folder of results.

  Raises:
    ValueError: the file has no table of verdicts, or a verdict that is unknown.
  """
  text = path.read_text()
  rows, compared = [*_table(text, 'Verdicts')], _COMPARED.search(text)
  if not rows or not compared:
    raise ValueError(f'{path}: no verdicts and baseline as t2x report writes them')
  level = next(title for title in rows[0] if title.endswith('interval')).removesuffix(' interval')
  untuned = {row['variant'] for row in _table(text, 'Tuning') if row['at the edge']}
  later = _later(path.with_name('verdicts.txt'))
  comparisons = []
  for row in rows:
    name, _, point = row['variant'].removesuffix(')').partition(' (')
    if row['verdict'] == 'baseline':
      continue
    if row['verdict'] not in COLORS:
      raise ValueError(f'{path}: unknown verdict {row["verdict"]!r} of {row["variant"]}')
    values = ' '.join([name, *re.findall(r'= ([^,]+)', point)])
    verdict = 'withheld' if untuned & {name, compared['baseline']} else row['verdict']
    verdict = later.get(values, verdict)
    ends = [re.sub('&lt;|[<> ]', '', end) for end in row[f'{level} interval'].split(' to ')]
    interval = (float(ends[0]), float(ends[1])) if len(ends) == 2 else None
    if interval and verdict in ('helps', 'hurts') and row['difference']:
      # Where the single-step interval includes 0, stepping down says only on which side the difference is.
      low, high = interval
      interval = (max(low, 0.0), high) if float(row['difference']) > 0 else (low, min(high, 0.0))
    comparisons.append(
      Comparison(
        name,
        point,
        float(row['difference']) if row['difference'] else None,
        interval,
        verdict,
        int(row['seeds']),
      )
    )
  return Report(
    path.parent.name,
    compared['baseline'],
    compared['metric'],
    compared['better'],
    level,
    '**Exploratory: ' in text,
    tuple(comparisons),
  )


def reports(study: Path) -> list[Report]:
  """Returns the reports of a study, without those that choose a learning rate and those of one seed."""
  paths = sorted(study.glob('results/*/report.md'))
  chosen = [path for path in paths if not re.search('rates|tuning', path.parent.name)]
  found = [read_report(path) for path in chosen]
  return [report for report in found if any(c.seeds > 1 for c in report.comparisons)]


def _table(text: str, heading: str) -> Iterator[dict[str, str]]:
  """Yields the rows of the first table below a heading, by title."""
  section = re.search(rf'^## {heading}\n(.*?)(?=^## |\Z)', text, re.MULTILINE | re.DOTALL)
  table = section and re.search(r'^\|.*?(?=\n\n|\Z)', section[1], re.MULTILINE | re.DOTALL)
  if table:
    titles, _, *rows = (
      [cell.strip() for cell in line.strip().strip('|').split('|')]
      for line in table[0].splitlines()
    )
    for row in rows:
      yield dict(zip(titles, row, strict=True))


def _later(path: Path) -> dict[str, str]:
  """Returns the verdicts in `verdicts.txt` by variant, with the values of its grid point."""
  verdicts = {}
  for line in path.read_text().splitlines() if path.exists() else []:
    name, _, rest = line.partition(': ')
    verdict = rest.partition(',')[0]
    if verdict in COLORS:
      verdicts[name] = 'withheld' if 'withheld: ' in line else verdict
  return verdicts


def draw(study: Path) -> Path:
  """Draws a panel per report, of 900 pixels in all, and returns the file.

  The longest intervals are cut where they would hide the others, with an arrow.
  """
  import matplotlib

  matplotlib.use('agg')
  import matplotlib.pyplot as plt
  from PIL import Image

  found = reports(study)
  columns = min(2 if len(found) % 3 else 3, len(found))
  lines = [found[start : start + columns] for start in range(0, len(found), columns)]
  heights = [max(len(report.comparisons) for report in line) + 4 for line in lines]
  plt.rcParams.update({'font.size': 8, 'axes.titlesize': 8})
  figure, grid = plt.subplots(
    len(lines),
    columns,
    figsize=(9, 0.19 * sum(heights) + 0.4),
    height_ratios=heights,
    squeeze=False,
    layout='constrained',
  )
  for place, (axes, report) in enumerate(zip(grid.flat, found, strict=False)):
    _panel(axes, report)
    names, before = ([c.label for c in r.comparisons] for r in (report, found[place - 1]))
    if place % columns and names == before:
      axes.tick_params(labelleft=False)
  for axes in [*grid.flat][len(found) :]:
    axes.set_axis_off()
  used = {c.verdict for report in found for c in report.comparisons}
  handles = [
    plt.Line2D([], [], color=color, marker='o', label=verdict)
    for verdict, color in COLORS.items()
    if verdict in used
  ]
  figure.legend(handles=handles, loc='outside lower center', ncols=5, frameon=False)
  buffer = io.BytesIO()
  figure.savefig(buffer, dpi=100)
  plt.close(figure)
  target = study / 'results/verdicts.png'
  Image.open(buffer).convert('RGB').quantize(64).save(target, optimize=True)
  return target


def _panel(axes, report: Report) -> None:
  """Draws the differences of a report with their intervals."""
  sizes = [abs(c.difference) for c in report.comparisons if c.difference is not None]
  ends = [max(map(abs, c.interval)) for c in report.comparisons if c.interval]
  limit = max(3 * max(sizes, default=1.0), 3 * statistics.median(ends or [0.0]))
  axes.axvline(0, color='#24292f', linewidth=0.8)
  low, high = 0.0, 0.0
  for place, c in enumerate(report.comparisons):
    color = COLORS[c.verdict]
    if c.difference is None:
      axes.annotate(
        'no mean', (0, place), (4, 0), textcoords='offset points', color=color, va='center'
      )
      continue
    ends = [min(max(end, -limit), limit) for end in c.interval or (c.difference, c.difference)]
    axes.plot(ends, [place, place], color=color, linewidth=1.6)
    for end, marker in zip(ends, '<>', strict=True):
      if abs(end) == limit:
        axes.plot(end, place, marker, color=color, markersize=4)
    axes.plot(c.difference, place, 'o', color=color, markersize=4.5)
    low, high = min([low, c.difference, *ends]), max([high, c.difference, *ends])
  if low < high:
    axes.set_xlim(low - 0.05 * (high - low), high + 0.05 * (high - low))
  axes.set_yticks(range(len(report.comparisons)), [c.label for c in report.comparisons])
  axes.set_ylim(len(report.comparisons) - 0.5, -0.5)
  note = ', exploratory' if report.exploratory else ''
  axes.set_title(f'{report.name}, {report.seeds} seeds{note}', loc='left', fontweight='bold')
  axes.set_xlabel(f'{report.metric} - {report.baseline}\n({report.better} is better)')
  axes.spines[['top', 'right', 'left']].set_visible(False)
  axes.tick_params(axis='y', length=0)
  axes.grid(axis='y', linewidth=0.3)


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument(
    'study', type=Path, nargs='+', help='folder of a study with results/NAME/report.md'
  )
  for study in parser.parse_args().study:
    print(draw(study))


if __name__ == '__main__':
  main()
