"""Memory, collectives, time and cost of a training run, before it starts."""

from t2x.plan.hardware import DEVICES, Device, device
from t2x.plan.plan import Plan, Request, make_plan, plan_json
from t2x.plan.report import report

__all__ = ['DEVICES', 'Device', 'Plan', 'Request', 'device', 'make_plan', 'plan_json', 'report']
