"""Training run: an experiment with its run folder, devices, data and checkpoints."""

import contextlib
import dataclasses
import logging
import shutil
from collections.abc import Generator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp

from t2x.base.errors import UserError
from t2x.data import Batches, Skipping, Tokenizer, load_tokenizer, prefetch
from t2x.data.prepared_folders import FINGERPRINTS, former_fingerprints
from t2x.parallel import Processes
from t2x.tasks import Task
from t2x.tasks.evaluators import Evaluation, Watched
from t2x.train.checkpoints.saved_params import restore_frozen, save_frozen
from t2x.train.checkpoints.store import Checkpoints
from t2x.train.early_stopping import EarlyStopping
from t2x.train.evaluation import Inference
from t2x.train.experiment import Experiment
from t2x.train.mup import check_same
from t2x.train.params import Params
from t2x.train.program import Program
from t2x.train.step import TrainState

__all__ = ['TrainingRun']

log = logging.getLogger('t2x')


class TrainingRun(Inference):
  """A training run in its folder.

  Args:
    experiment: needs a model, a task and a trainer.
    folder: the run folder; the fitted tokenizer is saved there.
    processes: the processes of this run; None for a single process.
    program: compiled functions, if other runs share them.

  Attributes:
    trainer: the trainer of the experiment.
    weights: {'weights': 'ema'} if evaluation uses the moving average of the parameters, else {}.
    checkpoints: the saved train states of the run.
    stopping: state of early stopping (`Trainer.patience`), restored with the train state.
  """

  def __init__(
    self,
    experiment: Experiment,
    folder: Path,
    processes: Processes | None = None,
    program: Program | None = None,
  ):
    _, task, self.trainer = experiment.complete()
    processes, self.folder = processes or Processes(), folder
    super().__init__(
      experiment, _load_or_fit_tokenizer(task, folder, processes), processes, program
    )
    self.weights = {} if self.program.abstract.ema is None else {'weights': 'ema'}
    self.checkpoints = Checkpoints(
      folder / 'checkpoints',
      keep_last=self.trainer.keep_last,
      keep_best=self.trainer.keep_best,
      keep_every=self.trainer.keep_every,
      best_metric=task.best_metric,
      best_mode=task.best_mode,
      max_failed_saves=self.trainer.max_failed_saves,
    )
    self.stopping = self._early_stopping()

  def _early_stopping(self) -> EarlyStopping:
    return EarlyStopping(self.trainer.patience, self.task.best_metric, self.task.best_mode)

  def batches(self, rows: Sequence[Mapping[str, Any]]) -> Batches:
    """Returns the train batches; `batches[step]` depends only on the seed and the step."""
    return self.task.batches(
      rows,
      batch_size=self.trainer.batch_size,
      seed=self.trainer.seed,
      process_index=self.part[0],
      process_count=self.part[1],
    )

  def train_batches(
    self, batches: Batches | Skipping, start: int
  ) -> Generator[tuple[int, dict[str, jax.Array]]]:
    """Yields (number of units, batch on the devices) for each step after `start`.

    Units are tokens or examples without padding. With several processes the number is estimated from the
    units of this process.
    """

    def transfer(batch):
      return self.task.count(batch) * self.part[1], self.on_device(batch)

    trainer = self.trainer
    yield from prefetch(batches, start, trainer.num_steps, trainer.num_workers, then=transfer)

  def init(self) -> tuple[TrainState, Params]:
    """Initialises the train state and the frozen parameters, and saves the frozen parameters.

    With `Experiment.init_from`, parameters are loaded from another run. The table of loaded and new
    parameters is logged and written to init_from.txt.
    """
    if self.experiment.teacher is not None:
      _, source = self.experiment.teacher.plan(self.program.frozen, self.tokenizer)
      if self.processes.first:
        log.info('teacher: %s', source)
    state, frozen = self.program.init(self.trainer.seed)
    init_from, groups = self.experiment.init_from, self.program.groups
    if init_from is not None:
      check_same(Path(init_from.run), self.experiment.mup)
      infos = self.program.blueprint.infos
      load, table = init_from.plan(groups.join(state.params, frozen), infos=infos)
      if self.processes.first:
        log.info(table)
        if init_from.other_tokenizer(self.tokenizer):
          warning = (
            f'the tokenizer of {init_from.run} is different; @RunTokenizer() uses that of a run'
          )
          log.warning('warning: %s', warning)
          table += f'\nwarning: {warning}'
        (self.folder / 'init_from.txt').write_text(f'{table}\n')
        # Files of an imported model for its export: chat template, settings of generation, names of classes.
        if (hub := Path(init_from.run) / 'hub').is_dir():
          shutil.copytree(hub, self.folder / 'hub', dirs_exist_ok=True)
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
    """Reads a train state, the frozen parameters, and the metadata that was saved with the state."""
    with self.program.at_disk(self.checkpoints.wait):
      state, extra = self.checkpoints.restore(self.program.abstract, which)
      return state, restore_frozen(self.checkpoints, self.program.frozen), extra

  def init_or_restore(self, batches: Batches) -> tuple[TrainState, Params, dict[str, Any]]:
    """Returns the state and frozen parameters, new or from the last checkpoint, and the saved metadata."""
    self.stopping = self._early_stopping()
    if self.checkpoints.latest_step() is None:
      return *self.init(), {}
    state, frozen, saved = self.restore('last')
    if saved['data'] != batches.fingerprint and saved['data'] != self._former_data(saved):
      raise UserError(
        f'the data of {self.folder} changed since its checkpoint was saved: '
        'restore the data, start a new run there with --fresh, or choose another --out'
      )
    evaluated = self.checkpoints.metrics(int(state.step))
    self.stopping.restore(saved.get('early_stopping', {}), evaluated)
    return state, frozen, saved | {'metrics': evaluated or saved.get('metrics', {})}

  def _former_data(self, saved: Mapping[str, Any]) -> str | None:
    """Returns the fingerprint of the data in the version of a checkpoint; None if it is the current one."""
    if saved.get('fingerprints', 1) == FINGERPRINTS:
      return None
    with former_fingerprints():
      return self.batches(self.rows(self.task.train_split)).fingerprint

  @contextlib.contextmanager
  def checkpoints_closed(self) -> Iterator[None]:
    """Context that waits for the pending checkpoint on every exit.

    A run of several processes does not wait: one of them may be lost, and saving needs all of them.
    """
    try:
      yield
    finally:
      if self.processes.count == 1:
        with contextlib.suppress(UserError):
          self.checkpoints.close()

  def save(self, step: int, state: TrainState, extra: Mapping[str, Any]) -> None:
    """Saves a checkpoint with the state of early stopping; see `Checkpoints.save`."""
    extra = {**extra, 'early_stopping': self.stopping.state()}
    with self.program.at_disk(self.checkpoints.wait):
      self.checkpoints.save(step, state, extra)

  def attach(self, step: int, metrics: Mapping[str, float]) -> None:
    """Adds the metrics of an evaluation to the checkpoint of the same step."""
    with self.program.at_disk(self.checkpoints.wait):
      self.checkpoints.attach(step, metrics)

  def steps(self, start: int) -> Iterator[int]:
    """Yields the steps after `start`, up to the last one or the evaluation that stops training early."""
    for step in range(start + 1, self.trainer.num_steps + 1):
      if self.stopping.stops:
        return
      yield step

  def evaluate_step(self, params: Params, step: int, watched: Watched = iter) -> Evaluation:
    """Evaluates a step of training, as `evaluate`; the evaluation that stops training early is a full one."""
    result = self.evaluate(params, step, watched)
    count = self.stopping.add(result.metrics)
    if self.stopping.stops and step < self.trainer.num_steps and self._is_partial():
      result = self.evaluate(params, None, watched)
    return dataclasses.replace(result, metrics={**result.metrics, **count})

  def _is_partial(self) -> bool:
    """Returns True if evaluations before the last one read a part of the split or leave out evaluators."""
    every = (evaluator.every for evaluator in self.experiment.evaluations.values())
    return self.trainer.eval_batches is not None or any(number != 1 for number in every)

  def evaluate(
    self, params: Params, step: int | None = None, watched: Watched = iter
  ) -> Evaluation:
    """Evaluates the task on its evaluation split and runs the evaluators that are due.

    Args:
      params: all parameters.
      step: step of the evaluation, which decides which evaluators are due and how many batches are read;
        None, like the last step, runs all evaluators and reads the full split.
      watched: wraps the iterables of batches, so that a watchdog can time each batch.
    """
    last = step is None or step == self.trainer.num_steps
    batches = None if last else self.trainer.eval_batches
    num_rows = None if batches is None else batches * self.batch_size
    own = self.evaluation(params, self.task.eval_split, num_rows=num_rows, watched=watched)
    number = 0 if last or step is None else step // self.trainer.eval_every
    due = [
      name
      for name, evaluator in self.experiment.evaluations.items()
      if last or (evaluator.every and number % evaluator.every == 0)
    ]
    further = self.evaluators(params, due, watched)
    return dataclasses.replace(
      further,
      metrics={**own.metrics, **further.metrics},
      examples={**own.examples, **further.examples},
    )


def _load_or_fit_tokenizer(task: Task, folder: Path, processes: Processes) -> Tokenizer | None:
  """Loads the tokenizer of a run folder, or fits it and saves it there."""
  folder = folder / 'tokenizer'
  if folder.exists():
    return load_tokenizer(folder)
  # The first process fits it. It saves it only after all others have checked above that it is missing.
  with processes.process_zero_first():
    tokenizer = task.fit_tokenizer()
  if tokenizer is not None and processes.first:
    tokenizer.save(folder)
  return tokenizer
