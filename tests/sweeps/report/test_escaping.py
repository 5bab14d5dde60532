"""Names from users are text in report.html, report.md and results.csv, whatever they contain."""

import csv
import io
import json
import re

import pytest

from t2x.sweeps.published import Published
from t2x.sweeps.report import read_results, report_data, write_report

IMAGE = '<img src=x onerror=alert(1)>'
QUOTES = '"&\''
MARKUP = '*a* _b_ |c| [d](e) `f` </script>'
EFFECTS = {QUOTES: 0.0, IMAGE: -0.12, MARKUP: 0.1}


@pytest.fixture
def folder(sweep, change_plan):
  folder = sweep(effects=EFFECTS, seeds=3, diverged=(IMAGE, 1), failed=(MARKUP, 2))
  published = Published(
    values={QUOTES: 1.0, IMAGE: 2.0, MARKUP: 3.0},
    goal='min',
    label=IMAGE,
    groups={IMAGE: (QUOTES, IMAGE, MARKUP)},
  )
  change_plan(folder, name=IMAGE, baseline=QUOTES, published=published, metric='loss')
  write_report(folder)
  return folder


def test_the_page_has_names_in_its_data_only(folder):
  text = (folder / 'report.html').read_text()
  assert '<title>&lt;img src=x onerror=alert(1)&gt;: sweep report</title>' in text
  assert '<img' not in text and text.count('</script>') == text.count('<script') == 2
  data = json.loads(re.search(r'id="data">(.*?)</script>', text)[1])
  assert [row['variant'] for row in data['rows']] == [QUOTES, IMAGE, MARKUP]
  assert json.loads(json.dumps(report_data(read_results(folder))))['name'] == IMAGE


def test_markdown_has_names_as_text(folder):
  text = re.sub(r'```\n.*?\n```', '', (folder / 'report.md').read_text(), flags=re.DOTALL)
  # The tags of the report itself, which fold the tests.
  own = '<details><summary>Tests and definitions</summary>', '</details>'
  assert all(text.count(tag) == 1 for tag in own)
  assert '<' not in text.replace(own[0], '').replace(own[1], '')
  assert '&lt;img src=x onerror=alert(1)>' in text
  assert r'\*a\* \_b\_ \|c\| \[d\](e) \`f\` &lt;/script>' in text
  cells = {line.replace(r'\|', '').count(' | ') for line in text.splitlines() if '"&amp;' in line}
  assert 11 in cells


def test_csv_has_the_names(folder):
  rows = csv.DictReader(io.StringIO((folder / 'results.csv').read_text()))
  assert {row['variant'] for row in rows} == {*EFFECTS}
