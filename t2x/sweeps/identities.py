"""Identities of trials: finds reusable earlier trials, and lists the changes since other trials ended.

The identity of a trial names its run folder. It hashes the settings that differ from their defaults, and the user's
modules. The run folder also stores the resolved config of the trial, which is compared with today's config: if a
default or the data has changed since, today's values become part of the identity, so that the trial gets another
folder. A new setting at its default keeps the identity, and so does a changed import of a name of t2x that has moved.
"""

import dataclasses
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from t2x import config as config_lib
from t2x.base.json_files import Damaged
from t2x.sweeps.records import Outcome, usable_outcome

Data = Callable[[], Mapping[str, str]]


@dataclasses.dataclass(frozen=True)
class Earlier:
  """An earlier identity of the same settings with other code, data or defaults; `changes` has a line for each."""

  name: str
  changes: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Identity:
  """The identity of trials that differ only in the seed.

  Attributes:
    restated: paths of defaults that the identity includes, because an earlier trial had other defaults.
    earlier: identities of earlier trials with other code, data or defaults.
  """

  name: str
  restated: tuple[str, ...] = ()
  earlier: tuple[Earlier, ...] = ()


class Identities:
  """Computes identities of trials, and finds earlier trials in a folder.

  Args:
    folder: OUT/trials, which may be missing; None: no earlier trials.
  """

  def __init__(self, folder: Path | None):
    self.folder = folder
    self._runs: dict[str, list[str]] = {}
    names = sorted(os.listdir(folder)) if folder is not None and folder.is_dir() else []
    for name in names:
      self._runs.setdefault(name.rpartition('-')[0], []).append(name)

  def of(self, config: config_lib.Config, seed: str, data: Data) -> Identity:
    """Returns the identity of the trials of a config.

    Args:
      config: the config.
      seed: name of the parameter that differs between the trials.
      data: returns today's fingerprints of the sources; called if an earlier trial has recorded fingerprints.
    """
    today = _Today(config, seed, data)
    older, earlier = config_lib.older_identity(config, [seed]), list[Earlier]()
    if older in self._runs:
      # Trials of older versions may have one identity although the code changed.
      recorded = (self._changes(run, today) for run in self._runs[older])
      changed = [line for lines in recorded for line in lines or ()]
      if not changed:
        return Identity(older)
      earlier.append(_earlier(older, changed))
    restated, sources = dict[str, str](), dict[str, str]()
    while True:
      name = self._same(config_lib.identity(config, [seed], [*restated], sources), today)
      changed = self._changes_of(name, today) or []
      if not changed:
        break
      earlier.append(_earlier(name, changed))
      before = len(restated), len(sources)
      for path, _, now in changed:
        is_source = path.startswith(('data ', 'module '))
        (sources if is_source else restated)[path] = now
      if (len(restated), len(sources)) == before:
        sources[f'changed {len(sources)}'] = ''
    listed = {name, *(identity.name for identity in earlier)}
    settings = {identity.partition('.')[0] for identity in listed}
    for other in self._runs.keys() - listed:
      if other.partition('.')[0] in settings:
        earlier.append(_earlier(other, self._changes_of(other, today) or []))
    return Identity(name, (*restated,), (*earlier,))

  def ended(self, name: str, seed: int) -> Outcome | None:
    """Returns the outcome of a trial; None before its end."""
    run = f'{name}-{seed}'
    exists = self.folder is not None and run in self._runs.get(name, ())
    return usable_outcome(self.folder / run) if self.folder and exists else None

  def last_ended(self, identity: Identity, seed: int) -> Earlier | None:
    """Returns the earlier identity with the most recent result for a seed; None without results."""
    ended = {
      earlier: outcome.conditions.ended if outcome.conditions else 0.0
      for earlier in identity.earlier
      if (outcome := self.ended(earlier.name, seed)) and outcome.status != 'failed'
    }
    return max(ended, key=lambda earlier: ended[earlier], default=None)

  def _same(self, name: str, today: '_Today') -> str:
    """Returns the identity of earlier trials with the same settings, code and data, else `name`.

    It differs from `name` if imports of names that have moved changed a module's digest.
    """
    settings = name.partition('.')[0]
    others = (other for other in self._runs if other.partition('.')[0] == settings)
    same = (other for other in others if self._changes_of(other, today) == [])
    return name if name in self._runs else next(same, name)

  def _changes_of(self, name: str, today: '_Today') -> list[tuple[str, str, str]] | None:
    """Lists the changes since the trials of an identity were trained; None without records. All had the same code."""
    recorded = (self._changes(run, today) for run in self._runs.get(name, ()))
    return next((lines for lines in recorded if lines is not None), None)

  def _changes(self, run: str, today: '_Today') -> list[tuple[str, str, str]] | None:
    """Lists the changes since a trial was trained; None without records."""
    assert self.folder is not None
    try:
      recorded = config_lib.read_resolved(self.folder / run, today.config.used.sources)
    except Damaged:
      recorded = None
    if recorded is not None:
      return today.differences(recorded)
    outcome = usable_outcome(self.folder / run)
    return None if outcome is None else today.differences_of_older(outcome.made_by)


class _Today:
  """Resolved values of a config today, without its seed."""

  def __init__(self, config: config_lib.Config, seed: str, data: Data):
    self.config, self.data = config, data
    self.resolved = config_lib.resolved(config, [seed])
    self.seeds = config_lib.paths_of(config, [seed])

  def differences(self, before: config_lib.Resolved) -> list[tuple[str, str, str]]:
    """Lists the changes: path, value before, value today."""
    now = dataclasses.replace(self.resolved, data=self.data()) if before.data else self.resolved
    return [line for line in config_lib.differences(before, now) if line[0] not in self.seeds]

  def differences_of_older(self, made_by: Mapping[str, str]) -> list[tuple[str, str, str]]:
    """Lists the modules and data that have changed since a trial of an older version.

    Older versions recorded the digests of imported modules, but not of their own imports. The digest of a package
    covered all its files.
    """
    modules, data = (dict(_named(made_by, kind)) for kind in ('module ', 'data '))
    plain = {n for n, source in self.config.used.sources.items() if '/__init__.' not in source.path}
    now = {
      name: digest for name, digest in self.resolved.modules.items() if name in plain & {*modules}
    }
    before = {name: modules[name] for name in now}
    side = dataclasses.replace(self.resolved, modules=now, data=self.data() if data else {})
    return config_lib.differences(dataclasses.replace(side, modules=before, data=data), side)


def _named(made_by: Mapping[str, str], kind: str) -> Iterator[tuple[str, str]]:
  for name, value in made_by.items():
    if name.startswith(kind):
      yield name.removeprefix(kind), value


def _earlier(name: str, changed: list[tuple[str, str, str]]) -> Earlier:
  return Earlier(name, (*config_lib.change_lines(dict.fromkeys(changed)),))
