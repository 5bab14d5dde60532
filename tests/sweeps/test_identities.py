"""Which trials have ended after code, data or defaults have changed."""

import dataclasses
import json
import shutil
import sys

import pytest

from t2x import config as config_lib
from t2x.base.errors import UserError
from t2x.config.sources import digest_of
from t2x.experiments import data_of, record_run
from t2x.sweeps.plan import make_plan
from t2x.sweeps.plan_table import plan_table
from t2x.sweeps.records import Outcome, write_outcome
from t2x.sweeps.sweep import read_sweep
from t2x.sweeps.trial import config_of

PART = 'import helper\n\ndef mine(x):\n  return x * helper.SCALE\n'
VARIANTS = "{'gelu': {}, 'own': {'MLP.activation': @mine}}"


@pytest.fixture
def project(sweep_file, tmp_path, monkeypatch):
  """A sweep with a part of the user's; `plan()` plans it, `end()` ends its trials with the code of today."""
  monkeypatch.setattr(sys, 'path', list(sys.path))
  monkeypatch.setattr(sys, 'dont_write_bytecode', True)
  monkeypatch.chdir(tmp_path)

  class Project:
    file = sweep_file(VARIANTS, base='\nimport part\n')

    def __init__(self):
      self.write()

    def write(self, part=PART, scale=1):
      """Writes the modules, and forgets those that are loaded."""
      (tmp_path / 'part.py').write_text(part)
      (tmp_path / 'helper.py').write_text(f'SCALE = {scale}\n')
      for name in ('part', 'helper'):
        sys.modules.pop(name, None)

    def plan(self, *overrides, **settings):
      sweep = read_sweep(self.file, overrides)
      sweep = dataclasses.replace(sweep, trials=tmp_path / 'trials', **settings)
      self.made, self.configs = make_plan(sweep)
      return self.made

    def end(self, made_by=None, **result):
      """Ends the planned trials as a training does; `made_by`: as an older version did."""
      for trial in self.made.trials:
        run = tmp_path / 'trials' / trial.folder
        if (run / 'trial.json').exists():
          continue
        run.mkdir(parents=True, exist_ok=True)
        (run / 'config.gin').write_text(self.configs[trial.folder])
        if made_by is None:
          config = config_of(trial, run)
          record_run(run, config, data_of(config.build()))
        write_outcome(run, Outcome(status='finished', made_by=made_by or {'commit': 'x'}, **result))

    def ended(self, made):
      return {
        t.variant: (tmp_path / 'trials' / t.folder / 'trial.json').exists() for t in made.trials
      }

    def edit(self, change):
      """Edits what the trials have recorded, as if another version of t2x had written it."""
      for path in tmp_path.glob('trials/*/resolved.json'):
        content = json.loads(path.read_text())
        change(content)
        path.write_text(json.dumps(content))

  yield Project()
  for name in ('part', 'helper'):
    sys.modules.pop(name, None)


def folders(made):
  return {trial.variant: trial.folder for trial in made.trials if trial.seed == 0}


def test_an_edited_helper_module_trains_the_variants_that_use_it_again(project, tmp_path):
  before = project.plan()
  project.end()
  assert project.plan() == before
  project.write(scale=2)
  after = project.plan()
  assert project.ended(after) == {'gelu': True, 'own': False}
  assert folders(after)['gelu'] == folders(before)['gelu']
  own = [trial for trial in after.trials if trial.variant == 'own']
  ((change,),) = {trial.changed for trial in own}
  assert change.startswith('module helper: ') and not any(trial.accepted for trial in own)
  table = ' '.join(plan_table(after, tmp_path / 'trials').split())
  assert f'2 trials ended before a change, not used (--accept-changed uses them): {change}' in table
  # The program of the other code is not shared.
  assert own[0].program != next(t.program for t in before.trials if t.variant == 'own')
  # After the edit is undone, the trials have ended again.
  project.write()
  assert project.plan() == before


def test_accepted_trials_are_used_with_their_identity(project, tmp_path):
  before = project.plan()
  project.end()
  project.write(scale=2)
  after = project.plan('Sweep.seeds=3', accept_changed=True)
  own = {trial.seed: trial for trial in after.trials if trial.variant == 'own'}
  assert [own[seed].folder for seed in (0, 1)] == [
    trial.folder for trial in before.trials if trial.variant == 'own'
  ]
  assert own[0].identity == own[0].folder.removesuffix('-0') != own[2].identity
  assert [own[seed].accepted for seed in range(3)] == [True, True, False]
  assert '2 trials ended before a change, used as they are: module helper: ' in (
    plan_table(after, tmp_path / 'trials')
  )
  # The last one that ended, of several.
  project.plan()
  project.end()
  project.write(scale=3)
  newest = project.plan(accept_changed=True)
  assert {t.folder for t in newest.trials} == {
    t.folder for t in newest.trials if project.ended(newest)
  }


def value_of(content, *path):
  tree = content['settings']
  for step in path:
    tree = tree['values'][step]
  return tree


def test_a_new_setting_at_its_default_changes_no_trial(project):
  before = project.plan()
  project.end()

  def without(content):
    trainer = value_of(content, 'trainer')
    del trainer['values']['nonfinite']

  project.edit(without)
  assert project.plan() == before


def test_a_changed_default_is_another_trial_and_is_named(project):
  before = project.plan()
  project.end()
  project.edit(
    lambda content: value_of(content, 'trainer')['values'].update(
      log_every='7', stall_minutes='1.5'
    )
  )
  after = project.plan()
  assert project.ended(after) == {'gelu': False, 'own': False}
  assert {trial.changed for trial in after.trials} == {
    ('Experiment.trainer.log_every: 7 -> 4', 'Experiment.trainer.stall_minutes: 1.5 -> 30.0')
  }
  assert after.trials[0].restated
  project.end()
  # The workers find the same identity, and the next plan the new trials.
  assert config_of(after.trials[0], project.file.parent / 'trials' / after.trials[0].folder)
  assert [t.folder for t in project.plan().trials] == [t.folder for t in after.trials]
  assert {t.folder for t in before.trials}.isdisjoint(t.folder for t in after.trials)


def test_a_value_that_became_the_default_finds_its_trials(project):
  """Another version had the default 1.5, and these trials bound today's default."""
  project.plan('Trainer.stall_minutes=1.5')
  project.end()
  bound = project.made

  def swap(content):
    trainer = value_of(content, 'trainer')
    trainer['own'].remove('stall_minutes')

  project.edit(swap)
  assert [t.folder for t in project.plan('Trainer.stall_minutes=1.5').trials] == [
    t.folder for t in bound.trials
  ]


def test_changed_data_are_another_trial_and_an_earlier_project_keeps_its_own(project):
  before = project.plan()
  project.end()
  project.edit(lambda content: content.update(data=dict.fromkeys(content['data'], 'before')))
  after = project.plan()
  assert project.ended(after) == {'gelu': False, 'own': False}
  ((change,),) = {trial.changed for trial in after.trials}
  assert change.startswith('data ') and ': before -> ' in change
  assert '.' in after.trials[0].identity
  project.end()
  assert project.ended(project.plan()) == {'gelu': True, 'own': True}
  assert folders(before)['gelu'] != folders(after)['gelu']


MOVED = 'from t2x.base.errors import UserError\n'


@pytest.mark.parametrize(
  ('before', 'is_same'),
  [
    ('from t2x.errors import UserError\n', True),
    ('from t2x.base import UserError\n', True),
    # This import works: the module uses another object.
    ('from t2x.base.json_files import Damaged as UserError\n', False),
    ('from t2x.base.files import UserError\nSCALE = 3\n', False),
  ],
)
def test_an_import_of_a_name_that_has_moved_changes_no_trial(project, tmp_path, before, is_same):
  project.write(PART.replace('import helper\n', f'import helper\n{MOVED}'))
  now = project.plan()
  project.end()
  for run in sorted(tmp_path.glob('trials/*.*')):
    # As trials that were trained before the name moved.
    copy = run / 'modules/part.py'
    copy.write_text(copy.read_text().replace(MOVED, before))
    content = json.loads((run / 'resolved.json').read_text())
    content['modules']['part'] = digest_of(copy.read_bytes())
    (run / 'resolved.json').write_text(json.dumps(content))
    settings, _, rest = run.name.partition('.')
    run.rename(run.with_name(f'{settings}.0123abcd-{rest.rpartition("-")[2]}'))
  after = project.plan('Sweep.seeds=3')
  assert project.ended(project.plan()) == {'gelu': True, 'own': is_same}
  assert folders(after)['gelu'] == folders(now)['gelu']
  own = [trial for trial in after.trials if trial.variant == 'own']
  # New seeds have the identity of the earlier trials.
  assert {trial.identity.endswith('.0123abcd') for trial in own} == {is_same}
  assert any(trial.changed for trial in own) != is_same


def test_trials_of_older_versions_are_taken_over(project, tmp_path):
  project.plan()
  older = {}
  for trial in project.made.trials:
    run = tmp_path / 'trials' / trial.folder
    run.mkdir(parents=True)
    (run / 'config.gin').write_text(project.configs[trial.folder])
    config = config_of(trial, run)
    made_by = {
      f'module {name}': text for name, text in config.used.digests.items() if name == 'part'
    }
    name = f'{config_lib.older_identity(config, ["Trainer.seed"])}-{trial.seed}'
    write_outcome(
      tmp_path / 'trials' / name, Outcome(status='finished', made_by=made_by or {'a': ''})
    )
    older[trial.variant, trial.seed] = name
    shutil.rmtree(run)
  made = project.plan('Sweep.seeds=3')
  assert {(t.variant, t.seed): t.folder for t in made.trials if t.seed < 2} == older
  assert len({t.identity for t in made.trials}) == 2
  project.write(part=PART + '# edited\n')
  made = project.plan()
  own = [trial for trial in made.trials if trial.variant == 'own']
  assert all(trial.changed[0].startswith('module part: ') for trial in own)
  assert project.ended(made) == {'gelu': True, 'own': False}


def test_a_config_whose_modules_changed_after_the_plan_is_not_trained(project, tmp_path):
  project.plan()
  (trial, *_) = (trial for trial in project.made.trials if trial.variant == 'own')
  run = tmp_path / 'trials' / trial.folder
  run.mkdir(parents=True)
  (run / 'config.gin').write_text(project.configs[trial.folder])
  project.write(scale=2)
  with pytest.raises(UserError, match="the module 'helper' has changed"):
    config_of(trial, run)
