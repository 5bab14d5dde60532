"""The worked example and the commands of CONTRIBUTING.md are right."""

import ast
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import t2x
from t2x import layers
from t2x.testing.contracts import CONTRACTS

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / 'CONTRIBUTING.md').read_text()
EXAMPLE = TEXT.partition('## A worked example')[2]
FILES = dict(re.findall(r'```python\n# (\S+\.py)\n(.*?)```', EXAMPLE, re.DOTALL))


def add_to_table(file: Path, line: str) -> None:
  """Inserts an entry at the top of the table PARTS of a file, and imports the new part."""
  text = re.sub(
    r'^PARTS\b.*[\[{]$', lambda head: f'{head[0]}\n{line.rstrip()}', file.read_text(), flags=re.M
  )
  file.write_text(
    text.replace('from t2x.layers import (\n', 'from t2x.layers import (\n  Maxout,\n', 1)
  )


def run(script: str, tree: Path) -> str:
  """Runs the commands of a block in a copy of the tree; returns what they print."""
  env = os.environ | {
    'PYTHONPATH': str(tree),
    'PATH': f'{Path(sys.executable).parent}:{os.environ["PATH"]}',
  }
  command = ['bash', '-euxo', 'pipefail', '-c', script]
  done = subprocess.run(command, cwd=tree, env=env, capture_output=True, text=True, check=False)
  assert done.returncode == 0, done.stdout + done.stderr
  return done.stdout


def test_the_module_of_the_example_imports_names_from_where_they_are_defined(monkeypatch):
  """Not from their package."""
  module, test = FILES
  for node in ast.walk(ast.parse(FILES[module])):
    if isinstance(node, ast.ImportFrom) and node.module.startswith('t2x.'):
      names = {f'{node.module}.{alias.name}' for alias in node.names}
      source = ROOT / f'{node.module.replace(".", "/")}.py'
      assert source.exists(), f'{names} are imported from a package'
  space: dict = {}
  exec(FILES[module], space)
  assert space['__all__'] == ['Maxout']
  monkeypatch.setattr(layers, 'Maxout', space['Maxout'], raising=False)
  exec(FILES[test], space)
  space['test_output_is_the_maximum_of_the_maps']()


@pytest.mark.nightly
def test_the_worked_example_done_as_written_passes_its_checks(tmp_path):
  """Each step in its order, in a copy of the tree."""
  tree = tmp_path / 'tree'
  for name in ('t2x', 'tests', 'configs'):
    ignored = shutil.ignore_patterns('__pycache__')
    shutil.copytree(ROOT / name, tree / name, ignore=ignored)
  shutil.copy(ROOT / 'pyproject.toml', tree)
  tables: list[str] = []
  printed = ''
  for language, block in re.findall(r'```(\w+)\n(.*?)```', EXAMPLE, re.DOTALL):
    head, _, body = block.partition('\n')
    if language == 'bash':
      printed += run(block, tree)
    elif table := re.match(r'# in PARTS of ([\w./]+)', head):
      tables.append(table[1])
      add_to_table(tree / table[1], body)
    else:
      file = tree / head.removeprefix('# ')
      # `t2x new` wrote it, and a command before moved it here.
      assert 'maxout' in file.read_text().lower()
      file.write_text(body)
  assert tables == ['tests/helpers/contract_parts.py', 'tests/golden/parameter_kinds.py']
  assert 'maxout' in (tree / 't2x/layers/__init__.py').read_text().split('feed_forward.mlp')[0]
  assert 'Maxout.up.kernel' in (tree / 'tests/golden/parameter_kinds.txt').read_text()
  assert re.findall(r'(\d+) passed', printed)[1:] == [str(len(CONTRACTS))]
  assert 'failed' not in printed
  assert ': ok' in printed


def test_the_files_of_the_reading_order_exist():
  text = (ROOT / 't2x' / 'README.md').read_text()
  spine = re.findall(r'^\| \d+ \| \[`(.+?)`\]\((.+?)\)', text, re.MULTILINE)
  assert len(spine) == 12 and all(name == link for name, link in spine)
  for name in re.findall(r'`((?:\w+/)+\w+\.py)`', text):
    assert (ROOT / 't2x' / name).exists(), name
  lines = sum((ROOT / 't2x' / name).read_text().count('\n') for name, _ in spine)
  assert 3_000 < lines < 5_000, 'the README says: about 4,000 lines'


def test_commands_and_files_exist():
  for name in re.findall(r'`?((?:\.ci|t2x|tests|configs)/[\w./]+)', TEXT):
    if name not in FILES and not name.endswith('/'):
      assert (ROOT / name.rstrip('.')).exists(), name


def test_readme_contributing_and_ci_run_the_same_tests():
  """CI runs the README's line as it is written there, then all other tests that are not nightly."""
  lines = {}
  for name in ('README.md', 'CONTRIBUTING.md', '.ci/run'):
    text = (ROOT / name).read_text()
    found = re.findall(r'^(?:pip install .+? && )?(pytest -n .+?)(?:  +#.*)?$', text, re.MULTILINE)
    lines[name] = found[0]
  assert set(lines.values()) == {"pytest -n 2 -m 'not slow'"}, lines
  assert found == ["pytest -n 2 -m 'not slow'", "pytest -n 3 -m 'slow and not nightly'"]


def test_all_files_have_the_version_of_the_package():
  for name, form in {
    'pyproject.toml': "version = '{}'\n",
    'CITATION.cff': 'version: {}\n',
    'CHANGELOG.md': '## {} ',
  }.items():
    assert form.format(t2x.__version__) in (ROOT / name).read_text(), name
