"""Reports of studies are read as they are written, and every study states its result and its limits."""

import re
import runpy
from pathlib import Path

import pytest

STUDIES = Path(__file__).parents[2] / 'experiments'
SCRIPT = runpy.run_path(str(STUDIES / 'verdicts.py'))
# Their results are a table: checks of the method, plans, and single runs.
TABLES = {'feed_forward', 'few_shot', 'libreoffice_en_de', 'reliability', 'scale', 'statistics'}
FOLDERS = sorted(path for path in STUDIES.iterdir() if path.is_dir() and path.name != '__pycache__')
STORED = sorted(STUDIES.glob('*/results/*/report.md'))

REPORT = """# sweep

Against the baseline plain by loss (lower is better), of 6 comparisons (3 variants at 2 points of the grid), ...

**Exploratory: it has another metric.**

## Verdicts

| variant | difference | 96.3 % interval | verdict | p | seeds | note |
| --- | ---: | ---: | --- | ---: | ---: | --- |
| plain (peak = 0.1, depth = 2) |  |  | baseline |  | 3 |  |
| good (peak = 0.1, depth = 2) | -0.200 | -0.300 to -0.100 | helps | &lt; 0.001 | 3 |  |
| edge (peak = 0.1, depth = 2) | +0.050 | -0.100 to +0.200 | inconclusive | 0.4 | 3 |  |
| few (peak = 0.1, depth = 2) | +0.900 | +0.800 to +1.000 | hurts | 0.01 | 5 |  |
| plain (peak = 0.3, depth = 2) |  |  | baseline |  | 3 |  |
| good (peak = 0.3, depth = 2) |  |  | inconclusive | 0.5 | 0 | no seed finished in both |
| few (peak = 0.3, depth = 2) | +0.700 | +0.600 to +0.800 | hurts | 0.01 | 5 |  |

Verdicts: as in the text.

## Tuning

Every variant was trained with each value.

| variant | tuned | at the edge |
| --- | ---: | --- |
| plain | 1 |  |
| edge | 3 | the largest value |

| variant | value |
| --- | ---: |
| plain | 1 |
"""


def stored(folder, text=REPORT, name='sweep'):
  path = folder / 'results' / name / 'report.md'
  path.parent.mkdir(parents=True)
  path.write_text(text)
  return path


def test_a_report_is_read_with_its_intervals_points_and_seeds(tmp_path):
  report = SCRIPT['read_report'](stored(tmp_path))
  assert (report.name, report.baseline, report.metric, report.better) == (
    'sweep',
    'plain',
    'loss',
    'lower',
  )
  assert (report.level, report.seeds, report.exploratory) == ('96.3 %', '3 to 5', True)
  first, _, few, failed, _ = report.comparisons
  assert (first.variant, first.point, first.seeds) == ('good', 'peak = 0.1, depth = 2', 3)
  assert (first.difference, first.interval, first.verdict) == (-0.2, (-0.3, -0.1), 'helps')
  assert (failed.difference, failed.interval, failed.verdict) == (None, None, 'inconclusive')
  assert few.verdict == 'hurts'


def test_a_value_at_the_edge_withholds_the_verdict_of_its_variant_and_of_all_if_it_is_the_baselines(
  tmp_path,
):
  read = SCRIPT['read_report']
  verdicts = {c.label: c.verdict for c in read(stored(tmp_path)).comparisons}
  assert [name for name, verdict in verdicts.items() if verdict == 'withheld'] == [
    'edge (peak = 0.1, depth = 2)'
  ]
  edge = REPORT.replace('| plain | 1 |  |', '| plain | 1 | the smallest value |')
  report = read(stored(tmp_path, edge, 'edge'))
  assert {c.verdict for c in report.comparisons} == {'withheld'}


def test_verdicts_txt_withholds_a_verdict_at_its_point_only(tmp_path):
  path = stored(tmp_path)
  line = 'few 0.1 2: inconclusive, +0.9 (+0.8 to +1.0), p 0.01, withheld: with 3 seeds it must exceed 1\n'
  path.with_name('verdicts.txt').write_text(
    line + 'few 0.3 2: hurts, +0.7 (+0.6 to +0.8), p 0.01\n'
  )
  report = SCRIPT['read_report'](path)
  verdicts = {c.point: c.verdict for c in report.comparisons if c.variant == 'few'}
  assert verdicts == {'peak = 0.1, depth = 2': 'withheld', 'peak = 0.3, depth = 2': 'hurts'}


def test_later_verdicts_and_bounds_of_zero_are_read(tmp_path):
  row = '| few (peak = 0.1, depth = 2) | +0.900 | +0.800 to +1.000 | hurts |'
  for interval in ('> 0 to +1.000', '-0.100 to +1.000'):
    text = REPORT.replace(row, row.replace('+0.800 to +1.000', interval))
    path = stored(tmp_path / interval, text)
    few = SCRIPT['read_report'](path).comparisons[2]
    assert (few.verdict, few.interval) == ('hurts', (0.0, 1.0))
  path.with_name('verdicts.txt').write_text(
    'few 0.1 2: inconclusive, +0.9 (-0.1 to +1.0), p 0.01, below the margin\n1 inconclusive\n'
  )
  few = SCRIPT['read_report'](path).comparisons[2]
  assert (few.verdict, few.interval) == ('inconclusive', (-0.1, 1.0))


def test_an_unknown_verdict_and_a_report_without_verdicts_are_refused(tmp_path):
  with pytest.raises(ValueError, match="unknown verdict 'better' of good"):
    SCRIPT['read_report'](stored(tmp_path, REPORT.replace('| helps |', '| better |')))
  with pytest.raises(ValueError, match='no verdicts'):
    SCRIPT['read_report'](stored(tmp_path, '# sweep\n', 'empty'))


def test_sweeps_of_rates_and_of_one_seed_are_left_out_of_the_picture(tmp_path):
  stored(tmp_path)
  stored(tmp_path, name='sweep_rates')
  stored(tmp_path, re.sub(r'\| [35] \|', '| 1 |', REPORT), 'single')
  assert [report.name for report in SCRIPT['reports'](tmp_path)] == ['sweep']
  picture = SCRIPT['draw'](tmp_path)
  # The width of a PNG file.
  assert int.from_bytes(picture.read_bytes()[16:20], 'big') == 900


def test_every_stored_report_has_as_many_comparisons_as_it_says():
  assert len(STORED) >= 60
  for path in STORED:
    report = SCRIPT['read_report'](path)
    said = re.search(r'of (\d+) (?:variants|comparisons)', path.read_text())
    assert len(report.comparisons) == (int(said[1]) if said else len(report.comparisons)), path
    assert report.comparisons and report.better == (
      'higher' if re.search('accuracy|match', report.metric) else 'lower'
    )


@pytest.mark.parametrize('folder', FOLDERS, ids=lambda folder: folder.name)
def test_a_study_has_a_question_an_answer_a_result_its_limits_a_command_and_a_picture_or_a_table(
  folder,
):
  """A table suffices for the studies of `TABLES`, whose stored data allow no picture of verdicts.

  A study without an answer may be pruned to its sweep: it then stores no results to draw.
  """
  text = (folder / 'README.md').read_text()
  title, question, answer, result, limits, rest = text.split('\n\n', 5)
  assert title.startswith('# ') and question[0] not in '|!`*' and '?' in title + question
  assert answer.startswith('**Answer:** ') and len(answer.split()) <= 16
  assert result.startswith('**Result:** ') and limits.startswith('**Limitations:** ')
  assert re.search(r'^```(?:bash|sh)\n(?:.*\n)*?(?:t2x|python) ', rest, re.MULTILINE)
  pictures = re.findall(r'!\[[^]]+\]\(([^)]+)\)', rest)
  assert all((folder / picture).exists() for picture in pictures)
  is_pruned = answer.startswith('**Answer:** No answer') and not (folder / 'results').exists()
  has_table = folder.name in TABLES and re.search(r'^\|---', rest, re.MULTILINE)
  assert pictures or has_table or is_pruned
