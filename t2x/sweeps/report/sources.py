"""Code and data of the trials of a report: a verdict needs the same ones on both sides."""

from collections.abc import Iterable

from t2x.sweeps.records import Outcome, Trial, shown_changes

_KINDS = ('module ', 'data ')


def mixed_sources(trials: Iterable[tuple[Trial, Outcome | None]]) -> str:
  """Returns why the trials of a variant and its baseline are not comparable; '' if their code, data
  and defaults are equal.

  A module or a source of data that only some of the trials have recorded is no difference.
  """
  values: dict[str, dict[str, None]] = {}
  defaults: dict[tuple[str, ...], None] = {}
  for trial, outcome in trials:
    if outcome is None:
      continue
    changed = trial.changed if trial.accepted else ()
    defaults[tuple(line for line in changed if not line.startswith(_KINDS))] = None
    for name, value in outcome.made_by.items():
      if name.startswith(_KINDS):
        values.setdefault(name, {})[value] = None
  mixed = [f'{name} is {" and ".join(found)}' for name, found in values.items() if len(found) > 1]
  if len(defaults) > 1:
    mixed += [line for changed in defaults for line in changed]
  return f'trials with different code, data or defaults: {shown_changes(mixed)}' if mixed else ''


def accepted_trials(trials: Iterable[Trial]) -> str:
  """Describes the trials that are used although code, data or defaults have changed since; '' without any."""
  accepted = {trial.folder: trial.changed for trial in trials if trial.accepted}
  if not accepted:
    return ''
  changes = [*dict.fromkeys(line for changed in accepted.values() for line in changed)]
  count = 'one trial is' if len(accepted) == 1 else f'{len(accepted)} trials are'
  return f'{count} from before a change (--accept-changed): {shown_changes(changes)}'
