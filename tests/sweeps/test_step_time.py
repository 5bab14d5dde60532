"""A step is measured once, and what was measured is kept."""

import json

from t2x.experiments import read_config
from t2x.sweeps import step_time
from t2x.sweeps.step_time import step_seconds
from t2x.sweeps.sweep import read_sweep


def test_a_step_is_measured_once_whatever_the_number_of_steps(sweep_file, tmp_path, monkeypatch):
  files = read_sweep(sweep_file()).base_files
  kept = tmp_path / 'kept' / 'seconds.json'
  short, long = read_config(files), read_config(files, ['Trainer.num_steps=500'])
  seconds = step_seconds(kept, tmp_path / 'scratch')(short, 'one')
  assert 0 < seconds < 10
  assert list(json.loads(kept.read_text()).values()) == [seconds]
  monkeypatch.setattr(step_time, 'TrainingRun', None)  # It would be needed to measure again.
  assert step_seconds(kept, tmp_path / 'scratch')(long, 'two') == seconds
