"""pyproject.toml declares the packages that t2x imports, and no others."""

import ast
import importlib.metadata
import re
import sys
import tomllib
from pathlib import Path

from t2x.base.packages import EXTRAS, command
from t2x.experiments import registry

ROOT = Path(__file__).parents[1]
PYPROJECT = tomllib.loads((ROOT / 'pyproject.toml').read_text())
PROJECT = PYPROJECT['project']
# tensorflow-datasets imports it, and does not ask for it.
FOR_OTHERS = {'importlib-resources'}


def package(name):
  return re.match(r'[\w.-]+', name).group().replace('_', '-').lower()


# Packages that add modules to the namespace of another one, which is imported.
BESIDE = {'googleapis-common-protos'}
# A message names the version to install; its own dependencies are many.
BY_HAND = {'lm-eval'}
# Packages whose modules have another name, where they are not installed.
OTHER_NAMES = {'mlflow': 'mlflow-skinny'}


def imported():
  """The packages that the files of t2x/ import, wherever in a file, each with one of its files."""
  packages = importlib.metadata.packages_distributions()
  found = {}
  for path in (ROOT / 't2x').rglob('*.py'):
    for node in ast.walk(ast.parse(path.read_text())):
      names = []
      if isinstance(node, ast.Import):
        names = [alias.name for alias in node.names]
      elif isinstance(node, ast.ImportFrom):
        names = [node.module]
      for name in {name.split('.')[0] for name in names} - {'t2x', *sys.stdlib_module_names}:
        for one in {*packages.get(name, [OTHER_NAMES.get(name, name)])} - BESIDE:
          found[package(one)] = path
  return found


def test_every_package_that_is_imported_is_declared():
  groups = [PROJECT['dependencies'], *PROJECT['optional-dependencies'].values()]
  missing = imported().keys() - {package(one) for group in groups for one in group} - BY_HAND
  assert not missing, {name: str(imported()[name]) for name in missing}


def test_every_package_of_the_core_install_is_imported():
  assert set(map(package, PROJECT['dependencies'])) - FOR_OTHERS <= imported().keys()


def with_extras(*names):
  """The packages of extras and of those that they include, with those of the core install."""
  found = set(map(package, PROJECT['dependencies']))
  for name in names:
    for one in PROJECT['optional-dependencies'][name]:
      if inner := re.match(r't2x\[(.+)\]', one):
        found |= with_extras(*inner[1].split(','))
      else:
        found.add(package(one))
  return found


def test_tests_of_the_extra_test_need_no_other_extra():
  """Whoever installs the extra `test` alone has tests that are skipped, not files that fail to be imported; only
  tests that may skip import what other extras install."""
  known = with_extras('test')
  others = with_extras(*PROJECT['optional-dependencies']) - known
  assert {'torch', 'transformers', 'playwright'} <= others
  assert {'scikit-learn', 'scipy', 'tokenizers'} <= known
  packages = importlib.metadata.packages_distributions()
  for path in (ROOT / 'tests').rglob('*.py'):
    text = path.read_text()
    for name in re.findall(r"importorskip\(\s*'(\w+)", text):
      assert not known & set(map(package, packages.get(name, ()))), f'{path} skips without {name}'
    for node in ast.parse(text).body:
      if 'importorskip(' in ast.unparse(node):
        break
      names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
      names += [node.module] if isinstance(node, ast.ImportFrom) else []
      missing = {name.split('.')[0] for name in names} & others
      assert not missing, f'{path} imports {missing} without importorskip'


def test_messages_name_the_extra_of_a_package():
  names = {'sklearn': 'scikit-learn', 'mlflow': 'mlflow-skinny'}
  for module, extra in EXTRAS.items():
    assert names.get(module, module.lower()) in with_extras(extra), module
  # `imported` without an extra prints the name of the package.
  others = {module for module, _ in uses_of_optional_packages()} - EXTRAS.keys()
  assert others == {'shtab'}
  assert (
    command(['jiwer', 'sklearn', 'wandb', 'shtab']) == "pip install 't2x[samples,trackers]' shtab"
  )


def uses_of_optional_packages():
  """The packages that calls of `imported` name, each with what needs it."""
  for path in (ROOT / 't2x').rglob('*.py'):
    for module, user in re.findall(r"imported\('([\w.]+)', '(.+?)'\)", path.read_text()):
      yield module.split('.')[0], user


def test_parts_declare_the_packages_that_they_import():
  parts = registry()
  found = [
    (part, module) for module, user in uses_of_optional_packages() for part in parts.find(user)
  ]
  assert len(found) > 10
  for part, module in found:
    assert module in part.obj.packages, f'{part.name}: {module}'


def test_an_editable_installation_is_an_entry_of_the_path():
  """Setuptools writes one for this setting only, instead of a finder that any folder `t2x` beside a script hides."""
  assert PYPROJECT['tool']['setuptools']['package-dir'] == {'': '.'}
