"""Experiment trackers: Weights & Biases, MLflow.

A tracker gets the config, the metrics by step, and a summary at the end of the run. A resumed run continues its run
there. Its steps never go backwards: a run that resumes from an earlier step, or rolls back, repeats steps, and what a
tracker has already received of them is not sent again. The metrics of repeated steps are bitwise the same, except after
a loss spike; metrics.jsonl has the metrics of the steps after the rollback.
"""

import abc
import ast
import json
import logging
import math
import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal

from t2x.base.errors import UserError, error_line
from t2x.base.files import write_atomically
from t2x.base.packages import imported
from t2x.train.logs.writers import MetricWriter

__all__ = ['MLflow', 'WandB']

log = logging.getLogger('t2x')

# Seconds until a writer that raised an exception is tried again; they double up to the maximum.
_FIRST_PAUSE, _MAX_PAUSE = 60.0, 3600.0


class Tracker(MetricWriter, abc.ABC):
  """Sends metrics to a server; `_send`, `_summarise` and `_end` are the calls of its client.

  Args:
    folder: the run folder, which has config.gin.
    file: name of the file in it with the identifier of the run there, and with the last step of each split.

  Attributes:
    folder: the run folder.
    name: default name of the run.
    packages: the package of the client.
    client: the imported package.
    state: content of the file.

  Raises:
    UserError: the package is not installed.
  """

  packages: ClassVar[tuple[str]]

  def __init__(self, folder: Path | str, file: str):
    self.client: Any = imported(*self.packages, type(self).__name__)
    self.folder = Path(folder)
    path = self.folder.resolve()
    # `t2x eval --watch` writes to a subfolder of the run.
    in_run = (path.parent / 'config.gin').exists()
    self.name = f'{path.parent.name}-{path.name}' if in_run else path.name
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
    numbers = {n: float(v) for n, v in metrics.items() if not isinstance(v, str | None)}
    self._send(int(step), {f'{split}/{name}': value for name, value in numbers.items()})
    self.state['steps'][split] = int(step)
    self.save()

  def finish(self, summary: Mapping[str, float | str]) -> None:
    """Sends the summary of a run that has reached its last step."""
    self._summarise(summary)
    self._finished = True

  def close(self) -> None:
    """Marks the run as finished, or as ended early if `finish` was not called; a resumed run reopens it."""
    self._end(self._finished)

  @abc.abstractmethod
  def _send(self, step: int, numbers: Mapping[str, float]) -> None: ...

  @abc.abstractmethod
  def _summarise(self, summary: Mapping[str, float | str]) -> None: ...

  @abc.abstractmethod
  def _end(self, finished: bool) -> None: ...


class WandB(Tracker):
  """Writes metrics, config and summary to Weights & Biases.

  The x axis of all charts is `step`. W&B's own step numbers the calls, also across restarts: it must grow with every
  call, but the train and eval metrics of a step are sent by two calls, perhaps of two processes.

  Args:
    project: name of the project.
    entity: user or team; None for your default.
    name: name of the run; None for the name of the folder.
    mode: 'online', 'offline' or 'disabled'.
  """

  packages = ('wandb',)

  def __init__(
    self,
    folder: Path | str,
    *,
    project: str = 't2x',
    entity: str | None = None,
    name: str | None = None,
    mode: Literal['online', 'offline', 'disabled'] = 'online',
  ):
    super().__init__(folder, 'wandb.json')
    self.state['id'] = self.state['id'] or os.urandom(8).hex()
    self.save()
    self._run = self.client.init(
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
    uri: address of the server, or a local database ('sqlite:///mlflow.db'); None for MLFLOW_TRACKING_URI.
    experiment: name of the experiment; created if it does not exist.
    name: name of the run; None for the name of the folder.
  """

  packages = ('mlflow',)

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
    super().__init__(folder, 'mlflow.json')
    self._server = self.client.MlflowClient(tracking_uri=uri)
    if self.state['id'] is not None:
      self._server.update_run(self.state['id'], status='RUNNING')
      return
    existing = self._server.get_experiment_by_name(experiment)
    number = existing.experiment_id if existing else self._server.create_experiment(experiment)
    self.state['id'] = self._server.create_run(number, run_name=name or self.name).info.run_id
    self.save()
    self._log('params', [(key, str(value)[:6000]) for key, value in self.config().items()])

  def _log(self, kind: str, entries: Sequence[tuple[Any, ...]]) -> None:
    """Sends params or metrics, of which MLflow accepts 100 per request, with the names that it allows."""
    entity = {'params': 'Param', 'metrics': 'Metric'}[kind]
    build = getattr(self.client.entities, entity)
    made = [build(_mlflow_key(name), *values) for name, *values in entries]
    for start in range(0, len(made), 100):
      self._server.log_batch(self.state['id'], **{kind: made[start : start + 100]})

  def _send(self, step, numbers):
    now = int(1000 * time.time())
    finite = {name: value for name, value in numbers.items() if math.isfinite(value)}
    self._log('metrics', [(name, value, now, step) for name, value in finite.items()])

  def _summarise(self, summary):
    numbers = {key: float(value) for key, value in summary.items() if not isinstance(value, str)}
    self._send(max(self.state['steps'].values(), default=0), numbers)
    for key in summary.keys() - numbers.keys():
      self._server.set_tag(self.state['id'], _mlflow_key(key), summary[key])

  def _end(self, finished):
    self._server.set_terminated(self.state['id'], 'FINISHED' if finished else 'KILLED')


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
    self._call(lambda writer: None)
    self._lost = 0  # The constructor is no write.

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
      self._writer = self._writer or self._build(self._folder)
      action(self._writer)
    except Exception as error:
      if self._writer is None and isinstance(error, UserError):
        raise
      self._lost += 1
      if not self._pause:
        log.warning(
          '%s: %s; training continues without it, and tries it again later',
          self._name,
          error_line(error),
        )
        log.debug('%s failed', self._name, exc_info=error)
      self._pause = min(max(2 * self._pause, _FIRST_PAUSE), _MAX_PAUSE)
      self._retry_at = self._clock() + self._pause
      return
    if self._pause:
      log.warning('%s works again; %d writes were lost', self._name, self._lost)
      self._pause, self._lost = 0.0, 0

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
