"""The worked example and the commands of CONTRIBUTING.md are right."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import t2x
from t2x.cli import main

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / 'CONTRIBUTING.md').read_text()
FILES = dict(re.findall(r'```python\n# (\S+)\n(.*?)```', TEXT, re.DOTALL))


@pytest.mark.nightly
def test_the_example_passes_its_test_and_the_contracts(tmp_path, monkeypatch, capsys):
  assert FILES.keys() == {
    't2x/layers/feed_forward/maxout.py',
    'tests/layers/feed_forward/test_maxout.py',
  }
  for name, text in FILES.items():
    (tmp_path / name).parent.mkdir(parents=True)
    (tmp_path / name).write_text(text)
  # As if the file lay in t2x/layers/feed_forward.
  folder = str(tmp_path / 't2x/layers/feed_forward')
  (tmp_path / 'conftest.py').write_text(
    f'import t2x.layers.feed_forward as package\npackage.__path__.append({folder!r})\n'
  )
  done = subprocess.run(
    [sys.executable, '-m', 'pytest', '-q', '-c', '/dev/null', '--rootdir', tmp_path, tmp_path],
    capture_output=True,
    text=True,
    check=False,
  )
  assert done.returncode == 0, done.stdout
  # Not exported there, it is a module of the working directory.
  monkeypatch.chdir(folder)
  code = main(['test-part', 'maxout.Maxout', '--gin.Maxout.hidden_dim=32'])
  lines = capsys.readouterr().out
  assert code == 0, lines
  assert 'failed' not in lines


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
