"""Device meshes, shardings and multi-process runs. Only this package names mesh axes."""

from t2x.parallel.mesh import *
from t2x.parallel.placed import *
from t2x.parallel.processes import *
from t2x.parallel.report import *
from t2x.parallel.sharding import *
