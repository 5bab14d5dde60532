"""How long a training step takes here, for budgets in seconds."""

import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import jax

from t2x import config as config_lib
from t2x.files import write_whole
from t2x.sweeps.json_files import Damaged, is_number, read_json
from t2x.train import TrainingRun

_STEPS = 20


def step_seconds(
  kept: Path, scratch: Path, *, keep: bool = True
) -> Callable[[config_lib.Config, str], float]:
  """A function that measures a config's step, once: the median of some, compilation left out.

  Args:
    kept: a JSON file of what was measured before, by identity, so that a sweep that goes on or gets
      more seeds has the same trials.
    scratch: a folder for what a run leaves.
    keep: whether to write `kept`.
  """
  known = _known(kept)

  def measure(config: config_lib.Config, identity: str) -> float:
    # The step's time does not depend on how many of them there are.
    experiment = config.build()
    short = config_lib.identity(config, without=['Trainer.seed', 'Trainer.num_steps'])
    if short not in known:
      run = TrainingRun(experiment, scratch / identity)
      known[short] = _median(run)
      if keep:
        kept.parent.mkdir(parents=True, exist_ok=True)
        write_whole(kept, json.dumps(known, indent=1).encode())
    return known[short]

  return measure


def _known(kept: Path) -> dict[str, float]:
  try:
    found = read_json(kept)
  except FileNotFoundError:
    return {}
  if not isinstance(found, dict) or not all(is_number(one) and one > 0 for one in found.values()):
    raise Damaged(f'{kept} is damaged: it does not hold seconds; delete it to measure them again')
  return found


def _median(run: TrainingRun) -> float:
  batches = run.batches(run.rows(run.task.train_split))
  state, frozen = run.program.init(0)
  seconds = []
  for step in range(_STEPS):
    batch = run.on_device(batches[step])
    began = time.monotonic()
    state, sums = run.train_step(state, frozen, batch)
    jax.block_until_ready((state, sums))
    seconds.append(time.monotonic() - began)
  return statistics.median(seconds[1:])
