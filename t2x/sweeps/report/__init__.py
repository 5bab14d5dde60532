"""The report of a sweep: results.csv, costs.csv, report.md and report.html. Needs extra `report`."""

from pathlib import Path

from t2x.files import write_whole
from t2x.sweeps.report.markdown import markdown
from t2x.sweeps.report.results import Results, read_results
from t2x.sweeps.report.tables import costs_csv, results_csv

__all__ = ['Results', 'read_results', 'write_report']


def write_report(folder: Path, results: Results | None = None) -> list[Path]:
  """Writes the report of a sweep into its folder, of what has ended so far.

  Args:
    folder: OUT/NAME, with sweep.json; the trials' run folders are in OUT/trials.
    results: what `read_results(folder)` gave, where it is there already.

  Returns:
    The files: results.csv (the same for equal outcomes), costs.csv (times, memory), report.md and
    report.html.

  Raises:
    UserError: no sweep folder, or a file in it that cannot be read.
  """
  results = results or read_results(folder)
  files = {
    'results.csv': results_csv(results),
    'costs.csv': costs_csv(results),
    'report.md': markdown(results),
  }
  for name, text in files.items():
    write_whole(folder / name, text.encode())
  return [folder / name for name in files]
