"""A sweep's folder as the engine leaves it, made up."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

from t2x.sweeps.records import Outcome, Plan, Trial, read_plan, write_outcome, write_plan

# Variants, and by how much their loss differs from the baseline's.
EFFECTS = {'vanilla': 0.0, 'geglu': -0.12, 'rezero': 0.15, 'relu': 0.003, 'fixup': 0.0}
MADE_BY = {'python': '3.11.2', 'jax': '0.10.0', 'device': 'cpu x 2', 'commit': '0123abc+'}
NASTY = '</script><b>loss</b> & "nan" at step 30 | of 100'


def trials(effects, seeds, points, steps=100):
  for point in points:
    for number, variant in enumerate(effects):
      for seed in range(seeds):
        identity = f'{number:02}{sum(point.values()):02}abcdef'
        changes = () if variant == 'vanilla' else (f'Block.feed_forward = @{variant.title()}',)
        yield Trial(
          variant=variant,
          point=point,
          seed=seed,
          identity=identity,
          folder=f'{identity}-{seed}',
          changes=(*changes, *(f'{axis} = {value}' for axis, value in point.items())),
          parameters=100_000 + 4_321 * number,
          flops_per_token=6e5 + 1e4 * number,
          tokens_per_step=1024,
          num_steps=steps,
          knob=f'MLP.hidden_dim = {128 + number}' if number else '',
          gap=0.002 * number,
        )


def write_run(folder: Path, trial: Trial, effect: float, status: str, steps: int, every: int):
  """metrics.jsonl and timing.jsonl as `t2x train` leaves them, and trial.json unless it runs."""
  folder.mkdir(parents=True)
  generator = np.random.default_rng([trial.seed, int(trial.identity[:4])])
  offset = 0.05 * np.random.default_rng(trial.seed).normal()
  last = steps if status == 'finished' else steps * 3 // 10
  lines, timing, loss = [], [], 0.0
  for step in range(every, last + 1, every):
    loss = 2 + 2 * np.exp(-3 * step / steps) + effect * step / steps + offset
    loss += 0.02 * generator.normal()
    seconds = round(0.05 * step * (1 + 0.1 * trial.seed), 3)
    train = {'loss': loss + 0.05 * generator.normal(), 'learning_rate': 1e-3}
    lines.append({'step': step, 'split': 'train', **train, 'tokens_per_second': 2e4})
    timing.append({'step': step, 'split': 'train', 'seconds': seconds})
    if step % (5 * every) == 0:
      metrics = {'loss': float(loss), 'accuracy': float(1 / (1 + loss))}
      lines.append({'step': step, 'split': 'eval', **metrics})
      timing.append({'step': step, 'split': 'checkpoint', 'seconds': seconds, 'waited': 0.1})
      timing.append({'step': step, 'split': 'eval', 'seconds': seconds + 0.01})
  for name, written in (('metrics', lines), ('timing', timing)):
    text = ''.join(json.dumps(line) + '\n' for line in written)
    (folder / f'{name}.jsonl').write_text(text)
  if status == 'running':
    return
  outcome = Outcome(
    status=status,
    reason='' if status == 'finished' else NASTY,
    metrics={'loss': float(loss), 'accuracy': float(1 / (1 + loss))}
    if status == 'finished'
    else {},
    seconds=0.05 * steps * (1 + 0.1 * trial.seed) + 0.3 * trial.parameters / 1e5,
    tokens_per_second=2e4 - trial.seed,
    memory_bytes=2**28 + trial.parameters * 16,
    made_by=MADE_BY,
  )
  write_outcome(folder, outcome)


def make_sweep(
  out: Path,
  *,
  effects=EFFECTS,
  seeds=5,
  points=({},),
  ended=None,
  diverged=('fixup', 3),
  failed=('relu', 4),
  steps=100,
  every=2,
):
  """A sweep folder OUT/study; `ended`: how many trials have (None: all), one more is running."""
  plan = Plan(
    name='study',
    baseline='vanilla',
    metric='loss',
    goal='min',
    matched='parameters',
    config='Stack.num_layers = 2\nTrainer.num_steps = 100\n',
    versions={'python': '3.11.2', 'jax': '0.11.0', 'device': 'gpu'},
    commit='999ffff',
    trials=tuple(trials(effects, seeds, points, steps)),
  )
  write_plan(out / 'study', plan)
  for number, trial in enumerate(plan.trials):
    status = 'finished'
    if trial.variant == diverged[0] and trial.seed < diverged[1]:
      status = 'diverged'
    elif (trial.variant, trial.seed) == failed:
      status = 'failed'
    if ended is not None and number >= ended:
      status = 'running'
    folder = out / 'trials' / trial.folder
    if ended is not None and number > ended:
      folder.mkdir(parents=True)
      (folder / 'config.gin').write_text('')
      continue
    write_run(folder, trial, effects[trial.variant], status, steps, every)
  return out / 'study'


def change_outcome(folder: Path, name: str, **changes):
  """Changes trial.json of a run."""
  path = folder.parent / 'trials' / name / 'trial.json'
  path.write_text(json.dumps(json.loads(path.read_text()) | changes))


@pytest.fixture
def sweep(tmp_path):
  """`sweep(**settings)` makes a folder, see `make_sweep`."""
  return lambda **settings: make_sweep(tmp_path, **settings)


@pytest.fixture
def change_trial():
  """`change_trial(folder, name, **changes)` changes the outcome of a run of a sweep."""
  return change_outcome


@pytest.fixture
def change_plan():
  """`change_plan(folder, **changes)` changes sweep.json."""

  def change(folder: Path, **changes):
    write_plan(folder, dataclasses.replace(read_plan(folder), **changes))

  return change
