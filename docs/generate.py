"""Writes the pages of parts, recipes and the notebook, from the code, the configs and the studies."""

import contextlib
import io
import json
import re
import shutil
import textwrap
from collections.abc import Iterable, Iterator
from pathlib import Path

from studies import studies_page

from t2x.cli import main
from t2x.cli.systems import largest
from t2x.config.headers import header, systems

ROOT = Path(__file__).parents[1]


def write(docs: Path) -> None:
  """Writes `parts/`, `recipes/`, `systems.md`, `studies.md` and `notebook.md` into the folder of the pages."""
  for name in ('parts', 'recipes'):
    shutil.rmtree(docs / name, ignore_errors=True)
  write_parts(docs / 'parts')
  write_recipes(docs / 'recipes')
  (docs / 'systems.md').write_text(systems_page())
  (docs / 'studies.md').write_text(studies_page())
  (docs / 'notebook.md').write_text(notebook_page(docs / 'run_folder.ipynb'))


def write_parts(folder: Path) -> None:
  """Writes a page for each interface with `t2x parts --markdown`, and their index."""
  with contextlib.redirect_stdout(io.StringIO()):
    code = main(['parts', '--markdown', str(folder)])
  if code:
    raise SystemExit(code)
  rows, names = [], []
  for path in sorted(folder.glob('*.md')):
    text = path.read_text()
    summary, parts = text.split('\n\n')[1], re.findall(r'^## (\w+)', text, re.MULTILINE)
    rows.append((f'[{path.stem}]({path.name})', summary, ', '.join(f'`{part}`' for part in parts)))
    names.append(path.stem)
  (folder / 'index.md').write_text(
    '# Parts\n\nWhat gin files can name, by interface; `t2x parts NAME` prints the same. Written from the code when '
    f'these pages are built.\n\n{table(("interface", "", "parts"), rows)}\n{toc(names)}'
  )


def write_recipes(folder: Path) -> None:
  """Writes the index of the configs with the measured results in their headers, and a page for each study."""
  folder.mkdir()
  studies = sorted((ROOT / 'experiments').glob('*/README.md'))
  rows = []
  for study in studies:
    name, text = study.parent.name, study.read_text()
    # Links of a README are relative to its folder; those to other studies are pages here.
    text = re.sub(
      r'\]\((?!https?:|#|\.\./\w+/README)([^)]+)\)', rf'](../../experiments/{name}/\1)', text
    )
    text = re.sub(r'\]\(\.\./(\w+)/README\.md\)', r'](\1.md)', text)
    (folder / f'{name}.md').write_text(text)
    title, question = text.split('\n\n')[:2]
    rows.append((f'[{name}]({name}.md)', title.removeprefix('# '), ' '.join(question.split())))
  sections = [
    '# Recipes',
    'Configs and studies with their measured results, from the headers of the files. Every number has its date, its '
    'hardware and the command that computes it.',
    '## Studies',
    table(('folder of `experiments/`', '', 'question'), rows),
    '## Runs',
    *(run_section(path) for path in sorted((ROOT / 'configs/runs').glob('*.gin'))),
    *plain_section('Models', (ROOT / 'configs/models').glob('*.gin')),
    *plain_section('Tasks', (ROOT / 'configs/tasks').glob('*.gin')),
    *plain_section('Meshes', (ROOT / 'configs/meshes').glob('*.gin')),
    *plain_section('Precision', (ROOT / 'configs/precision').glob('*.gin')),
    toc(study.parent.name for study in studies),
  ]
  (folder / 'index.md').write_text('\n\n'.join(sections))


def run_section(path: Path) -> str:
  """Returns the description, the commands and the result in the header of a config."""
  blocks = [f'### {path.name}']
  for paragraph in header(path):
    # They are on the page of systems.
    if paragraph[0].startswith('System:'):
      continue
    indented = all(line.startswith('  ') for line in paragraph)
    text = textwrap.dedent('\n'.join(paragraph))
    blocks.append(f'```sh\n{text}\n```' if indented else text)
  return '\n\n'.join(blocks)


def plain_section(title: str, paths: Iterable[Path]) -> Iterator[str]:
  """Yields the heading and the table of the first paragraph of each header."""
  yield f'## {title}'
  yield table(
    ('file', ''), [(f'`{path.name}`', ' '.join(header(path)[0])) for path in sorted(paths)]
  )


def systems_page() -> str:
  """Returns the page of the systems by group, as `t2x systems` lists them."""
  found = systems(ROOT)
  lines = [
    '# Systems',
    f'{len(found)} systems of the literature, each with a config that trains it or the command '
    'that imports it, and the largest difference from an independent '
    'implementation that its test measured, relative to the largest element. `t2x systems NAME` '
    'prints the test and the result.',
  ]
  for group in dict.fromkeys(system.group for system in found):
    rows = [
      (
        # The config in a column of its own would leave no width for the result.
        (
          f'[{s.name}]({s.paper})'
          if s.paper.startswith('http')
          else f'{s.name}, {s.paper}'.removesuffix(', ')
        )
        + f'<br>`{s.config}`',
        largest(s),
        s.result,
      )
      for s in found
      if s.group == group
    ]
    lines += [f'## {group}', table(('system and config', 'compared with', 'result'), rows)]
  return '\n\n'.join(lines) + '\n'


def notebook_page(path: Path) -> str:
  """Returns the cells of a notebook as a page; its outputs are those of the reader's run."""
  cells = []
  for cell in json.loads(path.read_text())['cells']:
    text = ''.join(cell['source'])
    cells.append(text if cell['cell_type'] == 'markdown' else f'```python\n{text}\n```')
  return '\n\n'.join([*cells, f'{{download}}`The notebook <{path.name}>`']) + '\n'


def table(titles: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
  """Returns a Markdown table."""
  titles = list(titles)
  lines = [
    titles,
    ['---'] * len(titles),
    *([cell.replace('|', '\\|') for cell in row] for row in rows),
  ]
  return ''.join('| ' + ' | '.join(line) + ' |\n' for line in lines)


def toc(names: Iterable[str]) -> str:
  """Returns the hidden table of contents of pages."""
  return '\n'.join(['', '```{toctree}', ':hidden:', '', *names, '```', ''])
