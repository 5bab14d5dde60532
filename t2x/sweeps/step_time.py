"""Measures the time of a training step on this machine, for budgets in seconds."""

import itertools
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import jax

from t2x import config as config_lib
from t2x.base.files import write_atomically
from t2x.base.json_files import Damaged, is_number, read_json
from t2x.base.ranges import TRAINING_STEPS, TRIAL_SEED
from t2x.train import TrainingRun

_STEPS = 20


def step_seconds(
  cache: Path, scratch: Path, *, keep: bool = True
) -> Callable[[config_lib.Config, str], float]:
  """Returns a function that measures the step of a config: the median of several, without compilation.

  Args:
    cache: a JSON file of earlier measurements by identity, so that a sweep that is resumed or gets
      more seeds has the same trials.
    scratch: a folder for temporary run folders.
    keep: whether to write the cache.
  """
  seconds = _read_cache(cache)

  def measure(config: config_lib.Config, identity: str) -> float:
    # The time of a step does not depend on the number of steps.
    experiment = config.build()
    without = (config_lib.parameters_with(config, role) for role in (TRIAL_SEED, TRAINING_STEPS))
    names = [*itertools.chain(*without)]
    short, older = config_lib.identity(config, names), config_lib.older_identity(config, names)
    short = older if older in seconds else short
    if short not in seconds:
      run = TrainingRun(experiment, scratch / identity)
      seconds[short] = _measure(run)
      if keep:
        cache.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(cache, json.dumps(seconds, indent=1).encode())
    return seconds[short]

  return measure


def _read_cache(path: Path) -> dict[str, float]:
  try:
    content = read_json(path)
  except FileNotFoundError:
    return {}
  if not isinstance(content, dict) or not all(is_number(s) and s > 0 for s in content.values()):
    raise Damaged(f'{path} is damaged: its values are not seconds; delete it to measure again')
  return content


def _measure(run: TrainingRun) -> float:
  batches = run.batches(run.rows(run.task.train_split))
  state, frozen = run.program.init(0)
  seconds, train_step = [], run.program.train_step()
  for step in range(_STEPS):
    batch = run.on_device(batches[step])
    start = time.monotonic()
    state, sums = train_step(state, frozen, batch)
    jax.block_until_ready((state, sums))
    seconds.append(time.monotonic() - start)
  return statistics.median(seconds[1:])
