"""Memory, collectives, time and cost of a training run, before it starts."""

from t2x.plan.hardware import *
from t2x.plan.plan import *
from t2x.plan.text import *
