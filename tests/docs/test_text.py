"""Names, messages and files that the pages mention exist."""

import ast
import re
import runpy
import tomllib

import pytest
from pages import ROOT

import t2x.layers.interfaces
import t2x.models.interfaces
from t2x import data, layers, models, tasks, train
from t2x.experiments import registry
from t2x.interop import FAMILIES

PAGES = [ROOT / 'README.md', ROOT / 'CONTRIBUTING.md', *sorted((ROOT / 'docs').glob('*.md'))]
PAGES = [page for page in PAGES if page.name != 'notebook.md']
each_page = pytest.mark.parametrize('page', PAGES, ids=lambda page: page.stem)
# Rows of tables whose first cell is a message of t2x.
MESSAGE = re.compile(r'^\| `([^`]{25,})`.* \|', re.MULTILINE)


EXTRAS = tomllib.loads((ROOT / 'pyproject.toml').read_text())['project']['optional-dependencies']
# An extra in a command (`'.[data]'`, `'t2x[data]'`), or in the text.
NAMED = re.compile(r"""(?:['" ]\.|\bt2x)\[([a-z][a-z0-9,]*)\]|\bextras? [`']([a-z]+)[`']""")


def test_extras_that_texts_name_exist():
  """Also those of messages, templates, studies and of the files that install t2x."""
  folders = ('docs', 't2x', 'tests', 'experiments', 'configs', 'launch', '.ci')
  files = [path for name in folders for path in (ROOT / name).rglob('*') if path.is_file()]
  files += [*ROOT.glob('*.md'), ROOT / 'pyproject.toml', ROOT / '.pre-commit-config.yaml']
  found = set()
  for path in files:
    if path.suffix in ('.pyc', '.png', '.svg', '.npz') or '_build' in path.parts:
      continue
    for command, word in NAMED.findall(path.read_text(errors='ignore')):
      names = set((command or word).split(','))
      assert names <= {*EXTRAS}, f'{path}: {names - {*EXTRAS}}'
      found |= names
  assert found == {*EXTRAS} and len(EXTRAS) <= 10


@each_page
def test_pages_with_tests_install_pytest(page):
  text = page.read_text()
  if re.search(r'^(?:python -m )?pytest ', text, re.MULTILINE):
    assert re.search(r"pip install (?:pytest|-e '\.\[test)", text)


@each_page
def test_parameters_exist(page):
  parts = registry()
  for name, member in re.findall(r'`(?:\w+/)?([A-Z]\w+)\.([a-z]\w+)', page.read_text()):
    for part in parts.find(name):
      assert member in part.parameters or hasattr(part.obj, member), f'{name}.{member}'


@each_page
def test_files_exist(page):
  for name in re.findall(
    r'`((?:t2x|configs|experiments|launch|tests|\.ci)/[\w./-]+)`', page.read_text()
  ):
    assert (ROOT / name).exists() or name == 't2x/layers/maxout.py', name


def test_messages_match_the_code():
  """A quarter of the sequences of three words of a message are in one text of the code; the others have values."""
  texts = [*code_texts()]
  tables = re.split(r'^\n', (ROOT / 'docs' / 'troubleshooting.md').read_text(), flags=re.MULTILINE)
  messages = MESSAGE.findall(''.join(t for t in tables if t.startswith('| message |')))
  assert len(messages) > 12
  for message in messages:
    threes = triples(message)
    assert max(len(threes & text) for text in texts) >= 0.25 * len(threes), message


def code_texts():
  """Yields the sequences of three words of each string in t2x."""
  for path in (ROOT / 't2x').rglob('*.py'):
    for node in ast.walk(ast.parse(path.read_text())):
      values = node.values if isinstance(node, ast.JoinedStr) else [node]
      texts = [value.value for value in values if isinstance(value, ast.Constant)]
      yield set().union(*(triples(text) for text in texts if isinstance(text, str)))


def triples(text):
  words = re.findall(r'[\w`-]+', text)
  return {*zip(words, words[1:], words[2:], strict=False)}


def test_the_figure_of_the_readme_has_the_verdicts_and_losses_of_the_study():
  figure = runpy.run_path(str(ROOT / 'docs' / 'flagship.py'))
  verdicts, text = figure['verdicts'](), (ROOT / 'README.md').read_text()
  assert 'masking 25 % or 40 % in training helps, and 5 % or 60 % hurts' in text
  assert [rate for rate, verdict in verdicts.items() if verdict == 'helps'] == [25, 40]
  assert [rate for rate, verdict in verdicts.items() if verdict == 'hurts'] == [5, 60]
  losses = figure['losses']()
  assert {len(values) for values in losses.values()} == {8}
  means = {rate: sum(values) / len(values) for rate, values in losses.items()}
  assert min(means, key=means.get) == 25
  # Each difference is at least the margin of the sweep.
  assert all(abs(means[rate] - means[15]) >= 0.02 for rate in means if rate != 15)


def test_the_readme_counts_the_families_that_are_imported():
  """Its number of systems is printed by a command, which tests/docs/test_pages.py runs."""
  text = (ROOT / 'README.md').read_text()
  assert re.findall(r'(\d+) Hugging Face families', text) == [str(len(FAMILIES))]


def test_interfaces_of_new_parts_have_the_methods_of_the_table():
  text = (ROOT / 'docs' / 'new_part.md').read_text()
  _, _, *rows = re.search(r'^\| to change .*?\n\n', text, re.MULTILINE | re.DOTALL)[0].splitlines()
  modules = (data, layers, models, tasks, train, t2x.models.interfaces, t2x.layers.interfaces)
  checked = []
  for row in rows[:-1] if not rows[-1] else rows:
    cells = re.split(r'(?<!\\)\|', row)
    names = re.findall(r'`([A-Z]\w+)`', cells[2])
    kinds = [next(getattr(m, name) for m in modules if name in dir(m)) for name in names]
    methods = re.findall(r'`(\w+)`', cells[3])
    assert all(any(hasattr(kind, method) for kind in kinds) for method in methods), row
    assert methods or 'a function' in cells[3], row
    checked += names
  assert {'PositionEncoding', 'ClassLoss', 'Optimizer', 'Evaluator', 'Sublayer'} <= {*checked}
