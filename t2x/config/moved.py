"""Settings that have moved: an error with the new lines in configs, and a conversion of the configs of stored runs."""

import os
from collections.abc import Iterator, Mapping, Sequence

from t2x.config.parse import Statement, parse_value
from t2x.config.registries import Registry
from t2x.config.values import Finding, to_gin

# Lines to write instead of a setting, by part and setting; {part} is the name of the part, which may be a subclass.
MOVED: Mapping[str, Mapping[str, Sequence[str]]] = {
  'MultiHeadAttention': {
    'head_norms': ('{part}.qk_norm = {value}',),
    'joint_qk_norm': ('{part}.qk_norm = @JointNorm', 'JointNorm.norm = {value}'),
  },
}
# Names of today of renamed settings, by part and former name. Identities of trials hash the former name.
RENAMED: Mapping[str, Mapping[str, str]] = {'Trainer': {'failed_saves': 'max_failed_saves'}}
# File name of the config in a run folder.
STORED = 'config.gin'


def lines_instead(statement: Statement, registry: Registry) -> list[str] | None:
  """Returns the lines to write instead of a binding of a setting that has moved, without its scope.

  Returns:
    [] for the value None, the default of all settings in `MOVED`; None for other statements.
  """
  matches = registry.find(statement.name)
  if statement.is_macro or len(matches) != 1 or statement.param in matches[0].parameters:
    return None
  name, value = statement.name, to_gin(statement.value)
  for base in getattr(matches[0].obj, '__mro__', ()):
    if today := RENAMED.get(base.__name__, {}).get(statement.param):
      return [f'{name}.{today} = {value}']
    if texts := MOVED.get(base.__name__, {}).get(statement.param):
      return [] if value == 'None' else [line.format(part=name, value=value) for line in texts]
  return None


def current(
  statements: Sequence[Statement], registry: Registry, findings: list[Finding]
) -> Iterator[Statement]:
  """Yields statements with the settings of today.

  Args:
    statements: all statements of a config.
    registry: the parts.
    findings: gets an error for each moved setting that is not in the config of a stored run.
  """
  for statement in statements:
    lines = lines_instead(statement, registry)
    if lines is None:
      yield statement
      continue
    scope = f'{statement.scope}/' if statement.scope else ''
    if os.path.basename(statement.place.file) != STORED:
      new = ' and '.join(f'`{scope}{line}`' for line in lines)
      advice = f'write {new} instead' if new else 'remove this line, which sets the default'
      findings.append(Finding(statement.place, f'{statement.target} has moved: {advice}'))
      continue
    for line in lines:
      target, _, value = line.partition(' = ')
      name, _, param = target.rpartition('.')
      place = statement.place, statement.named_at
      yield Statement(statement.scope, name, param, parse_value(value), *place)
