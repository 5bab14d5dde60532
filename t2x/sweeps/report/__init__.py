"""Report of a sweep: results.csv, costs.csv, report.md and report.html. Requires the extra `report`."""

import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from t2x.base.errors import UserError
from t2x.base.files import write_atomically
from t2x.sweeps.report.fit import Fit
from t2x.sweeps.report.looks import record_look
from t2x.sweeps.report.markdown import markdown, verdict_text
from t2x.sweeps.report.page import page, report_data
from t2x.sweeps.report.results import Results, read_results
from t2x.sweeps.report.tables import costs_csv, results_csv

__all__ = ['Results', 'read_results', 'report_data', 'verdict_text', 'watch', 'write_report']


def write_report(
  folder: Path, results: Results | None = None, fits: Sequence[Fit] = ()
) -> list[Path]:
  """Writes the report of the trials that have ended into the folder of the sweep.

  Args:
    folder: OUT/NAME, with sweep.json; the run folders of the trials are in OUT/trials.
    results: the result of `read_results(folder)`, if already read.
    fits: scaling laws of the sweep, for report.html.

  Returns:
    The files, except looks.json: results.csv (deterministic), costs.csv (times and memory), report.md and report.html.

  Raises:
    UserError: the folder is not a sweep folder, its plan is damaged, or a file cannot be written.
  """
  results = results or read_results(folder)
  files = {
    'results.csv': results_csv(results),
    'costs.csv': costs_csv(results),
    'report.md': markdown(results, fits),
    'report.html': page(results, fits),
  }
  for name, text in files.items():
    try:
      write_atomically(folder / name, text.encode())
    except OSError as error:
      raise UserError(f'{folder / name} cannot be written: {error.strerror}') from error
  if results.judged is not None:
    record_look(folder, results.judged)
  return [folder / name for name in files]


def watch(folder: Path, seconds: float | None) -> Iterator[Results]:
  """Writes the report, and rewrites it when trials progress, until all have ended.

  Args:
    folder: OUT/NAME.
    seconds: seconds between checks of the files; None: writes the report once.

  Yields:
    The results, each time the report is written.
  """
  before = None
  while True:
    # Taken before the files are read, so that later changes are found at the next check.
    now = _fingerprint(folder)
    if now != before:
      results, before = read_results(folder), now
      write_report(folder, results)
      yield results
      if seconds is None or results.ended == len(results.entries):
        return
    time.sleep(seconds or 1)


def _fingerprint(folder: Path) -> frozenset[tuple[str, int, int]]:
  """Returns the name, size and modification time of the files that a report depends on."""
  files = [folder / 'sweep.json', *folder.parent.glob('trials/*/trial.json')]
  files += folder.parent.glob('trials/*/metrics.jsonl')
  entries = set()
  for path in files:
    if path.exists():
      stat = path.stat()
      entries.add((str(path), stat.st_size, stat.st_mtime_ns))
  return frozenset(entries)
