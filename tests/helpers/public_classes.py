"""The classes that configs can name, those of domains and samples included."""

import importlib
import inspect

from t2x.base.names import names, packages


def public_classes(base, abstract=False):
  """Returns name -> class of the subclasses of `base`, without abstract classes unless `abstract`."""
  entries = (entry for package in packages() for entry in names(package))
  found = {
    entry.name: getattr(importlib.import_module(entry.module), entry.name) for entry in entries
  }
  return {
    name: one
    for name, one in found.items()
    if inspect.isclass(one) and issubclass(one, base) and (abstract or not inspect.isabstract(one))
  }
