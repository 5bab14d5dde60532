"""Experiment, the root of a config: model, task, trainer, mesh, evaluations."""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import jax
from flax import nnx

from t2x.base.errors import UserError
from t2x.base.ranges import (
  Count,
  Natural,
  NonNegative,
  Positive,
  Range,
  Rate,
  Size,
  TrainingSteps,
  TrialSeed,
)
from t2x.data import Tokenizer
from t2x.layers.building import building
from t2x.layers.dtypes import Dtypes
from t2x.models import Model
from t2x.parallel import Mesh
from t2x.tasks import Evaluator, Task
from t2x.train.faults import OnNonFinite, Rollback, Stop
from t2x.train.groups import Group
from t2x.train.init_from import InitFrom
from t2x.train.logs.writers import MetricWriter
from t2x.train.mup import MuP, Scaled, Scaling, check_same
from t2x.train.optimizers import AdamW, Optimizer
from t2x.train.params import TEACHER, Params
from t2x.train.schedules import Cosine, Schedule

__all__ = ['Experiment', 'Teacher', 'Trainer']


@dataclasses.dataclass(frozen=True, kw_only=True)
class Trainer:
  """Settings of the training loop.

  Attributes:
    num_steps: number of optimizer steps.
    batch_size: rows in the global batch of a step.
    optimizer: update rule.
    schedule: learning rate by step.
    groups: parameters that are frozen or have other learning rates (`@Group()`); a parameter belongs to the
      first group that matches it.
    seed: seed of initialisation, data order, masks and dropout.
    clip_norm: maximum global norm of the gradient of all trained parameters; None disables clipping.
    accumulate: micro-batches per step; the result does not depend on it.
    ema_decay: decay of an exponential moving average of the parameters, which evaluation uses. After t
      updates the decay is min(ema_decay, (1 + t) / (10 + t)). None disables it.
    compute_dtype: dtype of the activations and of the parameters within a step, in evaluation and in
      generation; `t2x.layers.dtypes.Dtypes` lists the arrays that remain float32.
    log_every: steps between train lines in metrics.jsonl.
    eval_every: steps between evaluations; 0 evaluates only at the end.
    eval_batches: batches per evaluation, spread evenly over the split. None, and the last evaluation, read
      the full split.
    patience: number of consecutive evaluations without a better value of the task's `best_metric` after which
      training stops. The evaluation that stops it is the last: it reads the full split and runs all evaluators.
      The schedule is still that of `num_steps`. None: all steps.
    checkpoint_every: steps between checkpoints in addition to those at evaluations; 0 disables them.
    checkpoint_minutes: minutes between checkpoints, checked at each train line; 0 disables them.
    keep_last: number of newest checkpoints to keep.
    keep_every: checkpoints of steps that are multiples of this are never removed; 0 disables it.
    keep_best: number of best checkpoints to keep, by the task's metric.
    max_failed_saves: maximum number of consecutive checkpoints that may fail to be saved, for example on a full
      disk. Each is logged; one more ends the run with exit code 1, as does a failure of the last
      checkpoint or, with several processes, of any.
    num_workers: number of processes that prepare batches; 0 uses a thread.
    nonfinite: handling of steps whose loss or gradient is not finite.
    rollback: handling of loss spikes; None disables spike detection.
    max_minutes: time limit in minutes; then the run saves a checkpoint and ends with exit code 75, and the
      same command resumes it. None for no limit.
    stall_minutes: maximum minutes of one step, or of one batch in training or evaluation; the process then
      ends with exit code 1.
    writers: constructors of further metric writers (`@WandB`, `@MLflow`), called with the run folder. Their
      exceptions are logged and do not end the run.
    profile_steps: first and last step, both included, to trace with jax.profiler. The trace is written to
      RUN/profile, and the operations with the largest times are printed. Of several processes, the first
      traces its devices. A resumed run traces only steps that it takes. None: no trace.
    layer_norms: computes the norms of gradients, parameters and updates by layer. At each train line they are
      written to norms.jsonl, TensorBoard and `writers`.
  """

  num_steps: TrainingSteps
  batch_size: Size
  optimizer: Optimizer = AdamW()
  schedule: Schedule = Cosine()
  groups: Sequence[Group] = ()
  seed: TrialSeed = 0
  clip_norm: Positive | None = 1.0
  accumulate: Size = 1
  ema_decay: Rate | None = None
  compute_dtype: Literal['float32', 'bfloat16'] = 'float32'
  log_every: Count = 50
  eval_every: Natural = 500
  eval_batches: Count | None = None
  patience: Count | None = None
  checkpoint_every: Natural = 0
  checkpoint_minutes: NonNegative = 0.0
  keep_last: Count = 2
  keep_every: Natural = 0
  keep_best: Natural = 1
  max_failed_saves: Natural = 0
  num_workers: Annotated[int, Range('0 <= x <= 1024')] = 0
  nonfinite: OnNonFinite = Stop()
  rollback: Rollback | None = None
  max_minutes: Positive | None = None
  stall_minutes: Positive = 30.0
  writers: Sequence[Callable[..., MetricWriter]] = ()
  profile_steps: tuple[Count, Count] | None = None
  layer_norms: bool = False

  def __post_init__(self):
    if self.batch_size % self.accumulate:
      raise UserError(
        f'Trainer.accumulate = {self.accumulate} must be a divisor of '
        f'Trainer.batch_size = {self.batch_size}'
      )
    if self.profile_steps is not None:
      first, last = self.profile_steps
      if not 1 <= first <= last <= self.num_steps:
        raise UserError(
          f'Trainer.profile_steps = {tuple(self.profile_steps)}: must be the first and the last step of a range '
          f'of steps from 1 to Trainer.num_steps = {self.num_steps}'
        )
    if self.patience is not None and not 0 < (self.patience + 1) * self.eval_every < self.num_steps:
      raise UserError(
        f'Trainer.patience = {self.patience} has no effect: with Trainer.eval_every = {self.eval_every} there are '
        f'fewer than {self.patience + 1} evaluations before the last step, {self.num_steps}: evaluate more often, '
        'or remove it'
      )

  @property
  def dtypes(self) -> Dtypes:
    """The dtype of each kind of array in a run."""
    return Dtypes(self.compute_dtype)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Teacher:
  """A trained model to distil from (`Distillation`).

  Attributes:
    model: constructor of the model, like Experiment.model. `@teacher/LanguageModel` has the bindings of the
      scope `teacher/`; arguments that the scope does not bind are those of the student.
    init_from: the run in which the model was trained. A resumed run reads its own copy instead.
  """

  model: Callable[..., Model]
  init_from: InitFrom

  def of_seed(self, seed: int) -> 'Teacher':
    """Returns the teacher from the run of a seed."""
    return dataclasses.replace(self, init_from=self.init_from.of_seed(seed))

  def plan(
    self, frozen: Mapping[str, Any], tokenizer: Tokenizer | None = None
  ) -> tuple[Callable[[], Params], str]:
    """Plans the loading of the teacher's parameters, which are among the frozen ones as `teacher.NAME`.

    Args:
      frozen: shapes and shardings of the frozen parameters.
      tokenizer: tokenizer of the run; None if it has none or it is not fitted yet.

    Returns:
      A function that reads the parameters, by `teacher.NAME`, and a line that describes their source.

    Raises:
      UserError: the teacher's run has another tokenizer, or lacks a parameter.
    """
    own = {n.removeprefix(TEACHER): leaf for n, leaf in frozen.items() if n.startswith(TEACHER)}
    try:
      check_same(Path(self.init_from.run), None)
      load, table = self.init_from.plan(own, complete=True)
      if self.init_from.other_tokenizer(tokenizer):
        raise UserError(
          f'the tokenizer of {self.init_from.run} differs from that of this run, so its logits are of other '
          'tokens: use the same tokenizer for both'
        )
    except UserError as error:
      raise UserError(f'Experiment.teacher: {error}', error.exit_code) from error
    return lambda: {TEACHER + name: array for name, array in load().items()}, table.splitlines()[0]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Experiment:
  """The root of a config. Training needs model, task and trainer; other commands need only some of them.

  Attributes:
    model: constructor of the model, called with `rngs`.
    task: data, loss and metrics.
    trainer: settings of training.
    mup: scales initial values, steps and tied logits with the width of the model; None: no scaling.
    mesh: layout of the devices.
    init_from: another run whose parameters initialise a new run; a resumed run ignores it.
    teacher: a trained model to distil from; None without distillation.
    evaluations: evaluators by name, in addition to the loss of the task on its `eval_split`. Their metrics
      are NAME/METRIC. They use the tokenizer of the run.
  """

  model: Callable[..., Model] | None = None
  task: Task | None = None
  trainer: Trainer | None = None
  mup: MuP | None = None
  mesh: Mesh = Mesh()
  init_from: InitFrom | None = None
  teacher: Teacher | None = None
  evaluations: Mapping[str, Evaluator] = dataclasses.field(default_factory=dict)

  def __post_init__(self):
    for name in self.evaluations:
      if self.task is not None and name in self.task.parts:
        raise UserError(
          f"Experiment.evaluations has '{name}', which is also a task of the mixture: rename one"
        )
    if self.trainer is not None:
      for name in ('init_from', 'teacher'):
        part = getattr(self, name)
        # A frozen dataclass is changed where it is made.
        object.__setattr__(self, name, part and part.of_seed(self.trainer.seed))

  def complete(self) -> tuple[Callable[..., Any], Task, Trainer]:
    """Returns model, task and trainer.

    Raises:
      UserError: one of them is not set.
    """
    model, task, trainer = self.model, self.task, self.trainer
    if model is None or task is None or trainer is None:
      missing = [name for name in ('model', 'task', 'trainer') if getattr(self, name) is None]
      raise UserError(
        f'{" and ".join(f"Experiment.{name}" for name in missing)} not set: this command needs a model, '
        'a task and a trainer'
      )
    return model, task, trainer

  def complete_model(self) -> Callable[..., Model]:
    """Returns the constructor of the model.

    Raises:
      UserError: it is not set.
    """
    if self.model is None:
      raise UserError('Experiment.model is not set: this command needs a model')
    return self.model

  def evaluated_task(self, evaluation: str | None = None) -> Task:
    """Returns the task of an evaluator; None for the task of the experiment.

    Args:
      evaluation: name in `evaluations`.

    Raises:
      UserError: neither the evaluator nor the experiment has a task.
    """
    own = None if evaluation is None else self.evaluations[evaluation].task
    task = self.task if own is None else own
    if task is None:
      raise UserError('Experiment.task is not set: this command needs a task')
    return task

  def with_trainer(self, batch_size: int) -> 'Experiment':
    """Returns the experiment, with a default trainer if it has none; for shapes of a train state."""
    trainer = self.trainer or Trainer(num_steps=1, batch_size=batch_size)
    return dataclasses.replace(self, trainer=trainer)

  def bound(self, tokenizer: Tokenizer | None = None) -> 'Experiment':
    """Returns the experiment with a fitted tokenizer and, where the config sets none, the vocabulary size.

    The constructor of the model then applies `mup`, too.

    Args:
      tokenizer: the fitted tokenizer of the run. None binds no tokenizer, unless the vocabulary size is
        unknown before fitting; then the tokenizer is fitted and cached.
    """
    if isinstance(self.model, Scaled) and tokenizer is None:
      return self
    bound = self._with_vocabulary(tokenizer)
    scaling = bound.scaling()
    if scaling is None:
      return bound
    return dataclasses.replace(bound, model=Scaled(bound.complete_model(), scaling))

  def scaling(self) -> Scaling | None:
    """Returns the factors of `mup` for the model; None without a model or `mup`."""
    if self.mup is None or self.model is None:
      return None
    if isinstance(self.model, Scaled):
      return self.model.scaling
    task = self.task
    vocab_size = task.vocab_size if task is not None and task.tokenizes else None
    return self.mup.scaling(self.model, vocab_size)

  def _with_vocabulary(self, tokenizer: Tokenizer | None) -> 'Experiment':
    task, evaluations = self.task, dict(self.evaluations)
    if task is None or not task.tokenizes:
      return self
    if tokenizer is None and task.vocab_size is None:
      tokenizer = task.fit_tokenizer()
    if tokenizer is not None:
      task = task.bound(tokenizer)
      for name, evaluator in evaluations.items():
        if evaluator.task is not None:
          evaluations[name] = evaluator.replaced(task=evaluator.task.bound(tokenizer))
    if self.model is None:
      return dataclasses.replace(self, task=task, evaluations=evaluations)
    model, teacher = functools.partial(_build, self.model, task.vocab_size), self.teacher
    if teacher is not None:
      sized = functools.partial(_build, teacher.model, task.vocab_size)
      teacher = dataclasses.replace(teacher, model=sized)
    return dataclasses.replace(
      self, model=model, task=task, evaluations=evaluations, teacher=teacher
    )

  def shapes(self, tokenizer: Tokenizer | None = None) -> Any:
    """Returns the model with `jax.ShapeDtypeStruct` leaves.

    Args:
      tokenizer: as in `bound`.

    Raises:
      UserError: the experiment has no model.
    """
    build = self.bound(tokenizer).complete_model()
    return jax.eval_shape(lambda: build(rngs=nnx.Rngs(0)))


def _build(model: Callable[..., Model], vocab_size: int | None, *, rngs: nnx.Rngs) -> Model:
  with building(vocab_size=vocab_size):
    return model(rngs=rngs)


def row_lengths(task: Task, model: nnx.Module) -> dict[str, int]:
  """Returns the tokens per row by top-level part, source first; '' is all parts of a one-sided model."""
  spec = task.spec(1)
  if 'target' in task.inputs:
    encoder = _num_embedded(model, 'source_embedder', spec['source'])
    return {'encoder': encoder, 'decoder': spec['target'].shape[1]}
  (name, kind), *_ = task.inputs.items()
  if kind == 'series':  # Values of the context; a model may embed several as one token.
    return {'': spec[name].shape[1]}
  if len(task.inputs) > 1:  # Towers by the names of their inputs.
    return {n: _num_embedded(getattr(model, n), 'embedding', spec[n]) for n in task.inputs}
  if kind != 'ids':
    return {'': _num_embedded(model, 'embedding', spec[name])}
  rows = [field.shape[1] for field in spec.values() if len(field.shape) == 2]
  return {'': max(rows, default=1)}


def _num_embedded(model: nnx.Module, part: str, inputs: jax.ShapeDtypeStruct) -> int:
  """Returns the number of tokens of a row that an embedder returns."""
  embedded, _ = jax.eval_shape(lambda model, x: getattr(model, part)(x), model, inputs)
  return embedded.shape[1]
