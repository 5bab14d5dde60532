"""Device meshes, shardings and multi-process runs. Only this package names mesh axes."""

from typing import TYPE_CHECKING

from t2x.base.names import exports

if TYPE_CHECKING:
  from t2x.parallel.mesh import *
  from t2x.parallel.placed import *
  from t2x.parallel.processes import *
  from t2x.parallel.report import *
  from t2x.parallel.sharding import *
else:
  __getattr__, __dir__ = exports(__name__)
