"""Renders files that start t2x with Slurm, Kubernetes, SkyPilot, or on this machine.

The templates are part of the package, so that an installed t2x renders them; launch/ has rendered examples.
"""

from t2x.launch.job import Job, default_name
from t2x.launch.kubernetes import GpuNodes, Kubernetes, TpuSlices
from t2x.launch.local import Local
from t2x.launch.skypilot import SkyPilot
from t2x.launch.slurm import Allocation, Slurm, SlurmSweep
from t2x.launch.target import Target, render

__all__ = [
  'Allocation',
  'GpuNodes',
  'Job',
  'Kubernetes',
  'Local',
  'SkyPilot',
  'Slurm',
  'SlurmSweep',
  'Target',
  'TpuSlices',
  'default_name',
  'render',
]
