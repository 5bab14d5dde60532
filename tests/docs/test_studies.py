"""The page of all studies has their texts, pictures and verdicts."""

import re

import pytest
from pages import ROOT

FOLDER = ROOT / 'experiments'
README = """# Wings: do they help?

Does a wing
help?

**Answer:** A second wing helps.

**Result:** It helps, see [tails](../tails/README.md) and [the list](list.csv).

**Limitations:** flight.

```bash
t2x sweep wings.gin
```

![first](results/a.png)

![second](results/b.png)
"""
REPORT = """# sweep

Against the baseline none by {metric} (lower is better), of 2 variants, 1 helps.

## Verdicts

| variant | difference | 95 % interval | verdict | seeds |
| --- | ---: | ---: | --- | ---: |
| none |  |  | baseline | 3 |
| two | -0.2 | -0.3 to -0.1 | helps | 3 |
| four | -0.1 | -0.2 to +0.1 | {verdict} | 3 |

"""
CHAPTERS = {'Flying': ('About flight.', ('wings',)), 'Method': ('About methods.', ('tails',))}


@pytest.fixture
def studies(monkeypatch):
  monkeypatch.syspath_prepend(str(ROOT))
  monkeypatch.syspath_prepend(str(ROOT / 'docs'))
  import studies

  return studies


@pytest.fixture
def folder(tmp_path):
  for name, verdict in (('first', 'inconclusive'), ('second', 'helps'), ('second_rates', 'hurts')):
    path = tmp_path / 'wings/results' / name / 'report.md'
    path.parent.mkdir(parents=True)
    path.write_text(REPORT.format(metric=f'{name}/loss', verdict=verdict))
  (tmp_path / 'wings/README.md').write_text(README)
  (tmp_path / 'tails').mkdir()
  (tmp_path / 'tails/README.md').write_text(
    '# Tails\n\nDo they?\n\n**Answer:** No.\n\n**Result:** No.\n\n**Limitations:** x.\n'
  )
  return tmp_path


def test_a_study_is_shown_with_its_texts_first_picture_and_links_of_the_page(studies, folder):
  page = studies.studies_page(folder, CHAPTERS)
  assert (
    '## Flying\n\nAbout flight.\n\n### Wings: do they help?\n\nDoes a wing\nhelp?\n\n**Result:** It helps'
    in page
  )
  assert '[tails](recipes/tails.md) and [the list](../experiments/wings/list.csv)' in page
  assert (
    '![first](../experiments/wings/results/a.png)' in page
    and 'b.png' not in page
    and 't2x sweep' not in page
  )
  assert page.index('### Wings') < page.index('## Method') < page.index('### Tails')
  assert page.count('](recipes/wings.md)') == 1 and page.count('<details>') == 1


def test_verdicts_are_counted_over_reports_without_those_that_choose_rates(studies, folder):
  page = studies.studies_page(folder, CHAPTERS)
  assert (
    'The 2 reports below have 4 comparisons: 3 `helps`, 0 `hurts`, 0 `same`, 1 `inconclusive`, 0 `withheld`.'
    in page
  )
  row = (
    '| [Wings](#wings-do-they-help) | `two`, `four` (1 of 2), against `none` |  | 1 inconclusive |'
  )
  assert row in page and page.count('[Tails]') == 0
  assert (
    '<summary>Verdicts (4) of 2 reports</summary>\n\n`first`: `first/loss` against `none`, lower is better; seeds: 3.'
    in page
  )
  assert '| four | -0.1 | -0.2 to +0.1 | inconclusive |' in page and 'second_rates' not in page


def test_verdicts_against_several_baselines_are_named_with_theirs(studies, folder):
  path = folder / 'wings/results/second/report.md'
  path.write_text(
    path.read_text().replace('baseline none', 'baseline one').replace('| none |', '| one |')
  )
  page = studies.studies_page(folder, CHAPTERS)
  assert '| `two`, against `none`; `two`, `four`, against `one` |  | 1 inconclusive |' in page


def test_the_table_of_studies_has_their_answers_and_numbers_of_verdicts(studies, folder):
  (folder / 'wings/results/first/costs.csv').write_text('identity,seed,seconds\na,0,60\na,1,90\n')
  # The same trials in another report.
  (folder / 'wings/results/second/costs.csv').write_text('identity,seed,seconds\na,0,60\nb,0,30\n')
  lines = studies.overview(folder, CHAPTERS).splitlines()
  first, second = lines[-2:]
  assert first == '| [Wings](wings/README.md) | A second wing helps. | 3 | 3 of 4 | 3 |  |'
  assert second == '| [Tails](tails/README.md) | No. |  |  |  |  |'


def test_the_stored_table_of_studies_is_that_of_the_readmes_and_reports(studies):
  message = 'run python -m docs.studies'
  assert (FOLDER / 'README.md').read_text() == studies.overview(), message


def test_a_study_that_no_chapter_has_and_one_without_a_folder_are_refused(studies, folder):
  for chapters in (
    {'Flying': ('', ('wings',))},
    {'Flying': ('', ('wings', 'tails', 'fins'))},
    {'A': ('', ('wings', 'wings', 'tails'))},
  ):
    with pytest.raises(ValueError, match='no chapter, or twice'):
      studies.studies_page(folder, chapters)


def test_every_study_of_the_repository_is_on_the_page_with_its_result(studies):
  page = studies.studies_page()
  paths = sorted(FOLDER.glob('*/README.md'))
  assert len(re.findall(r'^### ', page, re.MULTILINE)) == len(paths) >= 27
  for path in paths:
    title, _, _, result, limits = path.read_text().split('\n\n')[:5]
    assert f'\n##{title}\n' in page
    assert result.splitlines()[0] in page and limits[:60] in page
  # The report of switches, judged again: two of the four that helped are below the margin.
  assert (
    '`learned_value_residual`, `token_shift`, against `plain` | `qk_norm`, against `plain` | 3 same, 7 inconclusive'
    in page
  )
