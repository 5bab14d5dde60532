"""Experiment trackers: Weights & Biases, MLflow.

A tracker gets the config, the metrics by step, and a summary at the end of the run. A resumed run continues its run there.
Its steps never go backwards: a run that resumes from an earlier step, or rolls back, repeats steps, and what a tracker
has already received of them is not sent again. The metrics of repeated steps are bitwise the same, except after a loss
spike; metrics.jsonl has those of the steps that count.
"""

import abc
import ast
import json
import logging
import math
import os
import re
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

from t2x.base.errors import UserError, error_line
from t2x.base.files import write_atomically
from t2x.train.logs.writers import MetricWriter

__all__ = ['MLflow', 'WandB']

log = logging.getLogger('t2x')

# Seconds until a writer that raised an exception is tried again; they double up to the maximum.
_FIRST_PAUSE, _MAX_PAUSE = 60.0, 3600.0


class Tracker(MetricWriter, abc.ABC):
  """A metric writer that sends metrics to a server.

  Subclasses call `__init__`, then set `state['id']`.

  Args:
    folder: the run folder, which has config.gin.
    file: name of the file in it with the identifier of the run there, and with the last step of each split.

  Attributes:
    folder: the run folder.
    name: default name of the run.
    state: content of the file.
  """

  def __init__(self, folder: Path | str, file: str):
    self.folder = Path(folder)
    path = self.folder.resolve()
    # `t2x eval --watch` writes to a subfolder of the run.
    self.name = f'{path.parent.name}-{path.name}' if _is_run(path.parent) else path.name
    self._file = self.folder / file
    self.state: dict[str, Any] = {'id': None, 'steps': {}, 'calls': 0}
    if self._file.exists():
      self.state |= json.loads(self._file.read_bytes())
    self._finished = False

  def config(self) -> dict[str, Any]:
    """Returns the values of config.gin by 'scope/Name.param'."""
    return config_values((self.folder / 'config.gin').read_text(encoding='utf-8'))

  def save(self) -> None:
    """Writes the state."""
    write_atomically(self._file, (json.dumps(self.state) + '\n').encode())

  def write(self, step: int, split: str, metrics: Mapping[str, Any]) -> None:
    """Sends the numbers as SPLIT/NAME; ignores a step that the split already has, or an earlier step."""
    if step <= self.state['steps'].get(split, -1):
      return
    numbers = {
      f'{split}/{name}': float(value)
      for name, value in metrics.items()
      if not isinstance(value, str | None)
    }
    self._send(int(step), numbers)
    self.state['steps'][split] = int(step)
    self.save()

  def finish(self, summary: Mapping[str, float | str]) -> None:
    """Sends the summary of a run that has reached its last step."""
    self._summarise(summary)
    self._finished = True

  def close(self) -> None:
    """Marks the run as finished, or as ended early if `finish` was not called."""
    self._end(self._finished)

  @abc.abstractmethod
  def _send(self, step: int, numbers: Mapping[str, float]) -> None:
    """Sends the metrics of a step."""

  @abc.abstractmethod
  def _summarise(self, summary: Mapping[str, float | str]) -> None:
    """Sends the summary."""

  @abc.abstractmethod
  def _end(self, finished: bool) -> None:
    """Ends the run of the tracker, which a resumed run may open again."""


def _is_run(folder: Path) -> bool:
  return (folder / 'config.gin').exists()


class WandB(Tracker):
  """Writes metrics, config and summary to Weights & Biases.

  The x axis of all charts is `step`. W&B's own step numbers the calls, also across restarts: it must grow with every
  call, but the train and eval metrics of a step are sent by two calls, perhaps of two processes.

  Args:
    folder: the run folder.
    project: name of the project.
    entity: user or team; None for your default.
    name: name of the run; None for the name of the folder.
    mode: 'online', 'offline' or 'disabled'.

  Raises:
    UserError: the package wandb is not installed.
  """

  def __init__(
    self,
    folder: Path | str,
    *,
    project: str = 't2x',
    entity: str | None = None,
    name: str | None = None,
    mode: Literal['online', 'offline', 'disabled'] = 'online',
  ):
    try:
      import wandb
    except ImportError as error:
      message = "WandB needs the package wandb: run pip install 't2x[wandb]'"
      raise UserError(message) from error
    super().__init__(folder, 'wandb.json')
    self.state['id'] = self.state['id'] or os.urandom(8).hex()
    self.save()
    self._run = wandb.init(
      project=project,
      entity=entity,
      name=name or self.name,
      dir=str(self.folder),
      mode=mode,
      id=self.state['id'],
      resume='allow',
      config=self.config(),
      allow_val_change=True,
      # Trials that are trained together are runs of one process.
      reinit='create_new',
    )
    self._run.define_metric('step')
    self._run.define_metric('*', step_metric='step')

  def _send(self, step, numbers):
    self._run.log({'step': step, **numbers}, step=self.state['calls'], commit=True)
    self.state['calls'] += 1

  def _summarise(self, summary):
    self._run.summary.update(dict(summary))

  def _end(self, finished):
    self._run.finish(exit_code=0 if finished else 1)


class MLflow(Tracker):
  """Writes metrics, config and summary to an MLflow server or folder.

  Args:
    folder: the run folder.
    uri: address of the server, or a local database ('sqlite:///mlflow.db'); None for MLFLOW_TRACKING_URI.
    experiment: name of the experiment; created if it does not exist.
    name: name of the run; None for the name of the folder.

  Raises:
    UserError: the package mlflow is not installed.
  """

  def __init__(
    self,
    folder: Path | str,
    *,
    uri: str | None = None,
    experiment: str = 't2x',
    name: str | None = None,
  ):
    # A server that does not answer must not block training for minutes.
    os.environ.setdefault('MLFLOW_HTTP_REQUEST_MAX_RETRIES', '1')
    os.environ.setdefault('MLFLOW_HTTP_REQUEST_TIMEOUT', '10')
    try:
      import mlflow
      from mlflow import entities
    except ImportError as error:
      message = "MLflow needs the package mlflow: run pip install 't2x[mlflow]'"
      raise UserError(message) from error
    super().__init__(folder, 'mlflow.json')
    self._entities, self._client = entities, mlflow.MlflowClient(tracking_uri=uri)
    if self.state['id'] is None:
      self._create(experiment, name or self.name)
    else:
      self._client.update_run(self.state['id'], status='RUNNING')

  def _create(self, experiment: str, name: str) -> None:
    existing = self._client.get_experiment_by_name(experiment)
    if existing is None:
      number = self._client.create_experiment(experiment)
    else:
      number = existing.experiment_id
    self.state['id'] = self._client.create_run(number, run_name=name).info.run_id
    self.save()
    params = [
      self._entities.Param(_mlflow_key(key), str(value)[:_MAX_PARAM])
      for key, value in self.config().items()
    ]
    for start in range(0, len(params), _MAX_PARAMS):
      self._client.log_batch(self.state['id'], params=params[start : start + _MAX_PARAMS])

  def _send(self, step, numbers):
    now = int(1000 * time.time())
    metrics = [
      self._entities.Metric(_mlflow_key(key), value, now, step)
      for key, value in numbers.items()
      if math.isfinite(value)
    ]
    for start in range(0, len(metrics), _MAX_METRICS):
      self._client.log_batch(self.state['id'], metrics=metrics[start : start + _MAX_METRICS])

  def _summarise(self, summary):
    texts = {key: value for key, value in summary.items() if isinstance(value, str)}
    numbers = {key: float(value) for key, value in summary.items() if not isinstance(value, str)}
    self._send(max(self.state['steps'].values(), default=0), numbers)
    for key, text in texts.items():
      self._client.set_tag(self.state['id'], _mlflow_key(key), text)

  def _end(self, finished):
    self._client.set_terminated(self.state['id'], 'FINISHED' if finished else 'KILLED')


# Limits of MLflow: entries per request, characters of a parameter.
_MAX_PARAMS, _MAX_METRICS, _MAX_PARAM = 100, 1000, 6000


def _mlflow_key(name: str) -> str:
  """Replaces characters that MLflow does not allow in names."""
  return re.sub(r'[^\w\-. /]', '_', name)


class Guarded:
  """Passes metrics to a writer whose exceptions must not end the run.

  After an exception, metrics are dropped for a minute, then the writer is tried again; each further failure doubles
  the pause, up to an hour. The first failure is logged, and the number of lost writes once the writer works again.

  Args:
    build: constructor of the writer, called with the run folder.
    folder: the run folder.
    clock: current time in seconds.

  Raises:
    UserError: the constructor raised it.
  """

  def __init__(
    self,
    build: Callable[[Path], MetricWriter],
    folder: Path,
    clock: Callable[[], float] = time.monotonic,
  ):
    self._build, self._folder, self._clock = build, folder, clock
    self._writer: MetricWriter | None = None
    self._pause = self._retry_at = 0.0
    self._lost = 0
    try:
      self._writer = build(folder)
    except UserError:
      raise
    except Exception as error:
      self._failed(error)

  def write(self, step: int, split: str, metrics: Mapping[str, Any]) -> None:
    """Writes metrics; drops them during a pause."""
    self._call(lambda writer: writer.write(step, split, metrics))

  def finish(self, summary: Mapping[str, float | str]) -> None:
    """Sends the summary, if the writer is a tracker."""
    self._retry_at = 0.0
    self._call(lambda writer: writer.finish(summary) if isinstance(writer, Tracker) else None)

  def close(self) -> None:
    """Closes the writer."""
    try:
      if self._writer is not None:
        self._writer.close()
    except Exception as error:
      log.warning('%s cannot be closed: %s', self._name, error_line(error))

  def _call(self, action: Callable[[MetricWriter], None]) -> None:
    if self._clock() < self._retry_at:
      self._lost += 1
      return
    try:
      if self._writer is None:
        self._writer = self._build(self._folder)
      action(self._writer)
    except Exception as error:
      self._lost += 1
      self._failed(error)
      return
    if self._pause:
      log.warning('%s works again; %d writes were lost', self._name, self._lost)
      self._pause, self._lost = 0.0, 0

  def _failed(self, error: Exception) -> None:
    if not self._pause:
      log.warning(
        '%s: %s; training continues without it, and tries it again later',
        self._name,
        error_line(error),
      )
      log.debug('%s failed', self._name, exc_info=error)
    self._pause = min(max(2 * self._pause, _FIRST_PAUSE), _MAX_PAUSE)
    self._retry_at = self._clock() + self._pause

  @property
  def _name(self) -> str:
    if self._writer is not None:
      return type(self._writer).__name__
    build = getattr(self._build, 'func', self._build)
    return getattr(build, '__name__', type(build).__name__)


def config_values(text: str) -> dict[str, Any]:
  """Returns the values of a rendered config by 'scope/Name.param'.

  Macros are replaced by their values. Values that are not plain Python, such as references to parts, are gin text.

  Args:
    text: the content of config.gin, as `t2x.config.render` writes it.
  """
  values: dict[str, str] = {}
  block = key = ''
  for line in text.splitlines():
    if match := re.fullmatch(r'([\w./]+):', line):
      block, key = f'{match[1]}.', ''
    elif match := re.fullmatch(r'(  )?([\w.]+) =(.*)', line):
      key = f'{block if match[1] else ""}{match[2]}'
      values[key] = match[3].strip()
    elif key and line:
      values[key] += ' ' + line.strip()
  macros = {name: value for name, value in values.items() if '.' not in name}
  return {
    name: _plain(macros.get(value[1:], value) if value.startswith('%') else value)
    for name, value in values.items()
    if '.' in name
  }


def _plain(text: str) -> Any:
  """Returns the number, text, boolean or None of a gin text; other values as text."""
  try:
    value = ast.literal_eval(text)
  except (ValueError, SyntaxError):
    return text
  return value if isinstance(value, bool | int | float | str | None) else text
