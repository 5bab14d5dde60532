"""Losses that later versions reproduce: 20 training steps and the evaluation after them.

    python -m tests.golden.record --check [NAME ...]     compares with the files in tests/golden
    python -m tests.golden.record [NAME ...]             rewrites them

A name is that of a run in configs/runs, or 'family-' and a model type of `t2x convert import`, whose tiny model is
trained on random batches. Rewriting a file changes what the tests demand: the commit says why.
"""

import argparse
import collections
import json
import math
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
from flax import nnx

from t2x import tasks
from t2x.base.errors import UserError
from t2x.data.tokenizers.characters import CharacterTokenizer
from t2x.data.tokenizers.existing import Fitted
from t2x.experiments import read_config
from t2x.interop import FAMILIES
from t2x.train import AdamW, Constant, Experiment, Trainer, TrainingRun
from tests.helpers import tiny_models

FOLDER = Path(__file__).parent
CONFIGS = FOLDER.parents[1] / 'configs'
FAMILY = 'family-'
STEPS = 20
TOLERANCE = 1e-5
# Runs that start from another one start from their seed here.
OVERRIDES = ('Trainer.num_workers=0', 'Experiment.init_from=None')
# Batches of an evaluation.
BATCHES = 2
# AdamW's epsilon, where another than its default: an element of ALBERT's first gradient is the rounding error of terms
# that cancel, 3e-10, which AdamW with 1e-8 makes a step of a size of its own. Initial values that differ by 2e-7 then
# changed the losses by 9.2e-5, and with 1e-6 by 4.8e-7 (jax 0.10.2, 2026-11-28).
EPSILON = {'albert': 1e-6}


def names() -> list[str]:
  """All golden names: the shipped runs, then the families."""
  runs = sorted(path.stem for path in (CONFIGS / 'runs').glob('*.gin'))
  return runs + [FAMILY + model_type for model_type in sorted(tiny_models.CONFIGS)]


def recorded(name: str) -> dict[str, Any]:
  """The content of a golden file."""
  return json.loads((FOLDER / f'{name}.json').read_text())


def compute(name: str) -> dict[str, Any]:
  """Trains and evaluates.

  Returns:
    data: the fingerprint of the training data; None for random batches.
    losses: of the training steps.
    evaluation: metrics after the last of them.

  Raises:
    UserError: the data of a run is not on this machine.
  """
  if name.startswith(FAMILY):
    return _family(name.removeprefix(FAMILY))
  experiment = read_config([CONFIGS / 'runs' / f'{name}.gin'], OVERRIDES).build()
  with tempfile.TemporaryDirectory() as folder:
    run = TrainingRun(experiment, Path(folder))
    rows = run.rows(run.task.train_split)
    batches = run.batches(rows)
    on_device = (run.on_device(batches[step]) for step in range(STEPS))
    losses, params = _losses(run, on_device)
    metrics = _evaluated(run, params)
    data = batches.fingerprint
  return {'data': data, 'losses': losses, 'evaluation': metrics}


def _losses(run: Any, batches: Iterator[Any]) -> tuple[list[float], Any]:
  """The loss of each step from the seed's state on, and the parameters after them."""
  state, frozen = run.init()
  losses, train_step = [], run.program.train_step()
  for batch in batches:
    state, out = train_step(state, frozen, batch)
    total, weight = jax.device_get(out).sums['loss']
    losses.append(float(total) / float(weight))
  return losses, run.program.eval_params(state, frozen)


def _evaluated(run: TrainingRun, params: Any) -> dict[str, float]:
  """The metrics over the first batches of the evaluation split."""
  task = run.task
  rows = run.rows(task.eval_split)
  batches = run.evaluation_batches(rows, task)
  step, totals = run.program.eval_step(), collections.defaultdict(lambda: np.zeros(2))
  for index in range(min(BATCHES, len(batches))):
    for name, pair in jax.device_get(step(params, run.on_device(batches[index]))).sums.items():
      totals[name] += np.array(pair, np.float64)
  means = {name: (float(total), float(weight)) for name, (total, weight) in totals.items()}
  info = getattr(rows, 'info', None) if len(batches) <= BATCHES else None
  return task.summarise(means, info) | {f'eval_{task.unit}': means['loss'][1]}


def _family(model_type: str) -> dict[str, Any]:
  """A tiny model in float32, on random batches, with AdamW."""
  family = FAMILIES[model_type]
  config = {'model_type': model_type} | tiny_models.CONFIGS[model_type]
  build = tiny_models.build(family.gin(family.read(config, 'config.json')))
  task = _task(jax.eval_shape(lambda: build(rngs=nnx.Rngs(0))))
  optimizer = AdamW(eps=EPSILON[model_type]) if model_type in EPSILON else AdamW()
  trainer = Trainer(
    num_steps=STEPS, batch_size=4, optimizer=optimizer, schedule=Constant(peak=1e-2), seed=1
  )
  with tempfile.TemporaryDirectory() as folder:
    run = TrainingRun(Experiment(model=build, task=task, trainer=trainer), Path(folder))
    rng = np.random.default_rng(0)
    batches = [run.on_device(_batch(task, rng)) for _ in range(STEPS + 1)]
    losses, params = _losses(run, iter(batches[:-1]))
    sums = jax.device_get(run.program.eval_step()(params, batches[-1])).sums
  metrics = task.summarise({name: (float(a), float(b)) for name, (a, b) in sums.items()})
  return {'data': None, 'losses': losses, 'evaluation': metrics}


class _NoSource:
  """Stands for the data of a task whose batches are random."""

  def fingerprint(self) -> str:
    return ''


def _task(model: Any) -> tasks.Task:
  """A task that a tiny model of these shapes can learn."""
  source: Any = _NoSource()
  text = {'source': source, 'tokenizer': Fitted(CharacterTokenizer('abcde', 10))}
  spec = model.spec
  if 'image' in spec.inputs:
    shape = (8, 4, 3)
    return tasks.ImageClassification(source=source, image_shape=shape, num_classes=spec.num_classes)
  if spec.is_encoder_decoder:
    return tasks.Translation(**text, source_length=6, target_length=5)
  if spec.num_classes is not None:
    return tasks.SequenceClassification(**text, length=6, labels=list('abc'[: spec.num_classes]))
  if spec.is_causal(6):
    return tasks.CausalLM(**text, length=6)
  return tasks.MaskedLM(**text, length=6, rate=0.3)


def _batch(task: tasks.Task, rng: np.random.Generator) -> dict[str, np.ndarray]:
  """Random inputs; a third of the rows end with padding."""
  batch = {}
  for name, one in task.spec(4).items():
    if name == 'image':
      values = rng.normal(size=one.shape)
    elif name.endswith('segments'):
      values = np.ones(one.shape)
      values[::3, -2:] = 0
    elif name.endswith('positions') and 'masked' not in name:
      values = np.broadcast_to(np.arange(one.shape[1]), one.shape)
    elif name in ('weight', 'weights'):
      values = np.ones(one.shape)
    elif name == 'types':
      values = np.zeros(one.shape)
    else:
      high = getattr(task, 'num_classes', 5) if name == 'label' else 5
      values = rng.integers(0, high, one.shape) + (
        5 if name in ('tokens', 'source', 'target') else 0
      )
    batch[name] = np.asarray(values, one.dtype)
  return batch


def difference(name: str, found: dict[str, Any]) -> float | None:
  """The largest relative difference from the golden numbers; None: those are of other data.

  Relative to 1 for numbers below it.
  """
  golden = recorded(name)
  if golden['data'] != found['data']:
    return None
  if golden['evaluation'].keys() != found['evaluation'].keys():
    return math.inf
  pairs = [*zip(golden['losses'], found['losses'], strict=True)]
  pairs += [(value, found['evaluation'][key]) for key, value in golden['evaluation'].items()]
  return max(abs(a - b) / max(1.0, abs(a)) for a, b in pairs)


def main() -> int:
  """Records goldens, or compares with them; exit code 1 when one differs."""
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawTextHelpFormatter
  )
  parser.add_argument('--check', action='store_true', help='compare, to 1e-5, instead of writing')
  parser.add_argument('names', nargs='*', metavar='NAME', help='default: all')
  args = parser.parse_args()
  failed = 0
  for name in args.names or names():
    try:
      found = compute(name)
    except UserError as error:
      print(f'{name}: left out: {error}')
      continue
    if not args.check:
      (FOLDER / f'{name}.json').write_text(json.dumps(found, indent=1) + '\n')
      print(f'{name}: loss {found["losses"][0]:.6f} to {found["losses"][-1]:.6f}', flush=True)
      continue
    off = difference(name, found)
    failed += off is not None and not off <= TOLERANCE
    told = 'other data on this machine' if off is None else f'differs by {off:.1e}'
    print(f'{name}: {told}', flush=True)
  return min(failed, 1)


if __name__ == '__main__':
  sys.exit(main())
