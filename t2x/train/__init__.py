"""Training: loop, train step, optimizers, schedules, checkpoints, metric writers."""

from typing import TYPE_CHECKING

from t2x.base.names import exports

if TYPE_CHECKING:
  from t2x.train.checkpoints.resize import *
  from t2x.train.checks import *
  from t2x.train.experiment import *
  from t2x.train.faults import *
  from t2x.train.groups import *
  from t2x.train.init_from import *
  from t2x.train.logs.trackers import *
  from t2x.train.loop import *
  from t2x.train.mup import *
  from t2x.train.optimizers import *
  from t2x.train.program import *
  from t2x.train.recovery import *
  from t2x.train.run import *
  from t2x.train.schedules import *
else:
  __getattr__, __dir__ = exports(__name__)
