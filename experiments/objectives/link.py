"""Names the finished runs of a sweep of pretraining by variant and seed, for `InitFrom.run`.

t2x sweep experiments/objectives/pretraining.gin --out runs/objectives
python experiments/objectives/link.py runs/objectives

OUT/pretrained/VARIANT-SEED is a link to the run folder of a trial, also of seeds that only pretraining_rates.gin has.
Links of another sweep are replaced.
"""

import argparse
from pathlib import Path

from t2x.sweeps.records import read_outcome, read_plan


def main() -> None:
  """Writes the links."""
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument('out', type=Path, help='the folder of `t2x sweep --out`')
  parser.add_argument('--sweep', default='pretraining', help='the name of the sweep')
  arguments = parser.parse_args()
  out = arguments.out
  folder = out / 'pretrained'
  folder.mkdir(exist_ok=True)
  for link in folder.iterdir():
    link.unlink()
  trials = read_plan(out / arguments.sweep).trials
  # Seeds of another plan have the same config, but for tuned values, where a tuning seed has that of its choice.
  seeds = {(trial.variant, trial.identity, None) for trial in trials if not trial.tuned}
  for trial in trials:
    if trial.tuned:
      seeds |= {(trial.variant, trial.identity, seed) for seed in (trial.seed, trial.tuned_by)}
  for variant, identity, seed in seeds:
    for run in (out / 'trials').glob(f'{identity}-{"*" if seed is None else seed}'):
      outcome = read_outcome(run)
      if outcome is not None and outcome.status == 'finished':
        name = run.name.rpartition('-')[2]
        (folder / f'{variant}-{name}').symlink_to(Path('..', 'trials', run.name))


if __name__ == '__main__':
  main()
