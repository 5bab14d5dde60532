"""Runs with modules of the user's: resumed, evaluated and compared after a module or the data has changed."""

import json
import shutil
import sys

import pytest

from t2x.config import read_resolved, trust

PART = 'import scaling\n\ndef act(x):\n  return x * scaling.FACTOR\n'
SHORT = 'Trainer.num_steps = 4\nTrainer.eval_every = 0\nExperiment.evaluations = {}\n'


@pytest.fixture
def project(write_experiment, data, tmp_path, monkeypatch, t2x):
  """`project(*words)` runs the command line in the folder of a project, with its modules as they are then."""
  monkeypatch.setattr(sys, 'path', list(sys.path))
  monkeypatch.setattr(sys, 'dont_write_bytecode', True)

  class Project:
    def __init__(self):
      self.folder = tmp_path / 'project'
      self.folder.mkdir()
      shutil.copytree(data, self.folder / 'data')
      (self.folder / 'part.py').write_text(PART)
      self.set_factor(1.0)
      base = write_experiment(tmp_path, 'causal_lm', SHORT)
      own = 'import part\nMLP.activation = @act\nTextFiles:\n'
      own += "  train = 'data/train-*.txt'\n  validation = 'data/validation-*.txt'\n"
      (self.folder / 'own.gin').write_text(f"include '{base}'\n{own}")

    def set_factor(self, value, folder=None):
      ((folder or self.folder) / 'scaling.py').write_text(f'FACTOR = {value}\n')

    def __call__(self, *words, folder=None):
      monkeypatch.chdir(folder or self.folder)
      self.forget()
      # As in `python -m t2x`.
      sys.path.insert(0, '')
      return t2x(*words)

    def forget(self):
      for name in ('part', 'scaling'):
        sys.modules.pop(name, None)
      sys.path[:] = [entry for entry in sys.path if entry and str(tmp_path) not in entry]

    def loss(self, run, *words, **settings):
      code, out, err = self('eval', run, '--json', *words, **settings)
      assert code == 0, err
      return json.loads(out)['loss']

  made = Project()
  yield made
  made.forget()


def test_code_and_data_of_a_run(project, tmp_path):
  run = project.folder / 'run'
  code, _, err = project('train', 'own.gin', '--out', run)
  assert code == 0, err
  recorded = read_resolved(run)
  assert [*recorded.modules] == ['part', 'scaling'] and len(recorded.data) == 1
  assert sorted(path.name for path in (run / 'modules').iterdir()) == ['part.py', 'scaling.py']
  loss = project.loss(run)

  # Another folder with a module of the same name and the same relative path of the data.
  other = tmp_path / 'other'
  other.mkdir()
  shutil.copytree(project.folder / 'data', other / 'data')
  project.set_factor(0.2, other)
  trust(project.folder)
  assert project.loss(run, folder=other) == loss

  # An edit of a module that the part imports.
  project.set_factor(3.0)
  code, _, err = project('train', 'own.gin', '--out', run)
  assert code == 2 and f'{run} belongs to another config:\n  module scaling: ' in err
  code, out, _ = project('diff', run, 'own.gin')
  assert code == 1 and out.startswith('module scaling: ') and out.count('\n') == 1
  code, _, err = project('eval', run)
  assert code == 2 and f"imports 'scaling' from {run}/modules, which would run its code" in err
  trust(run / 'modules')
  assert project.loss(run) == loss
  # What the run has kept continues it.
  code, _, err = project('train', run / 'config.gin', '--out', run)
  assert code == 0, err

  # Another run with the edited module: compared without loading the code of either.
  assert project('train', 'own.gin', '--out', project.folder / 'edited')[0] == 0
  code, out, _ = project('diff', run, 'edited')
  assert code == 1 and out.startswith('module scaling: ') and out.count('\n') == 1
  table = project('runs', '.')[1].splitlines()
  assert 'code' in table[0]
  digests = [row.split('scaling ')[1][:6] for row in table[1:3]]
  assert digests[0] != digests[1]
  code, out, _ = project('runs', 'compare', run, 'edited', '--out', tmp_path / 'page.html')
  assert code == 0 and 'module scaling' in (tmp_path / 'page.html').read_text()

  # Other data under the same path.
  project.set_factor(1.0)
  path = project.folder / 'data' / 'validation-0.txt'
  path.write_text(path.read_text() + 'one more line\n')
  code, _, err = project('train', 'own.gin', '--out', run)
  assert code == 2 and f'{run} belongs to another config:\n  data TextFiles(' in err
