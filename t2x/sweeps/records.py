"""What a sweep keeps on disk: the plan (sweep.json) and what became of each trial (trial.json).

OUT/NAME/sweep.json       the plan of the sweep file NAME.gin
OUT/NAME/results.csv ...  its report
OUT/trials/ID/            the run folders; two sweeps under one OUT share equal trials
OUT/trials/ID/trial.json  written when a trial has ended
"""

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from t2x.errors import UserError
from t2x.files import write_whole
from t2x.sweeps.origin import origin

__all__ = [
  'Outcome',
  'Plan',
  'Trial',
  'metric_lines',
  'read_outcome',
  'read_plan',
  'write_outcome',
  'write_plan',
]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Trial:
  """One line of a plan: a variant at a point of the grid, with a seed.

  Attributes:
    variant: its name.
    point: the grid's values, by axis ({'Stack.num_layers': 6}), as gin text where they are no plain
      scalars; {} without a grid.
    seed: of initialisation, data order, masks and dropout.
    identity: hash of the resolved config without seed and output paths: trials that differ only in
      the seed share it.
    program: trials of one program share what is compiled; they differ in seed and `numbers` alone.
    numbers: what they differ in beside the seed, by 'scope/Name.param' (a learning rate).
    folder: name of the run folder under OUT/trials: identity and seed.
    changes: what the variant, the grid and the matched budget bind, a gin line each.
    unused: bindings of the base that nothing uses any more, as their part was replaced, by target.
    parameters: number of scalars.
    flops_per_token: of training, forward and backward (see t2x.train.flops).
    tokens_per_step: tokens (images: patches) of a batch, padding included.
    num_steps: optimizer steps.
    knob: the binding that matched the budget ('MLP.hidden_dim = 148'); '' where nothing moved.
    gap: difference to the baseline in what was matched, as a part of the baseline's: 0.004.
    problem: why the trial cannot be run ('' when it can): a config error, a budget out of reach.
  """

  variant: str
  point: Mapping[str, Any]
  seed: int
  identity: str
  folder: str
  program: str = ''
  numbers: Mapping[str, float] = dataclasses.field(default_factory=dict)
  changes: tuple[str, ...] = ()
  unused: tuple[str, ...] = ()
  parameters: int = 0
  flops_per_token: float = 0.0
  tokens_per_step: int = 0
  num_steps: int = 0
  knob: str = ''
  gap: float = 0.0
  problem: str = ''

  @property
  def differences(self) -> list[str]:
    """To the base config: gin lines, and what they leave unused as a comment."""
    lost = [f'# no longer used: {", ".join(self.unused)}'] if self.unused else []
    return [*self.changes, *lost]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
  """A resolved sweep.

  Attributes:
    name: the stem of its file.
    baseline: the variant that the others are compared with, at the same point of the grid.
    metric: name of the metric that decides, among those of the 'eval' lines of metrics.jsonl.
    goal: which way it is better.
    matched: what is equal for all variants: 'steps', 'parameters', 'flops', ... or ''.
    config: the base config, resolved, as gin text.
    versions: of python, jax, flax, optax, numpy, t2x, and the device, where it was planned.
    commit: of the repository, '' where there is none; '+' is appended to one with changes.
    trials: in the order in which they are run.
    file: the sweep file, '' in what older versions wrote.
  """

  name: str
  baseline: str
  metric: str
  goal: Literal['min', 'max']
  matched: str
  config: str
  versions: Mapping[str, str]
  commit: str
  trials: tuple[Trial, ...]
  file: str = ''

  @property
  def variants(self) -> list[str]:
    """Their names, the baseline first, then as the sweep file has them."""
    return list(dict.fromkeys([self.baseline, *(trial.variant for trial in self.trials)]))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Outcome:
  """How a trial ended.

  Attributes:
    status: 'finished'; 'diverged': a loss or gradient that was not finite ended it; 'failed'.
    reason: one line, '' when it finished.
    metrics: of its last evaluation, by name.
    seconds: of training, evaluation and compilation, pauses between restarts left out.
    tokens_per_second: median over the log intervals of training.
    memory_bytes: of the device's memory in use at most, or of the process where devices do not tell.
    made_by: versions, device and commit (see t2x.sweeps.origin); {} in what older versions wrote.
    together: how many trials were trained at once, by one step. `seconds` and `memory_bytes` are then
      this trial's equal share, and `tokens_per_second` is that of all: tokens / seconds, as alone.
  """

  status: Literal['finished', 'diverged', 'failed']
  reason: str = ''
  metrics: Mapping[str, float] = dataclasses.field(default_factory=dict)
  seconds: float = 0.0
  tokens_per_second: float | None = None
  memory_bytes: int | None = None
  made_by: Mapping[str, str] = dataclasses.field(default_factory=dict)
  together: int = 1


def write_plan(folder: Path, plan: Plan) -> None:
  """Writes OUT/NAME/sweep.json."""
  folder.mkdir(parents=True, exist_ok=True)
  _write(folder / 'sweep.json', dataclasses.asdict(plan))


def read_plan(folder: Path) -> Plan:
  """Reads OUT/NAME/sweep.json.

  Raises:
    UserError: there is none, or it is not one.
  """
  path = folder / 'sweep.json'
  if not path.exists():
    inside = sorted(str(one.parent) for one in folder.glob('*/sweep.json'))
    hint = f': did you mean {" or ".join(inside)}?' if inside else ''
    raise UserError(f'{folder} is no sweep folder: it has no sweep.json{hint}')
  try:
    given = json.loads(path.read_text())
    return Plan(**{**given, 'trials': tuple(map(_trial, given['trials']))})
  except (ValueError, TypeError, KeyError) as error:
    raise UserError(f'{path} is no plan of a sweep: {error}') from error


def _trial(given: Mapping[str, Any]) -> Trial:
  lists = {name: tuple(value) for name, value in given.items() if isinstance(value, list)}
  return Trial(**{**given, **lists})


def write_outcome(run: Path, outcome: Outcome) -> None:
  """Writes OUT/trials/ID/trial.json; an outcome that says nothing else was made here and now."""
  made_by = outcome.made_by or origin()
  _write(run / 'trial.json', dataclasses.asdict(dataclasses.replace(outcome, made_by=made_by)))


def read_outcome(run: Path) -> Outcome | None:
  """Reads OUT/trials/ID/trial.json; None: the trial has not ended."""
  try:
    return Outcome(**json.loads((run / 'trial.json').read_text()))
  except (FileNotFoundError, NotADirectoryError):
    return None
  except (ValueError, TypeError) as error:
    raise UserError(
      f'{run / "trial.json"} cannot be read: {error}; delete it to run again'
    ) from error


def metric_lines(path: Path) -> list[dict[str, Any]]:
  """The whole lines of metrics.jsonl or timing.jsonl; the run may be writing the last one."""
  if not path.exists():
    return []
  found = []
  for line in path.read_text(encoding='utf-8', errors='replace').splitlines():
    try:
      one = json.loads(line)
    except ValueError:
      continue
    if isinstance(one, dict) and 'step' in one and 'split' in one:
      found.append(one)
  return found


def _write(path: Path, content: Any) -> None:
  write_whole(path, (json.dumps(content, indent=1, ensure_ascii=False) + '\n').encode())
