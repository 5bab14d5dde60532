"""An experiment: what is learnt, by which model, trained how, on which devices."""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Literal

import jax
from flax import nnx

from t2x.data import Tokenizer
from t2x.errors import UserError
from t2x.layers.dtypes import Dtypes
from t2x.layers.initializers import building
from t2x.models import Model
from t2x.parallel import Mesh
from t2x.ranges import Count, Natural, NonNegative, Positive, Range, Rate, Seed, Size
from t2x.tasks import Evaluator, Task, TextTask
from t2x.train.faults import OnNonFinite, Rollback, Stop
from t2x.train.init_from import InitFrom
from t2x.train.optimizers import AdamW, Optimizer
from t2x.train.params import Group
from t2x.train.schedules import Cosine, Schedule
from t2x.train.writers import MetricWriter


@dataclasses.dataclass(frozen=True, kw_only=True)
class Trainer:
  """How a model is trained.

  Attributes:
    num_steps: optimizer steps.
    batch_size: examples (rows) in the global batch of a step.
    optimizer: update rule.
    schedule: learning rate by step.
    groups: parameters that are frozen or have learning rates of their own (`@Group()`); the first
      that matches a parameter counts.
    seed: decides initialisation, data order, masks and dropout.
    clip_norm: largest global norm of the gradient of all trained parameters; None does not clip.
    accumulate: parts that a batch is worked on in; the result is that of the whole batch.
    ema_decay: keeps an exponential moving average of the parameters, which is then what is
      evaluated; after t updates its decay is min(ema_decay, (1 + t) / (10 + t)). None keeps none.
    compute_dtype: dtype of activations and of the copy of the parameters that a step computes with;
      `t2x.layers.dtypes.Dtypes` lists what stays float32.
    log_every: steps between train lines in metrics.jsonl.
    eval_every: steps between evaluations; 0 evaluates at the end alone.
    eval_batches: batches of an evaluation, spread evenly over the split; None, and the last evaluation, read
      all of it.
    checkpoint_every: steps between checkpoints, beside those at evaluations; 0 for those alone.
    checkpoint_minutes: minutes after which another checkpoint is due, looked at when a train line
      is; 0 leaves it to the steps.
    keep_last: newest checkpoints kept.
    keep_every: checkpoints of steps that are multiples of this are kept for good; 0: none.
    keep_best: best checkpoints kept, by the task's own metric.
    failed_saves: checkpoints in a row that may fail to be saved (a full disk), each told, before the
      run ends with exit code 1; the last one, and any where several processes save, must not.
    num_workers: processes that prepare batches; 0 is a thread of this one.
    nonfinite: what happens when the loss or a gradient is not finite.
    rollback: goes back when the loss leaps; None does not.
    max_minutes: after so many minutes the run saves and ends with exit code 75, to be run again;
      None: no limit.
    stall_minutes: a step, or a batch in training or evaluation, that takes longer ends the process
      with exit code 1.
    writers: builds further metric writers (`@WandB`), given the run folder.
  """

  num_steps: Count
  batch_size: Size
  optimizer: Optimizer = AdamW()
  schedule: Schedule = Cosine()
  groups: Sequence[Group] = ()
  seed: Seed = 0
  clip_norm: Positive | None = 1.0
  accumulate: Size = 1
  ema_decay: Rate | None = None
  compute_dtype: Literal['float32', 'bfloat16'] = 'float32'
  log_every: Count = 50
  eval_every: Natural = 500
  eval_batches: Count | None = None
  checkpoint_every: Natural = 0
  checkpoint_minutes: NonNegative = 0.0
  keep_last: Count = 2
  keep_every: Natural = 0
  keep_best: Natural = 1
  failed_saves: Natural = 0
  num_workers: Annotated[int, Range('0 <= x <= 1024')] = 0
  nonfinite: OnNonFinite = Stop()
  rollback: Rollback | None = None
  max_minutes: Positive | None = None
  stall_minutes: Positive = 30.0
  writers: Sequence[Callable[..., MetricWriter]] = ()

  def __post_init__(self):
    if self.batch_size % self.accumulate:
      raise UserError(
        f'Trainer.accumulate = {self.accumulate} does not divide '
        f'Trainer.batch_size = {self.batch_size}'
      )

  @property
  def dtypes(self) -> Dtypes:
    """The dtype of each kind of array in a run."""
    return Dtypes(self.compute_dtype)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Teacher:
  """A trained model whose predictions the task learns (`Distillation`).

  Attributes:
    model: builds the model, as Experiment.model does. `@teacher/LanguageModel` takes the bindings of the
      scope `teacher/`, and the student's for everything that the scope does not bind.
    init_from: the run in which the model was trained. A resumed run has its own copy.
  """

  model: Callable[..., Model]
  init_from: InitFrom


@dataclasses.dataclass(frozen=True, kw_only=True)
class Experiment:
  """The root of a config. A file may hold a part of one; training needs all but the mesh.

  Attributes:
    model: builds the model, given `rngs`.
    task: what is learnt.
    trainer: how.
    mesh: on which devices.
    init_from: another run whose parameters a new run starts with; a resumed one has its own.
    teacher: a trained model that the task learns from; None if the task needs none.
    evaluations: evaluators by name, besides the loss of the task on its `eval_split`; their metrics are
      NAME/METRIC. All text is cut by the run's tokenizer.
  """

  model: Callable[..., Model] | None = None
  task: Task | None = None
  trainer: Trainer | None = None
  mesh: Mesh = Mesh()
  init_from: InitFrom | None = None
  teacher: Teacher | None = None
  evaluations: Mapping[str, Evaluator] = dataclasses.field(default_factory=dict)

  def complete(self) -> tuple[Callable[..., Any], Task, Trainer]:
    """Model, task and trainer.

    Raises:
      UserError: one of them is missing.
    """
    model, task, trainer = self.model, self.task, self.trainer
    if model is None or task is None or trainer is None:
      missing = [name for name in ('model', 'task', 'trainer') if getattr(self, name) is None]
      raise UserError(f'Experiment.{" and .".join(missing)} not set: this command needs all three')
    return model, task, trainer

  def complete_model(self) -> Callable[..., Model]:
    """The builder of the model.

    Raises:
      UserError: there is none.
    """
    if self.model is None:
      raise UserError('Experiment.model is not set: this command needs it')
    return self.model

  def evaluated_task(self, evaluation: str | None = None) -> Task:
    """The task of one of `evaluations`; None: the experiment's own.

    Raises:
      UserError: there is none.
    """
    own = None if evaluation is None else self.evaluations[evaluation].task
    task = self.task if own is None else own
    if task is None:
      raise UserError('Experiment.task is not set: this command needs it')
    return task

  def with_trainer(self, batch_size: int) -> 'Experiment':
    """The experiment, with the default trainer where it has none: for the shapes of a train state."""
    trainer = self.trainer or Trainer(num_steps=1, batch_size=batch_size)
    return dataclasses.replace(self, trainer=trainer)

  def bound(self, tokenizer: Tokenizer | None = None) -> 'Experiment':
    """The experiment with a fitted tokenizer; where its config leaves the number of rows of the tables of
    tokens open, the model has as many as the task needs.

    Args:
      tokenizer: the run's fitted one. None: nothing is bound, unless the task's tokenizer has no size before
        it is fitted: then it is fitted now (and cached).
    """
    task, evaluations = self.task, dict(self.evaluations)
    if not isinstance(task, TextTask):
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
    """The model, of `jax.ShapeDtypeStruct`s; `tokenizer` is that of `bound`.

    Raises:
      UserError: there is no model.
    """
    build = self.bound(tokenizer).complete_model()
    return jax.eval_shape(lambda: build(rngs=nnx.Rngs(0)))


def _build(model: Callable[..., Model], vocab_size: int | None, *, rngs: nnx.Rngs) -> Model:
  with building(vocab_size=vocab_size):
    return model(rngs=rngs)
