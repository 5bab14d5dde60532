"""A sweep whose base imports the user's own module: from any folder, and after the project has moved."""

import os
import subprocess
import sys

import pytest

from t2x.sweeps.records import read_outcome, read_plan
from t2x.sweeps.runners import distinct

PARTS = """
import dataclasses

from t2x.layers import MLP

class Doubled(MLP):
  def __call__(self, x, call, cache=None):
    result = super().__call__(x, call, cache)
    return dataclasses.replace(result, x=2 * result.x)
"""

VARIANTS = "{'gelu': {}, 'own': {'Block.feed_forward': @Doubled, 'Doubled.hidden_dim': 32}}"


def run(file, out, folder, *arguments):
  """`t2x sweep` in a process of its own, in a working directory."""
  line = [sys.executable, '-m', 't2x', 'sweep', str(file), '--out', str(out), *arguments]
  # The code beside the sweep file may run.
  trusted = os.environ | {'T2X_TRUST': str((folder / file).resolve().parent)}
  done = subprocess.run(line, cwd=folder, env=trusted, capture_output=True, text=True)
  assert done.returncode == 0, done.stdout + done.stderr
  return done.stdout


def outcomes(out):
  trials = distinct(read_plan(out / 'study').trials)
  return {one.folder: read_outcome(out / 'trials' / one.folder) for one in trials}


@pytest.mark.nightly
def test_a_user_module_is_imported_everywhere_and_its_trials_keep_their_identity_after_a_move(
  sweep_file, tmp_path
):
  file = sweep_file(VARIANTS, base='\nimport own_parts\n')
  project, elsewhere = tmp_path / 'project', tmp_path / 'elsewhere'
  project.mkdir()
  elsewhere.mkdir()
  (project / 'own_parts.py').write_text(PARTS)
  for path in (file, tmp_path / 'base.gin', tmp_path / 'tiny.gin'):
    path.rename(project / path.name)

  # In one process, one after another, from another folder.
  seed = '--gin.Sweep.seeds=1'
  run('../project/study.gin', '../project/out', elsewhere, seed, '--processes', '1')
  first = outcomes(project / 'out')
  assert [one.status for one in first.values()] == ['finished', 'finished']
  # The baseline uses no part of the module.
  digests = [one.made_by.get('module own_parts', '') for one in first.values()]
  assert [*map(len, digests)] == [0, 12]
  told = run('../project/study.gin', '../project/out', elsewhere, seed, '--processes', '1')
  assert '0 of 2 trials to run' in told and outcomes(project / 'out') == first

  # The project moves. One of its trials was killed at its end: it goes on from its checkpoint.
  moved = project.rename(tmp_path / 'moved')
  lost = moved / 'out' / 'trials' / list(first)[1]
  assert str(project) in (lost / 'config.gin').read_text()
  (lost / 'trial.json').unlink()
  more = ('--gin.Sweep.seeds=3', '--processes', '2', '--together', '2')
  told = run('study.gin', 'out', moved, *more)
  assert '5 of 6 trials to run' in told and '6 finished' in told
  second = outcomes(moved / 'out')
  assert [one.status for one in second.values()] == ['finished'] * 6
  kept, again = first
  assert second[kept] == first[kept] and second[again].metrics == first[again].metrics
  assert {one.together for one in second.values()} == {1, 2}
  assert '0 of 6 trials to run' in run('moved/study.gin', 'moved/out', tmp_path, *more)
