"""docs/trust.md lists every place of t2x that loads pickles or modules by name."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
RUNS_CODE = re.compile(
  r'pickle\.load|read_pickle|import_module\(|allow_pickle=True|(?<![\w.])(exec|eval)\('
)


def test_the_table_lists_all_places_that_can_run_code():
  text = (ROOT / 'docs' / 'trust.md').read_text()
  table = text.partition('## What can run code')[2].partition('\n## ')[0]
  places = {
    str(path.relative_to(ROOT / 't2x'))
    for path in (ROOT / 't2x').rglob('*.py')
    if RUNS_CODE.search(path.read_text())
  }
  assert {place for place in places if f'`{place}`' not in table} == set()
  listed = re.findall(r'`([\w/]+\.py)`', table)
  assert all((ROOT / 't2x' / place).is_file() for place in listed)
