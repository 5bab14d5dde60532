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
from t2x.sweeps.json_files import Damaged, Lines, parsed, read_json
from t2x.sweeps.provenance import origin


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
    program: trials of one program share what is compiled; they differ only in seed and `numbers`.
    numbers: the hyperparameters in which they differ, by 'scope/Name.param' (a learning rate).
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
    file: the sweep file, from the folder that holds sweep.json; '' in what older versions wrote.
  """

  name: str
  baseline: str
  metric: str
  goal: Literal['min', 'max']
  matched: str
  config: Lines
  versions: Mapping[str, str]
  commit: str
  trials: tuple[Trial, ...]
  file: str = ''

  @property
  def variants(self) -> list[str]:
    """Their names, the baseline first, then as the sweep file has them."""
    return list(dict.fromkeys([self.baseline, *(trial.variant for trial in self.trials)]))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Conditions:
  """What a machine had to do while a trial ran there.

  Attributes:
    host: its name.
    cpus: of the machine.
    cores: those of its CPUs that the trial could use.
    load_before: the load average of a minute when the trial began: how many processes wanted to run.
    load_after: when it ended.
    began: when, in seconds since 1970.
    ended: when.
  """

  host: str
  cpus: int
  cores: int
  load_before: float
  load_after: float
  began: float
  ended: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class Outcome:
  """How a trial ended.

  Attributes:
    status: 'finished'; 'diverged': a loss or gradient that was not finite ended it; 'failed'.
    reason: one line, '' when it finished.
    metrics: of its last evaluation, by name.
    seconds: of training, evaluation and compilation, pauses between restarts left out.
    step_seconds: of a training step when it is compiled; None where too few lines are logged.
    compile_seconds: that the process spent on tracing and compiling; a later trial of one program
      spends none.
    tokens_per_second: median over the log intervals of training, the first left out.
    memory_bytes: of the device's memory in use at most, or of the process where devices do not tell.
    made_by: versions, device and commit (see t2x.sweeps.provenance); {} in what older versions wrote.
    together: how many trials were trained at once, by one step. Seconds and `memory_bytes` are then
      this trial's equal share, and `tokens_per_second` is that of all: tokens / seconds, as alone.
    conditions: of the machine; None in what older versions wrote, as are the seconds of a step and of
      compilation.
  """

  status: Literal['finished', 'diverged', 'failed']
  reason: str = ''
  metrics: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  seconds: float = 0.0
  step_seconds: float | None = None
  compile_seconds: float | None = None
  tokens_per_second: float | None = None
  memory_bytes: int | None = None
  made_by: Mapping[str, str] = dataclasses.field(default_factory=dict)
  together: int = 1
  conditions: Conditions | None = None


def write_plan(folder: Path, plan: Plan) -> None:
  """Writes OUT/NAME/sweep.json."""
  folder.mkdir(parents=True, exist_ok=True)
  _write(folder / 'sweep.json', dataclasses.asdict(plan))


def read_plan(folder: Path) -> Plan:
  """Reads OUT/NAME/sweep.json.

  Raises:
    UserError: there is none, or it is damaged.
  """
  path = folder / 'sweep.json'
  try:
    plan = parsed(Plan, read_json(path), path)
  except FileNotFoundError:
    inside = sorted(str(one.parent) for one in folder.glob('*/sweep.json'))
    hint = f': did you mean {" or ".join(inside)}?' if inside else ''
    raise UserError(f'{folder} is no sweep folder: it has no sweep.json{hint}') from None
  except Damaged as error:
    raise Damaged(f'{error}; run `t2x sweep` again to write it anew') from error
  for number, trial in enumerate(plan.trials):
    # The name becomes a path.
    if trial.folder in ('', '.', '..') or '/' in trial.folder or len(trial.folder.encode()) > 255:
      raise Damaged(f'{path} is damaged: trials[{number}].folder is not the name of a folder')
  return plan


def write_outcome(run: Path, outcome: Outcome) -> None:
  """Writes OUT/trials/ID/trial.json; an outcome that says nothing else was made here and now."""
  made_by = outcome.made_by or origin()
  _write(run / 'trial.json', dataclasses.asdict(dataclasses.replace(outcome, made_by=made_by)))


def read_outcome(run: Path) -> Outcome | None:
  """Reads OUT/trials/ID/trial.json; None: the trial has not ended.

  Raises:
    Damaged: it holds no outcome.
  """
  path = run / 'trial.json'
  try:
    return parsed(Outcome, read_json(path), path)
  except FileNotFoundError:
    return None


def usable_outcome(run: Path) -> Outcome | None:
  """As `read_outcome`, but None also where trial.json is damaged: the trial runs again."""
  try:
    return read_outcome(run)
  except Damaged:
    return None


def _write(path: Path, content: Any) -> None:
  write_whole(path, (json.dumps(content, indent=1, ensure_ascii=False) + '\n').encode())
