"""Variants of an experiment: what fits, the nearest changes, and the search."""

import dataclasses

import pytest

from t2x.base.errors import UserError
from t2x.plan import DEVICES, Request, make_plan, report
from t2x.plan.planner import Planner
from tests.plan.tiny import FILES, FLOAT32, LARGE, SETTINGS, mesh_file

H100 = DEVICES['h100']


def device_with(usable):
  """A small H100."""
  return dataclasses.replace(H100, memory=usable / 0.92)


@pytest.fixture(scope='module')
def base():
  return Planner(FILES, SETTINGS, 1, H100).base


def test_the_nearest_changes_fit_and_are_the_smallest(base):
  """Two micro-batches are enough for a device that lacks a few bytes."""
  device = device_with(base.footprint.total - 1)
  plan = make_plan(Request(FILES, SETTINGS, 1, device, dry=True), lambda line: None)
  assert plan.base.fits is False
  settings = [one.variant.bindings for one in plan.changes if one.fits]
  assert settings == [('Trainer.accumulate=2',), ("Stack.remat='dots'",)]
  text = report(plan)
  assert 'does not fit into one h100' in text
  assert "Stack.remat='dots'" in text


@pytest.mark.nightly
def test_a_device_smaller_than_the_state_has_no_change_that_fits(base):
  device = device_with(base.footprint.arguments - 1)
  plan = make_plan(Request(FILES, SETTINGS, 1, device, dry=True), lambda line: None)
  assert plan.changes
  assert not any(one.fits for one in plan.changes)


@pytest.mark.nightly
def test_the_search_returns_the_fastest_variants_that_fit():
  device = device_with(Planner(FILES, LARGE, 1, H100).base.footprint.total / 2)
  settings = [*LARGE, 'Trainer.batch_size=64']
  request = Request([*FILES, mesh_file('fsdp')], settings, 8, device, search=True, dry=True)
  plan = make_plan(request, lambda line: None)
  times = [one.variant.time.estimate for one in plan.best]
  assert all(one.fits for one in plan.best)
  assert times == sorted(times)
  assert plan.num_tried > len(plan.best)
  unchanged = Planner(request.files, settings, 8, device).base
  if plan.base.fits:
    assert times[0] <= unchanged.time.estimate


def test_without_the_rate_of_a_dtype_there_is_no_time():
  plan = make_plan(Request(FILES, [*SETTINGS, FLOAT32], 1, H100, dry=True), lambda line: None)
  assert plan.base.cost is None
  assert 'time: unknown' in report(plan)


def test_a_search_without_a_time_is_refused():
  request = Request(FILES, SETTINGS, 1, H100, search=True, dry=True)
  with pytest.raises(UserError, match=r'ranks by time, which is unknown: .* are fewer than'):
    make_plan(request, lambda line: None)


def test_devices_that_the_mesh_does_not_use_are_refused():
  with pytest.raises(UserError, match=r'--devices 8: the mesh has Mesh.num_devices = 1'):
    Planner([*FILES, mesh_file('single')], SETTINGS, 8, None)
