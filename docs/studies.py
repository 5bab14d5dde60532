"""Writes the pages of all studies from their READMEs and reports: `docs/studies.md` and `experiments/README.md`.

python -m docs.studies   # experiments/README.md
"""

import collections
import csv
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from experiments.verdicts import COLORS, Report, reports

ROOT = Path(__file__).parents[1]
# Title of a chapter -> its introduction, and the folders of its studies in the order of reading.
CHAPTERS: Mapping[str, tuple[str, tuple[str, ...]]] = {
  'Attention and positions': (
    'From recurrence to attention, which parts of attention matter at a small size, and what cheaper attention costs.',
    (
      'before_transformers',
      'attention_basics',
      'positions',
      'interaction_matrices',
      'patterns',
      'long_range',
      'grouped_queries',
      'head_pruning',
    ),
  ),
  'Feed-forward layers, experts and wiring': (
    'The layers between attention layers: activations and gates, mixtures of experts, norms and shortcuts.',
    ('feed_forward', 'experts', 'norm_and_warmup', 'switches', 'narang2021'),
  ),
  'Objectives, data and decoding': (
    'What a model is trained to predict, in which units, from how many labels, and how text is generated from it.',
    (
      'objectives',
      'tokenizers',
      'few_labels',
      'few_shot',
      'libreoffice_en_de',
      'decoding',
    ),
  ),
  'Vision': (
    'Small images and videos, few of them, and short training.',
    ('architectures', 'vit_regularisation', 'video'),
  ),
  'Training and scaling': (
    'Learning rates and losses over sizes, speed, and plans of published sizes.',
    ('mup', 'scaling', 'speed', 'scale'),
  ),
  'Method': (
    'Error rates of the verdicts in all chapters, and the effect of interruptions on a run.',
    ('statistics', 'referee', 'reliability'),
  ),
}


def studies_page(
  folder: Path = ROOT / 'experiments',
  chapters: Mapping[str, tuple[str, tuple[str, ...]]] = CHAPTERS,
) -> str:
  """Returns the page, for `docs/studies.md`.

  Raises:
    ValueError: a folder with a README is in no chapter or in several.
  """
  names = sorted(path.parent.name for path in folder.glob('*/README.md'))
  placed = [name for _, group in chapters.values() for name in group]
  if sorted(placed) != names:
    raise ValueError(
      f'studies in no chapter, or twice: {sorted({*names} ^ {*placed})}; edit CHAPTERS in docs/studies.py'
    )
  studies = {name: reports(folder / name) for name in placed}
  blocks = [*introduction(studies), '## At a glance', glance(folder, chapters, studies)]
  for title, (text, group) in chapters.items():
    blocks += [f'## {title}', text]
    for name in group:
      blocks += section(folder / name, studies[name])
  return '\n\n'.join(blocks) + '\n'


def introduction(studies: Mapping[str, list[Report]]) -> Iterator[str]:
  """Yields the title, an explanation of verdicts, and the numbers of verdicts."""
  sweeps = [report for group in studies.values() for report in group]
  counts = collections.Counter(c.verdict for report in sweeps for c in report.comparisons)
  numbers = ', '.join(f'{counts[verdict]} `{verdict}`' for verdict in COLORS)
  yield '# What helps at small size'
  yield (
    f'{len(studies)} studies of Transformers and their rivals, each with its question, its result, what it does not '
    'show, a picture or table, and its verdicts. Most models have fewer than a million parameters and train for '
    'minutes on two CPU cores, so that a result is one about small models and short training. Everything below '
    'is read from the READMEs and reports of `experiments/` when these pages are built.'
  )
  yield (
    'How to read a verdict ([how it is computed](methods.md)): each variant is compared with the '
    'baseline of its sweep, seed by seed, with a correction '
    'for all comparisons. It `helps` or `hurts` if the corrected p-value is at most 5 % (less if there were several '
    'looks) and the difference at least a margin that was fixed before, if there is one; it is the `same` if tests of '
    'equivalence find the difference smaller than the margin; '
    'otherwise it is `inconclusive`, which is not "no difference". A verdict is `withheld` where a report may not give '
    'one: too few seeds, or a variant or baseline that is not tuned or tuned with one value for '
    'all seeds. It holds for the data, steps and learning rates '
    'of its sweep. [Why trust it](trust.md#verdicts-of-sweeps-have-known-error-rates) has the error rates.'
  )
  yield (
    f'The {len(sweeps)} reports below have {sum(counts.values())} comparisons: {numbers}. Reports of the same trials '
    'by another metric or baseline count separately; sweeps that choose learning rates and sweeps of one seed do not '
    'count. Some reports are older than a rule of today, such as the rule of the margin: their '
    'verdicts were judged again. If a '
    'study chose its rates in a separate sweep, its text reports rates at an edge of the grid; its '
    'verdicts are the verdicts of the reports, whose intervals do not contain the noise of that choice.'
  )


def glance(
  folder: Path,
  chapters: Mapping[str, tuple[str, tuple[str, ...]]],
  studies: Mapping[str, list[Report]],
) -> str:
  """Returns the table of helpful and harmful variants, for all studies with verdicts."""
  lines = ['| study | helps | hurts | other verdicts |', '| --- | --- | --- | --- |']
  for name in (name for _, group in chapters.values() for name in group if studies[name]):
    title = paragraphs(folder / name)[0]
    counts = collections.Counter(c.verdict for report in studies[name] for c in report.comparisons)
    cells = [
      f'[{title.partition(":")[0]}](#{slug(title)})',
      variants(studies[name], 'helps'),
      variants(studies[name], 'hurts'),
      ', '.join(f'{counts[v]} {v}' for v in ('same', 'inconclusive', 'withheld') if counts[v]),
    ]
    lines.append('| ' + ' | '.join(cells) + ' |')
  return '\n'.join(lines)


def variants(sweeps: list[Report], verdict: str) -> str:
  """Returns the variants with a verdict by baseline, with the number of comparisons if some have another verdict."""
  groups = []
  for baseline in dict.fromkeys(report.baseline for report in sweeps):
    compared = [c for report in sweeps if report.baseline == baseline for c in report.comparisons]
    total = collections.Counter(c.variant for c in compared)
    matches = collections.Counter(c.variant for c in compared if c.verdict == verdict)
    names = [
      f'`{name}`' if number == total[name] else f'`{name}` ({number} of {total[name]})'
      for name, number in matches.items()
    ]
    if names:
      groups.append(f'{", ".join(names)}, against `{baseline}`')
  return '; '.join(groups)


def overview(
  folder: Path = ROOT / 'experiments',
  chapters: Mapping[str, tuple[str, tuple[str, ...]]] = CHAPTERS,
) -> str:
  """Returns the table of all studies for `experiments/README.md`; the largest shares of verdicts come first."""
  rows = []
  for name in (name for _, group in chapters.values() for name in group):
    title, _, answer, *_ = paragraphs(folder / name)
    compared = [c for report in reports(folder / name) for c in report.comparisons]
    decided = [c for c in compared if c.verdict in ('helps', 'hurts', 'same')]
    seeds = sorted({c.seeds for c in compared if c.seeds})
    cells = [
      f'[{title.partition(":")[0]}]({name}/README.md)',
      ' '.join(answer.removeprefix('**Answer:** ').split()),
      ' to '.join(map(str, dict.fromkeys([seeds[0], seeds[-1]]))) if seeds else '',
      f'{len(decided)} of {len(compared)}' if compared else '',
      f'{minutes(folder / name):.0f}' if compared else '',
      max(re.findall(r'20\d\d-\d\d-\d\d', (folder / name / 'README.md').read_text()), default=''),
    ]
    rows.append((-len(decided) / max(len(compared), 1), -len(decided), not compared, cells))
  lines = [
    '| study | answer | seeds | verdicts | minutes | date |',
    '| --- | --- | ---: | ---: | ---: | --- |',
  ]
  lines += ['| ' + ' | '.join(cells) + ' |' for *_, cells in sorted(rows)]
  return (
    '\n\n'.join(
      [
        '# Studies',
        'Small models on two CPU cores: each answer holds for the data, sizes and steps of its '
        'study, and for no others.',
        'Verdicts: comparisons with the verdict `helps`, `hurts` or `same`, of all planned '
        'comparisons; the rest is `inconclusive` '
        'or `withheld`. Minutes: training time of all trials, added up. `python -m docs.studies` '
        'writes this table from the READMEs and reports.',
        '\n'.join(lines),
      ]
    )
    + '\n'
  )


def minutes(study: Path) -> float:
  """Returns the minutes that the trials of a study trained, each trial once."""
  trials = {}
  for path in sorted(study.glob('results/*/costs.csv')):
    with path.open() as file:
      for row in csv.DictReader(file):
        trials[row['identity'], row['seed']] = float(row['seconds'] or 0)
  return sum(trials.values()) / 60


def section(study: Path, sweeps: list[Report]) -> Iterator[str]:
  """Yields the title of a study, its question, result, limits and picture, and its verdicts, collapsed."""
  title, question, _, result, limits, *rest = paragraphs(study)
  yield f'### {title}'
  yield from (links(text, study.name) for text in (question, result, limits))
  if picture := re.search(r'!\[[^]]+\]\([^)]+\)', '\n\n'.join(rest)):
    yield links(picture[0], study.name)
  if sweeps:
    number = sum(len(report.comparisons) for report in sweeps)
    plural = 's' if len(sweeps) > 1 else ''
    yield f'<details><summary>Verdicts ({number}) of {len(sweeps)} report{plural}</summary>'
    for report in sweeps:
      yield from verdicts(report)
    yield '</details>'
  yield f'[The study, with its commands and numbers](recipes/{study.name}.md)'


def verdicts(report: Report) -> Iterator[str]:
  """Yields the comparison of a report in words, and the table of its verdicts."""
  note = '; exploratory' if report.exploratory else ''
  yield (
    f'`{report.name}`: `{report.metric}` against `{report.baseline}`, {report.better} is better; '
    f'seeds: {report.seeds}{note}.'
  )
  lines = [
    f'| variant | difference | {report.level} interval | verdict |',
    '| --- | ---: | ---: | --- |',
  ]
  for c in report.comparisons:
    difference = '' if c.difference is None else f'{c.difference:+.4g}'
    interval = '{:+.4g} to {:+.4g}'.format(*c.interval) if c.interval else ''
    lines.append(f'| {c.label} | {difference} | {interval} | {c.verdict} |')
  yield '\n'.join(lines)


def paragraphs(study: Path) -> list[str]:
  """Returns the paragraphs of a README; the first is its title, without the mark of a heading."""
  return (study / 'README.md').read_text().removeprefix('# ').split('\n\n')


def links(text: str, name: str) -> str:
  """Returns the text with links of a README as links of the page."""
  text = re.sub(
    r'\]\((?!https?:|#|\.\./\w+/README)([^)]+)\)', rf'](../experiments/{name}/\1)', text
  )
  return re.sub(r'\]\(\.\./(\w+)/README\.md\)', r'](recipes/\1.md)', text)


def slug(title: str) -> str:
  """Returns the anchor of a heading as MyST writes it."""
  return re.sub(r'[^\w\- ]', '', title.lower()).replace(' ', '-')


if __name__ == '__main__':
  (ROOT / 'experiments' / 'README.md').write_text(overview())
