"""Finds the user's modules on which a config depends."""

import dataclasses
import functools
from collections.abc import Mapping, Sequence

from t2x.config.parse import Import
from t2x.config.registries import Registry
from t2x.config.resolve import PartCall, calls
from t2x.config.sources import ModuleSource, closure, has_effects, is_own, version_of
from t2x.config.values import leaves


@dataclasses.dataclass(frozen=True)
class Used:
  """The user's modules, by name, as they were when the config was read.

  Attributes:
    sources: modules on which the config depends: the modules of the parts in use, with their imports. A module without
      a part in use is included if its import may change other objects.
    imported: all modules that the config imports, with their imports.
    versions: versions of libraries whose parts are used.
  """

  sources: Mapping[str, ModuleSource] = dataclasses.field(default_factory=dict)
  imported: Mapping[str, ModuleSource] = dataclasses.field(default_factory=dict)
  versions: Mapping[str, str] = dataclasses.field(default_factory=dict)

  @property
  def digests(self) -> dict[str, str]:
    """Digests of `sources`, and the versions of libraries."""
    return dict(self.versions) | {name: source.digest for name, source in self.sources.items()}


def used_modules(root: object, imports: Sequence[Import], registry: Registry) -> Used:
  """Returns the user's modules on which a resolved tree depends."""
  if not imports:
    return Used()
  homes = _homes(root, registry)
  sources, imported = closure(homes), dict[str, ModuleSource]()
  for statement in imports:
    modules = closure([statement.module])
    imported |= modules
    if has_effects(modules):
      sources |= modules
  versions = {name.partition('.')[0]: version_of(name) for name in homes if not is_own(name)}
  return Used(
    dict(sorted(sources.items())),
    imported | sources,
    {name: version for name, version in versions.items() if version},
  )


def _homes(root: object, registry: Registry) -> set[str]:
  """Returns the modules of the user's parts and other objects in use."""
  homes = set[str]()
  for call in calls(root):
    homes |= {registry.home_of(call.part)[0], *registry.exported_by(call.part)}
    for leaf in leaves([*call.values.values()]):
      inner = leaf.func if isinstance(leaf, functools.partial) else leaf
      part = registry.part_of(inner) or registry.part_of(type(inner))
      home = registry.home_of(part)[0] if part else getattr(inner, '__module__', '')
      if not isinstance(leaf, PartCall) and isinstance(home, str) and (part or is_own(home)):
        homes.add(home)
  return homes - {''}
