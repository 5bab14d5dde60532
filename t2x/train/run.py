"""A run: an experiment bound to its folder, its devices, its data and its checkpoints.

Training, evaluation and generation all start from one.
"""

import collections
import dataclasses
import functools
import logging
from collections.abc import Generator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from t2x.data import Batches, Skipping, evaluation_batches, load_tokenizer, prefetch
from t2x.parallel import Processes, batch_sharding, process_part
from t2x.tasks import Task, TextTask
from t2x.tasks.base import Watched
from t2x.train.checkpoints import Checkpoints
from t2x.train.params import Params
from t2x.train.program import Program, TrainStep
from t2x.train.saved import SavedParams, restore_frozen, save_frozen
from t2x.train.step import TrainState

if TYPE_CHECKING:
  from t2x.train.experiment import Experiment

__all__ = ['Run']

log = logging.getLogger('t2x')


class Run:
  """What is ready once an experiment has met a folder.

  Attributes:
    experiment: the config's root.
    folder: the run folder.
    tokenizer: the fitted tokenizer, kept in the run folder; None for tasks without text.
    mesh: the devices.
    program: what is compiled, which other runs may share; with the shapes of state and model.
    checkpoints: the run's saved states.
    processes: those that are this run.
    part: which of how many equal parts of a global batch this process reads.
  """

  def __init__(
    self,
    experiment: 'Experiment',
    folder: Path,
    processes: Processes | None = None,
    program: Program | None = None,
  ):
    self.processes, self.folder = processes or Processes(), folder
    _, self.task, self.trainer = experiment.complete()
    if isinstance(self.task, TextTask) and self.task.vocab_size is None:
      experiment = experiment.sized(self.tokenizer)
      _, self.task, _ = experiment.complete()
    self.experiment = experiment
    self.program = program or Program(experiment)
    self.mesh = self.program.mesh
    self.batch_sharding = batch_sharding(self.mesh)
    self.part = process_part(self.batch_sharding, self.trainer.batch_size)
    self.checkpoints = Checkpoints(
      folder / 'checkpoints',
      keep_last=self.trainer.keep_last,
      keep_best=self.trainer.keep_best,
      keep_every=self.trainer.keep_every,
      best_metric=self.task.best_metric,
      best_mode=self.task.best_mode,
      failed_saves=self.trainer.failed_saves,
    )

  @functools.cached_property
  def tokenizer(self) -> Any:
    """Loaded from the run folder, or fitted and kept there."""
    folder = self.folder / 'tokenizer'
    if folder.exists():
      return load_tokenizer(folder)
    # The first process fits it and, after the others have looked for it above, keeps it.
    with self.processes.first_alone():
      tokenizer = self.task.fit_tokenizer()
    if tokenizer is not None and self.processes.first:
      tokenizer.save(folder)
    return tokenizer

  def rows(self, split: str, task: Task | None = None) -> Any:
    """The model-ready rows of a split (of another task where one is given), prepared by the first
    process where the cache is shared."""
    tokenizer = self.tokenizer
    with self.processes.first_alone():
      return (task or self.task).rows(split, tokenizer)

  def batches(self, rows: Any) -> Batches:
    """The train batches: `batches[step]` is a function of the seed and the step."""
    return Batches(
      rows,
      self.task.transform(self.tokenizer, train=True),
      batch_size=self.trainer.batch_size,
      seed=self.trainer.seed,
      process_index=self.part[0],
      process_count=self.part[1],
    )

  def evaluation_batches(self, rows: Any, task: Task) -> Sequence[dict[str, np.ndarray]]:
    """This process's part of the batches in which a task reads every row once."""
    return evaluation_batches(
      rows,
      task.transform(self.tokenizer, train=False),
      self.trainer.batch_size,
      process_index=self.part[0],
      process_count=self.part[1],
    )

  def on_device(self, batch: Mapping[str, np.ndarray]) -> dict[str, jax.Array]:
    """This process's rows -> the global, sharded batch."""
    if self.processes.count == 1:
      # The same, in one call for all arrays: half the time.
      return jax.device_put(dict(batch), self.batch_sharding)
    return {
      name: jax.make_array_from_process_local_data(
        self.batch_sharding, value, (len(value) * self.part[1], *value.shape[1:])
      )
      for name, value in batch.items()
    }

  def train_batches(
    self, batches: Batches | Skipping, start: int
  ) -> Generator[tuple[int, dict[str, jax.Array]]]:
    """(units that are not padding, batch on the devices) for each step from `start` on.

    Several processes take the units of theirs for the mean of all.
    """

    def then(batch):
      return self.task.count(batch) * self.part[1], self.on_device(batch)

    trainer = self.trainer
    yield from prefetch(batches, start, trainer.num_steps, trainer.num_workers, then=then)

  def init(self) -> tuple[TrainState, Params]:
    """A new state from the seed and the frozen parameters, which are saved; parameters are taken from
    another run where the config says so.

    The table of what became of each is told, and kept as init_from.txt.
    """
    if self.program.teacher is not None:
      _, source = self.program.teacher.plan(self.program.frozen, self.tokenizer)
      if self.processes.first:
        log.info('teacher: %s', source)
    state, frozen = self.program.init(self.trainer.seed)
    init_from, groups = self.experiment.init_from, self.program.groups
    if init_from is not None:
      load, table = init_from.plan(groups.join(state.params, frozen))
      if self.processes.first:
        table += init_from.tokenizer_note(self.tokenizer)
        log.info(table)
        (self.folder / 'init_from.txt').write_text(table + '\n')
      params, own = groups.split(load())
      frozen = frozen | own
      # A copy: two leaves of a donated state must not be one buffer.
      ema = None if state.ema is None else jax.tree.map(jnp.copy, params)
      state = dataclasses.replace(state, params=params, ema=ema)
    with self.program.at_disk(self.checkpoints.wait):
      save_frozen(self.checkpoints, groups, frozen)
    return state, frozen

  def restore(
    self, which: Literal['best', 'last'] | int = 'last'
  ) -> tuple[TrainState, Params, dict[str, Any]]:
    """A saved state, the frozen parameters, and what was saved beside the state."""
    with self.program.at_disk(self.checkpoints.wait):
      state, extra = self.checkpoints.restore(self.program.abstract, which)
      return state, restore_frozen(self.checkpoints, self.program.frozen), extra

  def save(self, step: int, state: TrainState, extra: Mapping[str, Any]) -> None:
    """A checkpoint, as `Checkpoints.save` makes it."""
    with self.program.at_disk(self.checkpoints.wait):
      self.checkpoints.save(step, state, extra)

  def attach(self, step: int, metrics: Mapping[str, float]) -> None:
    """Adds the metrics of an evaluation to the checkpoint of the same step."""
    with self.program.at_disk(self.checkpoints.wait):
      self.checkpoints.attach(step, metrics)

  def restore_params(self, which: Literal['best', 'last'] | int = 'last') -> tuple[Params, int]:
    """All parameters as evaluation uses them, and their step: nothing else of the state is read."""
    step = self.checkpoints.intact_step(which)
    saved = SavedParams(self.checkpoints, step, use_ema=self.program.abstract.ema is not None)
    wanted = self.program.params_abstract()
    self.checkpoints.check_fit(
      step, saved.shapes, {name: leaf.shape for name, leaf in wanted.items()}
    )
    return saved.read(wanted), step

  def model(self, params: Params) -> Any:
    """The model with these parameters."""
    return self.program.blueprint.model(params)

  @property
  def weights(self) -> dict[str, str]:
    """{'weights': 'ema'} if evaluation uses the moving average of the parameters, else {}."""
    return {} if self.program.abstract.ema is None else {'weights': 'ema'}

  @functools.cached_property
  def train_step(self) -> TrainStep:
    """The jitted step, `(state, frozen, batch) -> (state, StepSums)`; see `Program`."""
    return self.program.train_step(self.tokenizer)

  def evaluate(
    self,
    params: Params,
    split: str | None = None,
    *,
    evaluation: str | None = None,
    max_batches: int | None = None,
    max_generated: int | None = 0,
    watched: Watched = iter,
  ) -> tuple[dict[str, float], list[dict[str, str]]]:
    """Metrics over a split, every example once, and samples where the task generates.

    `params` are all parameters. `evaluation` names one of `Experiment.evaluations`; None: the run's own task. `max_generated`
    limits the examples that are generated for (0: none, None: all). Each batch is one item of an
    iterable that goes through `watched`.
    """
    task = self.task if evaluation is None else self.experiment.evaluations[evaluation]
    eval_step = self.program.eval_step(self.tokenizer, evaluation)
    split = split or task.eval_split
    rows = self.rows(split, task)
    task.check_rows(split, rows)
    batches = self.evaluation_batches(rows, task)
    count = min(len(batches), len(batches) if max_batches is None else max_batches)
    totals: dict[str, np.ndarray] = {}
    pending: collections.deque[Any] = collections.deque()
    for index in watched(range(count + 1)):
      # The device works on one batch while the next is prepared.
      if index < count:
        pending.append(eval_step(params, self.on_device(batches[index])))
      if index:
        for name, pair in jax.device_get(pending.popleft()).items():
          totals[name] = totals.get(name, np.zeros(2)) + np.array(pair, np.float64)
    info = getattr(rows, 'info', None) if count == len(batches) else None
    means = {name: (float(pair[0]), float(pair[1])) for name, pair in totals.items()}
    metrics = task.summarise(means, info)
    # The number of predicted tokens, or examples, that the loss is a mean over.
    metrics[f'eval_{task.unit}'] = means['loss'][1]
    generated, samples = task.generation_metrics(
      self.model(params), self.tokenizer, split, max_generated, watched
    )
    return metrics | generated, samples

  def evaluate_further(self, params: Params, watched: Watched = iter) -> dict[str, float]:
    """The metrics of `Experiment.evaluations`, as NAME/METRIC."""
    found: dict[str, float] = {}
    for name, task in self.experiment.evaluations.items():
      metrics, _ = self.evaluate(
        params, evaluation=name, max_generated=task.eval_examples, watched=watched
      )
      found |= {f'{name}/{metric}': value for metric, value in metrics.items()}
    return found
