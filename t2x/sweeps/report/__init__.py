"""The report of a sweep: results.csv, costs.csv, report.md and report.html. Needs extra `report`."""

import time
from collections.abc import Iterator
from pathlib import Path

from t2x.errors import UserError
from t2x.files import write_whole
from t2x.sweeps.report.markdown import markdown
from t2x.sweeps.report.page import page, told
from t2x.sweeps.report.results import Results, read_results
from t2x.sweeps.report.tables import costs_csv, results_csv

__all__ = ['Results', 'read_results', 'told', 'watch', 'write_report']


def write_report(folder: Path, results: Results | None = None) -> list[Path]:
  """Writes the report of a sweep into its folder, of what has ended so far.

  Args:
    folder: OUT/NAME, with sweep.json; the trials' run folders are in OUT/trials.
    results: what `read_results(folder)` gave, where it is there already.

  Returns:
    The files: results.csv (the same for equal outcomes), costs.csv (times, memory), report.md and
    report.html.

  Raises:
    UserError: no sweep folder, a plan that is damaged, or a file that cannot be written.
  """
  results = results or read_results(folder)
  files = {
    'results.csv': results_csv(results),
    'costs.csv': costs_csv(results),
    'report.md': markdown(results),
    'report.html': page(results),
  }
  for name, text in files.items():
    try:
      write_whole(folder / name, text.encode())
    except OSError as error:
      raise UserError(f'{folder / name} cannot be written: {error.strerror}') from error
  return [folder / name for name in files]


def watch(folder: Path, seconds: float | None) -> Iterator[Results]:
  """Writes the report, and again whenever trials have gone on, until all have ended.

  Args:
    folder: OUT/NAME.
    seconds: between two looks; None: writes once.

  Yields:
    What was written, each time.
  """
  before = None
  while True:
    # Looked at before it is read: what changes in between is seen at the next look.
    now = _changed(folder)
    if now != before:
      results, before = read_results(folder), now
      write_report(folder, results)
      yield results
      if seconds is None or results.ended == len(results.entries):
        return
    time.sleep(seconds or 1)


def _changed(folder: Path) -> frozenset[tuple[str, int, int]]:
  """Name, size and time of the files that a report is made of."""
  files = [folder / 'sweep.json', *folder.parent.glob('trials/*/trial.json')]
  files += folder.parent.glob('trials/*/metrics.jsonl')
  found = set()
  for path in files:
    if path.exists():
      told = path.stat()
      found.add((str(path), told.st_size, told.st_mtime_ns))
  return frozenset(found)
