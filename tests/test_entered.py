"""The base case stays readable: files that a train step of a GPT and an attention call enter, and loaded modules."""

import subprocess
import sys

import pytest

from tests.test_house import LAB, ROOT, closure, quickstart_modules, unit_of

# Maxima: lower them when the numbers fall, and raise one only in the commit that needs it, with the reason.
MOST = {'step': 60, 'attention': 10, 'loaded': 235}


def measured(what: str) -> set[str]:
  done = subprocess.run(
    [sys.executable, '-m', 'tests.entered', what], capture_output=True, text=True, cwd=ROOT
  )
  assert done.returncode == 0, done.stderr
  names = done.stdout.split()
  print(len(names), *names, sep='\n')
  return set(names)


@pytest.mark.parametrize('what', ['step', 'attention'])
def test_few_files_are_entered(what):
  files = measured(what)
  assert 'layers/attention/multi_head.py' in files
  assert len(files) <= MOST[what]


def test_training_loads_only_the_core_and_what_the_config_names():
  modules = measured('loaded')
  assert {'t2x.train.loop', 't2x.tasks.causal_lm'} <= modules
  assert len(modules) <= MOST['loaded']
  # The command line and `python -m t2x.statistics` share these arguments; the module imports no other part of the lab.
  arguments = {'t2x.statistics', 't2x.statistics.command'}
  assert not [name for name in modules - arguments if unit_of(name) in LAB]
  others = {name for name in modules if name.startswith(('t2x.domains.', 't2x.samples.'))}
  assert others <= closure(quickstart_modules())
