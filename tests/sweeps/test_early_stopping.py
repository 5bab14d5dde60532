"""Trials of a sweep that `Trainer.patience` stops: they are finished, and cost the steps that they took."""

import csv
import json
from pathlib import Path

from t2x.cli import main
from t2x.sweeps.report import read_results
from t2x.sweeps.report.summary import matched


def test_a_stopped_trial_is_finished_and_only_its_own_steps_count_as_spent(sweep, tmp_path, capsys):
  # The best loss of the variant is that of its first steps, as its learning rate is too large.
  variants = "{'gelu': {}, 'stuck': {'Cosine.peak': 10.0}}"
  extra = 'Trainer.eval_every = 2\nTrainer.patience = 2\n'
  code, printed = sweep(variants=variants, extra=extra)
  assert code == 0, printed.err
  folder = tmp_path / 'out' / 'study'
  results = read_results(folder)
  assert {entry.status for entry in results.entries} == {'finished'}
  stuck = [entry for entry in results.entries if entry.trial.variant == 'stuck']
  assert {entry.num_steps for entry in stuck} == {6}
  for entry in results.entries:
    lines = map(json.loads, (entry.folder / 'metrics.jsonl').read_text().splitlines())
    assert entry.num_steps == max(line['step'] for line in lines)
  for row in results.rows:
    trial, steps = row.entries[0].trial, [entry.num_steps for entry in row.entries]
    per_step = trial.flops_per_token * trial.tokens_per_step
    assert row.costs['flops'] == per_step * sum(steps) / len(steps)
  text = matched(results)
  assert 'Trainer.patience stopped ' in text and 'of 4 trials after 50 to ' in text
  assert text.endswith('so budgets are maxima')
  assert main(['report', str(folder)]) == 0
  assert text in Path(folder, 'report.md').read_text()
  with (folder / 'results.csv').open() as file:
    steps = {row['num_steps'] for row in csv.DictReader(file) if row['variant'] == 'stuck'}
  assert steps == {'6'}
