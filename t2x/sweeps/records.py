"""Files of a sweep: the plan (sweep.json) and the outcome of each trial (trial.json).

OUT/NAME/sweep.json       the plan of the sweep file NAME.gin
OUT/NAME/results.csv ...  the report of the sweep
OUT/trials/ID/            the run folders; two sweeps under one OUT share equal trials
OUT/trials/ID/trial.json  written when the trial ends
"""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeGuard

from t2x.base.errors import UserError
from t2x.base.json_files import (
  Damaged,
  Lines,
  dataclass_from_json,
  is_number,
  read_json,
  write_json,
)
from t2x.base.suggestions import similar_folders
from t2x.sweeps.provenance import origin
from t2x.sweeps.published import Published

# Squares of larger values overflow in the standard deviation.
_LARGEST = 1e100
_MOST_CHANGES = 3


@dataclasses.dataclass(frozen=True, kw_only=True)
class Trial:
  """A trial of a plan: a variant at a point of the grid, with a seed.

  Attributes:
    variant: name of the variant.
    point: values of the grid by axis ({'Stack.num_layers': 6}), as gin text unless they are plain
      scalars; {} without a grid.
    seed: seed of initialisation, data order, masks and dropout.
    identity: hash of the settings that are not defaults, without the seed, and of the user's modules; shared by trials
      that differ only in the seed (see t2x.sweeps.identities).
    program: hash shared by trials that use the same compiled functions: they differ only in the seed
      and `numbers`.
    numbers: hyperparameters in which trials of a program differ, by 'scope/Name.param' (a learning
      rate).
    folder: name of the run folder under OUT/trials: identity and seed.
    changes: bindings of the variant, the grid and the matched budget, one gin line each.
    unused: targets of bindings of the base that have no effect, because their part was replaced.
    parameters: number of scalars.
    flops_per_token: FLOPs of training, forward and backward; attention counts the pairs that its pattern shows
      (see t2x.train.logs.flops).
    full_flops_per_token: FLOPs with full attention. None in files of older versions, in which
      `flops_per_token` counts full attention.
    tokens_per_step: tokens (images: patches) per batch, padding included.
    num_steps: optimizer steps.
    knob: the adjusted parameter as a binding ('MLP.hidden_dim = 148'); '' if none was adjusted.
    gap: relative deviation of the matched quantity from the baseline's: 0.004.
    problem: why the trial cannot run, such as a budget that cannot be matched; '' if it can.
    tuned: the tuned parameter and its value in this trial; {} without tuning, and at the variant's own value.
    restated: paths of settings whose defaults are part of the identity, as an earlier trial had other defaults.
    changed: what differs between this trial and an earlier one of the same settings that has ended:
      code, data and defaults.
    accepted: whether that earlier trial is used (`t2x sweep --accept-changed`).
    tuned_by: tuning seed that chose the value. None for other trials, and in files of older versions, in which one
      value was chosen for all seeds.
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
  full_flops_per_token: float | None = None
  tokens_per_step: int = 0
  num_steps: int = 0
  knob: str = ''
  gap: float = 0.0
  problem: str = ''
  tuned: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  restated: tuple[str, ...] = ()
  changed: tuple[str, ...] = ()
  accepted: bool = False
  tuned_by: int | None = None

  @property
  def differences(self) -> list[str]:
    """Gin lines that differ from the base config, and a comment with the unused bindings."""
    unused = [f'# no longer used: {", ".join(self.unused)}'] if self.unused else []
    return [*self.changes, *unused]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
  """A resolved sweep.

  Attributes:
    name: stem of the sweep file.
    baseline: the variant that all variants are compared with, at the same point of the grid.
    metric: name of the metric to compare, from the 'eval' lines of metrics.jsonl.
    goal: whether a lower ('min') or a higher ('max') metric is better.
    matched: the quantity that is equal for all variants: 'steps', 'parameters', 'flops', ... or ''.
    config: the resolved base config as gin text.
    versions: versions of python, jax, flax, optax, numpy and t2x, and the device, at planning time.
    commit: commit of the repository, '' without one; '+' and a digest mark uncommitted changes.
    trials: all trials, in the order of execution.
    file: path of the sweep file, relative to the folder of sweep.json; '' in files of older versions.
    margin: largest difference that counts as none (Sweep.margin).
    failed_above: values of the metric above it did not learn (Sweep.failed_above).
    failed_below: values of the metric below it did not learn (Sweep.failed_below).
    max_seeds: number of seeds at the last look (Sweep.max_seeds). It is None in files of older versions,
      as are `margin`, `failed_above` and `failed_below`.
    published: published results of the variants; None without any.
    tuning: 'trials' for the plan of the tuning trials, 'tuned' if each variant has its tuned values, 'untuned' if it
      has its own value, for a comparison with the tuned plan; 'none' for other sweeps.
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
  margin: float | None = None
  failed_above: float | None = None
  failed_below: float | None = None
  max_seeds: int | None = None
  published: Published | None = None
  tuning: Literal['none', 'trials', 'tuned', 'untuned'] = 'none'

  @property
  def variants(self) -> list[str]:
    """Names of the variants: the baseline, then the variants in the order of the sweep file."""
    return list(dict.fromkeys([self.baseline, *(trial.variant for trial in self.trials)]))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Conditions:
  """Load of the machine during a trial.

  Attributes:
    host: name of the machine.
    cpus: CPUs of the machine.
    cores: CPUs that the trial could use.
    load_before: load average over one minute (runnable processes) at the start of the trial.
    load_after: load average over one minute at its end.
    began: start of the trial, in seconds since 1970.
    ended: end of the trial, in seconds since 1970.
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
  """Outcome of a trial.

  Attributes:
    status: 'finished', 'diverged' (a loss or gradient was not finite) or 'failed'.
    reason: why it diverged or failed, in one line; '' if it finished.
    metrics: metrics of the last evaluation, by name.
    seconds: time for training, evaluation and compilation, without pauses between restarts.
    step_seconds: time of a compiled training step; None if too few lines were logged.
    compile_seconds: time for tracing and compiling in this process; 0 for later trials of a program.
    tokens_per_second: median over the log intervals of training, without the first.
    memory_bytes: peak memory of the device, or of the process if the device does not report it.
    made_by: versions, device, commits and data (see t2x.sweeps.provenance); {} in files of older versions.
    together: number of trials trained by each vmapped step. If it is larger than 1, seconds and
      `memory_bytes` are equal shares, and `tokens_per_second` is the rate of all trials together.
    conditions: load of the machine. It is None in files of older versions, as are `step_seconds` and
      `compile_seconds`.
    invalid: whether it failed by a UserError, an error in its config or installation.
    num_steps: optimizer steps that were taken, fewer than planned if `Trainer.patience` ended the training; None for
      trials that did not finish, and in files of older versions.
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
  num_steps: int | None = None
  invalid: bool = False


def shown_changes(changes: Sequence[str]) -> str:
  """Returns the first changes as text, and the number of others."""
  more = f' and {len(changes) - _MOST_CHANGES} more' if len(changes) > _MOST_CHANGES else ''
  return '; '.join(changes[:_MOST_CHANGES]) + more


def judge(plan: Plan, outcome: Outcome) -> tuple[str, str]:
  """Returns the status of a trial by the metric of its plan ('diverged' if it did not learn), and the reason."""
  if outcome.status != 'finished':
    return outcome.status, outcome.reason
  if plan.metric not in outcome.metrics:
    return 'failed', f"its evaluation has no metric '{plan.metric}'"
  value = outcome.metrics[plan.metric]
  if not is_usable(value):
    return 'diverged', f'{plan.metric} is not finite'
  if plan.failed_above is not None and value > plan.failed_above:
    return 'diverged', f'did not learn: {plan.metric} {value:.5g} is above {plan.failed_above:g}'
  if plan.failed_below is not None and value < plan.failed_below:
    return 'diverged', f'did not learn: {plan.metric} {value:.5g} is below {plan.failed_below:g}'
  return 'finished', outcome.reason


def is_usable(value: object) -> TypeGuard[float]:
  """Returns True if a metric is a finite number whose square does not overflow."""
  return is_number(value) and abs(value) < _LARGEST


def write_plan(folder: Path, plan: Plan) -> None:
  """Writes OUT/NAME/sweep.json."""
  write_json(folder / 'sweep.json', plan)


def read_plan(folder: Path) -> Plan:
  """Reads OUT/NAME/sweep.json.

  Raises:
    UserError: the file does not exist or is damaged.
  """
  path = folder / 'sweep.json'
  try:
    plan = dataclass_from_json(Plan, read_json(path), path)
  except FileNotFoundError:
    hint = similar_folders(folder, path.name)
    raise UserError(f'{folder} is not a sweep folder: it has no sweep.json{hint}') from None
  except Damaged as error:
    raise Damaged(f'{error}; run `t2x sweep` again to rewrite it') from error
  for number, trial in enumerate(plan.trials):
    # The name is used as a path.
    if trial.folder in ('', '.', '..') or '/' in trial.folder or len(trial.folder.encode()) > 255:
      raise Damaged(f'{path} is damaged: trials[{number}].folder is not the name of a folder')
  return plan


def write_outcome(run: Path, outcome: Outcome) -> None:
  """Writes OUT/trials/ID/trial.json. If `made_by` is empty, it is set to that of this process."""
  made_by = outcome.made_by or origin()
  write_json(run / 'trial.json', dataclasses.replace(outcome, made_by=made_by))


def read_outcome(run: Path) -> Outcome | None:
  """Reads OUT/trials/ID/trial.json; None if the file does not exist.

  Raises:
    Damaged: the file is not a valid outcome.
  """
  path = run / 'trial.json'
  try:
    return dataclass_from_json(Outcome, read_json(path), path)
  except FileNotFoundError:
    return None


def usable_outcome(run: Path) -> Outcome | None:
  """Like `read_outcome`, but returns None for a damaged file, so that the trial runs again."""
  try:
    return read_outcome(run)
  except Damaged:
    return None
