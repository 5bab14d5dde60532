"""Lines of metrics.jsonl and timing.jsonl of a run, for reports and pages."""

import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from t2x.base.json_files import escaped, is_integer, is_number, rounded

Lines = list[dict[str, Any]]
# Lines of metrics.jsonl by split.
RunLines = dict[str, Lines]


def metric_lines(path: Path, problems: list[str] | None = None) -> list[dict[str, Any]]:
  """Reads the lines of metrics.jsonl or timing.jsonl. Damaged lines are left out.

  Args:
    path: the file; it may be missing.
    problems: a message is appended if the file has damaged lines. None for a run in progress, whose
      last line may be incomplete.
  """
  damaged, records = [], []
  try:
    # As in `read_json`, opening a pipe would wait for a writer.
    content = path.read_bytes() if path.is_file() else b''
  except OSError:
    content = b'unreadable'
  for number, line in enumerate(content.removesuffix(b'\n').split(b'\n') if content else (), 1):
    try:
      text = line.decode()
      record = json.loads(text)
      # Fast path: most lines are printable and have no escapes.
      if '\\' in text or not text.isprintable():
        record = escaped(record)
    except (ValueError, RecursionError):
      record = None
    if (
      isinstance(record, dict)
      and is_integer(record.get('step'))
      and isinstance(record.get('split'), str)
    ):
      records.append(record)
    else:
      damaged.append(number)
  if damaged and problems is not None:
    more = f' and {len(damaged) - 1} more' if len(damaged) > 1 else ''
    problems.append(f'{path} is damaged: line {damaged[0]}{more} left out')
  return records


def run_lines(folder: Path, problems: list[str] | None = None) -> tuple[RunLines, Lines]:
  """Reads metrics.jsonl with the `seconds` of timing.jsonl (None if unknown) by split, and timing.jsonl.

  `problems` is that of `metric_lines`.
  """
  timing = metric_lines(folder / 'timing.jsonl', problems)
  seconds = {
    (line['split'], line['step']): line['seconds']
    for line in timing
    if is_number(line.get('seconds'))
  }
  by_split: RunLines = {}
  for line in metric_lines(folder / 'metrics.jsonl', problems):
    line['seconds'] = seconds.get((line['split'], line['step']))
    by_split.setdefault(line['split'], []).append(line)
  return by_split, timing


def curve_names(lines: Sequence[dict[str, Any]], is_shown: Callable[[str], bool]) -> list[str]:
  """Returns the names of the metrics that have a finite value on any line."""
  names = dict.fromkeys(name for line in lines for name in line)
  hidden = ('step', 'split', 'seconds')
  return [
    name
    for name in names
    if name not in hidden and is_shown(name) and any(is_number(line.get(name)) for line in lines)
  ]


def sampled(
  lines: Sequence[dict[str, Any]], indices: Iterable[int], names: Sequence[str], digits: int
) -> dict[str, Any]:
  """Returns the steps, seconds and values by metric of some of the lines."""
  chosen = [lines[index] for index in indices]
  return {
    'steps': [line['step'] for line in chosen],
    'seconds': [rounded(line['seconds'], 4) for line in chosen],
    'values': {name: [rounded(line.get(name), digits) for line in chosen] for name in names},
  }
