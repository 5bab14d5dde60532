"""Evaluation and generation with a model, its data and its devices; `TrainingRun` adds training."""

import collections
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import jax
import numpy as np

from t2x.data import Tokenizer, evaluation_batches
from t2x.data.sources.base import example_names
from t2x.data.sources.subset import Spread
from t2x.parallel import Placed, Processes, batch_sharding, process_part
from t2x.tasks import Task
from t2x.tasks.evaluators import Evaluated, Evaluation
from t2x.tasks.prediction import Watched
from t2x.train.checkpoints.saved_params import SavedParams
from t2x.train.checkpoints.store import Checkpoints
from t2x.train.experiment import Experiment
from t2x.train.params import Params
from t2x.train.program import EvalStep, Program


class Inference:
  """Evaluates a model with given parameters.

  Args:
    experiment: needs a model, and a task if a task is evaluated; no trainer.
    tokenizer: the fitted tokenizer; None for tasks without text.
    processes: the processes of the evaluation; None for a single process.
    program: compiled functions, if others share them; their experiment has the same tokenizer.
    batch_size: rows in an evaluation batch, for an experiment without a trainer.

  Attributes:
    experiment: the experiment with the tokenizer.
    mesh: the devices.
    program: compiled functions and the shapes of the model.
    part: (index, count): this process reads the part `index` of `count` equal parts of a global batch.
  """

  def __init__(
    self,
    experiment: Experiment,
    tokenizer: Tokenizer | None,
    processes: Processes | None = None,
    program: Program | None = None,
    batch_size: int | None = None,
  ):
    self.processes, self.tokenizer = processes or Processes(), tokenizer
    self.experiment = experiment.bound(tokenizer)
    self.program = program or Program(self.experiment, batch_size=batch_size)
    self.mesh = self.program.mesh
    self.batch_sharding = batch_sharding(self.mesh)
    self.batch_size = self.program.batch_size
    self.part = process_part(self.batch_sharding, self.batch_size)

  @property
  def task(self) -> Task:
    """The task of the experiment.

    Raises:
      UserError: the experiment has no task.
    """
    return self.experiment.evaluated_task()

  def rows(self, split: str, task: Task | None = None) -> Any:
    """Returns the prepared rows of a split, which are prepared at first use and cached.

    The first process prepares them, or all processes together if the task shares its preparation.

    Args:
      split: name of the split.
      task: None for the task of the experiment.
    """
    task = task or self.task
    with self.processes.process_zero_first():
      if not task.shares_preparation:
        return task.rows(split)
      # A source may download its data when it is first used.
      task.check_split(split)
      for part in task.parts.values():
        part.source.fingerprint()
    return task.rows(split)

  def evaluation_batches(
    self, rows: Sequence[Mapping[str, Any]], task: Task
  ) -> Sequence[dict[str, np.ndarray]]:
    """Returns this process's part of batches that contain every row once."""
    return evaluation_batches(
      rows,
      task.transform(train=False),
      task.eval_rows or self.batch_size,
      process_index=self.part[0],
      process_count=self.part[1],
    )

  def on_device(self, batch: Mapping[str, np.ndarray]) -> dict[str, jax.Array]:
    """Transfers this process's part of a batch to the devices; returns the global, sharded batch."""
    if self.processes.count == 1:
      # One call for all arrays takes half the time.
      return jax.device_put(dict(batch), self.batch_sharding)
    return {
      name: jax.make_array_from_process_local_data(
        self.batch_sharding, value, (len(value) * self.part[1], *value.shape[1:])
      )
      for name, value in batch.items()
    }

  def model(self, params: Params) -> Placed:
    """Returns the model with these parameters on the run's devices, which computes in the dtype of the run."""
    program = self.program
    return Placed(program.blueprint.model(params, program.compute_dtype), program.layout)

  def evaluation(
    self,
    params: Params,
    split: str,
    *,
    evaluation: str | None = None,
    num_rows: int | None = None,
    watched: Watched = iter,
  ) -> Evaluation:
    """Computes the metrics of a task over a split.

    Args:
      params: all parameters.
      split: name of a split of the task's source.
      evaluation: name in `Experiment.evaluations`, for the task of that evaluator; None for the experiment's
        task.
      num_rows: number of rows to evaluate, spread evenly over the split (of each task of a mixture); None for
        all rows.
      watched: wraps the iterable of batches, so that a watchdog can time each batch.
    """
    task = self.experiment.evaluated_task(evaluation)
    eval_step = self.program.eval_step(evaluation)
    results = {
      name: self._part(params, part, task.split_of(part, split), eval_step, num_rows, watched)
      for name, part in task.parts.items()
    }
    examples = {
      f'{name}/{metric}'.removeprefix('/'): values
      for name, result in results.items()
      for metric, values in result.examples.items()
    }
    metrics = task.combine({name: result.metrics for name, result in results.items()})
    return Evaluation(metrics, examples=examples)

  def _part(
    self,
    params: Params,
    task: Task,
    split: str,
    eval_step: EvalStep,
    num_rows: int | None,
    watched: Watched,
  ) -> Evaluation:
    """Computes the metrics of a task that is not a mixture."""
    rows = self.rows(split, task)
    task.check_rows(split, rows)
    all_rows = num_rows is None or num_rows >= len(rows)
    subset = rows if num_rows is None or all_rows else Spread(rows, num_rows)
    batches = self.evaluation_batches(subset, task)
    totals: dict[str, np.ndarray] = {}
    examples: dict[str, list[np.ndarray]] = {}
    pending: collections.deque[Any] = collections.deque()
    for index in watched(range(len(batches) + 1)):
      # The device computes one batch while the host prepares the next.
      if index < len(batches):
        pending.append(eval_step(params, self.on_device(batches[index])))
      if index:
        result = jax.device_get(pending.popleft())
        for name, pair in result.sums.items():
          totals[name] = totals.get(name, np.zeros(2)) + np.array(pair, np.float64)
        for name, values in result.examples.items():
          examples.setdefault(name, []).append(values)
    info = getattr(rows, 'info', None) if all_rows else None
    means = {name: (float(pair[0]), float(pair[1])) for name, pair in totals.items()}
    metrics = task.summarise(means, info)
    # The number of predicted tokens or examples over which the loss is averaged.
    metrics |= {f'eval_{task.unit}': means['loss'][1]}
    # Without the rows that pad the last batch.
    rows_only = {name: np.concatenate(part)[: len(subset)] for name, part in examples.items()}
    further, rows_only = task.of_examples(rows_only)
    if 'prediction' in rows_only and (names := example_names(subset)):
      rows_only['name'] = np.array(names)
    return Evaluation(metrics | further, examples=rows_only)

  def evaluators(
    self,
    params: Params,
    names: Sequence[str],
    watched: Watched = iter,
    **settings: object,
  ) -> Evaluation:
    """Runs evaluators of `Experiment.evaluations`; their metrics and images are named NAME/METRIC.

    Args:
      params: all parameters.
      names: names of the evaluators.
      watched: as in `means`.
      **settings: fields of the evaluators to replace, such as `num_examples`.
    """
    metrics: dict[str, Any] = {}
    samples: list[dict[str, str]] = []
    images: dict[str, np.ndarray] = {}
    examples: dict[str, np.ndarray] = {}
    for name in names:
      evaluator = self.experiment.evaluations[name].replaced(**settings)
      result = evaluator(self._evaluated(name, params, watched))
      metrics |= {f'{name}/{metric}': value for metric, value in result.metrics.items()}
      samples += [{'evaluation': name, **sample} for sample in result.samples]
      images |= {f'{name}/{image}': pixels for image, pixels in result.images.items()}
      examples |= {f'{name}/{metric}': values for metric, values in result.examples.items()}
    return Evaluation(metrics, samples, images, examples)

  def _evaluated(self, name: str, params: Params, watched: Watched) -> Evaluated:
    task = self.experiment.evaluated_task(name)
    return Evaluated(
      task=task,
      watched=watched,
      model=lambda: self.model(params),
      rows=lambda split: self.rows(split, task),
      evaluation=lambda split, num_rows: self.evaluation(
        params, split, evaluation=name, num_rows=num_rows, watched=watched
      ),
      batch_size=self.batch_size,
    )


def saved_params(
  program: Program, checkpoints: Checkpoints, which: Literal['best', 'last'] | int = 'last'
) -> tuple[Params, int, dict[str, str]]:
  """Reads all parameters that evaluation uses from a checkpoint.

  Args:
    program: shapes and shardings of the parameters.
    checkpoints: the checkpoints of the run.
    which: 'best', 'last', or a step.

  Returns:
    The parameters, their step, and {'weights': 'ema'} if they are the moving average, else {}.
  """
  step = checkpoints.intact_step(which)
  saved = SavedParams(checkpoints, step)
  abstract = program.params_abstract()
  checkpoints.check_fit(step, saved.shapes, {name: leaf.shape for name, leaf in abstract.items()})
  return saved.read(abstract), step, {'weights': 'ema'} if saved.averaged else {}
