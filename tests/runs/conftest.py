"""Run folders as `t2x train` writes them."""

import json
import os
import time

import pytest

from t2x.run_folder.status import Status, running_kernel

CONFIG = """
Experiment.trainer = @Trainer()
Trainer:
  num_steps = 100
  batch_size = {batch_size}
  seed = {seed}
"""


@pytest.fixture
def make_run(tmp_path):
  """`make_run(name, state=..., ...)` writes a run folder; `state` None writes no status.json."""

  def make(
    name,
    state='done',
    *,
    steps=100,
    losses=(3.0, 1.0, 2.0),
    batch_size=4,
    seed=0,
    metrics=None,
    **status,
  ):
    folder = tmp_path / name
    folder.mkdir(parents=True)
    (folder / 'config.gin').write_text(CONFIG.format(batch_size=batch_size, seed=seed))
    lines = [
      {'step': step, 'split': 'train', 'loss': 4 - step / 50} for step in range(10, steps + 1, 10)
    ]
    lines += [
      {'step': steps * (i + 1) // len(losses), 'split': 'eval', 'loss': loss}
      for i, loss in enumerate(losses)
    ]
    lines.sort(key=lambda line: line['step'])
    (folder / 'metrics.jsonl').write_text(
      ''.join(json.dumps(line) + '\n' for line in lines) if metrics is None else metrics
    )
    timing = [{**line, 'seconds': line['step'] / 10} for line in lines]
    (folder / 'timing.jsonl').write_text(''.join(json.dumps(line) + '\n' for line in timing))
    if state is not None:
      now = time.time()
      content = Status(
        **{
          'state': state,
          'host': 'alpha',
          'pid': os.getpid(),
          'kernel': running_kernel(),
          'started': now - 60,
          'ended': None if state == 'running' else now,
          'num_steps': 100,
          'metric': 'loss',
          'mode': 'min',
        }
        | status
      )
      (folder / 'status.json').write_text(json.dumps(vars(content)))
    return folder

  return make
