"""Renders files that start t2x with Slurm, Kubernetes, SkyPilot, or on this machine.

The templates are part of the package, so that an installed t2x renders them; launch/ has rendered examples.
"""

from t2x.launch.job import *
from t2x.launch.kubernetes import *
from t2x.launch.local import *
from t2x.launch.skypilot import *
from t2x.launch.slurm import *
from t2x.launch.target import *
